"""``traceml-lite run``: somebody's training script, unchanged, with the probe on.

The script runs in this very process. It keeps its stdout, stderr, arguments, exit code and signals; the
summary goes to stderr when it has ended, however it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from traceml_lite.cli._out import Duration, note, recording_options, text_of, trace_directory, wants_color

if TYPE_CHECKING:
    from traceml_lite.probe import Session

_PACKAGE = str(Path(__file__).resolve().parent.parent)


@click.command(
    name="run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as with python -m.")
@recording_options
@click.option(
    "--stall", "stall_ns", type=Duration(), help="A wait counts as a stall from here on [default: automatic]."
)
@click.option("--summary/--no-summary", default=True, help="Print the summary at the end.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    script: str,
    arguments: tuple[str, ...],
    module: bool,
    out: Path | None,
    rchar: bool,
    limit_bytes: int,
    stall_ns: int | None,
    summary: bool,
) -> BaseException | None:
    """Run SCRIPT with its ARGUMENTS unchanged and record every DataLoader that it iterates.

    Options of traceml-lite stand before SCRIPT. The summary goes to stderr; `traceml-lite show` prints it
    again from the trace.
    """
    from traceml_lite.experiment.script import find_module, find_script, run_as_main

    # Before anything is recorded: what cannot be run leaves nothing behind.
    (find_module if module else find_script)(script)
    session = _start(trace_directory(out, script if module else Path(script).stem), rchar, limit_bytes)
    pid = os.getpid()

    def finish(how: str, **end: Any) -> None:
        if os.getpid() != pid:
            return  # a fork of the script's came to the script's end
        _finish(session, how, end, stall_ns=stall_ns if summary else None, summary=summary)

    _summarize_on_sigterm(pid, finish)
    try:
        run_as_main(script, arguments, module=module)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if error.code is not None and not isinstance(error.code, int):
            _flush()
            print(error.code, file=sys.stderr)
        finish(f"exited with code {code}", exit_code=code)
        return SystemExit(code)
    except BaseException as error:
        if os.getpid() == pid:
            _flush()
            error.__traceback__ = _from_script(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
            # It has been shown; the interpreter still ends as it would have (code 1, or by SIGINT).
            sys.excepthook = lambda *_: None
        finish(f"ended by {type(error).__name__}", exception=type(error).__name__)
        return error
    finish("ended in order", exit_code=0)
    return None


def _start(path: Path, rchar: bool, limit_bytes: int) -> Session | None:
    from traceml_lite.probe import start

    try:
        return start(path, rchar=rchar, limit_bytes=limit_bytes)
    except OSError as error:
        note(
            f"traceml-lite: cannot write a trace to {path} ({error.strerror}); "
            "the script runs without the probe"
        )
        return None


def _finish(
    session: Session | None, how: str, end: dict[str, Any], *, stall_ns: int | None, summary: bool
) -> None:
    """End the recording and print the summary; nothing in here may change how the script ends."""
    if session is None:
        note("traceml-lite: no trace was written, see above")
        return
    try:
        from traceml_lite.probe import stop

        stop(session, how, **end)
        _flush()
        if summary:
            from traceml_lite.store import load

            run = load(session.path)
            lines = text_of(run, stall_ns=stall_ns, color=wants_color(sys.stderr))
            note("\n".join(["", *lines]))
        note(f"\ntraceml-lite: the trace is in {session.path}; again: traceml-lite show {session.path}")
    except Exception as error:
        note(f"traceml-lite: no summary: {error!r}; try: traceml-lite show {session.path}")


def _summarize_on_sigterm(pid: int, finish: Callable[..., None]) -> None:
    """Without a handler SIGTERM ends Python at once; with ours the summary comes first, then the same end."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() == pid:
            finish("ended by SIGTERM", signal="SIGTERM")
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, handle)


def _from_script(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this package that called the script."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        traceback = traceback.tb_next
    return traceback


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A closed pipe is the script's affair.
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
