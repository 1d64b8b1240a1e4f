"""The faults: real DataLoaders that are slow for a known reason, each with the verdicts that are right.

Run as a script it makes one of them under the probe: ``python experiments/faults/faults.py NAME SEED OUT``.
Seeds change where the slow samples lie and, a little, every duration, so that no threshold is met by luck.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

# Where the files of a fault lie: a disk, not memory.
DATA = os.environ.get("FAULTS_DATA", "/var/tmp")
# The v1 hierarchy of CPU groups; the only place where a quota can be set here.
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")


@dataclass(frozen=True)
class Fault:
    """One fault."""

    name: str
    shapes: tuple[str, ...]
    """Right shapes; empty where the shape is not the point."""
    costs: tuple[str, ...]
    """Right costs; empty where the work is a sleep, which no cost of the catalogue names."""
    demo: str | None
    """The built-in workload it is made from, or None with ``make``."""
    options: Callable[[Random], dict[str, Any]] = field(default=lambda random: {})
    consumer: str = "paced:10ms"
    deliveries: int = 240
    make: Callable[[Random], Any] | None = None
    around: Callable[[Random], contextlib.AbstractContextManager[None]] | None = None
    possible: Callable[[], str | None] = field(default=lambda: None)
    """None, or why it cannot be made on this machine."""
    never_the_loader: bool = False
    """True when the consumer is the slow part: then any cost in the loader is wrong."""


def near(random: Random, value: float, spread: float = 0.15) -> float:
    """``value``, up to ``spread`` more or less."""
    return value * random.uniform(1 - spread, 1 + spread)


@contextlib.contextmanager
def quota(random: Random) -> Iterator[None]:
    """This process and its children may use 0.4 to 0.6 CPUs."""
    group = CPU_GROUPS / f"faults_{os.getpid()}"
    group.mkdir()
    # As one group among many it would get a small share; the fault is the quota and not the others.
    (group / "cpu.shares").write_text("262144")
    (group / "cpu.cfs_quota_us").write_text(str(int(near(random, 50_000, 0.2))))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (CPU_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        deadline = time.monotonic() + 5
        while group.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


def quota_possible() -> str | None:
    """None, or why no quota can be set."""
    if os.geteuid() != 0 or not (CPU_GROUPS / "cpu.cfs_quota_us").exists():
        # The root group of a container has the file as well, the real root has not.
        probe = CPU_GROUPS / f"faults_probe_{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            return f"no CPU group can be made: {error.strerror}"
    return None


def collecting(random: Random) -> Any:
    """Workers with a large heap that collect garbage at every k-th fetch."""
    from torch.utils.data import DataLoader

    dataset = Collecting(every=4, objects=int(near(random, 700_000)))
    return DataLoader(dataset, batch_size=4, num_workers=2)


class Collecting:
    """A big heap of containers, made in the worker; every k-th fetch walks all of it."""

    def __init__(self, every: int, objects: int) -> None:
        self.every, self.objects, self.fetches = every, objects, 0
        self.heap: list[Any] = []

    def __len__(self) -> int:
        return 100_000

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if not self.heap:
            gc.disable()
            self.heap = [[k] for k in range(self.objects)]
        self.fetches += 1
        time.sleep(0.004)
        if self.fetches % self.every == 0:
            gc.collect()
        return [float(index) for index in indices]

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]


class Page:
    """Compute in numpy: sorts, as a stand-in for decoding without Python's lock."""

    def __init__(self, cpu_ms: float) -> None:
        self.cpu_ms = cpu_ms

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        end = time.thread_time_ns() + int(self.cpu_ms * 1e6)
        values = np.arange(4096, dtype=np.float32)
        while time.thread_time_ns() < end:
            np.sort(values[::-1])
        return values[:16] + index


def numpy_pool(workers: int, cpu_ms: float) -> Callable[[Random], Any]:
    """A pool that computes in numpy."""

    def make(random: Random) -> Any:
        from torch.utils.data import DataLoader

        return DataLoader(Page(near(random, cpu_ms)), batch_size=2, num_workers=workers)

    return make


class Uncached:
    """Reads of a file past the page cache, so large that the device is what takes time."""

    def __init__(self, reads: int, seed: int) -> None:
        self.reads, self.seed = reads, seed
        # Open as long as the dataset is: its name is what the workers open.
        self.file = tempfile.NamedTemporaryFile(dir=DATA)  # noqa: SIM115
        for _ in range(64):
            self.file.write(os.urandom(1 << 20))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.descriptor: int | None = None

    def __len__(self) -> int:
        return 100_000

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if self.descriptor is None:
            self.descriptor = os.open(self.file.name, os.O_RDONLY | os.O_DIRECT)
            # Direct reads want memory that begins on a page.
            self.buffer = mmap.mmap(-1, 1 << 20)
        places = Random(self.seed * 1_000_003 + indices[0])
        for _ in range(self.reads):
            os.preadv(self.descriptor, [self.buffer], places.randrange(63) << 20)
        return [float(index) for index in indices]

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]


def uncached(random: Random) -> Any:
    """One worker that reads past the page cache."""
    from torch.utils.data import DataLoader

    dataset = Uncached(reads=random.randint(10, 16), seed=random.randrange(1000))
    return DataLoader(dataset, batch_size=4, num_workers=1)


