"""What to try next: the cheapest command that would settle what is open, and how to read its result.

Proposes one thing. What is open decides: an undecided shape or cost first, else the verdict that stands on
the weaker feet. Nothing is run here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traceml_lite.diagnose.target import RunTarget, target_of
from traceml_lite.records.results import Experiment, Outcome, Verdict
from traceml_lite.records.run import Environment, LoaderConfig

# What a fresh process costs before its first batch: the interpreter, torch, the script's own imports.
PASS_START_S = 4.0
# Deliveries of a pass of a sweep, as the sweep takes them by itself, and of the first pass before them.
SWEEP_DELIVERIES, FIRST_DELIVERIES = 64, 16
# A verdict this sure is worth its experiment before the open question beside it.
SURE = 0.8
# Workers start in phase, so a control of ordered delivery needs this many before it says anything.
LONG_DELIVERIES, LONG_DELIVERIES_PER_WORKER = 200, 50


@dataclass(frozen=True, slots=True)
class Setting:
    """What the proposals are made from."""

    target: RunTarget | None
    config: LoaderConfig
    delivery_s: float | None
    """Time of the loop per delivery in this run."""
    cpus: float | None

    @property
    def workers(self) -> int:
        """Workers of the loader; 0 when unknown."""
        return self.config.num_workers or 0

    def seconds(self, arms: Sequence[int], deliveries: int = SWEEP_DELIVERIES) -> float | None:
        """Expected time of a sweep over arms with so many workers each.

        Every arm runs in both directions, behind a short first pass. A loop that waits for its fetches is as
        much slower at most as there are fewer workers; with more it is taken to be as fast as this run.
        """
        if self.delivery_s is None:
            return None
        pace = [max(1.0, max(1, self.workers) / max(1, arm)) * self.delivery_s for arm in arms]
        first = PASS_START_S + FIRST_DELIVERIES * self.delivery_s
        return first + 2 * sum(PASS_START_S + deliveries * one for one in pace)

    @property
    def long(self) -> int:
        """Deliveries that a control of the order of delivery needs."""
        return max(LONG_DELIVERIES, LONG_DELIVERIES_PER_WORKER * self.workers)


Proposal = Callable[[Setting, RunTarget], Experiment]


def next_experiment(
    shape: Verdict,
    cost: Verdict,
    *,
    config: LoaderConfig,
    environment: Environment,
    delivery_s: float | None,
    fetches_seen: bool,
    deliveries: int,
) -> Experiment | None:
    """The cheapest next step.

    Args:
        shape: Verdict on the shape.
        cost: Verdict on the cost.
        config: Options of the loader.
        environment: Host and software; its command names the target.
        delivery_s: Time of the loop per delivery in this run, seconds; None if unknown.
        fetches_seen: Whether the trace has the workers' fetches.
        deliveries: How many this run had.
    """
    setting = Setting(target_of(environment.command), config, delivery_s, environment.cpus_usable)
    key = _open_question(shape, cost, fetches_seen, deliveries)
    if setting.target is None:
        return _without_target(key)
    return _PROPOSALS[key](setting, setting.target) if key in _PROPOSALS else _explain(key)


def _open_question(shape: Verdict, cost: Verdict, fetches_seen: bool, deliveries: int) -> str:
    """The key whose experiment is worth most."""
    if not fetches_seen and cost.key != "consumer":
        return "record"
    if cost.key in _OF_THE_HOST:
        # Every pattern in time is in doubt while the host itself is in the way.
        return cost.key
    if cost.key in ("consumer", "step_starved") and (shape.key == "none" or cost.confidence >= SURE):
        # Where the loop does not wait, the pattern of its waits settles nothing.
        return cost.key
    if shape.key != "inconclusive" and len(shape.candidates) > 1:
        # What a fetch is made of is worth asking once it is known whose fetches are slow.
        return _PAIRS.get(frozenset(shape.candidates[:2]), shape.candidates[0])
    if shape.key == "inconclusive" and (shape.candidates or deliveries < LONG_DELIVERIES):
        return _PAIRS.get(
            frozenset(shape.candidates[:2]), shape.candidates[0] if shape.candidates else "longer"
        )
    if cost.key == "inconclusive":
        candidates = frozenset(cost.candidates[:2])
        return _PAIRS.get(candidates, cost.candidates[0] if cost.candidates else "longer")
    # The shape's experiments take a loop that waits for granted; without waits only the cost is open.
    return (
        cost.key
        if shape.key in ("none", "inconclusive") or cost.confidence <= shape.confidence
        else shape.key
    )


_OF_THE_HOST = frozenset({"neighbours", "quota", "affinity"})
_PAIRS: dict[frozenset[str], str] = {
    frozenset({"consumer", "step_starved"}): "step_starved",
    frozenset({"step_starved", "neighbours"}): "step_starved",
    frozenset({"run_queue", "neighbours"}): "neighbours",
    frozenset({"cpu", "run_queue"}): "run_queue",
    frozenset({"remote", "lock"}): "lock",
    frozenset({"storage", "lock"}): "storage",
    frozenset({"storage", "remote"}): "storage",
    frozenset({"slow_worker", "data_period"}): "data_period",
    frozenset({"slow_worker", "saturated_pool"}): "slow_worker",
    frozenset({"data_period", "worker_period"}): "worker_period",
    frozenset({"data_period", "clock_period"}): "clock_period",
    # Three stalls are too few for either; more of them tell.
    frozenset({"data_period", "slow_sample"}): "longer",
}


def _explain(key: str) -> Experiment:
    return Experiment(
        f"traceml-lite explain {key}", 1.0, f"What {key} looks like, what it is mistaken for, and its cure."
    )


def _without_target(key: str) -> Experiment | None:
    """Without a target no command can be printed that runs; the page says which one to make."""
    if key in ("record", "longer"):
        return None
    return Experiment(
        f"traceml-lite explain {key}",
        1.0,
        "This trace does not name its script, so the experiment cannot be printed ready to run; the page "
        "gives its form.",
    )


def _outcomes(*pairs: tuple[str, str]) -> tuple[Outcome, ...]:
    return tuple(Outcome(result, meaning) for result, meaning in pairs)


def _sweep(
    s: Setting, t: RunTarget, values: Sequence[int], reason: str, *pairs: tuple[str, str]
) -> Experiment:
    """A sweep over numbers of workers."""
    arms = sorted(set(values))
    option = "num_workers=" + ",".join(str(value) for value in arms)
    return Experiment(t.sweep("-s", option), s.seconds(arms), reason, _outcomes(*pairs))


def _control(s: Setting, t: RunTarget, name: str, reason: str, *pairs: tuple[str, str]) -> Experiment:
    """A control beside the loader as it is; ``repeat`` is one arm of twice the length."""
    seconds = s.seconds([s.workers], 2 * SWEEP_DELIVERIES) if name == "repeat" else s.seconds([s.workers] * 2)
    return Experiment(t.sweep("--control", name), seconds, reason, _outcomes(*pairs))


def _record(s: Setting, t: RunTarget) -> Experiment:
    return Experiment(
        t.again(),
        None,
        "This trace has waits only. With the probe on, the fetches in the workers are timed as well.",
        _outcomes(("the cost has a name", "the fetches say what they are made of")),
    )


def _longer(s: Setting, t: RunTarget) -> Experiment:
    options = () if t.is_script else ("--deliveries", str(LONG_DELIVERIES))
    return Experiment(
        t.again(*options),
        None if s.delivery_s is None else PASS_START_S + LONG_DELIVERIES * s.delivery_s,
        f"There are too few deliveries to tell; {LONG_DELIVERIES} are enough for every pattern here.",
    )


def _uniform(s: Setting, t: RunTarget) -> Experiment:
    values = (0, max(1, s.workers), 2 * max(1, s.workers))
    return _sweep(
        s, t, values, "Without workers the wait is the fetch itself.",
        ("the wait at 0 workers is the fetch time, and falls with workers", "the pool is too small"),
        ("the wait does not fall with workers", "something is shared: the CPUs, a lock, a disk"),
    )  # fmt: skip


def _saturated_pool(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "stagger", "Shifting the workers against each other breaks their step.",
        ("the cadence goes and the mean wait stays", "a saturated pool: cheaper batches or more CPUs help"),
        ("the cadence stays", "one worker or the data makes it, not the pool's phase"),
    )  # fmt: skip


def _slow_worker(s: Setting, t: RunTarget) -> Experiment:
    return Experiment(
        t.sweep("--control", "in_order", "--deliveries", str(s.long)),
        s.seconds([s.workers] * 2, s.long),
        "Unordered delivery lets other workers' batches pass a slow one.",
        _outcomes(
            ("the stalls fall away, batches per worker become uneven", "one worker is slow"),
            (
                "the stalls stay in the first rounds and the mean does not change",
                "the whole pool is too slow",
            ),
        ),
    )


def _slow_sample(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "repeat", "The same indices a second time.",
        ("the same batches stall again", "those samples are expensive in themselves"),
        ("other batches stall", "chance: the host or the storage, not the samples"),
        ("nothing stalls the second time", "the page cache helped: storage"),
    )  # fmt: skip


def _data_period(s: Setting, t: RunTarget) -> Experiment:
    workers = max(1, s.workers)
    return _sweep(
        s, t, (workers, workers + 1), "The data does not know how many workers there are.",
        ("the gap stays the same number of batches", "the data makes the period: shard or row group"),
        ("the gap follows num_workers", "a worker or the pool makes it"),
    )  # fmt: skip


def _worker_period(s: Setting, t: RunTarget) -> Experiment:
    workers = max(1, s.workers)
    return _sweep(
        s, t, (workers, 2 * workers), "A period inside each worker grows with their number.",
        ("gap / num_workers stays the same", "each worker does it: refill, garbage collection, reopening"),
        ("the gap stays the same number of batches", "the data makes the period"),
    )  # fmt: skip


def _clock_period(s: Setting, t: RunTarget) -> Experiment:
    pace_ms = 20 if s.delivery_s is None else max(1, round(2000 * s.delivery_s))
    meaning = (
        ("the gap in seconds stays, in batches it shrinks", "a clock makes it: a job, a flush, a checkpoint"),
        ("the gap in batches stays", "the data or a worker makes it"),
    )
    if t.is_script:
        return _sweep(s, t, (s.workers, 2 * max(1, s.workers)), "Another pace of the loop.", *meaning)
    seconds = None if s.delivery_s is None else PASS_START_S + LONG_DELIVERIES * pace_ms / 1000
    command = t.again("--consumer", f"paced:{pace_ms}ms", "--deliveries", str(LONG_DELIVERIES))
    return Experiment(command, seconds, "Half the pace of the loop.", _outcomes(*meaning))


def _persistent(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "persistent", "Workers that live on need not be started again.",
        ("later epochs begin without a wait", "the cost was starting workers: keep them"),
        ("every epoch still begins with a wait", "the first fetches are slow in themselves: caches, opening"),
    )  # fmt: skip


def _shard_starvation(s: Setting, t: RunTarget) -> Experiment:
    return _sweep(
        s, t, (1, max(2, s.workers)), "Workers without data of their own do not help.",
        ("as fast with one worker", "too few shards: more shards than workers, of equal size"),
        ("slower with one worker", "the shards do feed several workers"),
    )  # fmt: skip


def _drift(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "repeat", "The same indices again in fresh workers.",
        ("fast again at the start", "something grows in the workers: memory, open files, a cache"),
        ("as slow as before at the same batches", "the data grows along the order"),
    )  # fmt: skip


def _cpu(s: Setting, t: RunTarget) -> Experiment:
    return _sweep(
        s, t, (0, max(1, s.workers)), "Without workers the fetch runs in the loop's own process.",
        ("CPU per batch is the same", "the work itself is dear: profile one fetch at num_workers=0"),
        ("CPU per batch is lower", "the workers add it: threads, copies, contention"),
    )  # fmt: skip


def _run_queue(s: Setting, t: RunTarget) -> Experiment:
    cpus = max(1, int(s.cpus or 1))
    return _sweep(
        s, t, (1, cpus, max(s.workers, 1)), "Fewer workers queue less for the same CPUs.",
        ("the mean wait is the same with fewer", "CPU per batch is the limit: cheaper batches, more CPUs"),
        ("the mean wait falls with fewer", "too many workers: keep the smaller number"),
    )  # fmt: skip


def _threads(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "threads", "One thread in every worker.",
        ("faster", "threads fought each other: set one thread in worker_init_fn"),
        ("as fast or slower", "the threads are not the cause"),
    )  # fmt: skip


def _doctor(s: Setting, t: RunTarget) -> Experiment:
    return Experiment(
        "traceml-lite doctor", 2.0, "Prints the CPU mask, the cgroup's quota and the thread settings."
    )


def _storage(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "repeat", "The second time the bytes come from the page cache.",
        ("fast the second time", "the disk is the cost: faster disk, larger reads, more prefetch"),
        ("as slow the second time", "not the disk: a lock, a remote service or the work itself"),
    )  # fmt: skip


def _remote(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "repeat", "The second time the client may have the files in its cache.",
        ("fast the second time", "the way to the files is the cost: copy them to a local disk"),
        ("as slow the second time", "nothing is cached: more workers, or larger and fewer requests"),
    )  # fmt: skip


def _lock(s: Setting, t: RunTarget) -> Experiment:
    return _sweep(
        s, t, (1, max(4, s.workers)), "A lock makes workers useless, a sleep does not.",
        ("as many batches per second with one worker", "a lock, or a service that serves one at a time"),
        ("more workers, more batches per second", "latency: a remote service or a sleep; more workers help"),
    )  # fmt: skip


def _pin(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "pin", "The same without the pin-memory thread.",
        ("faster without", "pinning is the bottleneck: larger tensors, fewer of them"),
        ("no difference", "pinning is not the cause"),
    )  # fmt: skip


def _start(s: Setting, t: RunTarget) -> Experiment:
    return Experiment(
        t.sweep("-s", "start_method=fork,spawn"),
        s.seconds([s.workers] * 2),
        "Spawned workers import everything again.",
        _outcomes(
            ("fork starts at once", "imports and unpickling of the dataset: a smaller dataset object, fork"),
            ("both are slow", "worker_init_fn or the first fetch is slow: persistent workers"),
        ),
    )


def _ceiling(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "ceiling", "The step alone, with batches from memory and idle workers.",
        ("as fast as before", "the step is the limit; the loader has nothing to give"),
        ("faster", "the loader costs the loop this much, though it hardly waits: its workers take the CPUs"),
    )  # fmt: skip


def _trivial(s: Setting, t: RunTarget) -> Experiment:
    return _control(
        s, t, "trivial", "A dataset of zeros on the same host.",
        ("slow as well", "the host is the cause: other processes, few CPUs"),
        ("fast", "the dataset is the cause"),
    )  # fmt: skip


_PROPOSALS: dict[str, Proposal] = {
    "record": _record,
    "longer": _longer,
    "uniform": _uniform,
    "saturated_pool": _saturated_pool,
    "slow_worker": _slow_worker,
    "slow_sample": _slow_sample,
    "data_period": _data_period,
    "worker_period": _worker_period,
    "clock_period": _clock_period,
    "start_up": _persistent,
    "epoch_boundary": _persistent,
    "shard_starvation": _shard_starvation,
    "drift": _drift,
    "cpu": _cpu,
    "run_queue": _run_queue,
    "threads": _threads,
    "affinity": _doctor,
    "quota": _doctor,
    "storage": _storage,
    "remote": _remote,
    "lock": _lock,
    "pin": _pin,
    "start": _start,
    "consumer": _ceiling,
    "step_starved": _ceiling,
    "none": _ceiling,
    "neighbours": _trivial,
}
