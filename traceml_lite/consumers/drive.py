"""The loop of a training script without the training: ask, get, step, over as many epochs as it takes.

It keeps no times of single deliveries, as the probe does; only a ceiling run, which the probe cannot see,
has its steps timed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from traceml_lite._errors import TargetError
from traceml_lite.consumers.parse import Consumer


@dataclass(frozen=True, slots=True)
class DriveResult:
    """What a drive did."""

    deliveries: int
    """Batches that the loader delivered."""
    epochs: int
    """Epochs that were begun."""
    wall_ns: int
    """From the first call of ``iter(loader)`` to the end of the last step."""
    replayed_step_ns: tuple[int, ...] = ()
    """Durations of the steps on batches from memory, a ceiling run only; its steps per second follow."""

    @property
    def ceiling_steps_per_s(self) -> float | None:
        """Steps per second when batches cost nothing; None unless it was a ceiling run."""
        total_ns = sum(self.replayed_step_ns)
        return len(self.replayed_step_ns) * 1e9 / total_ns if total_ns else None


def drive(
    loader: Iterable[Any],
    consumer: Consumer,
    *,
    deliveries: int | None = None,
    on_delivery: Callable[[int], None] | None = None,
) -> DriveResult:
    """Take batches from a loader and give each to the consumer.

    Args:
        loader: Anything that can be iterated again for another epoch.
        consumer: What to do with each batch.
        deliveries: How many batches to take, over as many epochs as needed; None for one epoch. In a ceiling
            run the number of replayed steps, one per cached batch when None.
        on_delivery: Called after each step with the number of steps done so far.

    Returns:
        What was done. Fewer deliveries than asked for mean that an epoch came without any batch.

    Raises:
        TargetError: The very first epoch delivered nothing.
        ValueError: ``deliveries`` is below 1.
    """
    if deliveries is not None and deliveries < 1:
        raise ValueError(f"deliveries must be at least 1, got {deliveries}")
    if consumer.cached_batches is not None:
        return _replay(loader, consumer, consumer.cached_batches, deliveries, on_delivery)
    start_ns = time.perf_counter_ns()
    done = epochs = 0
    while True:
        epochs += 1
        before = done
        # The iterator has no name here, so that an early end frees it, and its workers, at once.
        for batch in loader:
            consumer.step(batch)
            done += 1
            if on_delivery is not None:
                on_delivery(done)
            if done == deliveries:
                break
        end_ns = time.perf_counter_ns()
        if done == 0:
            raise TargetError("the loader delivered no batch: its first epoch was empty")
        if deliveries is None or done >= deliveries or done == before:
            return DriveResult(done, epochs, end_ns - start_ns)


def _replay(
    loader: Iterable[Any],
    consumer: Consumer,
    cached_batches: int,
    steps: int | None,
    on_delivery: Callable[[int], None] | None,
) -> DriveResult:
    """Fetch a few batches, let the workers go, then step on the batches again and again."""
    start_ns = time.perf_counter_ns()
    cache: list[Any] = []
    for batch in loader:
        cache.append(batch)
        if len(cache) == cached_batches:
            break
    if not cache:
        raise TargetError("the loader delivered no batch: its first epoch was empty")
    durations_ns = []
    for done in range(steps if steps is not None else len(cache)):
        began_ns = time.perf_counter_ns()
        consumer.step(cache[done % len(cache)])
        durations_ns.append(time.perf_counter_ns() - began_ns)
        if on_delivery is not None:
            on_delivery(done + 1)
    return DriveResult(len(cache), 1, time.perf_counter_ns() - start_ns, tuple(durations_ns))
