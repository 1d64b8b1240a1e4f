"""Demos of the costs: what a fetch is made of. Each does the real thing, CPU work in CPU time.

Two costs of the catalogue cannot be made here: a cgroup quota needs rights over the host, and pinning
memory needs an accelerator.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from traceml_lite.consumers.demos.files import SlowServer, UnnamedFile, request
from traceml_lite.consumers.demos.record import Demo, Parts
from traceml_lite.consumers.demos.shapes import Steady
from traceml_lite.consumers.demos.work import Samples, burn_ms, hash_ms, noise, sample, sleep_ms, usable_cpus

# The page cache works in these, and so does copy on write.
_PAGE_BYTES = mmap.PAGESIZE


@dataclass
class Cpu(Samples):
    """Every fetch takes the same CPU time in one thread."""

    cpu_ms: float = 20.0

    def _work(self, indices: Sequence[int]) -> None:
        burn_ms(self.cpu_ms)


@dataclass
class HelperThreads(Samples):
    """Every fetch is done by helper threads, as decoders and BLAS libraries do it."""

    threads: int = 4
    cpu_ms: float = 8.0
    pool: ThreadPoolExecutor | None = field(default=None, init=False, repr=False)

    def _work(self, indices: Sequence[int]) -> None:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(self.threads)
        list(self.pool.map(hash_ms, [self.cpu_ms] * self.threads))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "pool": None}


@dataclass
class PinTo:
    """A ``worker_init_fn`` that lets the worker use only the first CPUs of its mask, as some launchers do."""

    cpus: int

    def __call__(self, worker: int) -> None:
        """Narrow the mask of the worker that this runs in."""
        os.sched_setaffinity(0, usable_cpus()[: self.cpus])


@dataclass
class ColdFile(Samples):
    """Every fetch reads blocks that are not in the page cache, at random places."""

    file: UnnamedFile | None = None
    reads: int = 48
    seed: int = 0
    descriptor: int | None = field(default=None, init=False)

    def _work(self, indices: Sequence[int]) -> None:
        assert self.file is not None
        if self.descriptor is None:
            self.descriptor = os.open(self.file.path, os.O_RDONLY | os.O_CLOEXEC)
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        pages = self.file.size_bytes // _PAGE_BYTES
        for read in range(self.reads):
            page = int(noise(self.seed, indices[0] * self.reads + read) * pages)
            os.pread(self.descriptor, _PAGE_BYTES, page * _PAGE_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "descriptor": None}

    def __del__(self) -> None:
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)


@dataclass
class Remote(Samples):
    """Every fetch waits for a server and then reads its answer."""

    server: SlowServer | None = None
    connection: socket.socket | None = field(default=None, init=False, repr=False)

    def _work(self, indices: Sequence[int]) -> None:
        assert self.server is not None
        if self.connection is None:
            self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.connection.connect(self.server.address)
        request(self.connection, self.server.answer_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "connection": None}

    def __del__(self) -> None:
        if self.connection is not None:
            self.connection.close()


@dataclass
class Locked(Samples):
    """Every fetch holds a lock that all workers share, as with one file handle of a library."""

    file: UnnamedFile | None = None
    held_ms: float = 15.0
    descriptor: int | None = field(default=None, init=False)

    def _work(self, indices: Sequence[int]) -> None:
        assert self.file is not None
        if self.descriptor is None:
            # Opened here: a lock belongs to the open file, and one inherited by fork is one for all.
            self.descriptor = os.open(self.file.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        try:
            sleep_ms(self.held_ms)
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "descriptor": None}

    def __del__(self) -> None:
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)


@dataclass
class Growing(Samples):
    """A list of many objects, copied page by page as a worker touches them, and a cache that only grows."""

    objects: list[bytes] = field(default_factory=list, repr=False)
    touched: int = 400
    kept_bytes: int = 2 << 20
    cache: list[Any] = field(default_factory=list, init=False, repr=False)

    def _work(self, indices: Sequence[int]) -> None:
        begin = indices[0] // max(1, len(indices)) * self.touched
        # Holding an object writes its reference count, and that write copies the page it lies on.
        held = [self.objects[(begin + k) % len(self.objects)] for k in range(self.touched)]
        self.cache.append(np.full(self.kept_bytes, len(held) % 256, dtype=np.uint8))


@dataclass
class SmallTensors(Samples):
    """Samples of very many small fields: each becomes a tensor of its own in the batch."""

    fields: int = 48

    def _sample(self, index: int) -> Any:
        return {f"field_{k}": sample(index) for k in range(self.fields)}


@dataclass
class SlowToUnpickle(Steady):
    """A dataset whose state takes long to pickle and to unpickle: millions of small objects."""

    objects: int = 250_000

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "state": [(k, str(k)) for k in range(self.objects)]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


# A process that uses one CPU till its parent is gone, or a minute has passed.
_BURNER = """
import os, select, time
end = time.monotonic() + 60
while time.monotonic() < end and not select.select([0], [], [], 0)[0]:
    for _ in range(200):
        sum(range(1000))
