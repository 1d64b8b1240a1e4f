from __future__ import annotations

import re
from dataclasses import replace

import made_up_summaries as made_up
import pytest

from traceml_lite.records.summary import NotMeasured, Workers
from traceml_lite.report.terminal import render_details, render_head, render_not_measured, render_summary


@pytest.mark.parametrize("name", made_up.SUMMARIES)
def test_the_text_is_the_golden_one(name: str) -> None:
    golden = (made_up.GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert made_up.text(name) == golden, "if this is meant: python tests/report/made_up_summaries.py"


@pytest.mark.parametrize("name", made_up.SUMMARIES)
def test_no_line_is_wider_than_88_columns_or_ends_in_a_blank(name: str) -> None:
    for line in render_summary(made_up.SUMMARIES[name]()):
        assert len(line) <= 88
        assert line == line.rstrip()


@pytest.mark.parametrize("name", made_up.SUMMARIES)
def test_colour_changes_no_letter(name: str) -> None:
    summary = made_up.SUMMARIES[name]()
    plain, coloured = render_summary(summary), render_summary(summary, color=True)
    assert [re.sub("\033\\[\\d+m", "", line) for line in coloured] == plain
    assert not any("\033" in line for line in plain)
    assert any("\033" in line for line in coloured)


def test_the_answer_stands_in_the_first_seven_lines() -> None:
    head = render_head(made_up.saturated())
    assert any("Waiting takes 78.1 %" in line for line in head[:7])


def test_the_whole_is_its_three_parts_with_a_blank_line_between() -> None:
    summary = made_up.many_workers()
    head, details, missing = render_head(summary), render_details(summary), render_not_measured(summary)
    assert render_summary(summary) == [*head, "", *details, "", *missing]


def test_a_column_that_no_worker_has_is_left_out_and_named_with_its_reason() -> None:
    summary = made_up.many_workers()
    assert not any("rchar" in line for line in render_details(summary))
    assert any("rchar" in line and "no permission" in line for line in render_not_measured(summary))


def test_a_cell_that_one_worker_lacks_is_marked_and_is_no_zero() -> None:
    summary = made_up.saturated()
    assert isinstance(summary.workers, Workers)
    first, *others = summary.workers.lines
    lacking = replace(first, rchar_per_fetch=NotMeasured("its ring was lost"))
    workers = replace(summary.workers, lines=(lacking, *others))
    details = render_details(replace(summary, workers=workers))
    row = next(line for line in details if line.startswith("0 "))
    assert "n/m" in row


def test_a_reason_that_many_things_share_is_said_once() -> None:
    missing = "\n".join(render_not_measured(made_up.waits_only()))
    assert missing.count("the host was not watched") == 1


def test_a_killed_run_says_so_before_its_numbers() -> None:
    head = render_head(made_up.sampled_and_killed())
    assert head.index("ending    killed by SIGKILL; the numbers go up to there") < next(
        i for i, line in enumerate(head) if line.startswith("Waiting")
    )


def test_worker_lines_are_limited_with_thirty_two_workers() -> None:
    rows = [line for line in render_details(made_up.many_workers()) if re.match(r"\d+ +\d+ \+2", line)]
    assert len(rows) == 5


def test_a_table_too_wide_loses_its_last_columns_and_no_digit() -> None:
    summary = made_up.saturated()
    wide, narrow = render_details(summary), render_details(summary, width=60)
    assert max(map(len, narrow[1:8])) <= 60
    row = next(line for line in narrow if line.startswith("0 "))
    full = next(line for line in wide if line.startswith("0 "))
    assert full.split()[: len(row.split())] == row.split()
    assert len(row.split()) >= 6
