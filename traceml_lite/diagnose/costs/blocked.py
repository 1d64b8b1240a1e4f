"""Costs of a fetch that is blocked: the disk, a file system behind a network, a lock."""

from __future__ import annotations

from traceml_lite.diagnose.costs.blocking import (
    MIN_COVERAGE,
    MIN_FETCH_BYTES,
    MIN_TURNS,
    Reads,
    Turns,
    device_explains,
    reads_of,
    turns_of,
)
from traceml_lite.diagnose.costs.contention import threads_oversubscribed
from traceml_lite.diagnose.costs.evidence import (
    cost_evidence,
    idle_reason,
    no_fetches,
    weight_in_fetch,
)
from traceml_lite.diagnose.costs.facts import CostFacts, Fetches, known
from traceml_lite.diagnose.words import counted, data_size, duration, listed, percent
from traceml_lite.records.results import Evidence, State

# Bytes that the device gave back for bytes asked for: below a tenth the calls were served elsewhere.
NOT_FROM_DEVICE = 0.1


def storage(facts: CostFacts) -> Evidence:
    """The fetch waits for the block device."""
    fetches, reads = facts.fetches, reads_of(facts)
    if fetches is None or reads is None:
        return no_fetches("storage", facts)
    if reads.read_bytes is None and reads.major_faults is None:
        return cost_evidence("storage", 0.0, missing=("bytes read from the device, major faults",))
    explains, why_not = device_explains(reads, facts)
    blocked = fetches.parts.blocked
    amount = _amount(reads)
    pressure = facts.host.pressure_io
    return cost_evidence(
        "storage",
        blocked * weight_in_fetch(facts) if explains else 0.0,
        supports=(
            f"{_blocked_words(fetches, reads)} and reads {amount}",
            *(() if pressure is None else (f"some task waited for I/O in {percent(pressure)} of the time",)),
        ),
        contradicts=idle_reason(facts) or _against_storage(facts, explains, why_not, blocked),
        numbers={
            "blocked_share": blocked,
            **({} if reads.read_bytes is None else {"read_bytes": reads.read_bytes}),
            **({} if reads.major_faults is None else {"major_faults": reads.major_faults}),
        },
    )


def _blocked_words(fetches: Fetches, reads: Reads, how: str = "blocked") -> str:
    wall = fetches.mean_wall_ns
    return (
        f"{fetches.noun} is {how} for {duration(reads.blocked_ns)} of its {duration(wall)} "
        f"({percent(reads.blocked_ns / wall)})"
    )


def _amount(reads: Reads) -> str:
    words = []
    if reads.read_bytes is not None:
        words.append(f"{data_size(reads.read_bytes)} from the device")
    if reads.major_faults:
        words.append(f"takes {counted(round(reads.major_faults, 1), 'major fault')}")
    return " and ".join(words) or "nothing that was counted"


def _against_storage(facts: CostFacts, explains: bool, why_not: str, blocked: float) -> tuple[str, ...]:
    reads = reads_of(facts)
    if reads is not None and not (reads.read_bytes or reads.major_faults):
        return (_nothing_read(facts),)
    if not explains:
        return (why_not,)
    return (f"a fetch is blocked for {percent(blocked)} of its time",) if blocked < 0.25 else ()


def _nothing_read(facts: CostFacts) -> str:
    """That the fetches that count read nothing; with the reads of all fetches, as the table has those."""
    columns = {name: known(facts.all_deliveries, name) for name in ("read_bytes", "major_faults")}
    sums = {name: int(c[c > 0].sum()) for name, c in columns.items() if c is not None}
    nothing = {
        "read_bytes": "read no byte from a device",
        "major_faults": "took no major fault",
    }
    words = listed([nothing[name] for name in sums])
    others = []
    if sums.get("read_bytes"):
        others.append(f"read {data_size(sums['read_bytes'])}")
    if sums.get("major_faults"):
        others.append(f"took {counted(sums['major_faults'], 'major fault')}")
    if not others:
        return f"the fetches {words}"
    return f"the fetches that were waited for {words}; all fetches together {listed(others)}"


