import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from made_passes import MACHINE, MS, one_pass, with_columns, with_config, with_host

from traceml_lite._errors import ComparisonError
from traceml_lite.diagnose.arms import clopper_pearson, fisher_pooled
from traceml_lite.diagnose.compare import (
    claim_deliveries,
    compare_arms,
    compare_sweeps,
)


def arms(orders=(True, False, False, True), **options):
    passes = [one_pass(i, in_order=order, **options) for i, order in enumerate(orders)]
    return tuple([p for p in passes if p.run.main.config.in_order is order] for order in (True, False))


# -- in_order and the cadence ----------------------------------------------------------------------------


def test_a_short_in_order_control_is_refused_and_says_what_it_would_have_claimed():
    found = compare_arms(*arms(n=16, cv=0.03))
    claim = found.cadence
    assert claim.key == "refused"
    assert "survives" in claim.short_claim
    assert claim.deliveries == 16
    assert claim.deliveries_needed >= 200
    assert str(claim.deliveries_needed) in claim.statement


def test_sixteen_unordered_deliveries_of_equal_fetches_keep_the_cadence_and_overtake():
    found = compare_arms(*arms(n=16, cv=0.03))
    assert found.b.overtaking.passed > 0
    assert found.b.overtaking.displacement_max >= 1
    assert found.a.overtaking.passed == found.a.overtaking.overtook == 0
    assert found.a.cadence.multiples.value == found.b.cadence.multiples.value == 1.0


def test_a_long_control_of_jittered_fetches_keeps_the_cadence_in_order_and_loses_it_without():
    found = compare_arms(*arms(n=600, cv=0.4))
    assert found.cadence.key == "gone"
    assert found.a.cadence.verdict == "present"
    assert found.b.cadence.verdict == "absent"
    assert found.difference.equivalent


def test_the_stalls_of_a_slow_worker_fall_away_without_order():
    found = compare_arms(*arms(n=400, fetch_ms=200, step_ms=200, scale=(6, 1, 1, 1)))
    assert found.cadence.key == "gone"
    assert "fall away" in found.cadence.statement
    assert found.b.stall_share < 0.05 < found.a.stall_share
    assert found.difference.different


def test_the_cadence_is_reported_by_window():
    windows = compare_arms(*arms(n=600, cv=0.4)).b.cadence.windows
    assert [w.start for w in windows] == [0, 16, 64, 256]
    assert all(w.gap_share is None or 0 <= w.gap_share <= 1 for w in windows)
    assert windows[-1].stop == 600 - 4, "the first round fills the pipe and is left out"


def stalled_at(one, at):
    """The pass with waits of 400 ms at the given deliveries and none elsewhere."""
    waits = np.zeros(len(one.run.main.deliveries), dtype=np.int64)
    waits[at] = 400 * MS
    return with_columns(one, wait_ns=waits)


def test_a_cadence_that_only_begins_the_unordered_arm_has_not_survived():
    a, b = arms(n=600, cv=0.4)
    rng = np.random.default_rng(1)
    locked = np.arange(0, 600, 4)
    lost = [np.concatenate([np.arange(0, 380, 4), 380 + np.flatnonzero(rng.random(220) < 0.1)]) for _ in b]
    found = compare_arms(
        [stalled_at(one, locked) for one in a],
        [stalled_at(one, at) for one, at in zip(b, lost, strict=True)],
    )
    assert found.b.cadence.verdict == "present", "over all deliveries it is there"
    assert found.b.cadence.late.verdict != "present"
    assert found.cadence.key in ("undecided", "gone")
    assert "its later half: " in found.cadence.statement
    kept = compare_arms([stalled_at(one, locked) for one in a], [stalled_at(one, locked) for one in b])
    assert kept.cadence.key == "survived"


def test_without_fetch_times_survival_is_undecided_as_the_phase_memory_is_unknown():
    a, b = arms(n=600, cv=0.02)
    bare = [[with_columns(p, drop=("fetch_start_ns", "fetch_end_ns")) for p in arm] for arm in (a, b)]
    found = compare_arms(*bare)
    assert found.a.fetch_cv is None
    assert found.cadence.key in ("undecided", "no_cadence")
    assert "survives" not in found.cadence.statement


