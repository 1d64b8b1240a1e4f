"""A sweep from request to result: plan, passes, conclusions, ``sweep.json``; and reading one back."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from traceml_lite._errors import TraceFormatError
from traceml_lite.experiment.analyse import analyse
from traceml_lite.experiment.atomic import write_json
from traceml_lite.experiment.folder import PLAN, SWEEP, SweepFolder, is_sweep
from traceml_lite.experiment.one_pass import SCOUT_ARM
from traceml_lite.experiment.plan import Facts, Request, describe, describe_time
from traceml_lite.experiment.runner import Limits, Progress, ensure_plan, run_plan
from traceml_lite.experiment.scout import describe_facts
from traceml_lite.records.sweep import SweepResult

# How a sweep without a result is brought to one.
_GOES_ON = "the same command goes on from here, once what stopped it is mended"
FORMAT, VERSION = "traceml-lite sweep", (1, 0)


def run_sweep(
    request: Request,
    folder: Path,
    limits: Limits | None = None,
    *,
    say: Callable[[str], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
    allow_different: bool = False,
    facts: Facts | None = None,
) -> SweepResult:
    """Run what is not run yet, conclude, and write ``sweep.json``.

    Args:
        request: What is asked for.
        folder: The sweep's directory; made where it is not there, gone on with where it holds this request.
        limits: Budget and time limit.
        say: Gets lines about the plan and about what ended the sweep early.
        progress: Gets the state after each pass and now and then.
        allow_different: Compare arms that saw other indices, and name the difference.
        facts: What an earlier first pass of the same target told; then none is run.

    Returns:
        The result, of what finished where not all did.

    Raises:
        UsageError: The request cannot be carried out, or the directory holds another sweep.
        TargetError: The target cannot be run.
        KeyboardInterrupt: After what finished was written.
    """
    tell = say or (lambda line: None)
    place = SweepFolder(folder)
    told = () if facts is not None else None
    facts, plan = ensure_plan(request, place, limits or Limits(), progress, facts=facts)
    for line in (*(describe_facts(facts) if told is None else told), *describe(plan), *plan.notes):
        tell(line)
    tell(describe_time(plan, None if limits is None else limits.budget_s))
    why = ""
    try:
        outcome = run_plan(request, facts, plan, place, limits or Limits(), progress)
        why = outcome.why_not
    except KeyboardInterrupt:
        result = analyse(place, allow_different=allow_different, why_incomplete="interrupted")
        _write(place, result, allow_different)
        raise
    if why:
        tell(why)
    result = analyse(place, allow_different=allow_different, why_incomplete=why)
    _write(place, result, allow_different)
    return result


def default_folder(request: Request) -> Path:
    """Where a sweep is kept unless told otherwise: the same for the same command."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(request.target).name).strip("-").lower()[:40]
    return Path("sweeps") / f"{name}-{request.digest}"


def content_hash(path: Path) -> str:
    """Hash of a target's file; empty where there is none."""
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest() if path.is_file() else ""


def load_sweep(path: Path, *, allow_different: bool = False) -> SweepResult:
    """Conclude again from what stands in a sweep's directory, with what was allowed when it was run.

    Raises:
        TraceFormatError: It is no sweep, or of a newer version.
    """
    if not is_sweep(path):
        raise TraceFormatError(f"{path}: not a sweep; expected a directory with {SWEEP}")
    why = ""
    if (path / SWEEP).is_file():
        try:
            document = json.loads((path / SWEEP).read_text(encoding="utf-8"))
            version = document["version"]
            why = str(document["result"]["why_incomplete"])
            allow_different = allow_different or document.get("allow_different", False) is True
        except (ValueError, KeyError, TypeError) as error:
            raise TraceFormatError(f"{path / SWEEP}: cannot be read ({error!r})") from error
        if document.get("format") != FORMAT or version[0] > VERSION[0]:
            raise TraceFormatError(
                f"{path / SWEEP}: format {document.get('format')} {version} is not one that this version "
                f"reads ({FORMAT} {VERSION[0]}.x). Upgrade with: pip install -U traceml-lite"
            )
    else:
        why = f"it still runs or was cut off; {_GOES_ON}"
        asked = None if (path / PLAN).is_file() else SweepFolder(path).read_request()
        if asked is not None:
            return SweepResult(
                target=asked[0],
                conditions=(),
                passes=(),
                command=asked[1],
                complete=False,
                why_incomplete="the first pass, which learns about the target, still runs, failed or was cut "
                f"off; {_GOES_ON}",
                notes=_stderr_of_first_pass(path),
            )
    return analyse(SweepFolder(path), allow_different=allow_different, why_incomplete=why)


def _stderr_of_first_pass(path: Path) -> tuple[str, ...]:
    said = SweepFolder(path).pass_folder(0, SCOUT_ARM) / "stderr.txt"
    if not said.is_file() or not said.stat().st_size:
        return ()
    return (f"what the target wrote to stderr is in {said}",)


def _write(place: SweepFolder, result: SweepResult, allow_different: bool) -> None:
    document = {"format": FORMAT, "version": list(VERSION), "allow_different": allow_different}
    write_json(place.sweep, {**document, "result": asdict(result)})
