from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_passes import MS, one_pass, with_columns, with_config

from traceml_lite.diagnose.arms import (
    Stretch,
    arm_threshold_ns,
    batches_per_s,
    cadence_of,
    fetch_cv,
    overtaking_of,
    spread_over_passes,
    stretches,
    wait_share,
)
from traceml_lite.diagnose.compare import compare_arms


def stretch(wait_ms, rank=None, step_ms=10.0, workers=4):
    wait = (np.asarray(wait_ms, dtype=float) * MS).astype(np.int64)
    step = np.full(len(wait), int(step_ms * MS))
    ask = np.concatenate([[0], np.cumsum(wait + step)[:-1]])
    ranks = np.arange(len(wait)) if rank is None else np.asarray(rank)
    return Stretch(workers, wait, step, ask, ranks, None, None)


def test_a_long_pass_loses_its_first_round_and_a_short_one_keeps_it():
    assert len(stretches(one_pass(n=64, workers=4))[0]) == 60
    assert len(stretches(one_pass(n=16, workers=4))[0]) == 16


def test_the_warm_up_and_fast_forwarded_deliveries_are_left_out():
    assert len(stretches(one_pass(n=100, warmup=20))[0]) == 80
    one = one_pass(n=100)
    fast = np.zeros(100, dtype=np.uint8)
    fast[:30] = 1
    assert len(stretches(with_columns(one, fast_forward=fast))[0]) == 70


def test_epochs_are_looked_at_one_by_one():
    one = one_pass(n=100)
    epochs = np.repeat([0, 1], 50).astype(np.int32)
    numbers = np.tile(np.arange(50), 2)
    assert [len(s) for s in stretches(with_columns(one, epoch=epochs, delivery=numbers))] == [46, 46]


def test_a_thinned_trace_has_no_gaps_to_count():
    one = one_pass(n=100)
    thinned = replace(one.run.main, sampled="every stall and every 10th delivery")
    one = replace(one, run=replace(one.run, loaders=(thinned,)))
    assert stretches(one) == []
    assert "every 10th" in compare_arms([one_pass(0), one], [one_pass(2)]).notes[0]


def test_steps_that_were_not_measured_are_no_zero_steps():
    part = replace(stretch([10.0] * 8), step_ns=None)
    assert wait_share([part]) is None
    assert batches_per_s([part]) is None
    holed = replace(stretch([10.0] * 8), step_ns=np.array([10 * MS] * 7 + [-1]))
    assert wait_share([holed]) == pytest.approx(0.5)
    assert batches_per_s([holed]) == pytest.approx(50.0)


@pytest.mark.parametrize("cv", [0.03, 0.1, 0.3])
def test_the_variation_of_fetches_is_found_in_spite_of_a_slow_worker(cv):
    one = one_pass(n=800, cv=cv, scale=(5, 1, 1, 1))
    assert fetch_cv(stretches(one)) == pytest.approx(cv, rel=0.2)


def test_the_variation_is_unknown_without_fetch_times():
    one = with_columns(one_pass(n=100), drop=("fetch_start_ns", "fetch_end_ns"))
    assert fetch_cv(stretches(one)) is None


def test_a_first_wait_with_the_start_of_the_workers_sets_no_threshold():
    calm = arm_threshold_ns([stretch([100, 0, 0, 0] * 4)])
    slow_start = arm_threshold_ns([stretch([9000, 0, 0, 0] + [100, 0, 0, 0] * 3)])
    assert slow_start == calm == 50 * MS


def test_a_cadence_of_another_period_is_not_that_of_the_workers():
    found = cadence_of([stretch([100 if i % 5 == 0 else 0 for i in range(200)])], 4, 50 * MS)
    assert found.verdict == "absent"
    assert cadence_of([stretch([100, 0, 0, 0] * 50)], 4, 50 * MS).verdict == "present"


def test_three_gaps_are_too_few_to_say():
    found = cadence_of([stretch([100, 0, 0, 0] * 4)], 4, 50 * MS)
    assert found.multiples.value == 1.0
    assert found.verdict == "undecided"


def test_two_stalls_in_every_round_are_a_cadence_though_no_gap_is_a_multiple():
    found = cadence_of([stretch([100, 100, 0, 0] * 20)], 4, 50 * MS)
    assert found.multiples.value == 0.0
    assert (found.verdict, found.by_again, found.again.value) == ("present", True, 1.0)
    assert [round(w.again_share, 2) for w in found.windows] == [1.0] * len(found.windows)
    assert (found.late.verdict, found.late.by_again) == ("present", True)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([[100] * 100 + [0] * 100], id="slow at first"),
        pytest.param([[100] * 100, [0] * 100], id="a slow pass and a fast one"),
        pytest.param([[0] * 80 + [100] * 40 + [0] * 80], id="slow in between"),
    ],
)
def test_slow_stretches_are_no_cadence_though_stalls_follow_stalls(parts):
    found = cadence_of([stretch(waits) for waits in parts], 4, 50 * MS)
    assert found.again.value > 0.85
    assert found.verdict != "present"


@pytest.mark.parametrize("rate", [0.25, 0.5, 0.7])
def test_stalls_at_random_are_seldom_called_a_cadence(rate):
    rng = np.random.default_rng(7)
    called = 0
    for _ in range(300):
        waits = np.where(rng.random(200) < rate, 100.0, 0.0)
        called += cadence_of([stretch(waits)], 4, 50 * MS).verdict == "present"
    assert called <= 3


@settings(deadline=None)
@given(st.permutations(range(12)))
def test_overtakings_are_counted_as_the_glossary_says(order):
    found = overtaking_of([stretch([1.0] * 12, rank=order)])
    passed = sum(any(earlier > rank for earlier in order[:i]) for i, rank in enumerate(order))
    overtook = sum(any(later < rank for later in order[i + 1 :]) for i, rank in enumerate(order))
    assert (found.passed, found.overtook) == (passed, overtook)
    assert found.displacement_max == max(abs(rank - i) for i, rank in enumerate(order))


def test_an_interval_of_waits_does_not_reach_below_zero():
    found = spread_over_passes([1.0, 9.0])
    assert (found.value, found.low) == (5.0, 0.0)


def test_holes_in_the_ranks_are_no_displacement():
    found = overtaking_of([stretch([1.0] * 4, rank=[0, 3, 7, 9])])
    assert (found.passed, found.overtook, found.displacement_max) == (0, 0, 0)


def test_unknown_ranks_give_no_count():
    assert overtaking_of([replace(stretch([1.0] * 4), rank=None)]) is None


def test_one_pass_has_no_interval_and_two_have_one_that_holds_their_mean():
    assert spread_over_passes([3.0]).low is None
    both = spread_over_passes([3.0, 5.0])
    assert both.low < 4.0 == both.value < both.high


def test_exchanging_the_arms_inverts_the_ratio():
    a = [one_pass(i, fetch_ms=400) for i in (0, 3)]
    b = [one_pass(i, fetch_ms=300) for i in (1, 2)]
    there, back = compare_arms(a, b).difference, compare_arms(b, a).difference
    assert there.ratio.value * back.ratio.value == pytest.approx(1.0)
    assert there.p_value == pytest.approx(back.p_value)
    assert (there.different, there.equivalent) == (back.different, back.equivalent)


def test_a_loader_of_unknown_workers_is_compared_without_a_cadence():
    found = compare_arms(
        [with_config(one_pass(0), num_workers=None)], [with_config(one_pass(1), num_workers=None)]
    )
    assert found.cadence is None
    assert found.a.num_workers is None
