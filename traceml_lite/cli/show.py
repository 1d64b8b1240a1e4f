"""``traceml-lite show``: the summary of a trace, a bundle, a TraceML database or a sweep."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from traceml_lite.cli._out import print_json, reading_options, text_of, wants_color


@click.command(name="show")
@click.argument("trace", type=click.Path(path_type=Path))
@reading_options
def command(trace: Path, stall_ns: int | None, loader: str | None, as_json: bool) -> None:
    """Summary and diagnosis of TRACE.

    TRACE is a trace directory (also while it is written), a bundle of one, a sweep directory, or a TraceML
    SQLite file.
    """
    from traceml_lite.experiment.sweep import is_sweep, load_sweep

    if is_sweep(trace):
        from traceml_lite.report.jsondoc import plain
        from traceml_lite.report.sweep import render_sweep

        sweep = load_sweep(trace)
        if as_json:
            click.echo(json.dumps(plain(sweep), indent=1))
        else:
            click.echo("\n".join(render_sweep(sweep)))
        return
    from traceml_lite.api import load

    run = load(trace)
    if as_json:
        print_json(run, loader=loader, stall_ns=stall_ns)
        return
    lines = text_of(run, loader=loader, stall_ns=stall_ns, color=wants_color(sys.stdout))
    click.echo("\n".join(lines))
