"""The verdict on the cost: one key, or the keys that this run cannot tell apart.

The keys share one budget of lost time, so the largest share decides. Two rules stand above it: a loop that
does not wait is never the loader's fault, and time that no counter explains is given no name.
"""

from __future__ import annotations

from collections.abc import Callable

from traceml_lite.diagnose.costs import blocked, compute, handover, paging, step
from traceml_lite.diagnose.costs.budget import HANDOVER_FLOOR_NS
from traceml_lite.diagnose.costs.contention import Starved, starved_consumer
from traceml_lite.diagnose.costs.evidence import loader_matters
from traceml_lite.diagnose.costs.facts import CostFacts
from traceml_lite.diagnose.costs.measure import LOST_SHARE_MIN, cost_facts
from traceml_lite.diagnose.costs.paging import growth_of, growth_words
from traceml_lite.diagnose.costs.statements import statement_of
from traceml_lite.diagnose.costs.step import STARVED_MIN
from traceml_lite.diagnose.words import counted, duration, listed, percent
from traceml_lite.records.results import Evidence, Finding, State, Verdict
from traceml_lite.records.run import Environment, LoaderTrace, Table

COSTS: dict[str, Callable[[CostFacts], Evidence]] = {
    "cpu": compute.cpu,
    "run_queue": compute.run_queue,
    "threads": compute.threads,
    "affinity": compute.affinity,
    "quota": compute.quota,
    "storage": blocked.storage,
    "remote": blocked.remote,
    "lock": blocked.lock,
    "memory": paging.memory,
    "delivery": handover.delivery,
    "pin": handover.pin,
    "shm": handover.shm,
    "start": handover.start,
    "consumer": step.consumer,
    "step_starved": step.step_starved,
    "launch_bound": step.launch_bound,
    "neighbours": compute.neighbours,
}

# Fewer deliveries than this are anecdotes; the first batch of anything is special.
MIN_DELIVERIES = 4
# The strongest cause must explain this much of the lost time, or there is another one nobody saw.
MIN_EXPLAINED = 0.4
# Closer than this the order of two causes is the host's mood: a repeat of the same run on a shared host
# moved these shares by a tenth.
MIN_RATIO = 1.2
# Whose a CPU is that the step lacks is read from mean use, which says little about the moments that matter:
# within a factor of two it is not settled, and a run with the workers idle settles it.
MIN_STEP_RATIO = 2.0
# Limits that somebody set. Their own counters and masks prove them, and lifting one wins its share back at no
# cost, so they are named from a share at which other causes have to be the largest.
SETTINGS = frozenset({"quota", "affinity"})
SETTING_MIN = 0.3
# Evidence of these kinds has look-alikes that no counter separates; the page of each names them.
CEILING = {"remote": 0.8, "lock": 0.9, "neighbours": 0.85, "memory": 0.75, "affinity": 0.9, "shm": 0.8}
# A handover takes three hops (feeder thread, consumer, resource sharer), and behind another process each may
# wait for a time slice of 3 to 4 ms.
HOP_DELAY_NS = 10_000_000
# A consumer that computes for this share of its waits is unpickling, whoever else is on the host.
UNPICKLING_MIN = 0.3
# Others that use a quarter of the job's CPUs are met often enough for that.
BUSY_HOST_SHARE = 0.25
# A loop that does not wait is mostly its own limit; workers that nobody saw may still starve its step.
UNSEEN_WORKERS = 0.6
# Costs of blocked time, and how sure one may be of them when run-queue delay was not read.
BLOCKED = frozenset({"storage", "remote"})
QUEUE_UNREAD = 0.7
# A handover of less than three times what any worker needs is named with a reservation: a quick fetch beside
# it may be the limit just as much.
NEAR_FLOOR, NEAR_FLOOR_CONFIDENCE = 3, 0.65
TOP_CONFIDENCE, LOW_CONFIDENCE = 0.97, 0.6


def cost_verdict(
    loader: LoaderTrace, environment: Environment, host: Table, shape: Verdict | None
) -> tuple[Verdict, tuple[Evidence, ...], tuple[Finding, ...]]:
    """What the time lost to the loader was made of.

    Args:
        loader: The trace of one loader.
        environment: Host and software.
        host: ``HOST_COLUMNS`` over the run.
        shape: The verdict on the shape, if there is one.

    Returns:
        The verdict, the evidence of every key (strongest first), and findings worth a line of their own.
    """
    facts = cost_facts(loader, environment, host, shape)
    evidence = tuple(function(facts) for function in COSTS.values())
    verdict = _verdict(facts, {item.key: item for item in evidence})
    order = {State.SUPPORTED: 0, State.UNDECIDED: 1, State.RULED_OUT: 2, State.NOT_MEASURED: 3}
    ranked = sorted(evidence, key=lambda e: (e.key != verdict.key, order[e.state], -e.score))
    return verdict, tuple(ranked), _findings(facts, verdict)


