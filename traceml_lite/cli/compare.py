"""``traceml-lite compare``: two traces or two sweeps side by side, such as before and after an upgrade."""

from __future__ import annotations

from pathlib import Path

import click

from traceml_lite.cli._out import Duration, json_option
from traceml_lite.experiment.compare import compare_paths
from traceml_lite.report.comparison import render_comparisons
from traceml_lite.report.jsondoc import document


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--stall",
    "stall_ns",
    type=Duration(),
    metavar="TIME",
    help="Waits above this are stalls in both, e.g. 5s, 300us. Default: from the waits of A, in sweeps of "
    "each condition of A.",
)
@click.option("--allow-different", is_flag=True, help="Compare unlike runs too, and name the differences.")
@json_option
def command(a: Path, b: Path, stall_ns: int | None, allow_different: bool, as_json: bool) -> None:
    """Is the wait different, is it the same, and what became of the cadence?

    A and B are two traces, two TraceML SQLite files or two sweeps; A is the reference. Runs of other data,
    batch size, machine or versions are refused unless --allow-different, and then named.
    """
    from traceml_lite.api import load

    found = compare_paths(a, b, stall_ns=stall_ns, allow_different=allow_different, load=load)
    if as_json:
        click.echo(document("comparison", found))
        return
    lines = render_comparisons(
        found.arms, cpu_per_batch_ns=found.cpu_per_batch_ns, only_a=found.only_a, only_b=found.only_b
    )
    click.echo("\n".join(lines))
