"""A whole investigation over a real loader: its steps, what it keeps, and going on."""

from __future__ import annotations

import json

import pytest

from traceml_lite.experiment.investigate import investigate
from traceml_lite.experiment.plan import Request
from traceml_lite.experiment.sweep import load_sweep
from traceml_lite.report.investigation import render_investigation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory):
    """One slow worker, told apart from a pool in phase by what order does."""
    folder = tmp_path_factory.mktemp("investigation")
    request = Request(
        "demo:slow-worker",
        arguments=(("fetch_ms", "8"), ("slow_ms", "60")),
        deliveries=24,
        consumer="paced:5ms",
    )
    return folder, request, investigate(request, folder, budget_s=600)


def test_the_chain_comes_from_waiting_to_the_law_to_the_control(walked):
    _, _, found = walked
    questions = [step.question for step in found.steps]
    assert questions[0] == "does the loop wait for its input?"
    assert questions.index("are the stalls at random or structured?") < len(questions) - 2
    assert "num_workers" in questions[-2]
    assert questions[-1] == "does ordered delivery make the stalls?"


def test_one_slow_worker_is_named_and_confirmed_by_an_experiment_of_its_own(walked):
    _, _, found = walked
    assert found.shape.key == "slow_worker"
    assert found.stands
    assert found.steps[-1].answer == "stalls fall away"
    assert any("too slow as a whole" in text for text in found.falsified)


def test_every_step_that_ran_something_has_its_sweep_and_its_command(walked):
    folder, _, found = walked
    for step in found.steps:
        assert (folder / step.folder / "sweep.json").is_file()
        if step.command:
            assert step.command.startswith("traceml-lite sweep demo:slow-worker ")
            assert load_sweep(folder / step.folder).complete


def test_the_chain_is_kept_as_it_was_returned(walked):
    folder, _, found = walked
    document = json.loads((folder / "investigation.json").read_text())
    assert document["result"]["shape"]["key"] == found.shape.key
    assert len(document["result"]["steps"]) == len(found.steps)


def test_the_same_command_again_runs_nothing_and_says_the_same(walked):
    folder, request, found = walked
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/passes/*/pass.json")}
    again = investigate(request, folder, budget_s=600)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/passes/*/pass.json")} == before
    assert [(step.question, step.answer) for step in again.steps] == [
        (step.question, step.answer) for step in found.steps
    ]


def test_its_text_fits_a_ticket(walked):
    _, _, found = walked
    lines = render_investigation(found)
    assert all(len(line) <= 88 or "traceml-lite sweep" in line for line in lines)
