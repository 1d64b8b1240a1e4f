"""Each shape is named where it is there; the text says so with this run's numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from traceml_lite.diagnose.shapes import SHAPES, shape_verdict
from traceml_lite.diagnose.shapes.wording import STATEMENTS, ordinal
from traceml_lite.records.results import State
from traceml_lite.records.run import Environment, from_arrays
from traceml_lite.simulate.labelled import CASES, labelled_run

MS = 1_000_000
Diagnose = Callable[..., Any]


@pytest.mark.parametrize("case", sorted(set(CASES) - {"heavy_random", "mixed_data_heavy"}))
@pytest.mark.parametrize("seed", [901, 902])
def test_a_made_up_cause_is_named(case: str, seed: int, diagnose: Diagnose) -> None:
    columns, options, shape = labelled_run(case, 256, seed)
    verdict, evidence, _ = diagnose(columns, options)
    assert verdict.key == shape or shape in verdict.candidates
    assert evidence[verdict.key].state is State.SUPPORTED
    assert evidence[verdict.key].supports
    assert set(evidence) == set(SHAPES)


def test_workers_of_which_three_ran_out_of_data_are_starved(diagnose: Diagnose) -> None:
    """An iterable dataset of one large shard: the waits alone look like a uniform loader."""
    n, step, fetch = 200, 10 * MS, 40 * MS
    end = np.cumsum(np.full(n, fetch))
    columns = {
        "wait_ns": np.full(n, fetch - step),
        "step_ns": np.full(n, step),
        "ask_ns": end - (fetch - step),
        "got_ns": end,
        "rank": np.arange(n) * 4,
        "worker": np.where(np.arange(n) < 16, np.arange(n) % 4, 2),
        "fetch_start_ns": end - fetch,
        "fetch_end_ns": end,
    }
    options = {"num_workers": 4, "prefetch_factor": 2, "in_order": True}
    verdict, evidence, _ = diagnose(columns, options)
    assert verdict.key == "shard_starvation"
    assert evidence["uniform"].state is not State.SUPPORTED
    assert diagnose(columns, options, fetches=False)[0].key == "uniform"


def test_every_shape_has_a_statement_and_a_function() -> None:
    assert set(SHAPES) == set(STATEMENTS)


@pytest.mark.parametrize("fetches", [True, False])
@pytest.mark.parametrize("case", sorted(CASES))
def test_what_is_said_is_a_record_of_finite_parts(case: str, fetches: bool, diagnose: Diagnose) -> None:
    columns, options, _ = labelled_run(case, 64, 11)
    verdict, evidence, findings = diagnose(columns, options, fetches)
    assert 0.0 <= verdict.confidence <= 1.0
    assert verdict.statement.endswith(".")
    for item in evidence.values():
        assert 0.0 <= item.score <= 1.0
        assert item.kind == "shape"
        if item.state is State.NOT_MEASURED:
            assert item.missing
        if item.state is State.SUPPORTED:
            assert item.supports
    text = " ".join([verdict.statement, *(f.statement for f in findings)])
    assert "nan" not in text.split()
    json.dumps([dict(e.numbers) for e in evidence.values()])


def test_the_verdict_does_not_depend_on_where_the_clock_began(diagnose: Diagnose) -> None:
    columns, options, _ = labelled_run("clock", 256, 5)
    moved = {
        k: v + 10**15 if k in ("ask_ns", "got_ns", "fetch_start_ns", "fetch_end_ns") else v
        for k, v in columns.items()
    }
    assert diagnose(columns, options)[0] == diagnose(moved, options)[0]


@pytest.mark.parametrize("case", ["pool", "straggler", "data_period", "uniform", "healthy", "drift"])
def test_the_pace_of_the_machine_does_not_matter(case: str, diagnose: Diagnose) -> None:
    """No threshold in seconds: five seconds are a stall on one host and a usual fetch on another."""
    columns, options, _ = labelled_run(case, 128, 3)
    slower = {k: v * 20 if k.endswith("_ns") else v for k, v in columns.items()}
    assert diagnose(columns, options)[0].key == diagnose(slower, options)[0].key


def test_nothing_measured_is_inconclusive() -> None:
    loader = from_arrays(wait_ns=np.zeros(0, dtype=np.int64)).loaders[0]
    verdict, evidence, findings = shape_verdict(loader, Environment())
    assert (verdict.key, verdict.confidence, evidence, findings) == ("inconclusive", 0.0, (), ())


def test_a_handful_of_deliveries_is_inconclusive_and_says_how_many_are_needed(diagnose: Diagnose) -> None:
    columns, options, _ = labelled_run("pool", 64, 1)
    verdict, _, _ = diagnose({k: v[:4] for k, v in columns.items()}, options)
    assert verdict.key == "inconclusive"
    assert "At least 6" in verdict.statement


def test_waits_without_steps_or_options_are_diagnosed_as_far_as_they_go(rng: np.random.Generator) -> None:
    waits = np.where(np.arange(300) % 12 == 5, 800 * MS, rng.integers(1, 100_000, 300))
    verdict, _, _ = shape_verdict(from_arrays(wait_ns=waits).loaders[0], Environment())
    # The period may as well be the number of workers, which nobody told.
    assert verdict.key == "inconclusive"
    assert "data_period" in verdict.candidates
    assert "saturated_pool" in verdict.candidates


def test_a_threshold_of_the_user_decides_what_a_stall_is(diagnose: Diagnose) -> None:
    columns, options, _ = labelled_run("data_period", 256, 4, num_workers=3)
    unreachable = int(columns["wait_ns"].max()) + 1
    _, evidence, _ = diagnose(columns, options, fetches=False, stall_ns=unreachable)
    assert evidence["data_period"].state is State.NOT_MEASURED


def test_elements_that_were_not_measured_do_not_count(diagnose: Diagnose) -> None:
    columns, options, shape = labelled_run("straggler", 256, 6)
    holes = dict(columns)
    for name in ("fetch_start_ns", "fetch_end_ns"):
        holes[name] = columns[name].copy()
        holes[name][::17] = -1
    holes["step_ns"] = columns["step_ns"].copy()
    holes["step_ns"][-1] = -1
    verdict, _, _ = diagnose(holes, options)
    assert verdict.key == shape


def test_workers_that_share_fewer_cpus_are_said_to(loader_of: Callable[..., Any]) -> None:
    columns, options, _ = labelled_run("pool", 128, 2, num_workers=4, in_order=True)
    spent = columns["fetch_end_ns"] - columns["fetch_start_ns"]

    def said(**counters: Any) -> tuple[str, ...]:
        loader = loader_of({**columns, **counters}, options)
        _, evidence, _ = shape_verdict(loader, Environment(cpus_online=2))
        return next(e for e in evidence if e.key == "saturated_pool").supports

    sharing = "4 workers share 2.00 CPUs"
    assert sharing in said(cpu_ns=(0.9 * spent).astype(np.int64))
    assert sharing in said(cpu_ns=spent // 4, run_queue_ns=spent // 2)
    # Asleep, or reading, they have no use for a CPU; and unmeasured, nobody knows.
    assert sharing not in said(cpu_ns=spent // 50)
    assert sharing not in said()


def test_the_load_of_a_pool_is_said_in_times(loader_of: Callable[..., Any]) -> None:
    columns, options, _ = labelled_run("pool", 128, 2, num_workers=4, in_order=True)
    _, evidence, _ = shape_verdict(loader_of(columns, options), Environment())
    pool = next(e for e in evidence if e.key == "saturated_pool")
    found = re.fullmatch(
        r"a fetch takes (\S+) ms; 4 workers and a step of (\S+) ms have (\S+) ms for it \(load (\S+)\)",
        pool.supports[0],
    )
    assert found
    fetch, step, have, load = (float(number) for number in found.groups())
    assert have == pytest.approx(4 * step, rel=0.02)
    assert load == pytest.approx(fetch / have, rel=0.02)


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (22, "22nd"), (113, "113th")],
)
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text
