"""How often the shape is right on made-up runs that no threshold was set on.

The labelled file of the figures is not part of the repository; `experiments/accuracy/run.py --labelled`
judges it. The generator here draws harder runs than that file does (up to twelve workers in sixteen
deliveries, pauses that catch one worker only), so the floors for short runs lie a little lower.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from traceml_lite.diagnose.shapes import shape_verdict
from traceml_lite.records.run import Environment

EXPERIMENT = Path(__file__).parents[3] / "experiments" / "accuracy"
SEEDS = range(60_000, 60_010)


@pytest.fixture(scope="module")
def known() -> Any:
    """What the experiment counts as right, so that the two agree."""
    sys.path.insert(0, str(EXPERIMENT))
    try:
        import known

        yield known
    finally:
        sys.path.remove(str(EXPERIMENT))
        sys.modules.pop("known", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "fetches", "right", "wrong"),
    [
        (16, True, 0.88, 0.04),
        (64, True, 0.92, 0.03),
        (256, True, 0.97, 0.015),
        (16, False, 0.70, 0.15),
        (64, False, 0.85, 0.08),
        (256, False, 0.95, 0.03),
    ],
)
def test_the_shape_is_right_as_often_as_it_should_be(
    known: Any, n: int, fetches: bool, right: float, wrong: float
) -> None:
    outcomes: Counter[str] = Counter()
    sure: list[bool] = []
    for run in known.made_up(SEEDS, [n]):
        verdict, evidence, _ = shape_verdict(run.loader(fetches), Environment())
        good = known.is_right(run, verdict, evidence, fetches)
        outcomes["right" if good else verdict.key if verdict.key == "inconclusive" else "wrong"] += 1
        if verdict.confidence >= 0.95:
            sure.append(verdict.key == run.shape or good)
    total = sum(outcomes.values())
    assert outcomes["right"] / total >= right, outcomes
    assert outcomes["wrong"] / total <= wrong, outcomes
    assert sum(sure) >= 0.95 * len(sure)


@pytest.mark.slow
def test_a_clock_is_found_in_a_run_of_usual_length(known: Any) -> None:
    said = Counter(
        shape_verdict(run.loader(True), Environment())[0].key
        for run in known.made_up(range(61_000, 61_030), [256])
        if run.case == "clock"
    )
    assert said["clock_period"] >= 0.85 * sum(said.values()), said


@pytest.mark.slow
def test_random_stalls_and_drifts_are_not_called_periodic(known: Any) -> None:
    """One per cent of random stalls and two of drifts may be; chance is given four times the room."""
    from traceml_lite.simulate.labelled import labelled_run

    for case, share in (("poisson_hard", 0.01), ("heavy_random", 0.01), ("drift", 0.02)):
        called = []
        for seed in range(62_000, 62_100):
            columns, options, shape = labelled_run(case, 64, seed)
            run = known.Known(case, shape, columns, options)
            called.append(shape_verdict(run.loader(True), Environment())[0].key in known.PERIODIC)
        assert sum(called) <= 4 * share * len(called), case
