"""What a fetch is blocked on when it is neither on a CPU nor waiting for one.

Counters see bytes, faults and the order of events, not the reason of a sleep. So a disk can be named, a
file system whose bytes do not come from a disk can be suspected, and a lock shared by the workers can be
seen in how their fetches take turns. A plain sleep, a remote call without file reads and a lock held by
somebody else look the same, and this module says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceml_lite.diagnose.costs.facts import MAX_ROWS, CostFacts, known
from traceml_lite.diagnose.words import percent
from traceml_lite.stats.tails import median

PAGE_BYTES = 4096
# The slowest disk worth the name reads a random page in 10 ms; with a queue of four before it, 40 ms.
# Slower than one page in 40 ms, the bytes read do not explain the time blocked.
SLOWEST_READ_NS_PER_PAGE = 40_000_000
# Fewer bytes than this in a fetch are metadata and imports, not the batch.
MIN_FETCH_BYTES = 16 * 1024
# A share of the blocked time that must lie in fetches which did read, before reading can explain it.
MIN_COVERAGE = 0.5
# The kernel counts a task blocked on I/O as I/O pressure; far less pressure than blocked time means that
# the blocked time was something else. A fifth leaves room for other tasks and for coarse reading.
MIN_PRESSURE_RATIO = 0.2

# With W workers taking turns, fetches end one hold time apart. Twenty ends that keep half that distance
# happen by chance, in workers that do not know of each other, less than once in a thousand (0.6^20).
MIN_TURNS = 20
TURN_DISTANCE = 0.5
MAX_SHORT_TURNS = 0.05
# Behind a lock the first of the fetches that start together is served at once and takes 1/W of the
# usual time; without one it takes the usual time.
FIRST_FETCH_MAX = 0.7
# Workers that wait for tasks between fetches do not queue at the lock, so turns cannot be seen.
MIN_POOL_BUSY = 0.8


@dataclass(frozen=True, slots=True)
class Reads:
    """What the fetches that matter read. ``None`` is "not measured"."""

    read_bytes: float | None
    """Mean bytes from the block device per fetch."""
    rchar: float | None
    """Mean bytes asked for by read calls per fetch, the page cache included."""
    major_faults: float | None
    device_coverage: float
    """Share of the blocked time that lies in fetches with device reads or major faults."""
    call_coverage: float
    """Share of the blocked time that lies in fetches with at least ``MIN_FETCH_BYTES`` of read calls."""
    blocked_ns: float
    """Mean blocked time per fetch."""


def reads_of(facts: CostFacts) -> Reads | None:
    """Bytes and faults of the fetches that matter; None without fetches."""
    fetches = facts.fetches
    if fetches is None:
        return None
    blocked = fetches.blocked_ns
    weight = blocked * fetches.weight / fetches.wall_ns
    total = float(weight.sum())
    columns = {name: known(facts.deliveries, name) for name in ("read_bytes", "rchar", "major_faults")}
    values = {name: None if c is None else c[fetches.rows] for name, c in columns.items()}
    device = np.zeros(len(blocked), bool)
    for name, least in (("read_bytes", 1), ("major_faults", 1)):
        column = values[name]
        if column is not None:
            device |= column >= least
    calls = values["rchar"]

    def mean(name: str) -> float | None:
        column = values[name]
        return None if column is None else fetches.mean_of(column)

    return Reads(
        read_bytes=mean("read_bytes"),
        rchar=mean("rchar"),
        major_faults=mean("major_faults"),
        device_coverage=float(weight[device].sum()) / total if total > 0 else 0.0,
        call_coverage=(
            float(weight[calls >= MIN_FETCH_BYTES].sum()) / total if calls is not None and total > 0 else 0.0
        ),
        blocked_ns=fetches.mean_of(blocked),
    )


def reading(facts: CostFacts) -> bool:
    """True when the fetches read so much from the device that it can be what they are blocked on."""
    reads = reads_of(facts)
    return reads is not None and device_explains(reads, facts)[0]


def device_explains(reads: Reads, facts: CostFacts) -> tuple[bool, str]:
    """Whether device reads can be what the fetches were blocked on, and the sentence that says why."""
    read = reads.read_bytes or 0.0
    # A major fault reads at least a page, even where the device's bytes were not counted.
    pages = max(read / PAGE_BYTES, reads.major_faults or 0.0)
    if reads.device_coverage < MIN_COVERAGE or pages <= 0:
        return (
            False,
            f"{percent(reads.device_coverage)} of the blocked time lies in fetches that read the device",
        )
    if reads.blocked_ns / pages > SLOWEST_READ_NS_PER_PAGE:
        return False, "the few pages read from the device cannot explain the time blocked"
    pressure, blocked_tasks = facts.host.pressure_io, _blocked_tasks(facts)
    if pressure is not None and blocked_tasks is not None and blocked_tasks > 0:
        ratio = pressure / min(1.0, blocked_tasks)
        if ratio < MIN_PRESSURE_RATIO:
            return (
                False,
                f"the machine's I/O pressure was {percent(pressure)}, too little for the time blocked",
            )
    return True, ""


def _blocked_tasks(facts: CostFacts) -> float | None:
    """Workers that were blocked in a fetch at a time, on average."""
    fetches = facts.fetches
    if fetches is None:
        return None
    span = float(fetches.end_ns.max() - fetches.start_ns.min())
    return facts.sampling * float(fetches.blocked_ns.sum()) / span if span > 0 else None


@dataclass(frozen=True, slots=True)
class Turns:
    """How the workers' fetches follow each other."""

    ends: int
    short_share: float
    """Share of fetch ends closer to the one before than half the distance of workers taking turns."""
    first_ratio: float | None
    """Shortest of the first fetches of a pool over the usual fetch; None when they were not seen."""
    pool_busy: float
    """Share of time the workers were in a fetch."""

    @property
    def one_at_a_time(self) -> bool:
        """True when the fetches follow each other as behind one lock."""
        return (
            self.ends >= MIN_TURNS
            and self.pool_busy >= MIN_POOL_BUSY
            and self.short_share <= MAX_SHORT_TURNS
            and self.first_ratio is not None
            and self.first_ratio <= FIRST_FETCH_MAX
        )