def _verdict(facts: CostFacts, evidence: dict[str, Evidence]) -> Verdict:
    deliveries = len(facts.all_deliveries)
    if deliveries < MIN_DELIVERIES:
        return Verdict(
            "inconclusive",
            0.0,
            f"{counted(deliveries, 'delivery', 'deliveries')} to judge; "
            f"at least {MIN_DELIVERIES} are needed.",
        )
    starved = starved_consumer(facts)
    hungry = 0.0 if starved is None else starved.own_workers + starved.others
    if not loader_matters(facts) or (hungry >= STARVED_MIN and hungry > facts.budget.lost_share):
        return _of_the_step(facts, starved)
    if facts.fetches is None and evidence["start"].score < MIN_EXPLAINED:
        return Verdict(
            "inconclusive",
            0.0,
            f"The loop waits {percent(facts.steps.wait_share)} of its time; what the fetches are made of was "
            "not measured.",
        )
    return _of_the_loader(facts, evidence)


def _of_the_step(facts: CostFacts, starved: Starved | None) -> Verdict:
    """The loop does not wait: the consumer, its workers' hunger for CPUs, or the neighbours."""
    if starved is None:
        if step.cpus_full(facts):
            return Verdict(
                "inconclusive",
                0.5,
                f"The loop waits only {percent(facts.steps.wait_share)} of its time, but the workers use "
                "most of the CPUs; whether its step lacks one was not measured.",
                ("consumer", "step_starved"),
            )
        sure = facts.pool_cores is not None or facts.config.num_workers == 0
        return Verdict(
            "consumer",
            0.8 if sure else UNSEEN_WORKERS,
            statement_of("consumer", facts)
            + ("" if sure else " Whether the workers take CPUs from that step was not measured."),
        )
    keys = {"step_starved": starved.own_workers, "neighbours": starved.others}
    top = max(keys, key=lambda key: keys[key])
    if starved.own_workers + starved.others < STARVED_MIN:
        # Waits and delays far below their limits leave no room for another reading.
        hungry = starved.own_workers + starved.others
        room = 1 - max(facts.budget.lost_share / LOST_SHARE_MIN, hungry / STARVED_MIN)
        return Verdict("consumer", round(0.75 + 0.22 * max(0.0, room), 3), statement_of("consumer", facts))
    low = min(keys.values())
    if not starved.others_known or keys[top] < MIN_STEP_RATIO * low:
        return Verdict(
            "inconclusive",
            0.5,
            f"The step has no CPU for {percent(facts.steps.starved_share_or_zero)} of its time; whether the "
            "loader's workers or other processes have it "
            + ("cannot be told." if starved.others_known else "was not measured."),
            ("step_starved", "neighbours"),
        )
    return Verdict(
        top, _confidence(top, keys[top] / sum(keys.values()), low / keys[top]), statement_of(top, facts)
    )


def _of_the_loader(facts: CostFacts, evidence: dict[str, Evidence]) -> Verdict:
    """The loop waits: the cause with the largest share of the lost time."""
    skipped = {"consumer", "step_starved", "launch_bound"}
    open_keys = [
        item
        for item in evidence.values()
        if item.key not in skipped and item.state in (State.SUPPORTED, State.UNDECIDED)
    ]
    ranked = sorted(open_keys, key=lambda item: -item.score)
    supported = [item for item in ranked if item.state is State.SUPPORTED]
    unexplained = _unexplained(facts, evidence)
    best = supported[0] if supported else None
    if unexplained > (best.score if best else 0.0) and unexplained >= MIN_EXPLAINED:
        return _blocked_for_no_known_reason(facts, evidence)
    setting = next((item for item in supported if item.key in SETTINGS), None)
    if setting is not None and setting.score >= SETTING_MIN:
        return Verdict(
            setting.key,
            _confidence(setting.key, max(setting.score, MIN_EXPLAINED), 0.0),
            statement_of(setting.key, facts),
        )
    if best is None or best.score < MIN_EXPLAINED:
        return _no_single_cause(facts, ranked)
    if best.key == "delivery" and _host_may_delay(facts):
        return Verdict(
            "inconclusive",
            0.5,
            f"{statement_of('delivery', facts)[:-1]}, on a host that is busy with something else: the "
            "handover itself, or its threads wait for a CPU.",
            ("delivery", "neighbours"),
        )
    second = next((item for item in ranked if item.key != best.key), None)
    runner_up = max(second.score if second else 0.0, unexplained)
    if best.score < MIN_RATIO * runner_up:
        return _no_single_cause(facts, ranked)
    confidence = _confidence(best.key, best.score, runner_up / best.score)
    if best.key in BLOCKED and facts.fetches is not None and facts.fetches.run_queue_ns is None:
        # Part of the time that looks blocked may have been spent waiting for a CPU.
        confidence = min(confidence, QUEUE_UNREAD)
    per_batch = facts.budget.handover_ns / max(1, facts.steps.deliveries)
    if best.key == "delivery" and per_batch < NEAR_FLOOR * HANDOVER_FLOOR_NS:
        confidence = min(confidence, NEAR_FLOOR_CONFIDENCE)
    return Verdict(best.key, confidence, statement_of(best.key, facts))


