"""Controlled experiments: the conditions, their passes, and what comparing them concluded.

Everything here but ``MeasuredPass`` is plain data that goes to JSON as it stands. A field that is None was
not measured or cannot be said; the record's statement says which.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from traceml_lite.records.results import Estimate
from traceml_lite.records.run import Run


@dataclass(frozen=True, slots=True)
class Condition:
    """One setting of the loader that passes are run under; inside a comparison it is an arm."""

    name: str
    """Short and unique within a sweep, e.g. ``"num_workers=4"`` or ``"num_workers=4 in_order=False"``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What was set: loader options by their torch names, factory arguments, ``env.NAME`` ..."""
    control: str | None = None
    """Name of the control this arm is (``"in_order"``, ``"stagger"``, ``"ceiling"`` ...), or None."""


class PassStatus(str, enum.Enum):
    """How a pass ended."""

    DONE = "done"
    TIMEOUT = "timeout"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class PassResult:
    """One run of one condition: facts, without its trace."""

    condition: str
    """``Condition.name``."""
    number: int
    """Place in the order in which the passes really ran, from 0."""
    direction: str
    """``"down"``, ``"up"``, ``"forward"``, ``"back"``: which leg of the order it belongs to."""
    repeat: int = 0
    status: PassStatus = PassStatus.DONE
    reason: str = ""
    """Why it did not end well; empty when it did."""
    trace: str | None = None
    """Directory of its trace, relative to the sweep's."""
    deliveries: int = 0
    warmup: int = 0
    """Deliveries at the start that no statistic uses."""
    indices_hash: str | None = None
    """Hash of the sampler's stream: equal for passes that saw the same batches in the same order."""
    cache: str = ""
    """State of the data files' pages at the start: ``"warm"``, ``"cold"``, ``"partly"``, ``"no files"`` (none
    was seen) or ``"unknown"``."""
    wall_s: float | None = None
    """From the start of the process to its end."""
    cache_share: float | None = None
    """Share of the data files' bytes that was in memory at the start, in [0, 1]."""
    start_s: float | None = None
    """From the start of the process to its first ask."""
    block: str = "sweep"
    """``"sweep"``, ``"controls"`` or the control with a block of its own: what it is interleaved with."""
    mean_wait_ns: float | None = None
    """Mean wait after the warm-up."""
    notes: tuple[str, ...] = ()
    """What was resolved, done or found beyond the plan, in words."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPass:
    """A finished pass with what it recorded: what the analysis takes."""

    condition: Condition
    result: PassResult
    run: Run


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A pass during which the host was busy with something else."""

    condition: str
    number: int
    """``PassResult.number``; -1 for a run that is not a pass of a sweep."""
    reason: str
    """In words, with the numbers."""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GapLaw:
    """How the gap between stalls moves with the number of workers."""

    key: str
    """``proportional``, ``multiple``, ``constant_batches``, ``constant_seconds``, ``none``, ``undecided``."""
    statement: str
    """One sentence in plain words, with the numbers that matter."""
    delta_bic: float | None
    """Evidence for ``key`` over the next best law; above 10 it is named. None without stalls to compare."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """BIC by law, the lower the better."""
    multiple: float | None = None
    """Gap over num_workers: 1 when proportional, k when ``multiple``."""
    gap_batches: float | None = None
    """The gap of ``constant_batches``."""
    gap_s: float | None = None
    """The gap of ``constant_seconds``."""
    median_gap: Mapping[int, float] = field(default_factory=dict)
    """num_workers to the median gap in batches, over all its passes; absent without gaps."""
    gaps: int = 0
    """Gaps between stalls behind the verdict, over passes with two or more workers."""
    threshold_ns: Mapping[int, int] = field(default_factory=dict)
    """num_workers to the wait above which a delivery counts as a stall."""
    alone: str = ""
    """What the passes of a single number of workers could not have told."""


@dataclass(frozen=True, slots=True)
class ThroughputLaw:
    """How batches per second move with the number of workers."""

    key: str
    """``grows``, ``flat_cpu``, ``flat_lock``, ``flat_consumer``, ``flat``, ``falls``, ``undecided``."""
    statement: str
    batches_per_s: Mapping[int, float] = field(default_factory=dict)
    """num_workers to the mean over its passes."""
    busy_cores: Mapping[int, float] = field(default_factory=dict)
    """num_workers to the CPU time of the fetches over wall time; empty when it was not measured."""
    cpus: float | None = None
    """CPUs the passes could use."""
    exponent: Estimate | None = None
    """Slope of log throughput over log num_workers, from 1 worker on; 1 is perfect scaling, 0 flat."""
    best_workers: int | None = None
    """The fewest workers within 5 % of the best throughput."""
    cpu_per_batch_ns: Mapping[int, float] = field(default_factory=dict)
    """num_workers to the mean CPU time of a fetch, over its passes; absent where it was not measured."""
    cpu_statement: str = ""
    """Whether a batch costs the same CPU time at every number of workers; empty with fewer than two."""


@dataclass(frozen=True, slots=True)
class Laws:
    """What a sweep over num_workers says."""

    gap: GapLaw
    throughput: ThroughputLaw
    workers: tuple[int, ...] = ()
    """The numbers of workers that had a finished pass."""
    passes: int = 0
    disturbed: tuple[Disturbance, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out or could not be measured."""


