"""``traceml-lite probe``: a DataLoader alone, with a chosen consumer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from traceml_lite.cli._arguments import named
from traceml_lite.cli._out import (
    note,
    print_json,
    reading_options,
    recording_options,
    text_of,
    trace_directory,
    wants_color,
)


@click.command(name="probe")
@click.argument("target")
@click.option(
    "-a",
    "--arg",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="Argument for the factory; may be repeated.",
)
@click.option(
    "-c", "--consumer", help="none, paced:20ms, busy:20ms, replay [default: none, or the demo's own]."
)
@click.option(
    "-n",
    "--deliveries",
    type=click.IntRange(min=1),
    help="Batches to take [default: one epoch, or the demo's own].",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of Python, numpy and torch.")
@recording_options
@reading_options
def command(target: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Drive the DataLoader that TARGET gives and print the summary.

    TARGET is file.py:factory, package.module:factory, lerobot:ROOT or demo:NAME.
    """
    probe_target(target, named(arguments), **options)


def probe_target(
    target: str,
    arguments: dict[str, str],
    *,
    consumer: str | None,
    deliveries: int | None,
    seed: int,
    out: Path | None,
    rchar: bool,
    limit_bytes: int,
    stall_ns: int | None,
    loader: str | None,
    as_json: bool,
) -> None:
    """Record one drive of a target's loader and print its summary."""
    from traceml_lite.consumers.drive import drive
    from traceml_lite.consumers.parse import parse_consumer
    from traceml_lite.consumers.targets import resolve
    from traceml_lite.probe import record
    from traceml_lite.store import load

    resolved = resolve(target, arguments=arguments, seed=seed)
    chosen = parse_consumer(consumer or resolved.consumer_default or "none")
    wanted = deliveries or resolved.deliveries_default
    path = trace_directory(out, target)
    with _progress(wanted) as step, record(path, rchar=rchar, limit_bytes=limit_bytes):
        result = drive(resolved.loader, chosen, deliveries=wanted, on_delivery=step)
    run = load(path)
    if as_json:
        print_json(run, loader=loader, stall_ns=stall_ns)
    else:
        lines = text_of(run, loader=loader, stall_ns=stall_ns, color=wants_color(sys.stdout))
        click.echo("\n".join(lines))
        if result.ceiling_steps_per_s is not None:
            click.echo(
                f"\nceiling: {result.ceiling_steps_per_s:.3g} steps/s with batches served from memory "
                f"(n = {len(result.replayed_step_ns)})"
            )
    note(f"\ntraceml-lite: the trace is in {path}; again: traceml-lite show {path}")


class _progress:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, deliveries: int | None) -> None:
        self._bar: Any = None
        if sys.stderr.isatty():
            self._bar = click.progressbar(length=deliveries or 0, label="deliveries", file=sys.stderr)

    def __enter__(self) -> Any:
        if self._bar is None:
            return None
        bar = self._bar.__enter__()
        return lambda done: bar.update(1)

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)
