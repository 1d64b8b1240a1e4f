from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(tmp_path: Path) -> Run:
    """``traceml-lite ARGS`` in an empty directory."""

    def run(*args: str, code: int | None = 0, **options: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "traceml_lite", *args],
            capture_output=True, text=True, cwd=tmp_path, timeout=110, check=False, **options,  # type: ignore[call-overload]
        )  # fmt: skip
        if code is not None:
            assert done.returncode == code, done.stderr
        return done

    return run


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Write a script into that directory."""

    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write
