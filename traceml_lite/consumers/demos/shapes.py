"""Demos of the shapes: how a cost reaches the training loop in time. The cost itself is a sleep.

The numbers make each shape plain at its default number of workers, and keep to the catalogue's law of the
gap when that number is swept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from traceml_lite.consumers.demos.record import ENDLESS_SAMPLES, Demo, Parts
from traceml_lite.consumers.demos.work import Samples, noise, sleep_ms


def worker_id() -> int | None:
    """Number of the DataLoader worker that this runs in; None in the consumer's process."""
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return None if info is None else int(info.id)


@dataclass
class Steady(Samples):
    """Every fetch takes about the same time."""

    fetch_ms: float = 20.0
    spread: float = 0.0
    """Fetches vary uniformly by this share to either side."""
    seed: int = 0

    def _work(self, indices: Sequence[int]) -> None:
        shift = 2.0 * noise(self.seed, indices[0]) - 1.0
        sleep_ms(self.fetch_ms * (1.0 + self.spread * shift))


@dataclass
class SlowWorker(Samples):
    """Worker 0 is slower than the others."""

    fetch_ms: float = 20.0
    slow_ms: float = 100.0

    def _work(self, indices: Sequence[int]) -> None:
        sleep_ms(self.slow_ms if worker_id() == 0 else self.fetch_ms)


@dataclass
class SlowSample(Samples):
    """A few samples, anywhere, take far longer."""

    fetch_ms: float = 8.0
    slow_ms: float = 400.0
    one_in: int = 120
    seed: int = 0

    def _work(self, indices: Sequence[int]) -> None:
        slow = any(noise(self.seed, index) * self.one_in < 1.0 for index in indices)
        sleep_ms(self.slow_ms if slow else self.fetch_ms)


