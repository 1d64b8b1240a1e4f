import json
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from made_passes import MACHINE, MS, one_pass, with_columns, with_config

from traceml_lite.diagnose.laws import sweep_laws
from traceml_lite.records.run import Table
from traceml_lite.records.sweep import Condition, MeasuredPass, PassResult, PassStatus
from traceml_lite.simulate.sweeps import BOTH_DIRECTIONS, LAWS, simulated_sweep


def sweep(mechanism, seed, n=64, workers=BOTH_DIRECTIONS):
    passes = []
    for number, simulated in enumerate(simulated_sweep(mechanism, seed, n=n, workers=workers)):
        name = f"num_workers={simulated.config.num_workers}"
        run = replace(simulated.run(), environment=MACHINE)
        condition = Condition(name, {"num_workers": simulated.config.num_workers})
        passes.append(MeasuredPass(condition, PassResult(name, number, "down"), run))
    return passes


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", LAWS)
def test_the_law_of_a_simulated_sweep_is_right_in_nineteen_of_twenty(mechanism):
    # Seeds that no threshold was chosen on.
    keys = Counter(sweep_laws(sweep(mechanism, seed)).gap.key for seed in range(5000, 5020))
    assert keys[LAWS[mechanism]] >= 19
    assert sum(keys.values()) - keys[LAWS[mechanism]] - keys["undecided"] == 0, "undecided is no wrong answer"


def test_the_pools_law_says_how_sure_it_is_and_what_one_setting_could_not_tell():
    gap = sweep_laws(sweep("straggler", 1)).gap
    assert gap.key == "proportional"
    assert gap.delta_bic > 10
    assert gap.gaps > 30
    assert gap.multiple == 1
    assert gap.median_gap[4] == 4
    assert gap.median_gap[2] == 2
    assert gap.alone.startswith("With num_workers=4 alone")
    assert "constant in batches" in gap.alone


@pytest.mark.parametrize(
    ("mechanism", "word"),
    [
        ("data_period", "batches whatever num_workers is"),
        ("worker_period", "times num_workers batches"),
        ("clock", "not at a fixed number of batches"),
        ("random", "no law"),
        ("lock", "no gaps"),
    ],
)
def test_each_law_is_said_in_words(mechanism, word):
    assert word in sweep_laws(sweep(mechanism, 2)).gap.statement


def test_a_sweep_of_one_setting_is_undecided_and_says_what_is_missing():
    laws = sweep_laws(sweep("straggler", 1, workers=(4, 4, 4)))
    assert laws.gap.key == "undecided"
    assert laws.throughput.key == "undecided"


def test_without_workers_there_is_no_cadence_but_a_throughput():
    laws = sweep_laws(sweep("pool", 3, workers=(4, 2, 1, 0, 0, 1, 2, 4)))
    assert laws.workers == (0, 1, 2, 4)
    assert laws.gap.key == "proportional"
    assert laws.throughput.batches_per_s[0] > 0


def test_cpu_bound_fetches_are_flat_at_the_cpus():
    cpus = replace(MACHINE, cpus_online=2)
    passes = [
        one_pass(i, workers=w, n=64, cores=2, environment=cpus)
        for i, w in enumerate((8, 4, 2, 1, 1, 2, 4, 8))
    ]
    law = sweep_laws(passes).throughput
    assert law.key == "flat_cpu"
    assert law.busy_cores[8] == pytest.approx(2, rel=0.1)
    assert law.best_workers == 2
    assert "beyond 2 workers" in law.statement


def lock_sweep(**columns):
    passes = []
    for one in sweep("lock", 1):
        added = {name: np.full(len(one.run.main.deliveries), value) for name, value in columns.items()}
        passes.append(with_columns(one, **added))
    return passes


def with_cpu(one, cpu_ms):
    """The pass with this CPU time of each fetch, None for not measured; a worker's first takes a second."""
    main = one.run.main
    table = main.deliveries
    kept = {name: column for name, column in table.columns.items() if name != "cpu_ns"}
    if cpu_ms is not None:
        order = np.argsort(table["fetch_start_ns"], kind="stable")
        cpu = np.full(len(table), round(cpu_ms * MS))
        cpu[order[np.unique(table["worker"][order], return_index=True)[1]]] = 1000 * MS
        kept["cpu_ns"] = cpu
    fetches = Table(kept, table.absent)
    return replace(one, run=replace(one.run, loaders=(replace(main, fetches=fetches),)))


