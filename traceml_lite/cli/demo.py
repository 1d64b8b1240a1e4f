"""``traceml-lite demo``: built-in workloads for the shapes and costs that can be made anywhere."""

from __future__ import annotations

from typing import Any

import click

from traceml_lite.cli._arguments import named
from traceml_lite.cli._out import reading_options, recording_options
from traceml_lite.cli.probe import probe_target


@click.command(name="demo")
@click.argument("name", required=False)
@click.option(
    "-a",
    "--arg",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the demo, e.g. num_workers=2.",
)
@click.option("-c", "--consumer", help="What happens to a batch [default: the demo's own].")
@click.option(
    "-n", "--deliveries", type=click.IntRange(min=1), help="Batches to take [default: the demo's own]."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of Python, numpy and torch.")
@recording_options
@reading_options
def command(name: str | None, arguments: tuple[str, ...], **options: Any) -> None:
    """Probe the built-in workload NAME; without a name, list them."""
    if name is None:
        from traceml_lite.consumers.demos import DEMOS

        width = max(len(known) for known in DEMOS)
        for known, demo in DEMOS.items():
            click.echo(f"{known:<{width}}  {demo.text}")
        click.echo("\nTry: traceml-lite demo saturated-pool")
        return
    probe_target(f"demo:{name.removeprefix('demo:')}", named(arguments), **options)
