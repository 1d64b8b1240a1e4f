"""What was seen: the columns of a run, the loader's configuration, the host, and what was not measured.

This is the contract between the probe, which writes, and the analysis, which reads. Every column has its
dtype, unit and meaning here and nowhere else. All times are int64 nanoseconds on one clock
(``CLOCK_MONOTONIC``), comparable across the processes of one boot.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite._errors import MissingColumnError

# Every measured quantity is non-negative, so one negative value can say "this element was not measured".
# A column of which nothing was measured is absent from its table instead, with a reason.
MISSING = -1

# Worker number of a batch that the consumer made itself (num_workers=0), as torch has no worker then.
IN_CONSUMER = -1
# Worker number of a delivery whose worker is not known (a trace without hooks, another tool's export).
UNKNOWN_WORKER = -2


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: how to read it."""

    name: str
    dtype: str
    """numpy dtype string, little endian on disk."""
    unit: str
    meaning: str


# One row per batch handed to the consumer, in the order of delivery.
DELIVERY_COLUMNS: tuple[Column, ...] = (
    Column("iterator", "i4", "id", "iterator that delivered it, unique within the trace"),
    Column("epoch", "i4", "count", "epoch of this loader, 0, 1, 2 ... over all its iterators"),
    Column("delivery", "i8", "count", "delivery number within (iterator, epoch), from 0"),
    Column("rank", "i8", "count", "place of the batch in the sampler's order, from 0"),
    Column("worker", "i2", "id", "worker that fetched it; -1 the consumer itself, -2 unknown"),
    Column("ask_ns", "i8", "ns", "when next(loader) was called"),
    Column("got_ns", "i8", "ns", "when next(loader) returned"),
    Column("wait_ns", "i8", "ns", "got - ask: time the consumer was blocked in next(loader)"),
    Column("step_ns", "i8", "ns", "from got to the next ask; missing where an epoch was broken off"),
    Column("queue_size", "i4", "batches", "batches in the result queue at the ask (pinned ones if pinning)"),
    Column("held_back", "i4", "batches", "batches received but held back by order, at the ask"),
    Column(
        "dispatch_ns", "i8", "ns", "when the batch's index was put into the worker's queue, to some 20 us"
    ),
    Column("step_cpu_ns", "i8", "ns", "CPU time of the consumer's thread in the step (a sample of steps)"),
    Column("step_process_cpu_ns", "i8", "ns", "the same of the whole consumer process (a sample)"),
    Column("step_run_queue_ns", "i8", "ns", "run-queue delay of that thread in the step (a sample)"),
    Column("wait_cpu_ns", "i8", "ns", "CPU time of that thread in the wait: unpickling (a sample)"),
    Column("wait_run_queue_ns", "i8", "ns", "run-queue delay of that thread in the wait (a sample)"),
    Column("fast_forward", "u1", "bool", "1 when delivered inside iter() (a resumed StatefulDataLoader)"),
)

# One row per fetch, joined to its delivery by (iterator, epoch, worker, k); element -1 is "not measured".
FETCH_COLUMNS: tuple[Column, ...] = (
    Column("fetch_start_ns", "i8", "ns", "start of the fetch in the worker"),
    Column("fetch_end_ns", "i8", "ns", "end of the fetch in the worker"),
    Column("pid", "i4", "id", "process that fetched it"),
    Column("cpu_ns", "i8", "ns", "CPU time of the worker process during the fetch, all threads"),
    Column("thread_cpu_ns", "i8", "ns", "CPU time of the fetching thread; the difference is helper threads"),
    Column("run_queue_ns", "i8", "ns", "time the fetching thread was runnable but had no CPU"),
    Column("minor_faults", "i8", "count", "page faults served without I/O"),
    Column("major_faults", "i8", "count", "page faults that needed I/O"),
    Column("voluntary_switches", "i8", "count", "times the process gave up the CPU to wait"),
    Column("involuntary_switches", "i8", "count", "times the CPU was taken from it"),
    Column("read_bytes", "i8", "bytes", "bytes read from the block device"),
    Column("rchar", "i8", "bytes", "bytes asked for by read calls, the page cache included"),
    Column("rss_bytes", "i8", "bytes", "resident set of the worker; read about once a second"),
    Column("threads", "i4", "count", "threads of the worker process; read about once a second"),
    Column("samples", "i8", "count", "samples in the batch's index, -1 for an iterable dataset"),
)

