import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceml_lite.records.run import LoaderConfig
from traceml_lite.simulate.model import Demands, Faults, Host, simulate

MS = 1_000_000
FREE = Host(dispatch_ns=0, put_ns=0, get_ns=0)


def demands(fetch_ms, step_ms, *, cpu=False):
    fetch = np.asarray(fetch_ms, dtype=float) * MS
    nothing = np.zeros_like(fetch)
    return Demands(
        io_ns=nothing if cpu else fetch,
        cpu_ns=fetch if cpu else nothing,
        step_ns=np.broadcast_to(np.asarray(step_ms, dtype=float) * MS, fetch.shape),
    )


def loader(workers, prefetch=2, in_order=True, **options):
    return LoaderConfig(num_workers=workers, prefetch_factor=prefetch, in_order=in_order, **options)


runs = st.builds(
    dict,
    fetch=st.lists(st.floats(0.0, 50.0), min_size=1, max_size=40),
    step=st.floats(0.0, 20.0),
    workers=st.integers(0, 5),
    prefetch=st.integers(1, 4),
    in_order=st.booleans(),
    cpu=st.booleans(),
    cores=st.sampled_from([0.5, 1.0, 2.0, 3.5, float("inf")]),
    persistent=st.booleans(),
    batches=st.sampled_from([None, 3, 7]),
    capacity_rule=st.booleans(),
)


def run_of(case, host=None):
    config = loader(
        case["workers"],
        case["prefetch"],
        case["in_order"],
        persistent_workers=case["persistent"],
        batches=case["batches"],
    )
    work = demands(case["fetch"], case["step"], cpu=case["cpu"])
    host = host or Host(cores=case["cores"], spawn_ns=2 * MS, boot_ns=3 * MS)
    return simulate(work, config, host=host, capacity_rule=case["capacity_rule"])


@given(runs)
def test_every_batch_is_delivered_once_and_in_order_where_order_is_asked_for(case):
    run = run_of(case)
    rank, epoch = run.columns["rank"], run.columns["epoch"]
    n, length = len(case["fetch"]), case["batches"] or len(case["fetch"])
    assert sorted((rank + epoch * length).tolist()) == list(range(n))
    if case["in_order"] or case["workers"] == 0:
        assert rank.tolist() == run.columns["delivery"].tolist()


@given(runs)
def test_time_runs_forward_and_nothing_comes_from_nowhere(case):
    c = run_of(case).columns
    assert (c["wait_ns"] >= 0).all()
    assert (c["got_ns"] >= c["ask_ns"]).all()
    assert (c["ask_ns"][1:] >= c["got_ns"][:-1]).all()
    assert (c["dispatch_ns"] <= c["fetch_start_ns"]).all()
    assert (c["fetch_start_ns"] <= c["fetch_end_ns"]).all()
    assert (c["fetch_end_ns"] <= c["got_ns"]).all(), "a batch cannot be had before it is fetched"


@given(runs)
def test_a_fetch_takes_its_demand_and_the_wait_for_a_core_and_no_more(case):
    run = run_of(case)
    length = case["batches"] or len(case["fetch"])
    asked = np.asarray(case["fetch"])[run.columns["rank"] + run.columns["epoch"] * length] * MS
    assert run.fetch_ns == pytest.approx(asked + run.columns["run_queue_ns"], abs=3)


@given(runs)
def test_a_worker_fetches_one_batch_at_a_time(case):
    c = run_of(case).columns
    for worker in np.unique(c["worker"]):
        mine = c["worker"] == worker
        start, end = c["fetch_start_ns"][mine], c["fetch_end_ns"][mine]
        order = np.lexsort((end, start))
        assert (start[order][1:] >= end[order][:-1] - 1).all()


@given(runs)
def test_no_more_than_prefetch_times_workers_batches_are_outstanding(case):
    c = run_of(case).columns
    if case["workers"] == 0:
        return
    limit = case["workers"] * case["prefetch"]
    ask_of_epoch = {}
    for i in range(len(c["epoch"])):
        ask_of_epoch.setdefault(int(c["epoch"][i]), []).append(i)
    for rows in ask_of_epoch.values():
        for i in rows:
            # Dispatched before this one was handed over, and not handed over themselves before it.
            later = [j for j in rows if j >= i and c["dispatch_ns"][j] < c["got_ns"][i]]
            assert len(later) <= limit


