"""The order of the stages, with what each is expected to take, and what is made of them."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from pathlib import Path

import checks
import stages
import tables
from study import SCALES, Scale, Study

HERE = Path(__file__).resolve().parent


def run(given: argparse.Namespace, home: Path) -> int:
    """Run what is asked for; returns the exit code."""
    scale = SCALES[given.scale]
    if given.long and not scale.long_deliveries:
        longer = SCALES["default"]
        scale = dataclasses.replace(
            scale, long_deliveries=longer.long_deliveries, minutes=longer.minutes, long=True
        )
    if given.minutes:
        scale = dataclasses.replace(scale, minutes=given.minutes)
    folder = home / "study" / scale.name
    if given.fresh or scale.name == "ci":
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(scale, home, folder)
    if scale.name == "ci":
        return checks.run(study)
    if not given.write:
        study.data()
        study.data(small=True)
        study.began_again()
        for name, expected_s in plan(scale).items():
            study.stage(name, getattr(stages, name), expected_s)
        if given.current:
            study.stage("current", stages.current, 2 * _alone(scale, scale.matrix_deliveries) + 60)
    for name in plan(scale):
        if study.result(name) is None:
            study.skipped.setdefault(name, "not run yet; the same command again goes on with it")
    text, investigation = tables.write(study)
    (HERE / "RESULTS.md").write_text(text)
    if investigation:
        (HERE / "investigate.txt").write_text(investigation)
    print(f"wrote {HERE / 'RESULTS.md'}")
    return 0


def plan(scale: Scale) -> dict[str, float]:
    """Stages in the order of what a reader wants first, with their expected seconds on two CPUs."""
    few, many = scale.deliveries, scale.long_deliveries
    pool, small_s = _pool(scale.fetch_s, few), min(scale.fetch_s, SCALES["quick"].fetch_s)
    # A step of the small ACT takes about as long as a fetch, and on the broken stack the workers take two
    # thirds of the CPUs from it.
    step_s = 1.5 * scale.fetch_s + 0.3
    planned = {
        "describe": 0.0,
        "alone": 2 * _alone(scale, scale.matrix_deliveries),
        "workers": 6 * pool + 4 * _alone(scale, few),
        "in_order": 5 * pool,
        "pacing": pool,
        "matrix": 5 * _alone(scale, scale.matrix_deliveries),
        "train": 2 * (2 * stages.START_S + scale.train_steps * step_s),
    }
    if many:
        planned |= {
            "in_order_long": 3 * _pool(small_s, many),
            "controls": 9 * _pool(small_s, 72),
            "train_control": 3 * (2 * stages.START_S + 20 * step_s),
            "investigate": scale.investigate_minutes * 60,
        }
    return planned


def _alone(scale: Scale, deliveries: int) -> float:
    return stages.START_S + deliveries * scale.fetch_s


def _pool(fetch_s: float, deliveries: int) -> float:
    # Two CPUs make two fetches at a time; the eight that are under way at the end are given up.
    return stages.START_S + (deliveries + 8) * fetch_s / 2
