"""Laying out a plan: conditions that differ, arms in both directions, lengths, and what it should take.

Pure: a request and the facts of a short first pass in, a plan out. It starts nothing and reads no clock.
Arms are interleaved, because the same configuration minutes apart can differ twofold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from traceml_lite._errors import UsageError
from traceml_lite.experiment.control import (
    CEILING_BATCHES,
    IN_ORDER_MAX_DELIVERIES,
    Control,
    control_named,
    deliveries_needed,
)
from traceml_lite.experiment.plan import (
    CONTROL_BLOCK,
    SWEEP_BLOCK,
    Facts,
    Plan,
    PlannedPass,
    Request,
    beside,
)
from traceml_lite.experiment.settings import Setting, parse_settings
from traceml_lite.probe.options import resolve_options

# Deliveries of a pass, warm-up apart, unless told otherwise. In 60 simulated sweeps over 1, 2 and 4 workers
# the law was right in 60 of 60 for the period of a worker at 64, and always wrong at 16 (a period of 12 needs
# more than 12 deliveries to be seen twice).
DEFAULT_DELIVERIES = 64


# A budget does not press an in_order control below these deliveries and rounds, which tell a mean wait from
# another one.
IN_ORDER_LEAST, IN_ORDER_ROUNDS, IN_ORDER_STEP = 64, 16, 8
# A plan that is pressed into a budget takes this share of it: passes may run longer than expected, and one
# that the budget does not hold can take the answer of all others with it.
PRESSED_SHARE = 0.85
# A budget does not press a pass below this: a cadence of 4 needs 16 deliveries to be told from chance at 1 %.
MIN_DELIVERIES = 16


@dataclass(frozen=True, slots=True)
class _Arm:
    name: str
    condition: Setting
    workers: int
    deliveries: int
    warmup: int
    control: str | None = None
    endless: bool = False
    repeat_after: int | None = None


@dataclass(slots=True)
class _Notes:
    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)


def plan_sweep(request: Request, facts: Facts, *, budget_s: float | None = None) -> Plan:
    """Lay out every pass.

    Args:
        request: What was asked for.
        facts: What the first pass told.
        budget_s: Time for all passes together; lowers the deliveries per pass where those were not given,
            and then those of an in_order control, as far as that still answers whether order makes the wait.

    Returns:
        The passes in order, numbered from 1 (the first pass, as the target is, has number 0).

    Raises:
        UsageError: An option that this torch or this loader does not take, an unknown control, or a control
            that needs workers where there are none.
    """
    if request.repeats < 1:
        raise UsageError("--repeats: at least 1")
    controls = [control_named(name) for name in dict.fromkeys(request.controls)]
    notes = _Notes(list(facts.notes))
    conditions = _distinct(parse_settings(request.settings), facts, notes)
    if request.deliveries is not None:
        return _lay_out(request, facts, conditions, controls, request.deliveries, notes)
    plan = _lay_out(request, facts, conditions, controls, DEFAULT_DELIVERIES, _Notes(list(notes.lines)))
    if budget_s is None or plan.expected_s <= budget_s:
        return plan
    room_s = PRESSED_SHARE * budget_s
    if any(control.name == "in_order" for control in controls):
        # First the long control, which keeps half of its answer; then what the law is read from.
        for longest in range(IN_ORDER_MAX_DELIVERIES, 0, -IN_ORDER_STEP):
            plan = _lay_out(
                request, facts, conditions, controls, DEFAULT_DELIVERIES, _Notes(list(notes.lines)), longest
            )
            if plan.expected_s <= room_s:
                return plan
    for deliveries in range(DEFAULT_DELIVERIES - 1, MIN_DELIVERIES - 1, -1):
        shorter = _lay_out(request, facts, conditions, controls, deliveries, _Notes(list(notes.lines)), 1)
        if shorter.expected_s <= room_s:
            break
    if not any(one.block in (SWEEP_BLOCK, CONTROL_BLOCK) for one in shorter.passes):
        return shorter  # controls of lengths of their own have said what became of them
    text = f"{deliveries} deliveries per pass instead of {DEFAULT_DELIVERIES}, to keep within the budget"
    return replace(shorter, notes=(*shorter.notes, text))


def delivery_seconds(facts: Facts, condition: Setting) -> float:
    """Expected wall time per delivery under a condition, from the first pass's medians.

    A fetch of P seconds by W workers on K CPUs arrives every P*max(1, W/K)/W; a step of C bounds it from
    below. Where fetches were not seen, the first pass's own pace stands for every condition.
    """
    if facts.fetch_s is None or facts.step_s is None:
        return facts.delivery_s
    workers = _workers(facts, condition)
    fetch_s = facts.fetch_s * _batch_ratio(facts, condition)
    if workers == 0:
        return fetch_s + facts.step_s
    return max(facts.step_s, fetch_s * max(1.0, workers / facts.cpus) / workers)


def _batch_ratio(facts: Facts, condition: Setting) -> float:
    before, after = facts.options.get("batch_size"), condition.options.get("batch_size")
    return float(after) / float(before) if before and after else 1.0


def _workers(facts: Facts, condition: Setting) -> int:
    return int(condition.options.get("num_workers", facts.workers) or 0)


def _prefetch(facts: Facts, condition: Setting) -> int:
    given = condition.options.get("prefetch_factor", facts.options.get("prefetch_factor"))
    return int(given or 2)


def _distinct(conditions: Sequence[Setting], facts: Facts, notes: _Notes) -> list[Setting]:
    """The conditions that differ once torch's rules have been applied; each refusal is an error here."""
    kept: dict[str, Setting] = {}
    known = frozenset(facts.known_options)
    for condition in conditions:
        resolved = resolve_options(facts.options, condition.options, iterable=facts.iterable, known=known)
        if resolved.refused:
            raise UsageError("; ".join(resolved.notes))
        for note in resolved.notes:
            notes.add(f"{condition.label}: {note}")
        effective = dict(resolved.arguments)
        if not effective.get("num_workers"):
            effective["in_order"] = True
        key = json.dumps(
            [effective, dict(condition.arguments), dict(condition.environment)], sort_keys=True, default=str
        )
        if key in kept:
            notes.add(f"{condition.label} is the same as {kept[key].label} and is not run again")
        else:
            kept[key] = condition
    return list(kept.values())