# What identifies a fetch: its worker's k-th task of the epoch is the k-th the consumer dispatched to it.
FETCH_KEY_COLUMNS: tuple[Column, ...] = (
    Column("iterator", "i4", "id", "iterator it was fetched for"),
    Column("epoch", "i4", "count", "epoch of the loader"),
    Column("worker", "i2", "id", "worker that fetched it; -1 the consumer itself"),
    Column("k", "i8", "count", "how many tasks this worker had done before in this (iterator, epoch)"),
    Column("state", "u1", "id", "a key of FETCH_STATES"),
)

# Facts about the host during the run, about one row a second. All are running totals except the load.
HOST_COLUMNS: tuple[Column, ...] = (
    Column("time_ns", "i8", "ns", "when the row was read"),
    Column("cpu_busy_ns", "i8", "ns", "busy CPU time of the whole machine, all CPUs"),
    Column("cpu_steal_ns", "i8", "ns", "CPU time taken by the hypervisor for other guests"),
    Column("cpu_iowait_ns", "i8", "ns", "CPU time idle while I/O was outstanding"),
    Column("pressure_cpu_ns", "i8", "ns", "time some task of the machine waited for a CPU (PSI some)"),
    Column("pressure_io_ns", "i8", "ns", "time some task waited for I/O (PSI some)"),
    Column("pressure_memory_ns", "i8", "ns", "time some task waited for memory (PSI some)"),
    Column("throttled_periods", "i8", "count", "cgroup periods in which the quota stopped this group"),
    Column("throttled_ns", "i8", "ns", "time the cgroup quota stopped this group"),
    Column("own_cpu_ns", "i8", "ns", "CPU time of the traced process, its workers and its other descendants"),
    Column("shm_used_bytes", "i8", "bytes", "bytes in use in /dev/shm"),
    Column("open_files", "i8", "count", "open descriptors of the traced process"),
)


class DatasetKind(str, enum.Enum):
    """How the dataset is read."""

    MAP = "map"
    ITERABLE = "iterable"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LoaderConfig:
    """The options of one DataLoader. ``None`` means "not known", except where the line says otherwise."""

    num_workers: int | None = None
    prefetch_factor: int | None = None
    """Batches prefetched per worker; None with 0 workers, as torch has it."""
    in_order: bool | None = None
    batch_size: int | None = None
    """None with a batch sampler of the user's or with batch_size=None."""
    persistent_workers: bool | None = None
    pin_memory: bool | None = None
    drop_last: bool | None = None
    timeout_s: float | None = None
    start_method: str | None = None
    """fork, spawn or forkserver; None with 0 workers."""
    dataset_kind: DatasetKind = DatasetKind.UNKNOWN
    dataset: str = ""
    """Qualified type name of the dataset."""
    sampler: str = ""
    collate: str = ""
    loader: str = ""
    """Qualified type name of the loader (DataLoader, StatefulDataLoader, DataLoaderShard ...)."""
    batches: int | None = None
    """len(loader) where it has one."""
    dataset_len: int | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """The host and the software, as far as they decide loading. ``None`` is "not known"."""

    host: str = ""
    boot_id: str = ""
    platform: str = ""
    python: str = ""
    torch: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of packages that bear on loading (datasets, lerobot, pillow, numpy ...), if installed."""
    cpus_online: int | None = None
    cpus_affinity: int | None = None
    cpu_quota: float | None = None
    """CPUs the cgroup quota allows, e.g. 1.5; None when there is no quota or it could not be read."""
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    open_files_limit: int | None = None
    torch_threads: int | None = None
    command: tuple[str, ...] = ()
    pid: int | None = None
    started_unix_ns: int | None = None
    """Wall clock when the trace began."""
    started_ns: int | None = None
    """The trace's own clock (CLOCK_MONOTONIC) at the same moment."""

    @property
    def command_line(self) -> tuple[str, ...]:
        """The command without the interpreter's path, as one would type it."""
        words = list(self.command)
        if not words:
            return ()
        words[0] = words[0].rpartition("/")[2]
        if words[0].startswith("python") and len(words) > 1:
            if words[1:3] == ["-m", "traceml_lite"]:
                words = ["traceml-lite", *words[3:]]
            elif words[1].rpartition("/")[2] in ("traceml-lite", "torchrun", "accelerate"):
                words = [words[1].rpartition("/")[2], *words[2:]]
        return tuple(words)

    @property
    def cpus_usable(self) -> float | None:
        """CPUs the process may really use: the least of online, affinity and quota; None if none is known."""
        known = [c for c in (self.cpus_online, self.cpus_affinity, self.cpu_quota) if c]
        return float(min(known)) if known else None