def test_equal_fetches_need_a_longer_control_than_jittered_ones():
    assert claim_deliveries(4, 0.3) < claim_deliveries(4, 0.1) < claim_deliveries(4, 0.03)
    assert claim_deliveries(2, None) == 200
    assert claim_deliveries(16, None) == 800


def test_an_arm_without_a_cadence_has_none_to_survive():
    found = compare_arms(*arms(n=400, fetch_ms=10, step_ms=20))
    assert found.cadence.key == "no_cadence"


def test_with_one_worker_or_other_numbers_of_workers_there_is_no_period_to_follow():
    one = compare_arms(*arms(n=60, workers=1))
    assert one.cadence is None
    assert one.a.cadence is None
    other = compare_arms([one_pass(0, workers=2)], [one_pass(1, workers=4)])
    assert other.cadence is None


# -- the mean wait ---------------------------------------------------------------------------------------


def fixed(number, mean_ms, name):
    """A pass whose mean wait is what is asked for."""
    one = one_pass(number, n=100, name=name, options={"arm": name})
    n = len(one.run.main.deliveries)
    wait = np.full(n, int(mean_ms * MS))
    ask = np.arange(n) * int(mean_ms + 10) * MS
    return with_columns(one, wait_ns=wait, ask_ns=ask, got_ns=ask + wait)


def test_the_seeds_four_passes_are_equivalent_within_a_fifth_and_no_difference_is_shown():
    a = [fixed(0, 4710, "ordered"), fixed(3, 4620, "ordered")]
    b = [fixed(1, 4310, "unordered"), fixed(2, 4380, "unordered")]
    found = compare_arms(a, b).difference
    assert found.ratio.value == pytest.approx(0.931, abs=0.001)
    assert (found.ratio.low, found.ratio.high) == pytest.approx((0.833, 1.042), abs=0.002)
    assert found.p_value == pytest.approx(0.16, abs=0.01)
    assert (found.different, found.equivalent) == (False, True)


def test_a_difference_and_its_smallness_can_both_be_shown():
    a = [fixed(i, 1000 + i, "a") for i in range(0, 8, 2)]
    b = [fixed(i, 1060 + i, "b") for i in range(1, 9, 2)]
    found = compare_arms(a, b).difference
    assert (found.different, found.equivalent) == (True, True)
    assert "Mean wait is 6.1 % higher in b than in a" in found.statement
    assert "both hold, it differs by 6.1 % and is the same within ±20 %" in found.statement


def test_an_equality_whose_interval_leaves_out_1_says_that_too():
    a = [fixed(i, wait, "a") for i, wait in zip((0, 2, 4), (1000, 1010, 990), strict=True)]
    b = [fixed(i, wait, "b") for i, wait in zip((1, 3, 5), (1020, 1060, 1050), strict=True)]
    found = compare_arms(a, b).difference
    assert (found.different, found.equivalent) == (False, True)
    assert found.ratio.low > 1
    assert "the same within ±20 %, and within that 4.3 % higher" in found.statement
    assert "leaves out 1" in found.statement


def test_arms_of_one_name_are_told_apart_by_letters():
    found = compare_arms([fixed(0, 1000, "a")], [fixed(1, 2000, "a")]).difference
    assert "100 % higher in B than in A" in found.statement


def test_paths_of_traces_are_called_by_letters_and_a_setting_with_a_path_by_its_name():
    found = compare_arms([fixed(0, 1000, "runs/before")], [fixed(1, 2000, "runs/after")]).difference
    assert "100 % higher in B than in A" in found.statement
    found = compare_arms([fixed(0, 1000, "env.D=/a")], [fixed(1, 2000, "env.D=/b")]).difference
    assert "in env.D=/b than in env.D=/a" in found.statement


