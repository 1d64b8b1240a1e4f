from __future__ import annotations

import numpy as np
from conftest_costs import Judge, made
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceml_lite.records.results import State

SHARED = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FETCH_COLUMNS = (
    "cpu_ns",
    "thread_cpu_ns",
    "run_queue_ns",
    "read_bytes",
    "rchar",
    "major_faults",
    "minor_faults",
    "threads",
    "rss_bytes",
)


@SHARED
@given(
    main=st.sampled_from(["cpu", "run_queue", "storage", "remote"]),
    share=st.floats(0.65, 1.0),
    rest=st.floats(0, 1),
    workers=st.integers(1, 8),
    jitter=st.floats(0, 0.4),
    seed=st.integers(0, 1000),
)
def test_a_part_that_is_two_thirds_of_the_fetches_is_named_or_left_open_and_no_other_is(
    judge: Judge, main: str, share: float, rest: float, workers: int, jitter: float, seed: int
) -> None:
    left = 1 - share
    parts = {"cpu": 0.0, "run_queue": 0.0, "blocked": 0.0}
    part = main if main in parts else "blocked"
    parts[part] = share
    others = [name for name in parts if name != part]
    parts[others[0]], parts[others[1]] = left * rest, left * (1 - rest)
    reads = {"storage": (32 << 20, 32 << 20), "remote": (0, 4 << 20)}.get(main, (0, 100))
    lengths = 100 * np.random.default_rng(seed).uniform(1 - jitter, 1 + jitter, 96)
    loader = made(workers=workers, fetch_ms=lengths, step_ms=1, cpu=parts["cpu"], queue=parts["run_queue"],
                  read_bytes=reads[0], rchar=reads[1])  # fmt: skip
    found = judge(loader, cpus=1 if main == "run_queue" else 8)
    allowed = {main, "inconclusive"} | ({"neighbours", "run_queue"} if main == "run_queue" else set())
    assert found.key in allowed, (parts, found.verdict)


@SHARED
@given(missing=st.sets(st.sampled_from(FETCH_COLUMNS)), cpu=st.floats(0, 1), queue=st.floats(0, 1))
def test_no_missing_column_breaks_the_analysis_or_rules_anything_in(
    judge: Judge, missing: set[str], cpu: float, queue: float
) -> None:
    loader = made(cpu=cpu * (1 - queue), queue=queue)
    columns = {name: column for name, column in loader.deliveries.columns.items() if name not in missing}
    table = type(loader.deliveries)(columns, dict.fromkeys(missing, "no permission"))
    found = judge(type(loader)(loader.name, loader.config, table, loader.fetches))
    if "run_queue_ns" in missing:
        assert found.evidence["run_queue"].state is State.NOT_MEASURED
        assert found.key not in ("run_queue", "affinity", "lock")
    if {"cpu_ns", "thread_cpu_ns"} <= missing:
        assert found.key == "inconclusive"
    assert 0 <= found.verdict.confidence <= 1
    for item in found.evidence.values():
        assert 0 <= item.score <= 1
        assert item.missing or item.state is not State.NOT_MEASURED


@SHARED
@given(unread=st.lists(st.booleans(), min_size=96, max_size=96), cpu=st.floats(0.7, 1))
def test_fetches_that_were_not_read_are_left_out_and_not_counted_as_nothing(
    judge: Judge, unread: list[bool], cpu: float
) -> None:
    mask = np.array(unread)
    mask[-20:] = False
    loader = made(cpu=cpu)
    columns = {name: np.array(column) for name, column in loader.deliveries.columns.items()}
    for name in ("cpu_ns", "thread_cpu_ns", "run_queue_ns"):
        columns[name][mask] = -1
    table = type(loader.deliveries)(columns)
    found = judge(type(loader)(loader.name, loader.config, table, loader.fetches))
    assert found.key == "cpu"
    assert abs(found.evidence["cpu"].numbers["cpu_share"] - cpu) < 0.01
