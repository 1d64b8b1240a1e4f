"""``traceml-lite sweep``: controlled passes in fresh processes, both directions, and the law of the gap."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import click

from traceml_lite._errors import UsageError
from traceml_lite.cli._experiment import (
    ProgressLine,
    ended_like_control_c,
    experiment_options,
    make_request,
    parse_duration_s,
)
from traceml_lite.cli._out import json_option
from traceml_lite.experiment import sweep as experiment
from traceml_lite.experiment.control import CONTROLS
from traceml_lite.experiment.runner import Limits
from traceml_lite.records.sweep import PassStatus
from traceml_lite.report import sweep as report
from traceml_lite.report.jsondoc import document

_EXAMPLES = """Examples:
  traceml-lite sweep train.py -s num_workers=0,1,2,4
  traceml-lite sweep train.py -s num_workers=2,4 --control in_order -- --lr 0.1
  traceml-lite sweep demo:slow-worker -s num_workers=1,2,4 --control in_order"""
# \b is click's mark for text that it shall not wrap.
_CONTROLS = "\n".join(
    textwrap.fill(f"  {control.name:<11} {control.reason}", 88, subsequent_indent=" " * 14)
    for control in CONTROLS.values()
)


@click.command(
    context_settings={"ignore_unknown_options": False},
    epilog=f"\b\n{_EXAMPLES}\n\n\b\nControls:\n{_CONTROLS}",
)
@experiment_options
@click.option(
    "-s",
    "settings",
    multiple=True,
    metavar="NAME=V1,V2",
    help="Option of the loader to vary, e.g. num_workers=0,1,2,4; arg.NAME for an argument of the factory, "
    "env.NAME for an environment variable.",
)
@click.option(
    "--control", "controls", multiple=True, metavar="NAME", help="Add the arm of a control (below)."
)
@click.option(
    "--repeats", default=1, show_default=True, type=click.IntRange(1), help="Times through both directions."
)
@click.option("--one-direction", is_flag=True, help="Run the conditions once, in the order given.")
@click.option("--allow-different", is_flag=True, help="Compare arms that saw other indices, and name it.")
@json_option
def command(
    target: str,
    out: str | None,
    budget: str | None,
    timeout: str | None,
    allow_different: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Vary one cheap parameter with everything else held fixed, and say which law the stalls follow.

    TARGET is a script (its DataLoader's options are overridden as it is constructed, the script is not
    edited; its own arguments follow after --), file.py:factory, package.module:factory, lerobot:ROOT or
    demo:NAME. The same command again goes on where it was cut off.
    """
    if not asked["settings"] and not asked["controls"]:
        raise UsageError("nothing to vary: give -s NAME=V1,V2 or --control NAME")
    request = make_request(target, **asked)
    folder = Path(out) if out else experiment.default_folder(request)
    limits = Limits(parse_duration_s(budget, "--budget"), parse_duration_s(timeout, "--timeout"))
    with ended_like_control_c(), ProgressLine() as line:
        result = experiment.run_sweep(
            request, folder, limits, say=line.say, progress=line.show, allow_different=allow_different
        )
    click.echo(document("sweep", result) if as_json else "\n".join(report.render_sweep(result)))
    click.echo(f"\nKept in {folder}; again with: traceml-lite show {folder}", err=True)
    statuses = {one.status for one in result.passes}
    if PassStatus.TIMEOUT in statuses:
        return 124
    return 1 if result.refused or PassStatus.DONE not in statuses else 0