def remote(facts: CostFacts) -> Evidence:
    """The fetch waits for files whose bytes do not come from a disk of this machine."""
    fetches, reads = facts.fetches, reads_of(facts)
    if fetches is None or reads is None:
        return no_fetches("remote", facts)
    if reads.rchar is None:
        return cost_evidence("remote", 0.0, missing=("rchar, the bytes asked for by read calls",))
    blocked = fetches.parts.blocked
    from_device = reads.read_bytes or 0.0
    fits = (
        reads.rchar >= MIN_FETCH_BYTES
        and reads.call_coverage >= MIN_COVERAGE
        and from_device <= NOT_FROM_DEVICE * reads.rchar
    )
    turns = turns_of(facts)
    turning = turns is not None and turns.one_at_a_time
    if turning or threads_oversubscribed(facts):
        fits = False
    asked = (
        f"read calls asked for {data_size(reads.rchar)} a fetch, {data_size(from_device)} of it from a device"
    )
    weight = blocked * weight_in_fetch(facts)
    if not fits and weight >= 0.25 and _no_reads(reads) and not (turning or threads_oversubscribed(facts)):
        # A client that uses recv() reads without rchar, so few bytes do not rule a network out.
        return cost_evidence(
            "remote",
            0.2 * weight,
            contradicts=(asked,),
            state=State.UNDECIDED,
            numbers={"rchar": reads.rchar},
        )
    return cost_evidence(
        "remote",
        weight if fits else 0.0,
        supports=(asked, _blocked_words(fetches, reads)),
        contradicts=idle_reason(facts) or ((asked,) if not fits else ()),
        numbers={"rchar": reads.rchar, "blocked_share": blocked},
    )


def _no_reads(reads: Reads) -> bool:
    return (reads.rchar or 0.0) < MIN_FETCH_BYTES and not reads.read_bytes


def lock(facts: CostFacts) -> Evidence:
    """The fetch waits for something only one worker may do at a time.

    One run supports it when the workers' fetches take turns; otherwise the blocked time stays unexplained,
    as a lock held elsewhere, a sleep and a remote call look the same.
    """
    fetches, reads = facts.fetches, reads_of(facts)
    if fetches is None or reads is None:
        return no_fetches("lock", facts)
    blocked, turns = fetches.parts.blocked, turns_of(facts)
    weight = blocked * weight_in_fetch(facts)
    if threads_oversubscribed(facts):
        return cost_evidence("lock", 0.0, contradicts=("helper threads were at work while it was blocked",))
    base = _blocked_words(fetches, reads, "blocked without I/O" if not reads.read_bytes else "blocked")
    if fetches.run_queue_ns is None:
        return cost_evidence("lock", 0.0, missing=("run-queue delay of the workers",))
    if turns is not None and turns.one_at_a_time:
        return cost_evidence("lock", weight, supports=(base, *_turn_words(turns)), numbers=_numbers(turns))
    explained, _ = device_explains(reads, facts)
    if weight < 0.25 or explained:
        against = (
            "the blocked time goes with reads from the device"
            if explained
            else f"a fetch is blocked for {percent(blocked)} of its time"
        )
        state = State.RULED_OUT if weight < 0.1 else State.UNDECIDED
        return cost_evidence(
            "lock", 0.0, contradicts=idle_reason(facts) or (against,), state=state, numbers=_numbers(turns)
        )
    return cost_evidence(
        "lock",
        0.5 * weight,
        supports=(f"{base}: a lock, a sleep or a remote service",),
        contradicts=_no_turns(turns),
        numbers=_numbers(turns),
        state=State.UNDECIDED,
    )


def _turn_words(turns: Turns) -> tuple[str, ...]:
    first = 0.0 if turns.first_ratio is None else turns.first_ratio
    return (
        f"the workers take turns: {turns.ends} fetch ends keep their distance, and the first fetch of a "
        f"pool takes {percent(first)} of the usual one",
    )


def _no_turns(turns: Turns | None) -> tuple[str, ...]:
    if turns is None or turns.ends < MIN_TURNS:
        return ()
    if turns.first_ratio is not None and turns.first_ratio > 0.8:
        return ("the first fetches of the pool take as long as later ones: nobody waits for a turn",)
    return (f"fetches of different workers end together: {percent(turns.short_share)} of the ends",)


def _numbers(turns: Turns | None) -> dict[str, float]:
    if turns is None:
        return {}
    numbers = {"short_turn_share": turns.short_share, "pool_busy_share": turns.pool_busy}
    if turns.first_ratio is not None:
        numbers["first_fetch_ratio"] = turns.first_ratio
    return numbers