# What each event says, and the keys of its ``data``.
EVENT_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "session": "the recording began; session (its id), host",
        "iterator": "an iterator was made; loader (number), config",
        "epoch_start": "its first batch was asked for; epoch, turn, iter_ns (time iter() took, or None)",
        "epoch_end": "next() raised StopIteration; epoch, turn, deliveries, stop_ns (the time it took)",
        "closed": "the iterator went away before its epoch's end; epoch, turn, deliveries",
        "worker_start": "a worker began; worker, pid, turn, cpus_affinity (CPUs it may run on, or None)",
        "worker_gone": "a worker died; worker, pid, exit_code, rank and since_ns of its batch (or None)",
        "absent": "a worker could not read some counters; bits and errno as in store.layout",
        "thinned": "the trace outgrew its limit; stride, deliveries, kept, floor_ns",
        "error": "next() raised; epoch, deliveries, rank, type, worker (rank, worker: or None), after_ns",
        "probe_error": "something of the probe failed and was passed over; what, type, message",
        "script_end": "the traced script ended; exit_code, exception (type name or None), signal (or None)",
    }
)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened once: an iterator made, an epoch's end, a worker gone, an error."""

    kind: str
    """A key of ``EVENT_KINDS``."""
    time_ns: int
    iterator: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns of equal length. A column that was not measured is absent, with the reason why.

    Attributes:
        columns: Name to one-dimensional array; element ``MISSING`` is "not measured here".
        absent: Name to reason, for columns of which nothing was measured.
    """

    columns: Mapping[str, NDArray[Any]]
    absent: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of one table must have one length, got {lengths}")
        object.__setattr__(self, "columns", MappingProxyType(dict(self.columns)))
        object.__setattr__(self, "absent", MappingProxyType(dict(self.absent)))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return self.columns[name]
        except KeyError:
            raise MissingColumnError(f"column {name!r} was not measured: {self.why_absent(name)}") from None

    def get(self, name: str) -> NDArray[Any] | None:
        """The column, or None when nothing of it was measured."""
        return self.columns.get(name)

    def why_absent(self, name: str) -> str:
        """The reason a column is absent, in words for a report."""
        return self.absent.get(name, "this trace does not have it")

    def take(self, where: NDArray[Any]) -> Table:
        """The rows selected by a boolean mask or an index array, in that order."""
        return Table({name: column[where] for name, column in self.columns.items()}, self.absent)


@dataclass(frozen=True, slots=True, eq=False)
class LoaderTrace:
    """One loader's deliveries, over all its iterators and epochs. Train and validation are never mixed.

    Attributes:
        name: Short label for a report, e.g. ``"loader 0: DataLoader(TensorDataset)"``.
        config: Options of the loader.
        deliveries: ``DELIVERY_COLUMNS`` and, joined to them, ``FETCH_COLUMNS``; in delivery order.
        fetches: Every fetch that was recorded, also those never delivered: ``FETCH_KEY_COLUMNS`` and
            ``FETCH_COLUMNS``. An empty table where fetches were not seen.
        events: Events of this loader, in order of time.
        sampled: None when every delivery is here; else a sentence that says which were kept.
        delivered: How many deliveries there really were (``len(deliveries)`` unless sampled).
        sampled_floor_ns: Of a sampled trace: every wait of at least this was kept, and of the shorter ones
            an even sample. None where that is not known; then shares cannot be weighed.
    """

    name: str
    config: LoaderConfig
    deliveries: Table
    fetches: Table
    events: tuple[Event, ...] = ()
    sampled: str | None = None
    delivered: int = 0
    sampled_floor_ns: int | None = None


# State of a fetch record. STARTED is the mark written before the fetch: what a killed worker leaves behind.
FETCH_STARTED, FETCH_DONE, FETCH_RAISED, FETCH_STOPPED = 0, 1, 2, 3
FETCH_STATES: Mapping[int, str] = MappingProxyType(
    {FETCH_STARTED: "started", FETCH_DONE: "done", FETCH_RAISED: "raised", FETCH_STOPPED: "stopped"}
)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Everything one traced process left behind.

    Attributes:
        source: Where it was read from, for messages.
        loaders: One entry per DataLoader that delivered or tried to, most deliveries first.
        environment: Host and software.
        host: ``HOST_COLUMNS`` over the run.
        capabilities: Name of a capability (``"fetches"``, ``"rchar"``, ``"run_queue"`` ...) to None when it
            was there, or to the reason why not.
        events: Events that belong to no loader (script end, errors of the probe).
        probe_cost: What the probe cost in this very run: ``consumer_ns`` and ``worker_ns``, the time that its
            bookkeeping took on each side in all (on a busy host with the time it had no CPU),
            ``fixed_cpu_ns`` for installing it, ``records`` (deliveries), ``dropped``.
        probe_core: ``"compiled"`` or ``"python"``: how what runs at each delivery and fetch was written; None
            where the trace does not say.
        complete: False when the traced process did not end in order (killed, still running).
        ending: How it ended, in words.
    """

    source: str
    loaders: tuple[LoaderTrace, ...]
    environment: Environment = Environment()
    host: Table = field(default_factory=lambda: Table({}))
    capabilities: Mapping[str, str | None] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    probe_cost: Mapping[str, float] = field(default_factory=dict)
    probe_core: str | None = None
    complete: bool = True
    ending: str = ""

    @property
    def main(self) -> LoaderTrace:
        """The loader that a summary is about unless told otherwise: the one with the most time around it."""
        if not self.loaders:
            raise MissingColumnError(f"{self.source}: no DataLoader was iterated in this run")
        return max(self.loaders, key=_total_ns)


