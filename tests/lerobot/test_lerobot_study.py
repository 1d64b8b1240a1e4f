"""The study's judgements on made-up results: when a row agrees, when the check for CI fails."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "experiments" / "01_lerobot_regression"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The study's modules; they lie beside each other and not in a package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    names = ("checks", "tables", "cells", "environment", "stages", "session", "study")
    yield SimpleNamespace(**{name: __import__(name) for name in names})
    for name in {path.stem for path in FOLDER.glob("*.py")} - before:
        sys.modules.pop(name, None)


def a_pass(workers: int, stalls: list[int], **changes: Any) -> dict[str, Any]:
    numbers = {
        "condition": f"num_workers={workers}",
        "direction": "down",
        "workers": workers,
        "in_order": True,
        "deliveries": 16,
        "stalls": stalls,
        "gaps": [later - earlier for earlier, later in itertools.pairwise(stalls)],
        "mean_s": 1.0,
        "median_s": 0.01,
        "p95_s": 4.0,
        "cpu_s": 2.0,
        "run_queue_s": 0.1,
        "fetch_s": 2.2,
        "fetch_cv": 0.03,
        "median_read_bytes": 0.0,
        "median_major_faults": 0.0,
        "pid_changes": 0,
        "overtakings": 0,
        "contrast": None,
        "other_cores": 0.02,
        "disturbed": False,
        "shape": "saturated_pool",
        "shape_candidates": ["saturated_pool"],
        "cost": "cpu",
        "cost_candidates": [],
    }
    return numbers | changes


def results() -> dict[str, Any]:
    everything = list(range(16))
    broken = [
        a_pass(workers, stalls)
        for workers, stalls in (
            (4, [0, 4, 8, 12]),
            (2, list(range(0, 16, 2))),
            (1, everything),
            (0, everything),
        )
    ]
    law = {"key": "proportional", "statement": "the gap is the number of workers"}
    throughput = {"statement": "flat"}
    return {
        "alone": {
            "stall_s": 1.0,
            "passes": {"broken": a_pass(0, everything, cpu_s=2.0), "fixed": a_pass(0, [], cpu_s=0.05)},
        },
        "workers": {
            "took_s": 100.0,
            "broken": {"passes": broken, "laws": {"gap": law, "throughput": throughput}},
            "fixed": {"passes": [a_pass(4, []), a_pass(0, [])], "laws": None},
        },
    }


def failed(study: Any, found: dict[str, Any]) -> list[str]:
    return [one.name for one in study.checks.check(found) if not one.holds]


def test_the_results_of_the_known_regression_pass(study: Any) -> None:
    assert failed(study, results()) == []


@pytest.mark.parametrize(
    ("where", "value", "name"),
    [
        (("alone", "passes", "fixed", "cpu_s"), 0.3, "times the CPU"),
        (("workers", "broken", "laws", "gap", "key"), "undecided", "proportional"),
        (("workers", "fixed", "passes", 0, "stalls"), [0, 8], "no stall"),
        (("workers", "broken", "passes", 0, "pid_changes"), 1, "PIDs"),
        (("workers", "broken", "passes", 1, "median_major_faults"), 2.0, "major fault"),
        (("workers", "broken", "passes", 1, "median_read_bytes"), None, "reads nothing"),
        (("workers", "broken", "passes", 3, "stalls"), [0, 1, 2], "every broken fetch"),
    ],
)
def test_each_check_fails_on_its_own(study: Any, where: tuple[Any, ...], value: Any, name: str) -> None:
    found: Any = results()
    place = found
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    [only] = failed(study, found)
    assert name in only


class Repeating:
    """Stands in for the stages: gives one result after another."""

    def __init__(self, *outcomes: dict[str, Any]) -> None:
        self.outcomes = list(outcomes)
        self.ran = 0

    def fresh(self, _: Any, name: str) -> Any:
        found = self.outcomes[self.ran // 2][name]
        self.ran += 1
        return found


def without_cadence(**changes: Any) -> dict[str, Any]:
    found = copy.deepcopy(results())
    found["workers"]["broken"]["laws"]["gap"]["key"] = "undecided"
    for one in found["workers"]["broken"]["passes"]:
        one.update(changes)
    return found


@pytest.mark.parametrize(
    ("outcomes", "code", "runs"),
    [
        ([results()], 0, 1),
        ([without_cadence(), results()], 0, 2),
        ([without_cadence()] * 2, 1, 2),
        ([without_cadence(disturbed=True, other_cores=1.5), results()], 0, 2),
        ([without_cadence(disturbed=True, other_cores=1.5)] * 2, 0, 2),
        ([without_cadence(disturbed=True, other_cores=1.5, pid_changes=2)], 1, 1),
        ([without_cadence(disturbed=True, other_cores=1.5), without_cadence()], 1, 2),
    ],
    ids=[
        "a quiet success",
        "a failed timing is repeated once",
        "a quiet failure that repeats is a failure",
        "a disturbed failure is repeated",
        "disturbed twice is accepted",
        "load does not excuse a restarted worker",
        "a quiet repeat decides",
    ],
)
def test_a_busy_host_excuses_only_what_it_can_upset_and_only_after_a_repeat(
    study: Any, monkeypatch: pytest.MonkeyPatch, outcomes: list[dict[str, Any]], code: int, runs: int
) -> None:
    stages = Repeating(*outcomes)
    monkeypatch.setattr(study.checks, "_fresh", stages.fresh)
    assert study.checks.run(None) == code
    assert stages.ran == 2 * runs


def test_rows_agree_with_the_seed_on_the_known_pattern(study: Any) -> None:
    table = study.tables._seed_table(results())
    assert "median gap 4; 3 of 3 gaps are multiples of 4 | agrees |" in table
    assert "median gap 2; 7 of 7 gaps are multiples of 2 | agrees |" in table
    assert "differs" not in table


def test_the_start_of_the_workers_is_no_stall_of_the_fixed_stack(study: Any) -> None:
    assert study.tables.settled_stalls(a_pass(4, [0, 7, 9])) == [9]
    assert study.tables.settled_stalls(a_pass(0, [0, 1])) == [1]


def test_a_difference_names_what_went_along_with_it_or_that_nothing_did(study: Any) -> None:
    ragged = [0, 3, 7, 8, 13]
    for changes, words in (
        ({"other_cores": 1.4}, "other processes used up to 1.4 CPUs"),
        ({"fetch_cv": 0.4}, "fetch times vary by up to 40 %"),
        ({}, "not explained"),
    ):
        row = study.tables._gap_row(4, [a_pass(4, ragged, **changes)])
        assert row[2] == "median gap 3.5; 1 of 4 gaps are multiples of 4"
        assert row[3].startswith("differs; ")
        assert words in row[3]


def test_without_gaps_no_row_claims_to_agree(study: Any) -> None:
    assert study.tables._gap_row(4, [a_pass(4, [])])[3].startswith("differs")


def test_what_was_not_measured_is_not_shown_as_zero(study: Any) -> None:
    assert study.cells.seconds(None) == study.cells.share(None) == "not measured"
    assert study.cells.seconds(0.0123) == "12.3 ms"
    changes = [a_pass(4, [0, 4], pid_changes=None)]
    row = next(row for row in study.tables._counter_rows(changes) if row[0].startswith("PID"))
    assert row[2] == "not measured"
    assert row[3] != "agrees"


def test_an_arm_differs_from_the_base_in_its_overlays_only(study: Any, tmp_path: Path) -> None:
    base = study.environment.arm(tmp_path, "0.4.0", "4.1.1")
    other = study.environment.arm(tmp_path, "0.4.4", "4.8.5")
    assert base.overlays == ()
    assert [path.name for path in other.overlays] == ["lerobot-0.4.4", "datasets-4.8.5"]
    assert (base.python, base.environ()["PYTHONPATH"]) == (other.python, "")
    assert other.environ()["PYTHONPATH"].endswith("lerobot-0.4.4:" + str(other.overlays[1]))


def test_every_pinned_overlay_is_one_that_an_arm_asks_for(study: Any, tmp_path: Path) -> None:
    asked = {
        path.name
        for versions in study.stages.MATRIX
        for path in study.environment.arm(tmp_path, *versions).overlays
    }
    assert asked == set(study.environment.OVERLAYS)


def test_no_path_of_the_machine_gets_into_what_is_kept(study: Any, tmp_path: Path) -> None:
    (tmp_path / "data" / "96x96").mkdir(parents=True)
    one = study.study.Study(study.study.SCALES["quick"], tmp_path, tmp_path / "study" / "quick")
    said = f"probe lerobot:{tmp_path}/data/96x96 {FOLDER.resolve()}/train.py -o {one.folder}/traces/a"
    assert one.without_paths(said) == (
        "probe lerobot:ROOT experiments/01_lerobot_regression/train.py -o STUDY/traces/a"
    )


def test_values_are_read_from_the_lines_that_lerobot_logs(study: Any) -> None:
    line = (
        "INFO ot_train.py:346 step:2 smpl:16 ep:0 epch:0.02 loss:9.831 grdn:165.2 updt_s:2.481 data_s:0.015"
    )
    read = study.stages.values_in_log
    assert (read(line, "updt_s"), read(line, "data_s"), read(line, "loss")) == ([2.481], [0.015], [9.831])


def test_every_planned_stage_exists_and_fits_its_scale(study: Any) -> None:
    for scale in study.study.SCALES.values():
        planned = study.session.plan(scale)
        assert all(callable(getattr(study.stages, name)) for name in planned)
        if scale.name != "ci":
            assert sum(planned.values()) <= 60 * scale.minutes
