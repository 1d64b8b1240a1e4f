"""The command line: thin click commands, each in a file of its own that is loaded when it is called.

One error boundary turns errors into exit codes; a bug keeps its traceback. stdout holds the result only,
progress and warnings go to stderr.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

from traceml_lite import __version__
from traceml_lite._errors import TracemlLiteError

# Command name to (module, one line of help). The help stands here so that --help loads no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Run a training script unchanged with the probe on."),
    "probe": ("probe", "Drive a DataLoader alone with a chosen consumer."),
    "sweep": ("sweep", "Controlled passes in fresh processes; the law of the gap."),
    "investigate": ("investigate", "A chain of cheap experiments until the verdict stands."),
    "show": ("show", "Summary and diagnosis of a trace, a sweep or an investigation."),
    "compare": ("compare", "Two traces or two sweeps side by side."),
    "explain": ("explain", "The page of a shape or a cost."),
    "doctor": ("doctor", "Facts of this host that decide loading."),
    "demo": ("demo", "Built-in workloads of known shape and cost, needing no data."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"traceml_lite.cli.{COMMANDS[name][0]}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            commands = ", ".join(COMMANDS)
            raise click.UsageError(f"{error.message} Commands are: {commands}.", ctx) from None


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 88}


_EXAMPLES = """\b
traceml-lite demo saturated-pool     see it work, nothing to download
traceml-lite run train.py --lr 0.1   your own training script, unchanged
traceml-lite show TRACE              the summary again"""


@click.group(cls=_LazyGroup, context_settings=_SETTINGS, epilog=_EXAMPLES)
@click.version_option(__version__, prog_name="traceml-lite")
def group() -> None:
    """Why does my training loop wait for its DataLoader, and which cheap experiment proves it?"""


def main(args: list[str] | None = None) -> Any:
    """Run the command line; ``args`` without the program name, default ``sys.argv[1:]``."""
    try:
        result = group.main(args=args, prog_name="traceml-lite", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except TracemlLiteError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our stdout (head, less) has gone; closing stderr too keeps the interpreter quiet.
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO):
            raise
        click.echo(f"error: the output cannot be written: {error.strerror}", err=True)
        os._exit(1)  # flushing stdout at the interpreter's end would fail again, with a traceback
    if isinstance(result, BaseException):
        raise result  # how a script under `run` ended: the interpreter ends in the same way
    sys.exit(result if isinstance(result, int) else 0)
