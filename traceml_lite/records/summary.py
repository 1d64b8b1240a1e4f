"""Every number that a report shows of one run, each with what it rests on.

A renderer reads these records and computes nothing, so terminal, Markdown, JSON and HTML agree to the
digit. Field names are the keys of the JSON document. What was not measured is a ``NotMeasured`` with its
reason and never a zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from traceml_lite.records.results import Estimate
from traceml_lite.records.run import Environment, LoaderConfig


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A number that this run cannot give, and why."""

    reason: str


Measured: TypeAlias = Estimate | NotMeasured


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured."""

    source: str
    loader: str
    """Name of the loader that the summary is about."""
    config: LoaderConfig
    environment: Environment
    deliveries: int
    """Batches handed to the training loop; those of a resumed loader's fast-forward are not among them."""
    kept: int
    """Deliveries the numbers rest on: fewer than ``deliveries`` in a sampled trace."""
    fast_forwarded: int
    """Batches that a resumed loader delivered inside iter(), left out everywhere."""
    iterators: int
    epochs: int
    sampled: str | None
    """None when every delivery is here; else which ones were kept."""
    warm_up_batches: Measured
    """W·F: deliveries of each epoch's start that are not part of the steady state."""
    complete: bool
    ending: str


@dataclass(frozen=True, slots=True)
class Place:
    """Which delivery it was."""

    delivery: int
    epoch: int
    iterator: int
    rank: int | None
    """None where ranks were not measured; likewise ``worker``."""
    worker: int | None


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting over one span of the run (the steady state, or all of it)."""

    deliveries: int
    wait_share: Measured
    """Waiting as a share of waiting and steps, over deliveries whose step was measured."""
    total_wait_ns: Measured
    p50_wait_ns: Measured
    p95_wait_ns: Measured
    p99_wait_ns: Measured
    max_wait_ns: Measured
    longest: Place
    deliveries_per_s: Measured
    deliveries_per_s_without_waiting: Measured
    """The pace if every batch were there when asked for: the steps alone, as they were in this run."""
    samples_per_s: Measured


@dataclass(frozen=True, slots=True)
class Gaps:
    """Differences of delivery numbers of consecutive stalls of one epoch."""

    n: int
    median_batches: Measured
    common: tuple[tuple[int, int], ...]
    """(gap, how often), most frequent first, at most five."""
    median_interval_ns: Measured
    """The same in time, from the end of one stall to the end of the next."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """Waits that a person would notice."""

    threshold_ns: int
    threshold_source: str
    """``"automatic"`` or ``"given"``."""
    n: int
    """In a sampled trace what the kept ones stand for; likewise ``deliveries``."""
    deliveries: int
    n_warm_up: int
    """Stalls within the first W·F deliveries of an epoch."""
    share_of_waiting: Measured
    """Share of all waited time that the stalls carry."""
    places: tuple[Place, ...]
    """The first ones, at most twelve."""
    gaps: Gaps | NotMeasured


@dataclass(frozen=True, slots=True)
class Supply:
    """What stood ready when the consumer asked, and how long a finished batch took to reach it."""

    capacity_batches: Measured
    """W·F: batches that are queued, in work or ready at any time."""
    ready_at_ask_batches: Measured
    """Mean over asks of batches fetched and not yet delivered."""
    none_ready_share: Measured
    """Share of asks at which not one batch was ready."""
    stalls_awaited_ready_share: Measured
    """Share of stalls at which the very batch that came had been fetched before the ask: what was waited
    for then is delivery, not fetching."""
    stalls_other_ready_share: Measured
    """Share of stalls at which that batch was not ready but another one was."""
    queue_batches: Measured
    """Mean over asks of the result queue; pinned batches where pin_memory is on."""
    queue_empty_share: Measured
    held_back_batches: Measured
    """Mean over asks of batches received and held back by order."""
    p50_lag_ns: Measured
    p95_lag_ns: Measured
    max_lag_ns: Measured
    lag_share_of_waiting: Measured
    """Share of all waited time that passed after the awaited batch had been fetched."""


@dataclass(frozen=True, slots=True)
class Order:
    """Deliveries out of the sampler's order."""

    overtakings: int
    """Deliveries that passed another one or were passed."""
    passed: int
    """Deliveries that came while one of lower rank was still to come."""
    were_passed: int
    """Deliveries that came after one of higher rank."""
    farthest_places: int
    """Largest distance between a delivery's place and its place in the sampler's order."""
    deliveries: int


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker's fetches, or those of the whole pool."""

    worker: int | None
    """None is the pool; -1 the consumer itself (num_workers=0)."""
    pids: tuple[int, ...]
    """Processes that were this worker, at most eight; a new one per epoch without persistent workers."""
    n_pids: int
    fetches: int
    deliveries: Measured
    p50_fetch_ns: Measured
    p95_fetch_ns: Measured
    cpu_share: Measured
    """Process CPU time over fetch time; above 1 where helper threads work."""
    run_queue_share: Measured
    read_bytes_per_fetch: Measured
    rchar_per_fetch: Measured
    minor_faults_per_fetch: Measured
    major_faults_per_fetch: Measured
    voluntary_switches_per_fetch: Measured
    involuntary_switches_per_fetch: Measured
    last_rss_bytes: Measured


