"""The pieces of work that demos are made of, and the dataset that does one of them per fetch.

A fetch is one call of ``__getitems__`` (torch asks for the whole batch at once where it is there), so a
cost is exact per batch and not summed from sleeps per sample.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.consumers.demos.record import ENDLESS_SAMPLES

# Values in one sample; enough to be a tensor, too few to cost anything.
SAMPLE_VALUES = 16


def sleep_ms(duration_ms: float) -> None:
    """Block without using the CPU."""
    if duration_ms > 0:
        time.sleep(duration_ms / 1000)


def burn_ms(cpu_ms: float) -> None:
    """Use this much CPU time in the calling thread, however long that takes on the clock."""
    end_ns = time.thread_time_ns() + int(cpu_ms * 1e6)
    while time.thread_time_ns() < end_ns:
        # Some 20 us of work between two looks at the clock, which is a system call.
        sum(range(1000))


def hash_ms(cpu_ms: float) -> None:
    """The same without holding Python's lock, as a decoder in C does, so that threads run side by side."""
    block = bytes(1 << 15)
    end_ns = time.thread_time_ns() + int(cpu_ms * 1e6)
    while time.thread_time_ns() < end_ns:
        hashlib.sha256(block).digest()


def noise(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on its arguments only: the same sample is as slow in every run."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64


def usable_cpus() -> list[int]:
    """CPUs in the affinity mask, in order."""
    return sorted(os.sched_getaffinity(0))


@dataclass
class Samples:
    """A map-style dataset whose fetches cost what a subclass says in `_work`.

    The samples depend on their index only, so that any two runs can be checked for equal data.
    """

    length: int = ENDLESS_SAMPLES

    def _work(self, indices: Sequence[int]) -> None:
        """What one fetch costs."""

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        self._work(indices)
        return [self._sample(index) for index in indices]

    def _sample(self, index: int) -> Any:
        """One sample, from its index alone."""
        return sample(index)


def sample(index: int) -> NDArray[np.float32]:
    """The sample that every demo makes unless its samples are the point."""
    return np.full(SAMPLE_VALUES, index % 4096, dtype=np.float32)