def test_arms_that_do_not_separate_say_how_many_pairs_would():
    a = [fixed(0, 1000, "a"), fixed(2, 1400, "a"), fixed(4, 900, "a")]
    b = [fixed(1, 1300, "b"), fixed(3, 1300, "b"), fixed(5, 1250, "b")]
    found = compare_arms(a, b).difference
    assert (found.different, found.equivalent) == (False, None)
    assert found.pairs_needed > 3
    assert "not separated" in found.statement
    assert str(found.pairs_needed) in found.statement


def test_one_run_of_each_shows_neither_a_difference_nor_equality():
    found = compare_arms([fixed(0, 1000, "a")], [fixed(1, 3000, "b")]).difference
    assert (found.different, found.equivalent, found.p_value) == (None, None, None)
    assert found.ratio.value == pytest.approx(3.0)
    assert found.ratio.low is None
    assert "Repeat" in found.statement


@pytest.mark.parametrize(("mean_ms", "different"), [(31, None), (33, True), (0.8, True)])
def test_a_ratio_beyond_what_repeats_differ_by_is_a_difference_between_one_run_of_each(mean_ms, different):
    found = compare_arms([fixed(0, 8, "a")], [fixed(1, mean_ms, "b")]).difference
    assert found.different is different
    assert (found.equivalent, found.p_value) == (False if different else None, None)
    assert ("it differs" in found.statement) is bool(different)


def test_two_rare_stalls_in_one_run_of_two_are_no_difference_of_the_setting():
    plain, stalled = fixed(0, 8, "a"), fixed(1, 8, "b")
    waits = stalled.run.main.deliveries["wait_ns"].copy()
    waits[[30, 70]] = 5000 * MS
    ask = np.arange(len(waits)) * 6000 * MS
    found = compare_arms([plain], [with_columns(stalled, wait_ns=waits, ask_ns=ask, got_ns=ask + waits)])
    assert found.difference.ratio.value > 10
    assert found.difference.different is None


def test_waits_that_are_nothing_beside_a_step_do_not_differ_from_one_run_to_another():
    def with_two_stalls(one, wait_us):
        waits = np.full(100, wait_us * 1000)
        waits[[30, 70]] = 5000 * MS if wait_us > 50 else 20_000
        return with_columns(one, wait_ns=waits, ask_ns=np.arange(100) * 6000 * MS)

    quiet, busy = with_two_stalls(fixed(0, 8, "a"), 20), with_two_stalls(fixed(1, 8, "b"), 90)
    found = compare_arms([quiet], [busy]).difference
    assert found.ratio.value > 100
    assert found.different is None


def test_arms_that_do_not_wait_are_the_same():
    found = compare_arms(*arms(n=100, fetch_ms=10, step_ms=50)).difference
    assert (found.different, found.equivalent) == (False, True)
    assert "Neither num_workers=4 in_order=True nor num_workers=4 in_order=False waits" in found.statement


def test_under_equal_arms_a_difference_is_shown_one_time_in_twenty():
    rng = np.random.default_rng(5)
    shown = 0
    for _ in range(200):
        waits = 1000 * np.exp(0.1 * rng.standard_normal(8))
        a = [fixed(2 * i, w, "a") for i, w in enumerate(waits[:4])]
        b = [fixed(2 * i + 1, w, "b") for i, w in enumerate(waits[4:])]
        shown += bool(compare_arms(a, b).difference.different)
    assert shown <= 22


# -- what may be compared --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"environment": replace(MACHINE, torch="2.7.1")}, "torch 2.13.0 and 2.7.1"),
        ({"environment": replace(MACHINE, host="other")}, "host box and other"),
        ({"environment": replace(MACHINE, versions={"numpy": "1.26"})}, "numpy 2.0 and 1.26"),
        ({"environment": replace(MACHINE, cpus_online=2)}, "cpus_online 4 and 2"),
        ({"indices_hash": "b"}, "other batches or another order"),
    ],
)
def test_unlike_arms_are_refused_by_name_unless_allowed(change, word):
    a, b = one_pass(0, indices_hash="a"), one_pass(1, **{"indices_hash": "a", **change})
    with pytest.raises(ComparisonError, match=word):
        compare_arms([a], [b])
    assert word in " ".join(compare_arms([a], [b], allow_different=True).unlike)