def _lay_out(
    request: Request,
    facts: Facts,
    conditions: Sequence[Setting],
    controls: Sequence[Control],
    deliveries: int,
    notes: _Notes,
    longest: int | None = None,
) -> Plan:
    def arm(name: str, condition: Setting, wanted: int, **extra: Any) -> _Arm:
        workers = _workers(facts, condition)
        warmup = request.warmup
        if warmup is None:
            warmup = workers * _prefetch(facts, condition)
        return _Arm(name, condition, workers, wanted + warmup, warmup, **extra)

    passes: list[PlannedPass] = []
    if request.settings or not controls:
        arms = [arm(condition.label, condition, deliveries) for condition in conditions]
        passes += _block(SWEEP_BLOCK, arms, request)
    shared: list[_Arm] = []
    for control in controls:
        base = _base(conditions, facts, control, notes)
        if base is None:
            continue
        if control.own_block:
            workers = _workers(facts, base)
            need = deliveries_needed(control.name, workers, deliveries, facts.fetch_cv)
            asked = request.deliveries or DEFAULT_DELIVERIES
            least = max(IN_ORDER_LEAST, IN_ORDER_ROUNDS * workers)
            if control.name == "in_order" and longest is not None and need > max(least, longest):
                notes.add(
                    f"in_order: {max(least, longest)} deliveries per pass instead of {need}, to keep within "
                    "the budget: enough for whether order makes the wait, too few for whether the cadence "
                    "lasts"
                )
                need = max(least, longest)
            elif need != asked:
                why = "fewer cannot decide" if need > asked else "later, order pulls it into phase again"
                notes.add(f"{control.name}: {need} deliveries per pass instead of {asked}; {why}")
            plain = base.with_options(control.base_options)
            changed = base.with_options(control.options)
            arms = [
                arm(f"{base.label} {beside(control.name)}", plain, need, endless=True),
                arm(f"{base.label} [{control.name}]", changed, need, control=control.name, endless=True),
            ]
            passes += _block(control.name, arms, request)
            continue
        # A repetition is compared with itself, and persistent workers have an arm of their own length.
        name = f"{base.label} {beside('controls')}"
        if control.name not in ("repeat", "persistent") and not any(one.name == name for one in shared):
            shared.insert(0, arm(name, base, deliveries))
        shared += _shared_arms(control, base, facts, deliveries, arm, notes)
    if shared:
        passes += _block(CONTROL_BLOCK, shared, request)
    numbered = [
        replace(one, number=number, expected_s=_expected(facts, one)) for number, one in enumerate(passes, 1)
    ]
    return Plan(tuple(numbered), tuple(notes.lines))