def _total_ns(loader: LoaderTrace) -> int:
    waits, steps = loader.deliveries.get("wait_ns"), loader.deliveries.get("step_ns")
    return sum(int(np.maximum(column, 0).sum()) for column in (waits, steps) if column is not None)


def from_arrays(
    *,
    wait_ns: Any,
    step_ns: Any = None,
    num_workers: int | None = None,
    prefetch_factor: int | None = None,
    in_order: bool | None = None,
    source: str = "arrays",
    **columns: Any,
) -> Run:
    """A run made of measurements of one's own; only ``wait_ns`` is required.

    Args:
        wait_ns: Blocked time before each batch, shape ``(n,)``, nanoseconds, in the order of delivery.
        step_ns: Consumer time after each batch, shape ``(n,)``, nanoseconds; -1 where unknown.
        num_workers: Option of the loader, if known; likewise ``prefetch_factor`` and ``in_order``.
        prefetch_factor: See ``num_workers``.
        in_order: See ``num_workers``.
        source: Where the numbers come from, for messages.
        **columns: Any of ``DELIVERY_COLUMNS`` and ``FETCH_COLUMNS`` by name, shape ``(n,)``; -1 (-2 for
            ``worker``) marks an element that was not measured.

    Returns:
        A run with one loader.

    Raises:
        ValueError: An unknown column, a wrong shape, a non-integer or a negative wait.
    """
    known = {c.name: c for c in DELIVERY_COLUMNS + FETCH_COLUMNS}
    given = {"wait_ns": wait_ns, "step_ns": step_ns, **columns}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"unknown columns {unknown}; known are {sorted(known)}")
    table: dict[str, NDArray[Any]] = {}
    absent: dict[str, str] = {}
    for name, spec in known.items():
        values = given.get(name)
        if values is None:
            absent[name] = "not given"
            continue
        array = np.asarray(values)
        if array.ndim != 1 or len(array) != len(wait_ns):
            raise ValueError(f"{name}: expected shape ({len(wait_ns)},), got {array.shape}")
        if array.dtype.kind not in "iubf" or (array.dtype.kind == "f" and (array != np.floor(array)).any()):
            raise ValueError(f"{name}: expected whole numbers ({spec.unit}), got dtype {array.dtype}")
        table[name] = array.astype(spec.dtype)
    waits = table["wait_ns"]
    if (waits < 0).any():
        raise ValueError(f"wait_ns: {int((waits < 0).sum())} values are negative; a wait is at least 0 ns")
    if "worker" not in table and num_workers == 0:
        table["worker"] = np.full(len(waits), IN_CONSUMER, dtype="i2")
        absent.pop("worker")
    table.setdefault("delivery", np.arange(len(waits), dtype="i8"))
    table.setdefault("epoch", np.zeros(len(waits), dtype="i4"))
    table.setdefault("iterator", np.zeros(len(waits), dtype="i4"))
    for name in ("delivery", "epoch", "iterator"):
        absent.pop(name, None)
    fetched = "fetch_start_ns" in table and "fetch_end_ns" in table
    loader = LoaderTrace(
        name="loader",
        config=LoaderConfig(num_workers=num_workers, prefetch_factor=prefetch_factor, in_order=in_order),
        deliveries=Table(table, absent),
        fetches=Table({}, {"fetch_start_ns": "only deliveries were given"}),
        delivered=len(waits),
    )
    return Run(
        source=source,
        loaders=(loader,),
        capabilities={"fetches": None if fetched else "fetch times were not given"},
    )
