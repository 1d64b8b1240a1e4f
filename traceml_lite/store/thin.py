"""Bounding a trace: keep the longest waits and an even sample of the rest.

Works on whole files in chunks, so that memory stays small in the training process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.records.run import MISSING
from traceml_lite.store.layout import DELIVERIES, DELIVERY, FETCH, FETCHES

# Records read at a time: 64 Ki x 128 bytes = 8 MiB.
CHUNK = 1 << 16
# The longest waits of each thinning are kept whatever the stride: stalls are rarer than this in every
# shape but the uniform one, where an even sample tells the same story.
KEPT_SHARE = 0.05


def kept(deliveries: Any, stride: int, floor_ns: int) -> NDArray[np.bool_]:
    """Which deliveries stay: every ``stride``-th by sequence number, and waits of at least ``floor_ns``."""
    waits = deliveries["got_ns"] - deliveries["ask_ns"]
    chosen: NDArray[np.bool_] = (deliveries["sequence"] % stride == 0) | (waits >= floor_ns)
    return chosen


def steps_of(deliveries: Any) -> NDArray[np.int64]:
    """``step_ns`` of each delivery, filled in where it is not there: to the next ask of the same turn.

    The probe writes the step itself only where it read the counters around it, and at the end of an epoch.

    Args:
        deliveries: Records, or a mapping of their columns.

    Returns:
        The column itself where nothing is missing, else a new one.
    """
    steps: NDArray[np.int64] = deliveries["step_ns"]
    if not len(steps) or not (steps == MISSING).any():
        return steps
    turn = (deliveries["iterator"].astype(np.int64) << 32) | deliveries["turn"]
    number = deliveries["delivery"].astype(np.int64)
    in_order = bool(((turn[1:] > turn[:-1]) | ((turn[1:] == turn[:-1]) & (number[1:] > number[:-1]))).all())
    order = np.arange(len(turn)) if in_order else np.lexsort((number, turn))
    one, other = order[:-1], order[1:]
    follows = (turn[one] == turn[other]) & (number[one] + 1 == number[other])
    fill = follows & (steps[one] == MISSING)
    filled: NDArray[np.int64] = steps.copy()
    filled[one[fill]] = deliveries["ask_ns"][other[fill]] - deliveries["got_ns"][one[fill]]
    return filled


def thin_files(path: Path, stride: int, target: int) -> Mapping[str, int]:
    """Rewrite the record files of the trace at ``path``, keeping an even sample and the longest waits.

    Args:
        path: Trace directory.
        stride: Of the last thinning. It is doubled only until the sample fits: what came since then is
            there in full, and thinning that alone may be enough.
        target: Deliveries that the sample may hold.

    Returns:
        ``stride``, ``deliveries`` (before), ``kept`` (after), ``floor_ns``.

    Raises:
        OSError: The disk is full; the old files are untouched then.
    """
    columns = [
        (chunk["sequence"].copy(), chunk["got_ns"] - chunk["ask_ns"])
        for chunk in _chunks(path / DELIVERIES, DELIVERY)
    ]
    sequence, waits = (np.concatenate(part) for part in zip(*columns, strict=True))
    floor_ns = int(np.quantile(waits, 1 - KEPT_SHARE)) + 1
    stride = max(stride, 2)
    while ((sequence % stride == 0) | (waits >= floor_ns)).sum() > target and stride < len(sequence):
        stride *= 2
    keys: list[NDArray[np.uint64]] = []
    count = 0
    with open(path / ".thin.deliveries", "wb") as out:
        for chunk in _chunks(path / DELIVERIES, DELIVERY):
            # A step is known from the next delivery, which may not stay. By chunk: the last of each has none.
            filled = chunk.copy()
            filled["step_ns"] = steps_of(chunk)
            chosen = filled[kept(chunk, stride, floor_ns)]
            keys.append(_key(chosen))
            count += len(chosen)
            out.write(chosen.tobytes())
    wanted = np.unique(np.concatenate(keys)) if keys else np.zeros(0, dtype=np.uint64)
    newest = _newest(path)
    with open(path / ".thin.fetches", "wb") as out:
        for chunk in _chunks(path / FETCHES, FETCH):
            # A fetch later than the last delivery may still be delivered: it is kept until the next thinning.
            stays = np.isin(_key(chunk), wanted) | (chunk["fetch_end_ns"] > newest)
            out.write(chunk[stays].tobytes())
    os.replace(path / ".thin.fetches", path / FETCHES)
    os.replace(path / ".thin.deliveries", path / DELIVERIES)
    return {"stride": stride, "deliveries": len(waits), "kept": count, "floor_ns": floor_ns}


def _key(records: NDArray[Any]) -> NDArray[np.uint64]:
    """One number per (iterator, turn, worker, k). A rare collision keeps one fetch too many, no more."""
    key = records["iterator"].astype(np.uint64)
    for name, factor in (("turn", 1_000_003), ("worker", 65_537), ("k", 0x9E3779B97F4A7C15)):
        key = key * np.uint64(factor) + records[name].astype(np.int64).astype(np.uint64)
    return key


def _newest(path: Path) -> int:
    size = (path / DELIVERIES).stat().st_size // DELIVERY.itemsize
    if not size:
        return 0
    with open(path / DELIVERIES, "rb") as file:
        file.seek((size - 1) * DELIVERY.itemsize)
        return int(np.frombuffer(file.read(DELIVERY.itemsize), dtype=DELIVERY)["ask_ns"][0])


def _chunks(path: Path, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    with open(path, "rb") as file:
        while data := file.read(CHUNK * dtype.itemsize):
            yield np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype=dtype)