def in_consumer(random: Random) -> Any:
    """No workers: the loop fetches by itself."""
    return numpy_pool(0, 6.0)(random)


def _options(**values: float) -> Callable[[Random], dict[str, Any]]:
    """Options near these values; whole numbers are kept as they are."""
    return lambda random: {
        name: value if isinstance(value, int) else near(random, value) for name, value in values.items()
    }


FAULTS: tuple[Fault, ...] = (
    Fault("healthy", ("none",), ("consumer",), "healthy", _options(fetch_ms=20.0), "paced:30ms",
          never_the_loader=True),
    Fault("long-step", ("none",), ("consumer",), "consumer", _options(fetch_ms=10.0), "paced:40ms", 120,
          never_the_loader=True),
    Fault("long-busy-step", ("none",), ("consumer",), "consumer", _options(fetch_ms=10.0, num_workers=1),
          "busy:40ms", 100, never_the_loader=True),
    Fault("one-worker", ("uniform",), (), "uniform", _options(fetch_ms=30.0)),
    Fault("no-workers", ("uniform",), ("cpu",), None, consumer="paced:5ms", make=in_consumer),
    Fault("saturated-pool", ("saturated_pool",), (), "saturated-pool", _options(fetch_ms=70.0), "paced:5ms"),
    Fault("slow-worker", ("slow_worker",), (), "slow-worker", _options(fetch_ms=20.0, slow_ms=120.0)),
    Fault("slow-sample", ("slow_sample",), (), "slow-sample", _options(fetch_ms=8.0, slow_ms=450.0)),
    Fault("data-period", ("data_period",), (), "data-period", _options(fetch_ms=8.0, slow_ms=250.0)),
    Fault("worker-period", ("worker_period",), (), "worker-period", _options(fetch_ms=8.0, slow_ms=220.0)),
    Fault("collecting", ("worker_period",), ("cpu",), None, consumer="paced:3ms", deliveries=200,
          make=collecting),
    Fault("clock-period", ("clock_period",), (), "clock-period", _options(pause_ms=200.0), "paced:5ms-15ms",
          450),
    Fault("epoch-boundary", ("epoch_boundary",), ("start",), "epoch-boundary", _options(start_ms=400.0)),
    Fault("start-up", ("start_up",), (), "start-up", _options(first_ms=900.0), "paced:30ms", 160),
    Fault("shard-starvation", ("shard_starvation",), (), "shard-starvation", _options(fetch_ms=24.0)),
    Fault("drift", ("drift",), (), "drift", _options(growth_ms=0.5)),
    Fault("cpu", ("uniform",), ("cpu",), "cpu", _options(cpu_ms=20.0), "paced:5ms"),
    Fault("cpu-numpy", (), ("cpu",), None, consumer="paced:2ms", make=numpy_pool(1, 10.0)),
    Fault("run-queue", (), ("run_queue",), "run-queue", _options(cpu_ms=15.0), "paced:2ms"),
    Fault("run-queue-numpy", (), ("run_queue",), None, consumer="paced:2ms", make=numpy_pool(6, 8.0)),
    Fault("threads", (), ("threads",), "threads", _options(cpu_ms=8.0), "paced:2ms", 160),
    Fault("affinity", (), ("affinity",), "affinity", _options(cpu_ms=10.0), "paced:2ms"),
    Fault("quota", (), ("quota",), "cpu", _options(cpu_ms=20.0), "paced:5ms", 120, around=quota,
          possible=quota_possible),
    Fault("storage", (), ("storage",), None, consumer="paced:1ms", make=uncached),
    Fault("remote", ("uniform",), ("remote",), "remote", _options(latency_ms=30.0), "paced:5ms"),
    Fault("lock", (), ("lock",), "lock", _options(held_ms=15.0), "paced:3ms"),
    Fault("memory", (), ("memory",), "memory", _options(kept_kib=4096), "none", 800),
    Fault("delivery", (), ("delivery",), "delivery", _options(fields=48), "paced:2ms", 160),
    Fault("start", ("start_up",), ("start",), "start", _options(), "paced:10ms", 120),
    Fault("step-starved", ("none",), ("step_starved",), "step-starved", _options(), "busy:10ms",
          never_the_loader=True),
    Fault("neighbours", (), ("neighbours",), "neighbours", _options(cpu_ms=15.0), "paced:5ms", 120),
)  # fmt: skip


def make(name: str, seed: int, out: str) -> None:
    """Run one fault under the probe, in this process."""
    from traceml_lite.consumers.demos import DEMOS
    from traceml_lite.consumers.drive import drive
    from traceml_lite.consumers.parse import parse_consumer
    from traceml_lite.probe import record

    fault = next(fault for fault in FAULTS if fault.name == name)
    random = Random(f"{name}:{seed}")
    around = contextlib.nullcontext() if fault.around is None else fault.around(random)
    if fault.make is not None:
        loader = fault.make(random)
    else:
        assert fault.demo is not None
        loader = DEMOS[fault.demo].build(seed=seed, **fault.options(random))
    with around, record(out):
        drive(loader, parse_consumer(fault.consumer), deliveries=fault.deliveries)


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), sys.argv[3])