def cpu_law(by_workers):
    passes = [with_cpu(one_pass(i, workers=w, n=64), ms) for i, (w, ms) in enumerate(by_workers.items())]
    return sweep_laws(passes).throughput


def test_cpu_per_batch_that_does_not_move_with_workers_is_the_same():
    law = cpu_law({1: 20.0, 2: 21.0, 4: 23.0})
    assert law.cpu_per_batch_ns == pytest.approx({1: 20 * MS, 2: 21 * MS, 4: 23 * MS})
    assert "CPU per batch is the same within 20 %" in law.cpu_statement


def test_cpu_per_batch_that_grows_with_workers_is_named_with_its_factor():
    law = cpu_law({1: 20.0, 4: 40.0})
    assert "not the same within 20 %: at 4 workers 2.00 times that at 1" in law.cpu_statement


def test_cpu_per_batch_that_was_not_measured_is_missing_and_not_zero():
    law = cpu_law({1: 20.0, 2: 20.0, 4: None})
    assert set(law.cpu_per_batch_ns) == {1, 2}
    assert "not measured at 4" in law.cpu_statement
    assert "cannot be said: it was measured only at 1" in cpu_law({1: 20.0, 4: None}).cpu_statement
    assert "measured nowhere" in cpu_law({1: None, 4: None}).cpu_statement
    assert cpu_law({1: 20.0}).cpu_statement == ""


def test_batches_of_other_sizes_are_not_compared_in_cpu():
    passes = [with_cpu(one_pass(i, workers=w, n=64), 20) for i, w in enumerate((1, 2))]
    law = sweep_laws([passes[0], with_config(passes[1], batch_size=16)]).throughput
    assert "different sizes" in law.cpu_statement


def test_a_lock_is_flat_with_idle_cpus_and_nothing_read():
    law = sweep_laws(lock_sweep(read_bytes=0)).throughput
    assert law.key == "flat_lock"
    assert max(law.busy_cores.values()) < 0.2


def test_reading_from_disk_or_not_knowing_it_is_not_called_a_lock():
    disk = sweep_laws(lock_sweep(read_bytes=500_000_000)).throughput
    assert disk.key == "flat"
    assert "storage" in disk.statement
    unknown = sweep_laws(lock_sweep()).throughput
    assert unknown.key == "flat"
    assert "not measured" in unknown.statement


def test_a_fast_loader_is_flat_because_of_its_consumer():
    passes = [one_pass(i, workers=w, n=64, fetch_ms=5, step_ms=50) for i, w in enumerate((4, 2, 1, 1, 2, 4))]
    law = sweep_laws(passes).throughput
    assert law.key == "flat_consumer"


def test_throughput_grows_with_workers_that_only_wait():
    passes = [one_pass(i, workers=w, n=64, fetch_ms=900, step_ms=2) for i, w in enumerate((4, 2, 1, 1, 2, 4))]
    law = sweep_laws(passes).throughput
    assert law.key == "grows"
    assert law.exponent.value == pytest.approx(1.0, abs=0.05)
    assert law.best_workers == 4


def test_controls_and_broken_passes_are_left_out_and_counted():
    passes = sweep("straggler", 1)
    broken = replace(passes[0], result=replace(passes[0].result, status=PassStatus.TIMEOUT))
    control = replace(passes[1], condition=replace(passes[1].condition, control="stagger"))
    laws = sweep_laws([*passes, broken, control])
    assert laws.passes == len(passes)
    assert "2 passes left out" in laws.notes[0]


def test_a_given_threshold_is_used_for_every_setting():
    laws = sweep_laws(sweep("straggler", 1), stall_ns=123)
    assert set(laws.gap.threshold_ns.values()) == {123}


def test_no_passes_give_an_undecided_answer_and_no_error():
    laws = sweep_laws([])
    assert (laws.gap.key, laws.throughput.key) == ("undecided", "undecided")


def test_laws_go_to_json_as_they_stand():
    assert json.loads(json.dumps(asdict(sweep_laws(sweep("pool", 1)))))["gap"]["key"] == "proportional"