@dataclass(frozen=True, slots=True)
class CadenceWindow:
    """The cadence within one stretch of an arm's passes."""

    start: int
    """First delivery of the window."""
    stop: int
    """One past the last."""
    gaps: int
    gap_share: float | None
    """Share of the gaps equal to the period; None without gaps."""
    p_value: float
    again_share: float | None = None
    """Share of the stalls with another one a period later; None without a stall that has a place for one."""


@dataclass(frozen=True, slots=True)
class ArmCadence:
    """Whether stalls recur at the period in one arm."""

    period: int
    """Batches: the number of workers unless another was asked for."""
    verdict: str
    """``present``, ``absent``, ``undecided``."""
    multiples: Estimate | None
    """Share of gaps that are multiples of the period (Clopper-Pearson interval); None without gaps."""
    p_value: float | None
    """Fisher's pooled p over the passes, against stalls placed at random; None without stalls."""
    stalls: int
    gaps: int
    again: Estimate | None = None
    """Share of stalls with another one exactly a period later, where there is a place for one (the same
    interval). Sees a round with two stalls in it, whose gaps are no multiples of the period."""
    again_p: float | None = None
    """Chance of so many where stalls fall at random."""
    by_again: bool = False
    """Whether ``again`` made the verdict another one than the gaps alone would have."""
    windows: tuple[CadenceWindow, ...] = ()
    late: ArmCadence | None = None
    """The same of the later half of every stretch; None where this is such a half itself."""


@dataclass(frozen=True, slots=True)
class Overtaking:
    """How far delivery left the sampler's order in one arm."""

    deliveries: int
    passed: int
    """Deliveries that a later rank had overtaken."""
    overtook: int
    """Deliveries that came before a lower rank."""
    displacement_max: int
    """Largest difference between a batch's rank and its place in the delivery."""
    displacement_mean: float
    """Mean of that difference over the deliveries out of place; 0 without any."""


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm in numbers. Waits leave out the warm-up."""

    name: str
    passes: int
    deliveries: int
    num_workers: int | None
    mean_wait_ns: Estimate
    median_wait_ns: float
    p95_wait_ns: Estimate
    """Spread over passes only: one pass gives no valid interval for a high quantile."""
    batches_per_s: float | None
    stalls: int
    stall_share: float
    """Stalls over deliveries, in [0, 1]."""
    stall_wait_ns: float | None
    """Mean wait of a stall."""
    fetch_cv: float | None
    """Variation of the fetch times within workers; None when fetches were not seen."""
    cadence: ArmCadence | None
    """None with fewer than two workers."""
    overtaking: Overtaking | None
    """None when ranks were not recorded."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean wait of arm B against that of arm A: two questions, each with its own answer."""

    ratio: Estimate
    """B / A, with the interval at the level of the equivalence test."""
    p_value: float | None
    """Two-sided, against a ratio of 1; None with fewer than two pairs."""
    different: bool | None
    """True: shown to differ. False: not shown. None: cannot be tested."""
    equivalent: bool | None
    """True: shown to be within the margin. False: shown to be outside. None: neither."""
    margin: float
    """Equivalence means a ratio in [1 - margin, 1 / (1 - margin)]."""
    pairs: int
    pairs_needed: int | None
    """Pairs after which a difference of the observed size would be shown; None when that is unknowable."""
    statement: str


