"""What several commands share: options, names of trace directories, the text of a summary."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceml_lite._errors import UsageError
from traceml_lite.consumers.parse import parse_duration_ns

if TYPE_CHECKING:
    from traceml_lite.records.results import Diagnosis
    from traceml_lite.records.run import Run
    from traceml_lite.records.summary import Summary

# Deliveries from which on it pays to draw both conclusions at once.
_LONG_RUN = 100_000
_SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


if TYPE_CHECKING:
    _IntParam = click.ParamType[int]
else:
    _IntParam = click.ParamType  # generic only from click 8.2


class Duration(_IntParam):
    """``5s``, ``20ms``, ``300us`` to nanoseconds; above zero."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See the class."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration_ns(str(value), where="duration")
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Size(_IntParam):
    """``500M``, ``1G`` to bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See the class."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
        if not match:
            self.fail(f"{value!r} is not a size; write for example 500M or 1G", param, ctx)
        return round(float(match[1]) * _SIZES[match[2].upper()])


def recording_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--out``, ``--rchar/--no-rchar`` and ``--limit``: how a trace is written."""
    for option in (
        click.option(
            "-o", "--out", type=click.Path(path_type=Path), help="Trace directory to make [default: runs/…]."
        ),
        click.option(
            "--rchar/--no-rchar",
            default=True,
            help="Count bytes asked for by reads: tells the page cache from none (4 us a fetch).",
        ),
        click.option(
            "--limit",
            "limit_bytes",
            type=Size(),
            default="1G",
            show_default=True,
            help="Bound on the size of the trace.",
        ),
    ):
        command = option(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="The same as JSON.")


def reading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--stall``, ``--loader`` and ``--json``: how a trace is summarized."""
    for option in (
        click.option(
            "--stall",
            "stall_ns",
            type=Duration(),
            help="A wait counts as a stall from here on, e.g. 5s [default: automatic].",
        ),
        click.option(
            "--loader", help="Name or number of the loader to summarize [default: the one with most time]."
        ),
        json_option,
    ):
        command = option(command)
    return command


def trace_directory(out: Path | None, label: str) -> Path:
    """The directory to record into: ``out``, or a new one under ``runs/``."""
    if out is not None:
        if out.exists() and not out.is_dir():
            raise UsageError(f"{out} is a file; choose a directory for --out that is new or empty")
        if out.exists() and any(out.iterdir()):
            raise UsageError(f"{out} exists and is not empty; choose another --out or remove it")
        return out
    name = re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-") or "run"
    # Ranks of one job (torchrun sets RANK) start in the same second and record one trace each.
    rank = os.environ.get("RANK", "")
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}{f'-rank{rank}' if rank.isdigit() else ''}"
    path = Path("runs") / stem
    number = 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stem}-{number}"
    return path


def loader_choice(loader: str | None) -> str | int | None:
    """A loader by number or by name."""
    return int(loader) if loader is not None and loader.isdigit() else loader


def text_of(
    run: Run, *, loader: str | None = None, stall_ns: int | None = None, color: bool = False
) -> list[str]:
    """Summary and diagnosis as lines."""
    from traceml_lite.report.diagnosis import render_diagnosis, render_next
    from traceml_lite.report.terminal import render_details, render_head, render_not_measured

    if not run.loaders:
        return [f"{run.source}: no DataLoader was iterated in this process. {_why_none(run)}"]
    summary, diagnosis = _concluded(run, loader, stall_ns)
    # What was measured, the result, its cause, the details behind it, what is missing, the next command.
    blocks = (
        render_head(summary, color=color),
        render_diagnosis(diagnosis),
        render_details(summary, color=color),
        render_not_measured(summary, color=color),
        render_next(diagnosis),
    )
    return [line for block in blocks if block for line in (*_stripped(block), "")][:-1]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Loading what concludes makes many objects, each few of which would have all of torch's looked at."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_no_collection()
def _concluded(run: Run, loader: str | None, stall_ns: int | None) -> tuple[Summary, Diagnosis]:
    # Loaded here and not in a thread: this may be a signal handler that came in the middle of an import.
    from traceml_lite._together import in_turn, together

    with _one_blas_thread():
        from traceml_lite.diagnose.diagnosis import diagnose
        from traceml_lite.diagnose.summary import select_loader, summarize

    choice = loader_choice(loader)
    chosen = select_loader(run, choice)
    call = together if len(chosen.deliveries) >= _LONG_RUN else in_turn
    summary, diagnosis = call(
        lambda: summarize(run, loader=choice, stall_ns=stall_ns),
        lambda: diagnose(run, loader=chosen, stall_ns=stall_ns),
    )
    return summary, diagnosis


@contextlib.contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Scipy starts a pool of threads when it is loaded: 0.15 s of CPU for what nothing here uses."""
    name = "OPENBLAS_NUM_THREADS"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def _stripped(lines: list[str]) -> list[str]:
    """Without empty lines at both ends: the blocks are set apart by one."""
    full = [number for number, line in enumerate(lines) if line.strip()]
    return lines[full[0] : full[-1] + 1] if full else []


def _why_none(run: Run) -> str:
    if "torch was not imported" in (run.capabilities.get("deliveries") or ""):
        return "torch was not imported."
    return (
        "A loader made in a child process (torchrun, a launcher, subprocess) is not seen from here: "
        "run the command that each child runs."
    )


def print_json(run: Run, *, loader: str | None, stall_ns: int | None) -> None:
    """Summary and diagnosis as one JSON document on stdout."""
    import json

    from traceml_lite.report.jsondoc import summary_document

    summary, diagnosis = _concluded(run, loader, stall_ns)
    click.echo(json.dumps(summary_document(summary, diagnosis), indent=1))


def wants_color(stream: Any) -> bool:
    """Colour only on a terminal, and never with NO_COLOR set."""
    return bool(stream.isatty()) and "NO_COLOR" not in os.environ


def note(text: str) -> None:
    """A line about what the tool does, on stderr."""
    print(text, file=sys.stderr, flush=True)