@given(runs)
def test_the_cores_never_do_more_work_than_they_can(case):
    c = run_of(case).columns
    if not case["cpu"] or not len(c["cpu_ns"]):
        return
    span = c["fetch_end_ns"].max() - c["fetch_start_ns"].min()
    workers = max(1, case["workers"])
    assert c["cpu_ns"].sum() <= min(case["cores"], workers) * span + 10 * len(c["cpu_ns"])


@given(st.lists(st.floats(0.5, 50.0), min_size=8, max_size=40), st.integers(1, 4), st.integers(1, 3))
def test_a_worker_with_a_task_in_its_queue_does_not_idle(fetch, workers, prefetch):
    run = simulate(demands(fetch, 0.0), loader(workers, prefetch), host=FREE)
    c = run.columns
    for worker in range(workers):
        mine = np.flatnonzero(c["worker"] == worker)
        mine = mine[np.argsort(c["fetch_start_ns"][mine])]
        for before, after in itertools.pairwise(mine):
            could = max(c["fetch_end_ns"][before], c["dispatch_ns"][after])
            assert c["fetch_start_ns"][after] == pytest.approx(could, abs=2)


@given(runs)
def test_the_same_input_gives_the_same_output(case):
    first, second = run_of(case), run_of(case)
    for name, column in first.columns.items():
        np.testing.assert_array_equal(column, second.columns[name])


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("in_order", [True, False])
def test_a_saturated_pool_waits_once_a_round_for_what_the_formula_says(workers, in_order):
    fetch, step, rounds = 1000.0, 20.0, 8
    run = simulate(demands([fetch] * workers * rounds, step), loader(workers, in_order=in_order))
    waits = run.wait_ns.reshape(rounds, workers)[1:] / MS
    assert waits[:, 0] == pytest.approx(fetch - workers * step, rel=0.02)
    assert (waits[:, 1:] < 2).all()
    assert waits.mean() == pytest.approx(fetch / workers - step, rel=0.02)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_workers_beyond_the_cores_lengthen_the_stall_and_not_the_mean(workers):
    fetch, step = 400.0, 5.0
    work = demands([fetch] * workers * 6, step, cpu=True)
    run = simulate(work, loader(workers), host=Host(cores=2))
    steady = run.wait_ns[workers:] / MS
    assert steady.mean() == pytest.approx(fetch / 2 - step, rel=0.05)
    assert steady.max() == pytest.approx(fetch * workers / 2 - workers * step, rel=0.05)


@settings(max_examples=30)
@given(st.integers(2, 6), st.floats(0.0, 0.4), st.integers(0, 2**31))
def test_the_mean_wait_of_a_saturated_pool_does_not_depend_on_jitter(workers, cv, seed):
    rng = np.random.default_rng(seed)
    fetch = 1000.0 * np.maximum(0.05, 1 + cv * rng.standard_normal(workers * 100))
    run = simulate(demands(fetch, 10.0), loader(workers, 4))
    assert run.wait_ns.mean() / MS == pytest.approx(fetch.mean() / workers - 10.0, rel=0.12)


def test_a_slow_batch_holds_back_the_finished_ones_behind_it_only_in_order():
    fetch = [10.0] * 80
    fetch[8] = 200.0
    ordered = simulate(demands(fetch, 5.0), loader(4))
    unordered = simulate(demands(fetch, 5.0), loader(4, in_order=False))
    assert ordered.wait_ns[8] / MS > 100
    assert ordered.columns["held_back"].max() > 0
    assert unordered.wait_ns[4:].max() / MS < 20
    assert unordered.columns["held_back"].max() == 0
    late = int(np.flatnonzero(unordered.columns["rank"] == 8)[0])
    assert late > 8 + 4


def test_ordered_delivery_takes_rank_r_from_worker_r_mod_w():
    run = simulate(demands(np.linspace(1, 30, 30), 1.0), loader(4))
    assert run.columns["worker"].tolist() == [r % 4 for r in range(30)]


def test_unordered_delivery_gives_a_slow_worker_fewer_batches():
    work = demands([10.0] * 80, 1.0)
    slow = Faults(worker_scale=[1.0, 1.0, 1.0, 8.0])
    counts = np.bincount(
        simulate(work, loader(4, in_order=False), faults=slow).columns["worker"], minlength=4
    )
    assert counts[3] < 0.5 * counts[:3].min()
    dealt = simulate(work, loader(4, in_order=False), faults=slow, capacity_rule=False)
    assert np.bincount(dealt.columns["worker"])[3] == 20, "torch 2.6 dealt round robin all the same"