"""


class Neighbours:
    """Other processes that use the CPUs; they end with this object or with this process.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-S", "-c", _BURNER]
        burners = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) for _ in range(count)
        ]
        self._end = weakref.finalize(self, _end_all, burners, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """End them now."""
        self._end()


def _end_all(burners: list[subprocess.Popen[bytes]], owner: int) -> None:
    # A forked worker inherits the object, not the children.
    if os.getpid() != owner:
        return
    for burner in burners:
        burner.kill()
    for burner in burners:
        burner.communicate()


@dataclass
class CpuBesideOthers(Cpu):
    """CPU work on a host that others use as well."""

    neighbours: Neighbours | None = None


def _cpu(seed: int, cpu_ms: float = 12.0) -> Parts:
    return Parts(Cpu(cpu_ms=cpu_ms))


def _run_queue(seed: int, cpu_ms: float = 15.0, cpus: int = 2) -> Parts:
    return Parts(Cpu(cpu_ms=cpu_ms), {"worker_init_fn": PinTo(cpus)})


def _affinity(seed: int, cpu_ms: float = 10.0) -> Parts:
    return Parts(Cpu(cpu_ms=cpu_ms), {"worker_init_fn": PinTo(1)})


def _threads(seed: int, threads: int = 4, cpu_ms: float = 8.0) -> Parts:
    return Parts(HelperThreads(threads=threads, cpu_ms=cpu_ms), {"worker_init_fn": PinTo(2)})


def _storage(seed: int, reads: int = 48, file_mib: int = 64, directory: str | None = None) -> Parts:
    return Parts(ColdFile(file=UnnamedFile(directory, file_mib << 20), reads=reads, seed=seed))


def _remote(seed: int, latency_ms: float = 30.0, answer_kib: int = 256) -> Parts:
    return Parts(Remote(server=SlowServer(latency_ms, answer_kib << 10)))


def _lock(seed: int, held_ms: float = 15.0) -> Parts:
    return Parts(Locked(file=UnnamedFile(None, _PAGE_BYTES), held_ms=held_ms))


def _memory(seed: int, heap_mib: int = 128, kept_kib: int = 2048, touched: int = 400) -> Parts:
    # One object a page, as encoded samples of a few KiB are.
    objects = [bytes(_PAGE_BYTES - 64) for _ in range(heap_mib << 20 >> 12)]
    return Parts(Growing(objects=objects, touched=touched, kept_bytes=kept_kib << 10))


def _delivery(seed: int, fields: int = 48) -> Parts:
    return Parts(SmallTensors(fields=fields))


def _start(seed: int, fetch_ms: float = 8.0, objects: int = 250_000) -> Parts:
    return Parts(SlowToUnpickle(fetch_ms=fetch_ms, objects=objects), {"multiprocessing_context": "spawn"})


def _consumer(seed: int, fetch_ms: float = 8.0) -> Parts:
    return Parts(Steady(fetch_ms=fetch_ms, seed=seed))


def _step_starved(seed: int, cpu_ms: float | None = None) -> Parts:
    # Workers that would use all CPUs but a part of one: K CPUs, a step of 10 ms CPU, 12 ms for each CPU.
    return Parts(Cpu(cpu_ms=12.0 * len(usable_cpus()) if cpu_ms is None else cpu_ms))


def _neighbours(seed: int, cpu_ms: float = 15.0, processes: int | None = None) -> Parts:
    count = 2 * len(usable_cpus()) if processes is None else processes
    return Parts(CpuBesideOthers(cpu_ms=cpu_ms, neighbours=Neighbours(count)))


def _demo(name: str, text: str, shape: str | None, make: Any, **rest: Any) -> Demo:
    cost = rest.pop("cost", name.replace("-", "_"))
    return Demo(name, text, expects_shape=shape, expects_cost=cost, make=make, **rest)


def _all() -> Iterator[Demo]:
    yield _demo(
        "cpu",
        "One worker computes all the time.",
        "uniform",
        _cpu,
        num_workers_default=1,
        consumer_default="paced:5ms",
    )
    yield _demo(
        "run-queue",
        "Six workers compute on two CPUs: each waits for a CPU longer than it uses one.",
        None,
        _run_queue,
        num_workers_default=6,
        consumer_default="paced:2ms",
    )
    yield _demo(
        "threads",
        "Each worker computes with four helper threads, and they are in each other's way.",
        None,
        _threads,
        num_workers_default=2,
        consumer_default="paced:2ms",
        deliveries_default=160,
    )
    yield _demo(
        "affinity",
        "Four workers are pinned to one and the same CPU.",
        None,
        _affinity,
        consumer_default="paced:2ms",
    )
    yield _demo(
        "storage",
        "Each fetch reads a file at random places, past the page cache.",
        None,
        _storage,
        num_workers_default=1,
        consumer_default="paced:1ms",
    )
    yield _demo(
        "remote",
        "Each fetch waits for a distant server to answer a read.",
        "uniform",
        _remote,
        num_workers_default=1,
        consumer_default="paced:5ms",
        deliveries_default=200,
    )
    yield _demo(
        "lock",
        "All workers share one lock: four are as fast as one.",
        None,
        _lock,
        consumer_default="paced:3ms",
    )
    yield _demo(
        "memory",
        "Workers copy the parent's memory page by page and keep what they have read.",
        None,
        _memory,
        num_workers_default=2,
        consumer_default="none",
        deliveries_default=160,
    )
    yield _demo(
        "delivery",
        "Batches of many small tensors: quick to fetch, slow to hand over.",
        None,
        _delivery,
        num_workers_default=2,
        consumer_default="paced:2ms",
        deliveries_default=160,
    )
    yield _demo(
        "start",
        "A spawned worker imports torch and unpickles a large dataset before its first fetch.",
        "start_up",
        _start,
        num_workers_default=1,
        deliveries_default=80,
    )
    yield _demo(
        "consumer",
        "The step is long and the loader is not the cause.",
        "none",
        _consumer,
        num_workers_default=2,
        consumer_default="paced:40ms",
        deliveries_default=120,
    )
    yield _demo(
        "step-starved",
        "Waits are small, but the workers take the CPU that the step needs.",
        "none",
        _step_starved,
        num_workers_default=min(2 * len(usable_cpus()), 32),
        consumer_default="busy:10ms",
        deliveries_default=160,
    )
    yield _demo(
        "neighbours",
        "Other processes use the CPUs that the workers need.",
        None,
        _neighbours,
        num_workers_default=2,
        consumer_default="paced:5ms",
        deliveries_default=80,
    )


COST_DEMOS: tuple[Demo, ...] = tuple(_all())
