from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme_make", ROOT / "experiments/readme/make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_summary_in_the_readme_is_what_this_code_says_about_the_recorded_run(maker: ModuleType) -> None:
    assert maker.shown() == maker.block()


def test_the_summary_in_the_readme_fits_the_width_of_a_ticket(maker: ModuleType) -> None:
    assert max(len(line) for line in maker.shown().splitlines()) <= 88


def test_every_script_and_folder_that_the_readme_names_is_there() -> None:
    named = re.findall(r"`((?:experiments|tests|\.github|\.ci)/[\w./-]*)`", (ROOT / "README.md").read_text())
    assert len(named) >= 6
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_command_that_the_readme_shows_exists() -> None:
    from traceml_lite.cli import COMMANDS

    shown = re.findall(r"traceml-lite (\w+)", (ROOT / "README.md").read_text())
    assert {word for word in shown if word not in COMMANDS} <= {"show"}
    assert set(COMMANDS) <= set(shown)