@dataclass(frozen=True, slots=True)
class CadenceClaim:
    """What comparing the arms says about the cadence of arm A under the condition of arm B."""

    key: str
    """``survived``, ``gone``, ``undecided``, ``refused`` (too short to claim), ``no_cadence`` (in arm A)."""
    statement: str
    deliveries: int
    """Of the shorter arm's shortest pass."""
    deliveries_needed: int
    """Per pass, before a claim may be made."""
    short_claim: str | None = None
    """What the short run would have claimed; set when refused."""


@dataclass(frozen=True, slots=True)
class PhaseLock:
    """How far the workers of two arms run in phase: the share of a round's waiting in its largest wait."""

    base: float
    changed: float
    chance: float
    """What workers of equal speed at random phases give: H_W / W, the mean of the largest of W arcs."""
    lost: bool
    """Whether every pass of the changed arm has lost what every pass of the base arm has."""


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """Two arms side by side."""

    a: ArmSummary
    b: ArmSummary
    threshold_ns: int
    """Wait above which a delivery is a stall, from arm A, the same in both."""
    difference: Difference
    cadence: CadenceClaim | None
    """None when there is no period to follow (fewer than two workers in arm A)."""
    lock: PhaseLock | None = None
    """How far the workers run in phase; None with other numbers of workers, or too few rounds."""
    disturbed: tuple[Disturbance, ...] = ()
    unlike: tuple[str, ...] = ()
    """Differences between the arms beyond the condition; allowed by the caller, and named."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """What one control says about its question."""

    control: str
    key: str
    """``cadence_stays``, ``cadence_gone``, ``stalls_fall_away``, ``stalls_stay``, ``wait_stays``,
    ``ceiling``, ``same_ranks``, ``other_ranks``, ``faster``, ``slower``, ``no_difference``, ``undecided``."""
    statement: str
    """One sentence in plain words, with the numbers that matter."""
    reason: str
    """The question, as the control's page has it."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    short: str = ""
    """What a short run of the same control would have claimed; empty where length does not matter."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """A sweep: its plan, its passes and its conclusions; this is ``sweep.json``."""

    target: str
    conditions: tuple[Condition, ...]
    passes: tuple[PassResult, ...]
    laws: Laws | None = None
    """None when num_workers was not swept."""
    comparisons: tuple[ArmComparison, ...] = ()
    """Each control against its condition, then neighbouring conditions."""
    notes: tuple[str, ...] = ()
    controls: tuple[ControlAnswer, ...] = ()
    loader: str = ""
    """Which loader was varied, in words."""
    command: str = ""
    """The command, as one would type it again."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Host and software of the first finished pass: what a comparison with another sweep checks."""
    complete: bool = True
    why_incomplete: str = ""
    refused: str = ""
    """Why arms are not compared (other indices); empty when they are."""
    planned: int = 0
    """Passes of the plan."""
    disturbed: tuple[Disturbance, ...] = ()
    """Passes, controls too, whose numbers are partly the host's, judged beside all others."""