def _base(conditions: Sequence[Setting], facts: Facts, control: Control, notes: _Notes) -> Setting | None:
    """The condition beside which a control is run: the one with the most workers."""
    base = max(conditions, key=lambda condition: _workers(facts, condition))
    workers = _workers(facts, base)
    if control.needs_workers and workers == 0:
        raise UsageError(
            f"--control {control.name} needs workers, and no condition has any; add -s num_workers=4"
        )
    if control.own_block and workers == 1:
        notes.add(f"{control.name} is left out: with one worker nothing can be overtaken or out of phase")
        return None
    if control.name == "pin" and not facts.accelerator:
        notes.add("pin is left out: there is no accelerator here, so torch pins nothing")
        return None
    if control.name in ("repeat", "in_order") and facts.iterable:
        notes.add(f"{control.name} is left out: an iterable dataset has no indices of its own order")
        return None
    return base


def _shared_arms(
    control: Control, base: Setting, facts: Facts, deliveries: int, arm: Any, notes: _Notes
) -> Iterable[_Arm]:
    changed = base.with_options(control.options)
    if control.name == "pin":
        changed = base.with_options({"pin_memory": not facts.options.get("pin_memory")})
    if control.name == "ceiling":
        changed = Setting(
            {**{k: v for k, v in base.options.items() if k not in ("prefetch_factor",)}, "num_workers": 0},
            base.arguments,
            base.environment,
        )
    name = f"{base.label} [{control.name}]"
    if control.name == "ceiling":
        # What is fetched for real before the replay is its warm-up.
        one: _Arm = arm(name, changed, deliveries, control="ceiling")
        return [replace(one, deliveries=deliveries + CEILING_BATCHES, warmup=CEILING_BATCHES)]
    if control.name == "repeat":
        workers = max(1, _workers(facts, base))
        # A multiple of the workers, so that in order each rank goes to the same worker both times.
        rounds = -(-deliveries // workers) * workers
        if facts.batches is not None and facts.batches < rounds:
            rounds = facts.batches
            notes.add(f"repeat: the epoch has {rounds} batches, so that many are fetched twice")
        one = arm(name, changed, 2 * rounds, control="repeat", repeat_after=rounds)
        return [replace(one, deliveries=2 * rounds, warmup=0)]
    wanted = deliveries
    if control.name == "persistent":
        if facts.batches is None:
            notes.add("persistent: the length of an epoch is not known; the pass may not see a boundary")
        elif 2 * facts.batches + 1 > deliveries:
            wanted = 2 * facts.batches + 1
            notes.add(f"persistent: {wanted} deliveries, so that two epoch boundaries fall into the pass")
        plain = base.with_options(control.base_options)
        return [
            arm(f"{base.label} {beside('persistent')}", plain, wanted),
            arm(name, changed, wanted, control="persistent"),
        ]
    return [arm(name, changed, wanted, control=control.name)]


def _block(block: str, arms: Sequence[_Arm], request: Request) -> list[PlannedPass]:
    """The arms in both directions, as often as asked: c b a, a b c for many; A B B A for two."""
    turns = 1 if request.one_direction else 2
    passes = []
    for turn in range(request.repeats * turns):
        forward = turn % 2 == 0 if len(arms) == 2 else turn % 2 == 1
        if request.one_direction:
            forward = True
        for arm in arms if forward else list(reversed(arms)):
            passes.append(
                PlannedPass(
                    number=0,
                    block=block,
                    arm=arm.name,
                    round=turn,
                    forward=forward,
                    condition=arm.condition,
                    workers=arm.workers,
                    deliveries=arm.deliveries,
                    warmup=arm.warmup,
                    control=arm.control,
                    endless=arm.endless,
                    repeat_after=arm.repeat_after,
                )
            )
    return passes


def _expected(facts: Facts, one: PlannedPass) -> float:
    per_delivery = delivery_seconds(facts, one.condition)
    if one.control in ("ceiling", "trivial"):
        per_delivery = facts.step_s if facts.step_s is not None else facts.delivery_s
    return facts.start_s + one.deliveries * per_delivery
