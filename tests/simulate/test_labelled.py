import numpy as np
import pytest

from traceml_lite.records.run import from_arrays
from traceml_lite.simulate.labelled import CASES, labelled_run

LONG_ONLY = ("worker_local", "clock", "mixed_data_heavy")


def share_at(wait, where):
    return wait[where].sum() / max(1, wait.sum())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n", [16, 64, 256])
def test_every_case_gives_consistent_runs_at_every_length(case, n):
    if n < 64 and case in LONG_ONLY:
        pytest.skip("needs 64 deliveries")
    for seed in range(4):
        arrays, config, shape = labelled_run(case, n, seed)
        truth = config.pop("truth")
        assert isinstance(truth, dict)
        assert shape == CASES[case]
        assert {len(a) for a in arrays.values()} == {n}
        assert (arrays["got_ns"] - arrays["ask_ns"] == arrays["wait_ns"]).all()
        assert (arrays["wait_ns"] >= 0).all()
        assert (arrays["step_ns"] >= 0).all()
        assert (arrays["fetch_end_ns"] <= arrays["got_ns"]).all()
        assert sorted(arrays["rank"].tolist()) == list(range(n))
        run = from_arrays(**arrays, **config)
        assert run.main.config.num_workers == config["num_workers"]


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    first, again, other = (labelled_run("pool", 64, seed)[0]["wait_ns"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_fixing_a_parameter_leaves_the_others_of_the_seed():
    free, free_config, _ = labelled_run("healthy", 64, 5)
    fixed, config, _ = labelled_run("healthy", 64, 5, load=0.2)
    assert config["num_workers"] == free_config["num_workers"]
    # Measuring noise is drawn anew, the steps themselves are the same.
    assert fixed["step_ns"][:-1] == pytest.approx(free["step_ns"][:-1], abs=500_000)


def test_a_fixed_number_of_workers_is_kept():
    for workers in (2, 3, 8):
        arrays, config, _ = labelled_run("straggler", 64, 1, num_workers=workers)
        assert config["num_workers"] == workers
        assert arrays["worker"].max() == workers - 1


@pytest.mark.parametrize("seed", range(6))
def test_the_pool_waits_once_a_round(seed):
    arrays, config, _ = labelled_run("pool", 64, seed, fetch_cv=0.01, in_order=True)
    workers = config["num_workers"]
    wait = arrays["wait_ns"][: 64 // workers * workers].reshape(-1, workers)[1:]
    assert wait[:, 0].sum() > 0.9 * wait.sum()


@pytest.mark.parametrize("seed", range(6))
def test_the_straggler_carries_the_waiting(seed):
    arrays, config, _ = labelled_run("straggler", 64, seed)
    steady = np.arange(64) >= config["num_workers"]
    slow = arrays["worker"] == config["truth"]["slow_worker"]
    assert share_at(arrays["wait_ns"][steady], slow[steady]) > 0.8
    fetch = arrays["fetch_end_ns"] - arrays["fetch_start_ns"]
    assert np.median(fetch[slow]) > 3 * np.median(fetch[~slow])


@pytest.mark.parametrize("seed", range(6))
def test_the_data_period_is_one_of_slow_fetches_by_rank(seed):
    arrays, config, _ = labelled_run("data_period", 64, seed)
    fetch = arrays["fetch_end_ns"] - arrays["fetch_start_ns"]
    heavy = arrays["rank"] % config["truth"]["period"] == config["truth"]["offset"]
    assert fetch[heavy].min() > 2 * np.median(fetch[~heavy])
    assert config["num_workers"] < 2 or config["truth"]["period"] % config["num_workers"]


@pytest.mark.parametrize("seed", range(6))
def test_epochs_begin_with_a_wait(seed):
    arrays, _, _ = labelled_run("epoch", 64, seed)
    first = np.flatnonzero(np.diff(arrays["epoch"], prepend=-1))
    assert len(first) >= 4
    assert share_at(arrays["wait_ns"], first) > 0.6


@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_run_does_not_wait_and_a_warm_up_only_at_the_start(seed):
    for case in ("healthy", "warmup"):
        arrays, config, _ = labelled_run(case, 64, seed)
        first = config["num_workers"] * config["prefetch_factor"]
        wait, step = arrays["wait_ns"][first:], arrays["step_ns"][first:]
        assert wait.sum() < 0.06 * (wait.sum() + step.sum())


@pytest.mark.parametrize("seed", range(6))
def test_a_clock_stalls_evenly_in_time(seed):
    arrays, config, _ = labelled_run("clock", 256, seed)
    fetch = arrays["fetch_end_ns"] - arrays["fetch_start_ns"]
    slow = np.sort(arrays["fetch_end_ns"][fetch > 3 * np.median(fetch)])
    turns = np.round(np.diff(slow) / (config["truth"]["T"] * 1e9))
    starts = slow[1:][turns >= 1]
    phase = np.exp(2j * np.pi * starts / (config["truth"]["T"] * 1e9))
    assert abs(phase.mean()) > 0.8


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("no_such", 64, 0), {}, "unknown case"),
        (("clock", 16, 0), {}, "at least 64"),
        (("pool", 64, 0), {"loud": 1}, "no parameter \\['loud'\\]"),
        (("straggler", 64, 0), {"load": 0.001}, "did not show"),
    ],
)
def test_a_request_that_cannot_be_met_says_why(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        labelled_run(*arguments, **options)