@dataclass
class DataPeriod(Samples):
    """The first sample of each row group is slow to get at, the others come with it."""

    fetch_ms: float = 8.0
    slow_ms: float = 250.0
    group_samples: int = 44

    def _work(self, indices: Sequence[int]) -> None:
        opens = any(index % self.group_samples == self.group_samples // 2 for index in indices)
        sleep_ms(self.slow_ms if opens else self.fetch_ms)


@dataclass
class WorkerPeriod(Samples):
    """Each worker has to refill its buffer at every n-th fetch of its own."""

    fetch_ms: float = 8.0
    slow_ms: float = 200.0
    every: int = 3
    fetches: int = field(default=0, init=False)

    def _work(self, indices: Sequence[int]) -> None:
        self.fetches += 1
        sleep_ms(self.slow_ms if self.fetches % self.every == 0 else self.fetch_ms)


@dataclass
class ClockPeriod(Samples):
    """Everything stands still at the same moments of the clock, whatever batch is in work."""

    fetch_ms: float = 8.0
    period_ms: float = 500.0
    pause_ms: float = 200.0

    def _work(self, indices: Sequence[int]) -> None:
        sleep_ms(self.fetch_ms)
        # The monotonic clock is common to all processes, so the workers stand still together.
        phase_ms = time.monotonic() * 1000 % self.period_ms
        sleep_ms(self.pause_ms - phase_ms)


@dataclass
class StartUp(Samples):
    """Each worker opens its files at its first fetch."""

    fetch_ms: float = 20.0
    first_ms: float = 2000.0
    opened: bool = field(default=False, init=False)

    def _work(self, indices: Sequence[int]) -> None:
        sleep_ms(self.fetch_ms if self.opened else self.first_ms)
        self.opened = True


@dataclass
class Drift(Samples):
    """Each fetch of a worker is a little slower than the one before, as with a list that is searched."""

    fetch_ms: float = 5.0
    growth_ms: float = 0.15
    fetches: int = field(default=0, init=False)

    def _work(self, indices: Sequence[int]) -> None:
        sleep_ms(self.fetch_ms + self.growth_ms * self.fetches)
        self.fetches += 1


@dataclass
class SlowStart:
    """A ``worker_init_fn`` that takes its time, as heavy imports do."""

    start_ms: float

    def __call__(self, worker: int) -> None:
        """Keep the worker from its first task for so long."""
        sleep_ms(self.start_ms)


def _healthy(seed: int, fetch_ms: float = 60.0, spread: float = 0.1) -> Parts:
    return Parts(Steady(fetch_ms=fetch_ms, spread=spread, seed=seed))


def _uniform(seed: int, fetch_ms: float = 25.0, spread: float = 0.1) -> Parts:
    return Parts(Steady(fetch_ms=fetch_ms, spread=spread, seed=seed))


def _saturated_pool(seed: int, fetch_ms: float = 60.0, spread: float = 0.05) -> Parts:
    return Parts(Steady(fetch_ms=fetch_ms, spread=spread, seed=seed))


def _slow_worker(seed: int, fetch_ms: float = 20.0, slow_ms: float = 100.0) -> Parts:
    return Parts(SlowWorker(fetch_ms=fetch_ms, slow_ms=slow_ms))


def _slow_sample(seed: int, fetch_ms: float = 8.0, slow_ms: float = 400.0, one_in: int = 120) -> Parts:
    return Parts(SlowSample(fetch_ms=fetch_ms, slow_ms=slow_ms, one_in=one_in, seed=seed))


def _data_period(seed: int, fetch_ms: float = 8.0, slow_ms: float = 250.0, group_samples: int = 44) -> Parts:
    return Parts(DataPeriod(fetch_ms=fetch_ms, slow_ms=slow_ms, group_samples=group_samples))


def _worker_period(seed: int, fetch_ms: float = 8.0, slow_ms: float = 200.0, every: int = 3) -> Parts:
    return Parts(WorkerPeriod(fetch_ms=fetch_ms, slow_ms=slow_ms, every=every))


def _clock_period(
    seed: int, fetch_ms: float = 8.0, period_ms: float = 500.0, pause_ms: float = 200.0
) -> Parts:
    return Parts(ClockPeriod(fetch_ms=fetch_ms, period_ms=period_ms, pause_ms=pause_ms))


def _epoch_boundary(
    seed: int, fetch_ms: float = 8.0, start_ms: float = 400.0, epoch_samples: int = 160
) -> Parts:
    dataset = Steady(length=epoch_samples, fetch_ms=fetch_ms, seed=seed)
    return Parts(dataset, {"worker_init_fn": SlowStart(start_ms)})


def _start_up(seed: int, fetch_ms: float = 20.0, first_ms: float = 2000.0) -> Parts:
    return Parts(StartUp(fetch_ms=fetch_ms, first_ms=first_ms))


def _shard_starvation(seed: int, fetch_ms: float = 20.0, small_shard_samples: int = 16) -> Parts:
    from traceml_lite.consumers.demos.shards import Shards

    sizes = (ENDLESS_SAMPLES, *[small_shard_samples] * 3)
    return Parts(Shards(sizes=sizes, sample_ms=fetch_ms / 4))


def _drift(seed: int, fetch_ms: float = 5.0, growth_ms: float = 0.15) -> Parts:
    return Parts(Drift(fetch_ms=fetch_ms, growth_ms=growth_ms))


def _demo(name: str, text: str, shape: str, make: Any, **rest: Any) -> Demo:
    return Demo(name, text, expects_shape=shape, expects_cost=rest.pop("cost", None), make=make, **rest)


SHAPE_DEMOS: tuple[Demo, ...] = (
    _demo(
        "healthy",
        "Four workers keep up with the consumer.",
        "none",
        _healthy,
        consumer_default="paced:40ms",
        deliveries_default=150,
    ),
    _demo(
        "uniform",
        "One worker, slower than the consumer: every wait is alike.",
        "uniform",
        _uniform,
        num_workers_default=1,
        consumer_default="paced:5ms",
    ),
    _demo(
        "saturated-pool",
        "All workers are equally busy and too few: one long wait, then none for the rest of the round.",
        "saturated_pool",
        _saturated_pool,
        consumer_default="paced:5ms",
    ),
    _demo(
        "slow-worker",
        "One worker is five times slower than the others: the same cadence, another cause.",
        "slow_worker",
        _slow_worker,
    ),
    _demo(
        "slow-sample",
        "A few samples take fifty times longer and hold back the finished batches behind them.",
        "slow_sample",
        _slow_sample,
    ),
    _demo(
        "data-period",
        "Every eleventh batch opens another row group.",
        "data_period",
        _data_period,
        deliveries_default=220,
    ),
    _demo(
        "worker-period",
        "Every third fetch of each worker refills a buffer: the gap grows with the workers.",
        "worker_period",
        _worker_period,
    ),
    _demo(
        "clock-period",
        "All workers stand still twice a second, whatever batch they are at.",
        "clock_period",
        _clock_period,
        consumer_default="paced:5ms-15ms",
        deliveries_default=450,
    ),
    _demo(
        "epoch-boundary",
        "Short epochs, and workers that take long to start at each of them.",
        "epoch_boundary",
        _epoch_boundary,
        cost="start",
    ),
    _demo(
        "start-up",
        "The first fetch of each worker opens files, later ones do not.",
        "start_up",
        _start_up,
        consumer_default="paced:40ms",
        deliveries_default=100,
    ),
    _demo(
        "shard-starvation",
        "One large shard and three small ones: one worker does all the work, whatever their number.",
        "shard_starvation",
        _shard_starvation,
        consumer_default="paced:5ms",
    ),
    _demo(
        "drift",
        "Each fetch is a little slower than the one before.",
        "drift",
        _drift,
        num_workers_default=1,
    ),
)
