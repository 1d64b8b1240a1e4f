"""The study's shortest form as a check for CI: directions and ratios, never absolute times.

A timing that fails is measured once more. On a busy host the honest outcome of the repeat is "disturbed"; it
is accepted only when other processes really had the CPUs while it ran.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any

import stages
import tables
from cells import plain
from study import Study

# The access paths are 19 times apart at 96 x 96 (0.36 s against 0.019 s of CPU a batch); less than half of
# that would mean that something else now costs as much as either.
LEAST_RATIO = 8.0


@dataclasses.dataclass(frozen=True)
class Check:
    """One assertion with what was found."""

    name: str
    holds: bool
    found: str
    timing: bool
    """Whether load on the host could have upset it: a ratio of CPU times or a PID set cannot be."""


def run(study: Study) -> int:
    """Run the stages, at most twice, and say what holds; returns the exit code."""
    for attempt in (1, 2):
        began = time.monotonic()
        found = {name: _fresh(study, name) for name in ("alone", "workers")}
        outcome = check(found)
        for one in outcome:
            print(f"{'ok    ' if one.holds else 'FAILED'} {one.name}: {one.found}")
        failed = [one for one in outcome if not one.holds]
        load = busiest(found)
        print(f"{time.monotonic() - began:.0f} s; other processes used up to {plain(load)} CPUs")
        if not failed:
            return 0
        if any(not one.timing for one in failed):
            return 1
        if attempt == 1:
            print("one repeat: load that no counter shows can upset a timing of 16 deliveries")
        elif not _disturbed(found):
            return 1
    print("disturbed: accepted, other processes kept the host busy")
    return 0


def check(found: Mapping[str, Any]) -> list[Check]:
    """The assertions on the results of ``alone`` and ``workers``."""
    broken, fixed = (found["alone"]["passes"][name] for name in ("broken", "fixed"))
    ratio = broken["cpu_s"] / fixed["cpu_s"]
    pool = found["workers"]["broken"]["passes"]
    with_workers = [one for one in pool if one["workers"]]
    law = found["workers"]["broken"]["laws"]["gap"]
    fixed_passes = found["workers"]["fixed"]["passes"]
    stalls = sum(len(tables.settled_stalls(one)) for one in fixed_passes)
    everything = [*pool, *fixed_passes]
    changes = [one["pid_changes"] for one in with_workers]
    reads = [one["median_read_bytes"] for one in everything]
    faults = [one["median_major_faults"] for one in everything]
    slow = tables.stall_share(one for one in pool if one["workers"] == 0)
    return [
        Check(
            f"a broken batch costs at least {LEAST_RATIO:g} times the CPU of a fixed one",
            ratio >= LEAST_RATIO,
            f"{plain(ratio)} times",
            timing=False,
        ),
        Check(
            "without workers every broken fetch is a stall", slow >= tables.MOST, plain(slow), timing=False
        ),
        Check(
            "the gap is proportional to the workers",
            law["key"] == "proportional",
            law["statement"],
            timing=True,
        ),
        Check("the fixed stack has no stall after its start", stalls == 0, f"{stalls}", timing=True),
        Check("PIDs do not change within a pass", _all_zero(changes), f"{changes}", timing=False),
        Check("a usual fetch reads nothing from a device", _all_zero(reads), f"{reads}", timing=False),
        Check("a usual fetch has no major fault", _all_zero(faults), f"{faults}", timing=False),
    ]


def _all_zero(values: Sequence[float | None]) -> bool:
    """Measured, and zero; what was not measured does not pass for zero."""
    return bool(values) and all(value == 0 for value in values)


def busiest(found: Mapping[str, Any]) -> float | None:
    """The most CPUs that other processes used during a pass; None where that was not measured."""
    passes = [one for arm in found["workers"].values() if isinstance(arm, dict) for one in arm["passes"]]
    known = [one["other_cores"] for one in passes if one["other_cores"] is not None]
    return max(known) if known else None


def _disturbed(found: Mapping[str, Any]) -> bool:
    passes = [one for arm in found["workers"].values() if isinstance(arm, dict) for one in arm["passes"]]
    return any(one["disturbed"] for one in passes)


def _fresh(study: Study, name: str) -> dict[str, Any]:
    for path in (study.folder / f"{name}.json", study.folder / "sweeps"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    study.stage(name, getattr(stages, name), 0.0)
    result = study.result(name)
    assert result is not None
    return result
