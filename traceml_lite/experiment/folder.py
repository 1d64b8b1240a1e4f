"""A sweep on disk: ``plan.json``, ``passes/NNN-ARM/`` and ``sweep.json``.

Every file is whole or absent, so a sweep that was cut off anywhere can go on. What a pass measured is in its
trace; what became of it is in its ``pass.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite._errors import TraceFormatError, UsageError
from traceml_lite.experiment.atomic import write_json
from traceml_lite.experiment.child import INDICES, RESULT, TRACE
from traceml_lite.experiment.plan import (
    Facts,
    Plan,
    PlannedPass,
    Request,
    plan_from_json,
    plan_to_json,
    show_request,
)
from traceml_lite.records.sweep import PassResult, PassStatus

PLAN, SWEEP, PASS, PASSES = "plan.json", "sweep.json", "pass.json", "passes"
# What was asked for, from before the first pass: a sweep that never gets a plan is still known for one.
REQUEST = "request.json"
FILES = "files.json"
# An investigation: the chain as a document and as the text that was printed.
INVESTIGATION, CHAIN = "investigation.json", "chain.txt"


def is_sweep(path: Path) -> bool:
    """Whether a directory holds a sweep, also one whose first pass has not ended."""
    return any((path / name).is_file() for name in (SWEEP, PLAN, REQUEST))


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """The places within one sweep's directory."""

    path: Path

    def pass_folder(self, number: int, arm: str) -> Path:
        """Folder of one pass."""
        slug = re.sub(r"[^A-Za-z0-9_.=-]+", "_", arm).strip("_")[:60]
        return self.path / PASSES / f"{number:03d}-{slug}"

    @property
    def sweep(self) -> Path:
        """The result of the whole."""
        return self.path / SWEEP

    def read_plan(self, request: Request | None = None) -> tuple[Request, Facts, Plan] | None:
        """The stored plan, or None where there is none.

        Args:
            request: What is asked for now; a stored plan of another request is an error.

        Raises:
            UsageError: The directory holds another sweep.
            TraceFormatError: The plan cannot be read.
        """
        place = self.path / PLAN
        if not place.is_file():
            return None
        try:
            document = json.loads(place.read_text(encoding="utf-8"))
            asked, facts, plan = plan_from_json(document)
        except (ValueError, KeyError, TypeError) as error:
            raise TraceFormatError(
                f"{place}: not a plan of this version ({error}); choose another --out"
            ) from error
        if request is not None and asked.digest != request.digest:
            raise UsageError(
                f"{self.path} holds another sweep ({asked.target}, plan {asked.digest}); choose another "
                "--out. A sweep goes on only with the same command and an unchanged script"
            )
        return asked, facts, plan

    def write_plan(self, request: Request, facts: Facts, plan: Plan) -> None:
        """Store the plan."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / PLAN, plan_to_json(request, facts, plan))

    def write_request(self, request: Request) -> None:
        """Store what is asked for, before anything is started."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(
            self.path / REQUEST,
            {"target": request.target, "command": show_request(request), "digest": request.digest},
        )

    def read_request(self) -> tuple[str, str] | None:
        """Target and command of what was asked for; None where there is no record of it."""
        place = self.path / REQUEST
        if not place.is_file():
            return None
        try:
            document = json.loads(place.read_text(encoding="utf-8"))
            return str(document["target"]), str(document["command"])
        except (ValueError, KeyError, TypeError) as error:
            raise TraceFormatError(f"{place}: cannot be read ({error!r})") from error

    def read_files(self) -> list[str]:
        """The data files that passes were seen to read."""
        place = self.path / FILES
        return list(json.loads(place.read_text(encoding="utf-8"))) if place.is_file() else []

    def write_files(self, paths: list[str]) -> None:
        """Store them."""
        write_json(self.path / FILES, paths)

    def read_result(self, one: PlannedPass) -> PassResult | None:
        """What became of a pass; None where it did not come to an end."""
        place = self.pass_folder(one.number, one.arm) / PASS
        if not place.is_file():
            return None
        return pass_from_json(json.loads(place.read_text(encoding="utf-8")))

    def write_result(self, one: PlannedPass, result: PassResult) -> None:
        """Store what became of a pass."""
        write_json(self.pass_folder(one.number, one.arm) / PASS, asdict(result))

    def trace(self, result: PassResult) -> Path | None:
        """Directory of a pass's trace."""
        return self.path / result.trace if result.trace else None

    def child_result(self, number: int, arm: str) -> dict[str, Any] | None:
        """What the child itself left, or None."""
        place = self.pass_folder(number, arm) / RESULT
        return dict(json.loads(place.read_text(encoding="utf-8"))) if place.is_file() else None

    def indices(self, one: PlannedPass) -> NDArray[np.uint64] | None:
        """The index stream of a pass: rows of (epoch, samples so far, hash so far); None without one."""
        place = self.pass_folder(one.number, one.arm) / INDICES
        return np.load(place) if place.is_file() else None

    def relative_trace(self, one: PlannedPass) -> str:
        """Where the trace of a pass is, from the sweep's directory."""
        return str((self.pass_folder(one.number, one.arm) / TRACE).relative_to(self.path))


def pass_from_json(document: Mapping[str, Any]) -> PassResult:
    """A pass's record from JSON; keys of a newer minor version are passed over."""
    known = {one.name for one in fields(PassResult)}
    values = {name: value for name, value in document.items() if name in known}
    values["status"] = PassStatus(values["status"])
    values["notes"] = tuple(values.get("notes", ()))
    return PassResult(**values)
