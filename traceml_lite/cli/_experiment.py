"""What the commands that run experiments share: options, durations, the progress line."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

import click

from traceml_lite._errors import UsageError
from traceml_lite.cli._arguments import named
from traceml_lite.consumers.parse import parse_duration_ns
from traceml_lite.experiment import sweep
from traceml_lite.experiment.control import control_named
from traceml_lite.experiment.plan import Request
from traceml_lite.experiment.runner import Progress
from traceml_lite.experiment.settings import parse_settings
from traceml_lite.report import sweep as report

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("target"),
    click.argument("script_arguments", nargs=-1, type=click.UNPROCESSED),
    click.option("-m", "module", is_flag=True, help="TARGET is a module to run, as with python -m."),
    click.option("-a", "--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="Argument of a factory or demo, the same in every pass."),  # noqa: E501
    click.option("-n", "--deliveries", type=click.IntRange(4), help="Deliveries per pass after the warm-up. Default: 64, fewer where --budget asks for it."),  # noqa: E501
    click.option("--warmup", type=click.IntRange(0), help="First deliveries set apart. Default: workers x prefetch factor."),  # noqa: E501
    click.option("-c", "--consumer", metavar="NAME", help="For a factory: none, paced:20ms, busy:20ms. Default: the target's own."),  # noqa: E501
    click.option("--loader", type=click.IntRange(0), help="Number of the loader to vary. Default: the one that delivers most."),  # noqa: E501
    click.option("--cache", type=click.Choice(["warm", "cold", "as-is"]), default="warm", show_default=True, help="Page cache before each pass: data files read in, dropped, or left alone."),  # noqa: E501
    click.option("--seed", default=0, show_default=True, type=int, help="Seed of Python, numpy and torch, the same in every pass."),  # noqa: E501
    click.option("--budget", metavar="TIME", help="Time for all of it, e.g. 10m."),
    click.option("--timeout", metavar="TIME", help="Time for one pass. Default: five times what is expected, at least 2m."),  # noqa: E501
    click.option("-o", "--out", metavar="DIR", help="Where to keep it. Default: NAME-HASH in sweeps/ or investigations/, the same for the same command."),  # noqa: E501
)  # fmt: skip


def experiment_options(command: _Command) -> _Command:
    """The target and the options that every experiment takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def parse_duration_s(text: str | None, whose: str) -> float | None:
    """``90``, ``90s``, ``10m``, ``1.5h`` in seconds; None for none.

    Raises:
        UsageError: It is no duration above zero.
    """
    if text is None:
        return None
    plain = re.fullmatch(r"[\d.]+", text.strip())
    return parse_duration_ns(f"{text}s" if plain else text, where=whose) / 1e9


def make_request(
    target: str,
    *,
    module: bool,
    script_arguments: tuple[str, ...],
    arguments: tuple[str, ...],
    settings: tuple[str, ...] = (),
    controls: tuple[str, ...] = (),
    **asked: Any,
) -> Request:
    """The request that the options make; what is wrong with their texts is refused here.

    Raises:
        UsageError: A setting, an argument or the name of a control cannot be read.
    """
    parse_settings(settings)
    for name in controls:
        control_named(name)
    file = Path(target.rpartition(":")[0] or target)
    request = Request(
        target=target,
        module=module,
        script_arguments=script_arguments,
        settings=settings,
        controls=controls,
        arguments=tuple(named(arguments).items()),
        content="" if module else sweep.content_hash(file),
        **asked,
    )
    if request.is_script and (request.arguments or request.consumer):
        raise UsageError(
            f"{target} is a script, which takes no -a and no --consumer; its own arguments follow after --"
        )
    if script_arguments and not request.is_script:
        raise UsageError(f"{target} takes no arguments after --; a factory's are given with -a NAME=VALUE")
    return request


class _Ended(KeyboardInterrupt):
    """A signal that ends this process, on the way that Ctrl-C takes."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def ended_like_control_c() -> Iterator[None]:
    """SIGTERM and SIGHUP end the running pass and keep what finished, as Ctrl-C does, and then this process.

    A pass runs in a session of its own and would go on alone. A handler that stands already, as of a
    framework that calls this command, and nohup's are left alone.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        raise _Ended(number)

    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is threading.main_thread()
        and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield
    except _Ended as end:
        name = signal.Signals(end.number).name
        signal.signal(end.number, signal.SIG_DFL)
        with suppress(OSError):  # the terminal may be what has gone
            click.echo(f"ended by {name}; the same command goes on from here", err=True)
        os.kill(os.getpid(), end.number)
        raise
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


class ProgressLine:
    """One line per ended pass on stderr, and on a terminal a live line for the running one."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._erase()

    def say(self, line: str) -> None:
        """A line that stays."""
        self._erase()
        click.echo(line, err=True)

    def show(self, progress: Progress) -> None:
        """Where the experiment stands."""
        line = report.progress_line(
            done=progress.done,
            total=progress.total,
            arm=progress.planned.arm if progress.planned else None,
            result=progress.result,
            elapsed_s=progress.elapsed_s,
            remaining_s=progress.remaining_s,
        )
        if progress.planned is None or progress.result is not None:
            self.say(line)
        elif self._live:
            self._erase()
            click.echo(line, err=True, nl=False)
            self._shown = len(line)

    def _erase(self) -> None:
        if self._shown:
            click.echo("\r" + " " * self._shown + "\r", err=True, nl=False)
            self._shown = 0