@dataclass(frozen=True, slots=True)
class PidChange:
    """A worker of one epoch whose process changed under way."""

    worker: int
    epoch: int
    iterator: int
    before_pid: int
    after_pid: int


@dataclass(frozen=True, slots=True)
class Workers:
    """The pool: one line per worker and one for all."""

    pool: WorkerLine
    lines: tuple[WorkerLine, ...]
    notable: tuple[int, ...]
    """Workers to show where there is no room for all: the slowest, the fastest, the least and most busy."""
    pid_changes: tuple[PidChange, ...] | NotMeasured
    """Changes within an epoch, at most eight; new processes at an epoch's start are none."""
    n_pid_changes: int


@dataclass(frozen=True, slots=True)
class ContrastRow:
    """Medians of one quantity over the slow and over the fast intervals."""

    key: str
    unit: str
    slow: Measured
    fast: Measured


@dataclass(frozen=True, slots=True)
class Contrast:
    """Slow against fast intervals: the work of all workers between consecutive deliveries.

    An interval is slow when it ended in a stall. A fetch that overlaps several intervals counts in each
    by the share of its time.
    """

    slow_intervals: int
    fast_intervals: int
    rows: tuple[ContrastRow, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """What the start and the end of an epoch cost; medians where it stands for several epochs."""

    epochs: int
    iter_ns: Measured
    """Time iter() took: worker start, for a new iterator."""
    first_wait_ns: Measured
    warm_up_wait_ns: Measured
    """Waiting over the first W·F deliveries of an epoch."""
    stop_ns: Measured
    """Time StopIteration took: joining the workers, without persistent ones."""


@dataclass(frozen=True, slots=True)
class Edges:
    """Start-up and epoch boundaries, which are no part of the steady state."""

    first: Edge | NotMeasured
    later: Edge | NotMeasured
    broken_off: int
    """Epochs that the loop left before their end."""
    errors: tuple[str, ...]
    """Errors out of next() and workers that died, in words, at most eight."""
    share: Measured
    """iter(), each epoch's first wait and StopIteration, as a share of the loader's whole time."""


@dataclass(frozen=True, slots=True)
class ConsumerStep:
    """The consumer between getting a batch and asking for the next (steady state)."""

    p50_step_ns: Measured
    p95_step_ns: Measured
    cpu_share: Measured
    """CPU time of the consumer's thread over the step."""
    process_cpu_share: Measured
    """The same of its whole process; above 1 where it computes on several threads."""
    run_queue_share: Measured
    wait_cpu_share: Measured
    """CPU time of the consumer's thread over the wait: unpickling, and the fetch itself without workers."""
    wait_run_queue_share: Measured


@dataclass(frozen=True, slots=True)
class HostPressure:
    """The host during the run. CPU figures are mean cores, pressures are shares of time."""

    seconds: Measured
    own_cores: Measured
    other_cores: Measured
    """Cores kept busy by processes that are not ours."""
    steal_cores: Measured
    iowait_cores: Measured
    pressure_cpu_share: Measured
    pressure_io_share: Measured
    pressure_memory_share: Measured
    throttled_share: Measured
    throttled_periods: Measured
    peak_shm_bytes: Measured
    open_files_growth: Measured


@dataclass(frozen=True, slots=True)
class OtherLoader:
    """Another loader of the same run, in one line."""

    name: str
    num_workers: int | None
    deliveries: int
    wait_share: Measured
    total_wait_ns: Measured
    p50_wait_ns: Measured
    max_wait_ns: Measured


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """What the probe itself cost in this very run, by its own clock: an upper bound on a busy host."""

    consumer_ns_per_delivery: Measured
    worker_ns_per_fetch: Measured
    consumer_share: Measured
    """Of the loader's whole time."""
    worker_share: Measured
    """Of the time spent in fetches."""
    fixed_cpu_ns: Measured
    dropped_records: Measured
    core: str | None = None
    """``"compiled"`` or ``"python"``, as ``Run.probe_core``."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Things that were not measured for one and the same reason."""

    what: tuple[str, ...]
    """In words, for a report."""
    columns: tuple[str, ...]
    """Columns of the trace that are absent for it."""
    reason: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything a report shows, apart from the diagnosis."""

    subject: Subject
    steady: Waits | NotMeasured
    whole: Waits | NotMeasured
    stalls: Stalls | NotMeasured
    supply: Supply
    order: Order | NotMeasured
    workers: Workers | NotMeasured
    contrast: Contrast | NotMeasured
    edges: Edges
    consumer: ConsumerStep
    host: HostPressure
    probe: ProbeCost
    others: tuple[OtherLoader, ...] = ()
    not_measured: tuple[Absence, ...] = field(default_factory=tuple)
