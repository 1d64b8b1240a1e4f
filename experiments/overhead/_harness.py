"""What the overhead scripts share: interleaved rounds of fresh processes, and a table that says where it ran.

A tool is compared with the same loop without it *in the same round*, a few seconds apart, and the median of
the rounds is what counts: on a shared machine anything else measures the neighbours.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def parser(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    found.add_argument("--rounds", type=int, default=rounds, help=f"interleaved rounds (default {rounds})")
    return found


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def have_traceml() -> bool:
    """Whether TraceML is installed here; its rows say "not installed" otherwise."""
    return importlib.util.find_spec("traceml_ai") is not None


def where(rounds: int) -> str:
    """One line: date, host facts, versions."""
    packages = {name: version(name) for name in ("torch", "traceml-lite", "traceml-ai")}
    versions = ", ".join(f"{name} {found}" for name, found in packages.items() if found)
    when = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
    host = f"{len(os.sched_getaffinity(0))} CPUs, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}"
    return f"{when}, {host}, Python {platform.python_version()}, {versions}; {rounds} rounds"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], rounds: int) -> None:
    """Print a Markdown table."""
    print(f"**{title}**\n\n{where(rounds)}\n")
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def child(
    script: str, settings: Mapping[str, Any], *, launcher: Sequence[str] = (), limit_s: float = 300
) -> Any:
    """Run a script of this folder in a fresh process and return what it wrote as JSON.

    Args:
        script: File name in this folder; called with a path to its settings and one for its result.
        settings: Anything that is JSON.
        launcher: Command in front of the script instead of the plain interpreter.
        limit_s: After this long the process is ended and the measurement fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "settings.json", Path(folder) / "result.json"
        asked.write_text(json.dumps({**settings, "folder": folder}))
        # Through the environment, because each launcher passes arguments on in its own way.
        environment = {**os.environ, "OVERHEAD_SETTINGS": str(asked), "OVERHEAD_RESULT": str(answer)}
        command = [*(launcher or [sys.executable]), str(HERE / script)]
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=limit_s
        )
        if done.returncode or not answer.exists():
            raise SystemExit(
                f"{command} failed with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
            )
        return json.loads(answer.read_text())


def settings() -> dict[str, Any]:
    """In a child: what it was asked for."""
    found: dict[str, Any] = json.loads(Path(os.environ["OVERHEAD_SETTINGS"]).read_text())
    return found


def answer(result: Any) -> None:
    """In a child: what it found."""
    Path(os.environ["OVERHEAD_RESULT"]).write_text(json.dumps(result))


def traceml_launcher() -> list[str]:
    """``traceml run`` of this environment."""
    return [
        sys.executable,
        "-c",
        "from traceml_ai.launcher.cli import main; main()",
        "run",
        "--run-name",
        "overhead",
    ]


def median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def spread(values: Sequence[float]) -> str:
    """Median with the smallest and largest round in brackets."""
    return f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"


def rotated(tools: Sequence[str], turn: int) -> list[str]:
    """The tools in another order each round, so that none always runs first."""
    at = turn % len(tools)
    return [*tools[at:], *tools[:at]]
