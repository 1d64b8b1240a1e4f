"""What controls answer, from made-up passes."""

from __future__ import annotations

import numpy as np
import pytest
from made_sweep_passes import made, pool

from traceml_lite.diagnose.compare import compare_arms
from traceml_lite.diagnose.phase import phase_lock
from traceml_lite.experiment.evidence import answer_control


def ask(control, base, changed):
    return answer_control(control, base, changed, compare_arms(base, changed))


def twice(name, make, **kwargs):
    return [made(name, make(seed), number=seed, **kwargs) for seed in (1, 2)]


def scattered(rng, n):
    """Waits of which a quarter, anywhere, are stalls."""

    def make(seed):
        waits = np.full(n, 0.1)
        waits[rng.permutation(n)[: n // 4]] = 40.0
        return waits

    return make


def test_stalls_that_go_without_order_are_a_late_batch_that_held_others_back():
    base = twice("ordered", lambda seed: pool(240, seed=seed), fetch_ms=20)
    changed = twice("free", lambda seed: np.full(240, 0.5 + 0.1 * seed), fetch_ms=20, in_order=False)
    answer = ask("in_order", base, changed)
    assert answer.key == "stalls_fall_away"
    assert answer.numbers["stall_ratio"] == 0
    assert answer.control == "in_order"
    assert "ordered delivery" in answer.reason


def test_stalls_that_stay_without_order_are_a_pool_that_is_too_slow():
    base = twice("ordered", lambda seed: pool(240, seed=seed), fetch_ms=20)
    changed = twice("free", lambda seed: pool(240, seed=seed + 10), fetch_ms=20, in_order=False)
    # Fetches without any variation keep workers in phase for ever: the cadence cannot be decided, this can.
    assert ask("in_order", base, changed).key in ("stalls_stay", "cadence_stays")


def test_a_wait_that_mostly_stays_is_not_made_by_order_though_passes_differ():
    stalls = {1: 44.0, 2: 36.0, 3: 37.0, 4: 41.0}
    base = [made("ordered", pool(144, stall=stalls[n], seed=n), number=n, fetch_ms=20) for n in (1, 4)]
    changed = [
        made("free", pool(144, stall=stalls[n], seed=n), number=n, fetch_ms=20, in_order=False)
        for n in (2, 3)
    ]
    assert not compare_arms(base, changed).difference.equivalent
    answer = ask("in_order", base, changed)
    assert answer.key == "stalls_stay"
    assert "order makes at most" in answer.statement


def test_a_cadence_that_goes_at_the_same_mean_is_named():
    rng = np.random.default_rng(3)

    jitter = 20 * (1 + 0.3 * rng.standard_normal(1200))
    base = twice("ordered", lambda seed: pool(1200, seed=seed), fetch_ms=np.abs(jitter))
    changed = twice("free", scattered(rng, 1200), fetch_ms=np.abs(jitter), in_order=False)
    answer = ask("in_order", base, changed)
    assert answer.key == "cadence_gone"
    assert "the pool is as slow" in answer.statement
    assert answer.numbers["burst"] > 0.95


def test_a_control_says_what_sixteen_deliveries_would_have_claimed():
    base = twice("ordered", lambda seed: pool(240, seed=seed), fetch_ms=20)
    changed = twice("free", lambda seed: pool(240, seed=seed + 5), fetch_ms=20, in_order=False)
    assert ask("in_order", base, changed).short.startswith("16 deliveries per pass would have said: ")


def test_a_stagger_that_takes_the_cadence_at_the_same_mean_shows_a_pool_in_phase():
    base = twice("plain", lambda seed: pool(128, seed=seed))
    mean = float(np.mean([pool(128, seed=seed).mean() for seed in (1, 2)]))
    rng = np.random.default_rng(0)
    changed = twice("staggered", lambda seed: np.abs(mean * (1 + 0.4 * rng.standard_normal(128))))
    answer = ask("stagger", base, changed)
    assert answer.key == "cadence_gone"
    assert answer.numbers["wait_ratio"] == pytest.approx(1, abs=0.2)


def arcs(n, workers, seed):
    """Waits of workers of equal speed at random phases: the arcs between them, round after round."""
    rng = np.random.default_rng(seed)
    rounds = []
    for _ in range(n // workers):
        places = np.sort(rng.random(workers))
        rounds.append(40.0 * np.diff(np.r_[places, places[0] + 1]))
    return np.concatenate(rounds)


def test_a_pool_that_lost_its_phase_is_told_though_equal_workers_repeat_every_gap():
    base = twice("ordered", lambda seed: pool(1200, seed=seed), fetch_ms=20)
    changed = twice("free", lambda seed: np.tile(arcs(4, 4, seed + 3), 300), fetch_ms=20, in_order=False)
    lock = phase_lock(base, changed, cv=0.05)
    assert lock.lost
    assert ask("in_order", base, changed).key == "cadence_gone"
    # The comparison below the answer must not say the opposite, whatever the gaps alone would.
    comparison = compare_arms(base, changed)
    assert comparison.lock.lost
    assert comparison.cadence.key == "gone"
    assert "lose their phase" in comparison.cadence.statement


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_random_phases_carry_what_chance_says(workers):
    base = twice("ordered", lambda seed: pool(4000, workers, seed=seed), workers=workers)
    free = twice("free", lambda seed: arcs(4000, workers, seed), workers=workers)
    lock = phase_lock(base, free)
    assert lock.changed == pytest.approx(lock.chance, abs=0.02)
    assert lock.base > 0.95


def test_stalls_that_stay_answer_for_the_order_though_no_cadence_is_there():
    rng = np.random.default_rng(5)

    jitter = np.abs(20 * (1 + 0.3 * rng.standard_normal(240)))
    base = twice("ordered", scattered(rng, 240), fetch_ms=jitter)
    changed = twice("free", scattered(rng, 240), fetch_ms=jitter, in_order=False)
    answer = ask("in_order", base, changed)
    assert answer.key == "wait_stays"
    assert "no cadence" in answer.statement


def test_arms_that_do_not_wait_answer_nothing_about_the_order():
    base = twice("ordered", lambda seed: np.full(240, 0.01), fetch_ms=1)
    changed = twice("free", lambda seed: np.full(240, 0.01), fetch_ms=1, in_order=False)
    answer = ask("in_order", base, changed)
    assert answer.key == "undecided"
    assert "nan" not in answer.statement


def test_a_lock_that_one_pass_kept_is_not_called_lost():
    base = twice("ordered", lambda seed: pool(400, seed=seed))
    changed = [base[0], made("free", arcs(400, 4, 1), number=2)]
    assert not phase_lock(base, changed).lost


def test_one_worker_has_no_phase():
    one = twice("alone", lambda seed: np.full(80, 9.0), workers=1)
    assert phase_lock(one, one) is None


def test_a_stagger_that_changes_nothing_is_not_phase():
    base = twice("plain", lambda seed: pool(128, seed=seed))
    changed = twice("staggered", lambda seed: pool(128, seed=seed + 7))
    assert ask("stagger", base, changed).key == "cadence_stays"


def test_a_cadence_that_survives_a_stagger_of_equal_workers_is_no_proof_against_phase():
    base = twice("plain", lambda seed: pool(128, seed=seed), fetch_ms=44)
    changed = twice("staggered", lambda seed: pool(128, seed=seed + 7), fetch_ms=44)
    assert ask("stagger", base, changed).key == "undecided"


def test_a_cadence_that_survives_the_stagger_of_a_slow_worker_is_not_phase():
    fetch = np.where(np.arange(128) % 4 == 0, 160.0, 30.0)
    base = twice("plain", lambda seed: pool(128, seed=seed), fetch_ms=fetch)
    changed = twice("staggered", lambda seed: pool(128, seed=seed + 7), fetch_ms=fetch)
    assert ask("stagger", base, changed).key == "cadence_stays"


def test_the_ceiling_is_a_ratio_of_paces_and_leaves_out_the_batches_that_were_fetched():
    base = [made("plain", np.full(64, 9.0), step_ms=1.0)]
    changed = [made("ceiling", np.r_[np.full(8, 50.0), np.full(56, 0.0)], step_ms=1.0, workers=0)]
    answer = answer_control("ceiling", base, changed, None)
    assert answer.numbers["gain"] == pytest.approx(10)
    assert "at most 10 times as fast" in answer.statement


def test_a_step_that_is_short_without_workers_was_starved_by_them():
    base = [made("plain", np.full(64, 0.1), step_ms=25.0)]
    changed = [made("ceiling", np.full(64, 0.0), step_ms=10.0, workers=0)]
    answer = answer_control("ceiling", base, changed, None)
    assert answer.numbers["step_ratio"] == pytest.approx(2.5)
    assert "take its CPU" in answer.statement.replace("\n", " ")


def test_a_ceiling_no_higher_than_the_pace_leaves_nothing_to_win():
    base = [made("plain", np.full(64, 0.1), step_ms=10.0)]
    changed = [made("ceiling", np.full(64, 0.0), step_ms=10.0, workers=0)]
    assert "nothing to win" in answer_control("ceiling", base, changed, None).statement


def rounds(first, second):
    fetch = np.r_[first, second]
    return [made("again", np.full(len(fetch), 1.0), fetch_ms=fetch)]


def test_ranks_that_are_slow_both_times_are_the_samples():
    fetch = np.full(60, 10.0)
    fetch[[3, 17, 41]] = 90.0
    answer = answer_control("repeat", [], rounds(fetch, fetch), None)
    assert answer.key == "same_ranks"
    assert answer.numbers["slow_both"] == 3


def test_other_ranks_the_second_time_are_not_the_samples():
    first, second = np.full(60, 10.0), np.full(60, 10.0)
    first[[3, 17, 41]] = 90.0
    second[[5, 22, 50]] = 90.0
    assert answer_control("repeat", [], rounds(first, second), None).key == "other_ranks"


def test_the_jitter_of_a_busy_host_is_not_taken_for_slow_samples():
    rng = np.random.default_rng(1)
    first, second = (10 + np.where(rng.random(70) < 0.1, 30.0, 0.0) for _ in range(2))
    first[[9, 50]] = second[[9, 50]] = 400.0
    answer = answer_control("repeat", [], rounds(first, second), None)
    assert answer.key == "same_ranks"
    assert answer.numbers["slow_both"] == answer.numbers["slow_first"] == 2


def test_a_faster_second_round_is_memory():
    answer = answer_control("repeat", [], rounds(np.full(60, 30.0), np.full(60, 10.0)), None)
    assert answer.key == "faster"
    assert answer.numbers["second_over_first"] == pytest.approx(1 / 3)


def test_two_even_rounds_show_no_difference():
    assert (
        answer_control("repeat", [], rounds(np.full(60, 10.0), np.full(60, 10.5)), None).key
        == "no_difference"
    )


def test_a_repetition_out_of_order_is_matched_by_rank():
    fetch = np.full(40, 10.0)
    fetch[[4, 24]] = 90.0
    rank = np.arange(40)
    rank[[4, 5]] = rank[[5, 4]]
    fetch[[4, 5]] = fetch[[5, 4]]
    passes = [made("again", np.full(40, 1.0), fetch_ms=fetch, rank=rank)]
    assert answer_control("repeat", [], passes, None).numbers["slow_both"] == 1


def test_without_fetch_times_a_repetition_says_nothing():
    assert answer_control("repeat", [], [made("again", np.full(40, 1.0))], None).key == "undecided"


@pytest.mark.parametrize(("left", "key"), [(0.02, "faster"), (0.9, "slower"), (0.3, "undecided")])
def test_zeros_tell_the_hosts_part_of_the_wait(left, key):
    base = twice("plain", lambda seed: np.full(40, 10.0 + 0.01 * seed))
    changed = twice("zeros", lambda seed: np.full(40, 10.0 * left))
    assert ask("trivial", base, changed).key == key


def test_threads_that_make_no_difference_are_called_so_only_when_it_is_shown():
    base = twice("plain", lambda seed: np.full(40, 10.0 + 0.01 * seed))
    same = twice("one thread", lambda seed: np.full(40, 10.0 - 0.01 * seed))
    faster = twice("one thread", lambda seed: np.full(40, 2.0 + 0.01 * seed))
    assert ask("threads", base, same).key == "no_difference"
    assert ask("threads", base, faster).key == "faster"


def test_a_control_without_a_finished_arm_beside_it_is_undecided():
    changed = [made("one thread", np.full(40, 10.0))]
    assert answer_control("threads", [], changed, None).key == "undecided"
