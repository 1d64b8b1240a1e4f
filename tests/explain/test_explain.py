from __future__ import annotations

import re
import shlex
from importlib import import_module

import click
import pytest
from click.testing import CliRunner

from traceml_lite._errors import UsageError
from traceml_lite.cli.explain import command
from traceml_lite.diagnose.costs import COST_KEYS
from traceml_lite.diagnose.shapes import SHAPES
from traceml_lite.report.catalogue import COST_PAGES, KEYS, LOOK_ALIKES, SHAPE_PAGES, contents, page


def test_every_key_that_a_diagnosis_can_give_has_a_page() -> None:
    assert set(COST_PAGES) == set(COST_KEYS)
    assert set(SHAPE_PAGES) == set(SHAPES) - {"inconclusive"}


@pytest.mark.parametrize("key", KEYS)
def test_a_page_has_a_picture_evidence_look_alikes_an_experiment_and_a_cure(key: str) -> None:
    text = page(key)
    assert text.startswith(f"# {key}: ")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["What it looks like", "Evidence", "Mistaken for", "Experiment", "Cure"]
    assert text.count("```text\n") == 1
    assert all(len(line) <= 88 for line in text.splitlines())


@pytest.mark.parametrize("key", KEYS)
def test_the_experiment_of_a_page_is_a_command_that_the_command_line_accepts(key: str) -> None:
    block = re.search(r"```sh\n(.+?)\n```", page(key), re.DOTALL)
    assert block is not None
    program, name, *words = shlex.split(block[1].replace("TARGET", "demo:lock"))
    assert program == "traceml-lite"
    function: click.Command = import_module(f"traceml_lite.cli.{name}").command
    function.make_context(name, list(words))


@pytest.mark.parametrize("key", KEYS)
def test_keys_that_a_page_mentions_exist(key: str) -> None:
    words = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", page(key)))
    known = {*KEYS, "rchar", "nr_throttled", "read_bytes", "worker_init_fn", "persistent_workers"}
    assert words <= known, words - known


def test_look_alikes_are_keys_of_the_catalogue() -> None:
    assert set(LOOK_ALIKES) <= set(KEYS)
    assert {key for keys in LOOK_ALIKES.values() for key in keys} <= set(KEYS)


def test_explain_prints_the_page_as_it_is_written() -> None:
    result = CliRunner().invoke(command, ["saturated_pool"])
    assert result.exit_code == 0
    assert result.output == page("saturated_pool")


def test_explain_takes_a_hyphen_or_capitals_for_a_key() -> None:
    assert page("Run-Queue") == page("run_queue")


def test_explain_without_a_key_lists_all_with_their_titles() -> None:
    output = CliRunner().invoke(command, []).output
    assert output.splitlines() == contents()
    for key in KEYS:
        assert f"  {key} " in output


def test_an_unknown_key_lists_the_keys_and_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean saturated_pool") as error:
        page("saturated")
    for key in KEYS:
        assert key in str(error.value)
    assert error.value.exit_code == 2
    with pytest.raises(UsageError) as far_off:
        page("xyzzy")
    assert "did you mean" not in str(far_off.value)
