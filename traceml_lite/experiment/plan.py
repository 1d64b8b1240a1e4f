"""What is asked for, what a first pass told, and the plan made of both; as records, as JSON, in words.

Pure. How a plan is made is in ``layout``; nothing here starts a process or reads a clock.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from traceml_lite.experiment.control import CONTROLS
from traceml_lite.experiment.settings import Setting

SWEEP_BLOCK = "sweep"
CONTROL_BLOCK = "controls"


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. Its hash names the sweep, so that the same command again goes on with it."""

    target: str
    """A script, ``file.py:factory``, ``package.module:factory``, ``lerobot:ROOT`` or ``demo:NAME``."""
    module: bool = False
    """``target`` is a module to run, as with ``python -m``."""
    script_arguments: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """The texts of the ``-s`` options."""
    controls: tuple[str, ...] = ()
    deliveries: int | None = None
    """Deliveries per pass, warm-up apart; None lets the budget decide, at most 64."""
    warmup: int | None = None
    """First deliveries of a pass that are set apart; None takes workers times prefetch factor."""
    repeats: int = 1
    one_direction: bool = False
    seed: int = 0
    arguments: tuple[tuple[str, str], ...] = ()
    """Arguments of the factory that are the same in every pass."""
    consumer: str | None = None
    """For a factory's loader; None takes the target's own default, else ``none``."""
    loader: int | None = None
    """Number of the loader to vary; None takes the one that delivers most."""
    cache: str = "warm"
    """``"warm"``, ``"cold"`` or ``"as-is"``."""
    content: str = ""
    """Hash of the target's file, so that a changed script is not taken for the same experiment."""

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that are the same for the same request."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    @property
    def is_script(self) -> bool:
        """Whether the target runs by itself, so that its pass must be ended from inside."""
        return self.module or (self.target.endswith(".py") and ":" not in self.target)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a short first pass of the target, as it is, told about it."""

    loader: int
    """Number of the loader that the sweep varies."""
    loader_type: str
    dataset: str
    iterable: bool
    options: Mapping[str, Any]
    batches: int | None
    deliveries: int
    """How many of its deliveries the first pass took."""
    start_s: float
    """From the start of the process to the first ask."""
    delivery_s: float
    """Wall time per delivery, as it is."""
    fetch_s: float | None
    """Median fetch; None where fetches were not seen."""
    step_s: float | None
    """Median step of the consumer."""
    cpus: float
    """CPUs it may use."""
    accelerator: bool
    known_options: tuple[str, ...]
    fetch_cv: float | None = None
    """Variation of the fetch times within workers; None where too few were seen."""
    others: tuple[str, ...] = ()
    """The target's other loaders, in words."""
    notes: tuple[str, ...] = ()

    @property
    def workers(self) -> int:
        """Workers of the loader as the target makes it."""
        return int(self.options.get("num_workers") or 0)


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """One condition in one fresh process."""

    number: int
    block: str
    """``"sweep"``, ``"controls"``, or the name of a control with a block of its own."""
    arm: str
    """Name of the arm within its block."""
    round: int
    """Which time through the block's arms, from 0."""
    forward: bool
    """Whether this round takes the arms in the order in which they were given."""
    condition: Setting
    workers: int
    deliveries: int
    """Deliveries to take, warm-up included."""
    warmup: int
    control: str | None = None
    endless: bool = False
    repeat_after: int | None = None
    expected_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """All passes in their order, with what was settled on the way."""

    passes: tuple[PlannedPass, ...]
    notes: tuple[str, ...] = ()
    """What was resolved, merged or left out, and why."""

    @property
    def expected_s(self) -> float:
        """How long it should take, from the first pass's pace."""
        return sum(one.expected_s for one in self.passes)


def beside(what: str) -> str:
    """How the name of an arm ends that is run for a control to be compared with."""
    return f"(beside {what})"


def plan_to_json(request: Request, facts: Facts, plan: Plan) -> dict[str, Any]:
    """The plan as stored in ``plan.json``."""
    return {
        "format": "traceml-lite plan",
        "version": [1, 0],
        "digest": request.digest,
        "request": asdict(request),
        "facts": asdict(facts),
        "passes": [asdict(one) for one in plan.passes],
        "notes": list(plan.notes),
    }


def plan_from_json(document: Mapping[str, Any]) -> tuple[Request, Facts, Plan]:
    """The plan from ``plan.json``; the inverse of :func:`plan_to_json`."""
    asked = dict(document["request"])
    for name in ("script_arguments", "settings", "controls"):
        asked[name] = tuple(asked[name])
    asked["arguments"] = tuple((name, value) for name, value in asked["arguments"])
    told = dict(document["facts"])
    for name in ("known_options", "others", "notes"):
        told[name] = tuple(told[name])
    passes = tuple(
        PlannedPass(**{**one, "condition": Setting(**one["condition"])}) for one in document["passes"]
    )
    return Request(**asked), Facts(**told), Plan(passes, tuple(document["notes"]))


def describe(plan: Plan) -> list[str]:
    """The plan in a few lines: blocks, arms in order, deliveries, and the expected duration."""
    lines = []
    for block in dict.fromkeys(one.block for one in plan.passes):
        of_block = [one for one in plan.passes if one.block == block]
        arms = " -> ".join(one.arm for one in of_block)
        counts = sorted({one.deliveries - one.warmup for one in of_block})
        taken = "/".join(map(str, counts))
        lines.append(f"{block}: {arms}")
        lines.append(f"  {len(of_block)} passes of {taken} deliveries after their warm-up")
        if block in CONTROLS:
            lines.append(f"  {CONTROLS[block].reason}")
    return lines


def describe_time(plan: Plan, budget_s: float | None) -> str:
    """How long it should take, before it begins."""
    budget = "" if budget_s is None else f", within a budget of {budget_s:.0f} s"
    return f"expected: {len(plan.passes)} passes in about {plan.expected_s:.0f} s{budget}"


# Options of the command line with a value, and the field of the request that holds it.
_TYPED_OPTIONS = {
    "--deliveries": "deliveries",
    "--warmup": "warmup",
    "--repeats": "repeats",
    "--seed": "seed",
    "--consumer": "consumer",
    "--loader": "loader",
    "--cache": "cache",
}


def show_request(request: Request) -> str:
    """The command that was given, as one would type it again."""
    words = ["traceml-lite", "sweep", *(["-m"] if request.module else []), request.target]
    for text in request.settings:
        words += ["-s", text]
    for name in request.controls:
        words += ["--control", name]
    plain = Request(request.target)
    for option, name in _TYPED_OPTIONS.items():
        value = getattr(request, name)
        if value != getattr(plain, name):
            words += [option, str(value)]
    if request.one_direction:
        words.append("--one-direction")
    for name, value in request.arguments:
        words += ["-a", f"{name}={value}"]
    if request.script_arguments:
        words += ["--", *request.script_arguments]
    return shlex.join(words)