def _host_may_delay(facts: CostFacts) -> bool:
    """True when others keep the CPUs so busy that the threads of the handover may just wait for one."""
    others, cpus = facts.host.other_cores, facts.cpus
    if others is None or cpus is None or others < BUSY_HOST_SHARE * cpus:
        return False
    if (facts.steps.unpickle_share or 0.0) >= UNPICKLING_MIN:
        return False
    queued = 0.0 if facts.fetches is None else facts.fetches.parts.run_queue
    if max(queued, facts.steps.wait_starved_share or 0.0) < STARVED_MIN:
        # Neither the workers nor the consumer ever had to wait for a CPU.
        return False
    return facts.budget.handover_ns < HOP_DELAY_NS * max(1, facts.steps.deliveries)


def _unexplained(facts: CostFacts, evidence: dict[str, Evidence]) -> float:
    """Share of the lost time that was blocked for no reason any counter shows."""
    item = evidence["lock"]
    named = any(evidence[key].state is State.SUPPORTED for key in ("storage", "remote"))
    if item.state is State.SUPPORTED or facts.fetches is None or facts.fetches.run_queue_ns is None:
        return 0.0
    return 0.0 if named else 2.0 * item.score


def _blocked_for_no_known_reason(facts: CostFacts, evidence: dict[str, Evidence]) -> Verdict:
    fetches = facts.fetches
    wall = 0.0 if fetches is None else fetches.mean_wall_ns
    share = 0.0 if fetches is None else fetches.mean_of(fetches.blocked_ns) / wall
    noun = "a fetch" if fetches is None else fetches.noun
    candidates = tuple(key for key in ("remote", "lock") if evidence[key].state is not State.RULED_OUT) or (
        "lock",
    )
    return Verdict(
        "inconclusive",
        0.5,
        f"{noun[0].upper()}{noun[1:]} takes {duration(wall)} and is blocked for {percent(share)} of it, "
        "not by a CPU and not by a disk: a lock, a sleep or a remote service.",
        candidates,
    )


def _no_single_cause(facts: CostFacts, ranked: list[Evidence]) -> Verdict:
    top = [item for item in ranked if item.score > 0][:2]
    if not top:
        return Verdict("inconclusive", 0.0, "What the fetches were made of explains none of the waiting.")
    words = listed([f"{item.key} {percent(item.score)}" for item in top])
    total = sum(item.score for item in top)
    return Verdict(
        "inconclusive",
        round(min(0.6, top[0].score / total * min(1.0, total)), 3),
        f"No single cost stands out; of the time lost to the loader: {words}.",
        tuple(item.key for item in top),
    )


def _confidence(key: str, share: float, runner_up: float) -> float:
    """From the share explained and the runner-up's part of it; held below each key's ceiling."""
    clear = max(0.0, 1.0 - runner_up) * min(1.0, share / 0.7)
    value = LOW_CONFIDENCE + (TOP_CONFIDENCE - LOW_CONFIDENCE) * clear**0.5
    return float(round(min(value, CEILING.get(key, 1.0)), 3))


def _findings(facts: CostFacts, verdict: Verdict) -> tuple[Finding, ...]:
    """Observations beside the verdict."""
    found: list[Finding] = []
    growth = growth_of(facts)
    if growth is not None and growth.lasting and verdict.key != "memory":
        ratio = growth.last_bytes / growth.first_bytes
        found.append(Finding("memory_growth", growth_words(growth), {"rss_growth": ratio}, "warning"))
    leak = handover.shm(facts)
    if leak.state is State.SUPPORTED and verdict.key != "shm":
        words = listed(leak.supports)
        found.append(Finding("leak", f"{words[0].upper()}{words[1:]}.", leak.numbers, "warning"))
    busy = compute.neighbours(facts)
    if busy.state in (State.SUPPORTED, State.UNDECIDED) and verdict.key != "neighbours":
        found.append(Finding("busy_host", statement_of("neighbours", facts), busy.numbers, "warning"))
    return tuple(found)