def test_another_batch_size_is_refused_unless_it_is_the_condition():
    a, b = one_pass(0), with_config(one_pass(1), batch_size=16)
    with pytest.raises(ComparisonError, match="batch_size 8 and 16"):
        compare_arms([a], [b])
    by_plan = [replace(p, condition=replace(p.condition, options={"batch_size": 0})) for p in (a, b)]
    assert compare_arms([by_plan[0]], [by_plan[1]]).unlike == ()


def test_what_is_not_known_is_no_difference():
    unknown = replace(MACHINE, torch="", host="", versions={}, cpus_online=None)
    assert compare_arms([one_pass(0)], [one_pass(1, environment=unknown)]).unlike == ()


def test_an_option_that_no_condition_names_is_noted():
    a, b = one_pass(0), with_config(one_pass(1), pin_memory=True)
    a = with_config(a, pin_memory=False)
    assert "pin_memory False and True" in compare_arms([a], [b]).notes


def test_an_arm_without_a_finished_pass_is_refused():
    failed = one_pass(1, status="failed")
    with pytest.raises(ComparisonError, match="num_workers=4 in_order=True has no finished pass"):
        compare_arms([one_pass(0)], [failed])


def test_sweeps_are_compared_by_their_common_conditions():
    first = [one_pass(i, workers=w) for i, w in enumerate((1, 2, 4))]
    second = [one_pass(i, workers=w, fetch_ms=40) for i, w in enumerate((2, 4, 8))]
    found = compare_sweeps(first, second)
    assert [c.a.num_workers for c in found] == [2, 4]
    with pytest.raises(ComparisonError, match="no condition in common"):
        compare_sweeps(first[:1], second)


# -- the host --------------------------------------------------------------------------------------------


def test_steal_other_processes_and_extra_pressure_flag_their_pass():
    S = 1_000_000_000
    quiet = {"cpu_busy_ns": 8 * S, "own_cpu_ns": 8 * S, "cpu_steal_ns": 0, "pressure_cpu_ns": 1 * S}
    passes = [
        with_host(one_pass(0), **quiet),
        with_host(one_pass(1), **{**quiet, "cpu_steal_ns": 4 * S}),
        with_host(one_pass(2), **{**quiet, "cpu_busy_ns": 20 * S}),
        with_host(one_pass(3), **{**quiet, "pressure_cpu_ns": 6 * S}),
    ]
    found = {d.number: d.reason for d in compare_arms(passes, passes).disturbed}
    assert set(found) == {1, 2, 3}
    assert "stolen" in found[1]
    assert "1.2 of 4 CPUs" in found[2]
    assert "cpu pressure" in found[3]


def test_a_host_that_was_not_recorded_disturbs_nobody():
    assert compare_arms([one_pass(0)], [one_pass(1)]).disturbed == ()


# -- numbers ---------------------------------------------------------------------------------------------


def test_a_comparison_goes_to_json_as_it_stands():
    found = compare_arms(*arms(n=100))
    assert json.loads(json.dumps(asdict(found)))["a"]["num_workers"] == 4


def test_six_of_six_gaps_leave_a_lower_bound_of_sixty_one_percent():
    low, high = clopper_pearson(6, 6)
    assert low == pytest.approx(0.05 ** (1 / 6))
    assert high == 1.0
    assert clopper_pearson(0, 6) == pytest.approx((0.0, 1 - 0.05 ** (1 / 6)))


def test_fisher_of_one_p_value_is_itself_and_of_two_is_smaller_than_both():
    assert fisher_pooled([0.03]) == pytest.approx(0.03)
    assert fisher_pooled([0.03, 0.04]) < 0.03
    assert fisher_pooled([0.5, 0.5]) > 0.3


def test_a_margin_that_is_none_is_refused():
    with pytest.raises(ValueError, match="margin"):
        compare_arms([one_pass(0)], [one_pass(1)], margin=0.0)
