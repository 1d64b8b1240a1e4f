"""``traceml-lite doctor``: facts of this host that decide loading, and what is wrong with them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from traceml_lite.cli._out import wants_color


@click.command(name="doctor")
@click.option(
    "--path",
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Also say which file system holds PATH, e.g. the data's folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(path: Path | None, as_json: bool) -> None:
    """Facts of this host that decide loading, and what is wrong with them.

    Run it with the Python of the training job and where the job runs: in its container, under its launcher.
    Problems are findings, so the exit code is 0 with and without.
    """
    from traceml_lite.diagnose.doctor import find_problems
    from traceml_lite.probe.facts import read_host_facts
    from traceml_lite.report.doctor import doctor_document, render_doctor

    facts = read_host_facts(path)
    problems = find_problems(facts)
    if as_json:
        click.echo(json.dumps(doctor_document(facts, problems), indent=2, allow_nan=False))
        return
    click.echo("\n".join(render_doctor(facts, problems, color=wants_color(sys.stdout))))
