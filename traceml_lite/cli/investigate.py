"""``traceml-lite investigate``: a chain of cheap experiments until the verdict stands or the budget ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from traceml_lite.cli._experiment import (
    ProgressLine,
    ended_like_control_c,
    experiment_options,
    make_request,
    parse_duration_s,
)
from traceml_lite.cli._out import json_option
from traceml_lite.experiment import investigate, sweep
from traceml_lite.experiment.atomic import write_text
from traceml_lite.experiment.folder import CHAIN
from traceml_lite.report.investigation import render_investigation
from traceml_lite.report.jsondoc import document


@click.command(
    # \b is click's mark for text that it shall not wrap.
    epilog="\b\nExamples:\n  traceml-lite investigate train.py --budget 20m"
    "\n  traceml-lite investigate demo:saturated-pool --budget 5m"
)
@experiment_options
@json_option
def command(
    target: str, out: str | None, budget: str | None, timeout: str | None, as_json: bool, **asked: Any
) -> None:
    """Ask the cheapest question that is open, run the experiment that answers it, and go on from there.

    Is the loop input-bound? Is every wait alike, or do a few carry it all? At random or structured? Then one
    cheap parameter is varied, the law read, and the controls run that tell its causes apart. Each step stands
    in the directory with its evidence, and so does what it ruled out. TARGET is as for sweep; finished
    passes are not run again by the same command.
    """
    request = make_request(target, **asked)
    default = Path("investigations") / sweep.default_folder(request).name
    folder = Path(out) if out else default
    with ended_like_control_c(), ProgressLine() as line:
        result = investigate.investigate(
            request,
            folder,
            budget_s=parse_duration_s(budget, "--budget"),
            pass_timeout_s=parse_duration_s(timeout, "--timeout"),
            say=line.say,
            progress=line.show,
        )
    text = "\n".join(render_investigation(result))
    write_text(folder / CHAIN, text + "\n")
    click.echo(document("investigation", result) if as_json else text)
    click.echo(f"\nKept in {folder}; again with: traceml-lite show {folder}", err=True)
