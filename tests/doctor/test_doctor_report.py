"""The text and the document of `doctor`, compared whole, and its command."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_up_hosts import BAD, GOOD

from traceml_lite.cli.doctor import command
from traceml_lite.diagnose.doctor import find_problems
from traceml_lite.report.doctor import doctor_document, render_doctor

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(("name", "facts"), [("good", GOOD), ("bad", BAD)])
def test_the_text_is_the_golden_one(name, facts):
    lines = render_doctor(facts, find_problems(facts))
    golden = GOLDEN / f"doctor_{name}.txt"
    if "UPDATE_GOLDEN" in os.environ:
        golden.write_text("\n".join(lines) + "\n")
    assert "\n".join(lines) + "\n" == golden.read_text()


@pytest.mark.parametrize("width", [60, 88])
def test_no_line_is_wider_than_asked_for(width):
    assert max(len(line) for line in render_doctor(BAD, find_problems(BAD), width=width)) <= width


def test_colour_only_sets_off_headings():
    plain = render_doctor(BAD, find_problems(BAD))
    coloured = render_doctor(BAD, find_problems(BAD), color=True)
    assert [line.replace("\033[1m", "").replace("\033[0m", "") for line in coloured] == plain
    assert coloured != plain


def test_the_document_holds_facts_reasons_and_problems_under_the_records_names():
    document = json.loads(json.dumps(doctor_document(BAD, find_problems(BAD)), allow_nan=False))
    assert document["facts"]["cpu_quota"] == 1.5
    assert document["facts"]["cpus_usable"] == 1.5
    assert document["facts"]["torch"] is None
    assert document["facts"]["unknown"]["torch"].startswith("torch is not installed")
    assert document["problems"][0].items() >= {"key": "quota", "severity": "warning"}.items()
    assert [problem["key"] for problem in document["problems"]] == [p.key for p in find_problems(BAD)]


def test_the_command_prints_text_or_one_document_and_exits_with_zero(tmp_path):
    text = CliRunner().invoke(command, ["--path", str(tmp_path)], catch_exceptions=False)
    assert (text.exit_code, text.output.splitlines()[0]) == (0, "Host")
    assert str(tmp_path.resolve()) in text.output.replace("\n", "").replace(" ", "")
    document = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    assert document.exit_code == 0
    assert json.loads(document.output)["format"] == "traceml-lite doctor"


def test_a_path_that_does_not_exist_is_a_usage_error():
    result = CliRunner().invoke(command, ["--path", "/no/such/place"])
    assert result.exit_code == 2
    assert "does not exist" in result.output