def turns_of(facts: CostFacts) -> Turns | None:
    """Whether fetches take turns; None without fetches or with fewer than two workers."""
    workers = facts.workers
    start, end = (known(facts.all_deliveries, name) for name in ("fetch_start_ns", "fetch_end_ns"))
    if start is None or end is None or workers < 2:
        return None
    # The very first round is not in turn yet, and neighbours in time are needed: no sample.
    rows = slice(workers, MAX_ROWS)
    done = (start[rows] >= 0) & (end[rows] > start[rows])
    start, end = start[rows][done], end[rows][done]
    if not len(end):
        return None
    walls, ends = end - start, np.sort(end)
    usual, distances = median(walls), np.diff(ends)
    span = float(ends[-1] - start.min())
    short = float(np.mean(distances < TURN_DISTANCE * usual / workers)) if len(distances) else 1.0
    busy = float(walls.sum()) / (workers * span) if span > 0 else 0.0
    return Turns(len(distances), short, _first_ratio(facts, usual), busy)


def _first_ratio(facts: CostFacts, usual_ns: float) -> float | None:
    """Shortest fetch among the first ones of each pool over the usual one, median over the pools."""
    table = facts.all_deliveries
    number, start, end = (known(table, n) for n in ("delivery", "fetch_start_ns", "fetch_end_ns"))
    if number is None or start is None or end is None or usual_ns <= 0:
        return None
    first = (number >= 0) & (number < facts.workers) & (start >= 0) & (end > start)
    if not first.any():
        return None
    pools = table["iterator"][first].astype(np.int64) * (1 << 32) + table["epoch"][first]
    walls = (end - start)[first]
    shortest = [float(walls[pools == pool].min()) for pool in np.unique(pools)[:50]]
    return float(np.median(shortest)) / usual_ns
