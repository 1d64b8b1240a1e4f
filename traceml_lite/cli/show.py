"""``traceml-lite show``: the summary of a trace, a TraceML database, a sweep or an investigation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from traceml_lite._errors import UsageError
from traceml_lite.cli._out import print_json, reading_options, text_of, wants_color


@click.command(name="show")
@click.argument("trace", type=click.Path(path_type=Path))
@reading_options
def command(trace: Path, stall_ns: int | None, loader: str | None, as_json: bool) -> None:
    """Summary and diagnosis of TRACE.

    TRACE is a trace directory (also while it is written), a zip of one, a TraceML SQLite file, or the
    directory of a sweep or an investigation.
    """
    from traceml_lite.store import is_trace

    if is_trace(trace) or not trace.is_dir():
        _show_trace(trace, stall_ns, loader, as_json)
        return
    from traceml_lite.experiment.folder import CHAIN, INVESTIGATION, is_sweep
    from traceml_lite.report.jsondoc import document

    kept = trace / (INVESTIGATION if as_json else CHAIN)
    if kept.is_file() or is_sweep(trace):
        _refuse_reading_options(trace, stall_ns, loader)
    if kept.is_file():
        text = kept.read_text(encoding="utf-8")
        click.echo(document("investigation", json.loads(text)["result"]) if as_json else text.rstrip("\n"))
        return
    if is_sweep(trace):
        from traceml_lite.experiment.sweep import load_sweep
        from traceml_lite.report.sweep import render_sweep

        sweep = load_sweep(trace)
        if as_json:
            click.echo(document("sweep", sweep))
        else:
            click.echo("\n".join(render_sweep(sweep)))
        return
    _show_trace(trace, stall_ns, loader, as_json)  # which says what it expected


def _show_trace(trace: Path, stall_ns: int | None, loader: str | None, as_json: bool) -> None:
    from traceml_lite.api import load

    run = load(trace)
    if as_json:
        print_json(run, loader=loader, stall_ns=stall_ns)
        return
    lines = text_of(run, loader=loader, stall_ns=stall_ns, color=wants_color(sys.stdout))
    click.echo("\n".join(lines))


def _refuse_reading_options(place: Path, stall_ns: int | None, loader: str | None) -> None:
    """--stall and --loader choose within one trace; an experiment's passes were concluded without them."""
    for option, given in (("--stall", stall_ns), ("--loader", loader)):
        if given is not None:
            raise UsageError(
                f"{option} is for one trace, and {place} holds an experiment; show the trace of one of its "
                "passes instead"
            )