def test_without_workers_every_wait_is_a_fetch():
    run = simulate(demands([5.0, 7.0, 3.0], 1.0), loader(0))
    assert (run.wait_ns / MS).tolist() == [5.0, 7.0, 3.0]
    assert run.columns["worker"].tolist() == [-1, -1, -1]
    assert run.config.prefetch_factor is None


def test_new_workers_start_each_epoch_and_persistent_ones_only_once():
    work, host = demands([10.0] * 12, 10.0), Host(spawn_ns=5 * MS, boot_ns=100 * MS)
    fresh = simulate(work, loader(2, batches=4), host=host)
    kept = simulate(work, loader(2, batches=4, persistent_workers=True), host=host)
    first = fresh.columns["delivery"] == 0
    assert (fresh.wait_ns[first] / MS > 90).all()
    assert (kept.wait_ns[first] / MS > 90).tolist() == [True, False, False]
    assert fresh.iter_ns == (10 * MS,) * 3
    assert kept.iter_ns == (10 * MS, 0, 0)


def test_a_pause_of_all_workers_reaches_the_consumer_and_one_hidden_by_prefetch_does_not():
    work = demands([5.0] * 60, 10.0)
    long = simulate(work, loader(2), faults=Faults(pauses=[(200 * MS, 300 * MS, None)]))
    short = simulate(work, loader(2), faults=Faults(pauses=[(200 * MS, 215 * MS, None)]))
    assert long.wait_ns[2:].max() / MS == pytest.approx(60, abs=20)
    assert short.wait_ns[2:].max() / MS < 5


def test_every_kth_fetch_of_each_worker_stalls_at_k_times_w():
    extra = np.zeros((3, 5))
    extra[:, 4] = 300 * MS
    run = simulate(demands([10.0] * 90, 10.0), loader(3), faults=Faults(task_extra_ns=extra))
    stalls = np.flatnonzero(run.wait_ns > 50 * MS)
    assert set(np.diff(stalls)) == {15}


def test_a_shard_that_ends_early_leaves_its_ranks_out_and_the_rest_to_the_others():
    work = demands([10.0] * 40, 1.0)
    run = simulate(work, loader(3), faults=Faults(worker_limit=[10, 2, 3]))
    assert np.bincount(run.columns["worker"]).tolist() == [10, 2, 3]
    assert len(run) == 15
    # The waits become those of a single worker once the others have nothing left.
    assert run.wait_ns[-4:] / MS == pytest.approx([9.0] * 4, abs=1.5)


def test_a_lock_keeps_the_throughput_of_one_worker_whatever_their_number():
    fetch = np.full(60, 20.0 * MS)
    nothing = np.zeros(60)
    work = Demands(io_ns=nothing, cpu_ns=nothing, lock_ns=fetch, step_ns=nothing)
    one, four = (simulate(work, loader(w), host=FREE).columns["got_ns"][-1] for w in (1, 4))
    assert four == pytest.approx(one, rel=0.01)


def test_a_step_on_the_same_cores_is_slowed_by_the_workers():
    n = 40
    work = Demands(
        io_ns=np.zeros(n),
        cpu_ns=np.full(n, 100.0 * MS),
        step_ns=np.zeros(n),
        step_cpu_ns=np.full(n, 10.0 * MS),
    )
    alone = simulate(work, loader(4), host=Host(cores=8))
    crowded = simulate(work, loader(4), host=Host(cores=2))
    assert alone.columns["step_ns"].mean() / MS == pytest.approx(10.0, rel=0.01)
    assert crowded.columns["step_ns"][:-8].mean() / MS > 15.0
    assert crowded.columns["step_run_queue_ns"].sum() > 0


def test_a_simulated_run_is_a_recorded_run_to_the_analysis():
    run = simulate(demands([10.0] * 10, 5.0), loader(2)).run()
    assert run.main.config.num_workers == 2
    assert run.main.deliveries["wait_ns"].dtype == np.dtype("i8")
    assert run.capabilities["fetches"] is None
    assert "step_cpu_ns" not in run.main.deliveries, "what was not simulated is absent, not zero"


def test_demands_that_are_no_times_are_refused():
    with pytest.raises(ValueError, match=r"cpu_ns: expected shape \(3,\)"):
        Demands(io_ns=np.zeros(3), cpu_ns=np.zeros(2), step_ns=np.zeros(3))
    with pytest.raises(ValueError, match="step_ns: expected times of at least 0"):
        Demands(io_ns=np.zeros(3), cpu_ns=np.zeros(3), step_ns=np.array([1.0, float("nan"), 1.0]))
    with pytest.raises(ValueError, match="prefetch_factor >= 1"):
        simulate(demands([1.0], 1.0), loader(2, 0))
