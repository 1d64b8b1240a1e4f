"""``traceml-lite explain``: the page of a shape or a cost."""

from __future__ import annotations

import click

from traceml_lite.report.catalogue import contents, page


@click.command("explain")
@click.argument("key", required=False)
def command(key: str | None) -> None:
    r"""Print the page of a shape or cost: picture, evidence, look-alikes, experiment, cure.

    Without KEY, lists all of them.

    \b
    traceml-lite explain saturated_pool
    traceml-lite explain run-queue
    """
    click.echo("\n".join(contents()) if key is None else page(key).rstrip("\n"))
