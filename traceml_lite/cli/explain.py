"""``traceml-lite explain``: the page of a shape or a cost."""

from __future__ import annotations

import click

from traceml_lite.report.catalogue import contents, page


@click.command("explain", epilog="\b\ntraceml-lite explain saturated_pool\ntraceml-lite explain run-queue")
@click.argument("key", required=False)
def command(key: str | None) -> None:
    """Print the page of a shape or cost: picture, evidence, look-alikes, experiment, cure.

    Without KEY, lists all of them.
    """
    click.echo("\n".join(contents()) if key is None else page(key).rstrip("\n"))
