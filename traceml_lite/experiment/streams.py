"""Did two passes see the same samples in the same order? From the running hashes of their index streams.

Pure. A pass dispatches a little more than it delivers, and arms differ in how much, so streams are compared
up to the largest number of samples that both noted, per epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Stream = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """Streams of several passes against each other."""

    same: bool | None
    """None when fewer than two passes have a stream that can be compared."""
    samples: int
    """Samples up to which they were compared, over all epochs."""
    hashes: Mapping[int, str]
    """Pass number to the hash at that point: equal where the stream was the same."""
    differing: tuple[int, ...] = ()
    """Numbers of the passes that differ from the first."""


def check_streams(streams: Mapping[int, Stream], *, until: Mapping[int, int] | None = None) -> StreamCheck:
    """Compare the streams of passes.

    Args:
        streams: Pass number to its rows of (epoch, samples so far, hash so far).
        until: Pass number to the number of batches of an epoch after which its order is its own by
            design (a control that repeats); later rows are left out.

    Returns:
        Whether all saw the same, and up to where that could be compared.
    """
    limits = until or {}
    points = {number: _points(rows, limits.get(number)) for number, rows in streams.items()}
    points = {number: one for number, one in points.items() if one}
    if len(points) < 2:
        return StreamCheck(None, 0, {number: _hex(one) for number, one in points.items()})
    numbers = sorted(points)
    first = points[numbers[0]]
    differing = [number for number in numbers[1:] if _agree(first, points[number]) is False]
    common = _common(list(points.values()))
    hashes = {number: _hex({key: points[number][key] for key in common}) for number in numbers}
    # A hash at a point stands for all before it, so the last point of each epoch counts the samples.
    last: dict[int, int] = {}
    for epoch, samples in common:
        last[epoch] = max(last.get(epoch, 0), samples)
    # Streams without a point in common were not compared, and "the same" would be said of nothing.
    same = False if differing else True if common else None
    return StreamCheck(same, sum(last.values()), hashes, tuple(differing))


def _points(rows: Stream, until: int | None) -> dict[tuple[int, int], int]:
    points: dict[tuple[int, int], int] = {}
    batches: dict[int, int] = {}
    for epoch, samples, digest in rows.tolist():
        batches[epoch] = batches.get(epoch, 0) + 1
        if until is None or batches[epoch] <= until:
            points[epoch, samples] = digest
    return points


def _agree(a: Mapping[tuple[int, int], int], b: Mapping[tuple[int, int], int]) -> bool | None:
    common = a.keys() & b.keys()
    return all(a[key] == b[key] for key in common) if common else None


def _common(points: Sequence[Mapping[tuple[int, int], int]]) -> list[tuple[int, int]]:
    keys = set(points[0])
    for one in points[1:]:
        keys &= set(one)
    last: dict[int, int] = {}
    for epoch, samples in keys:
        last[epoch] = max(last.get(epoch, 0), samples)
    return sorted(last.items())


def _hex(points: Mapping[tuple[int, int], int]) -> str:
    combined = 0
    for key in sorted(points):
        combined = (combined * 1_000_003 + points[key]) % (1 << 64)
    return f"{combined:016x}"
