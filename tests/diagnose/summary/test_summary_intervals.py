from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summary_runs import MS, chain, pool, reason, value, with_trace

from traceml_lite.diagnose.summary import summarize
from traceml_lite.diagnose.summary.intervals import contrast
from traceml_lite.diagnose.summary.view import look
from traceml_lite.records.run import Run, from_arrays
from traceml_lite.records.summary import Contrast, ContrastRow


def rows(run: Run, stall_ns: int | None = None) -> dict[str, ContrastRow]:
    found = summarize(run, stall_ns=stall_ns).contrast
    assert isinstance(found, Contrast), found
    return {row.key: row for row in found.rows}


def test_a_fetch_counts_in_each_interval_by_the_share_of_its_time() -> None:
    # Deliveries at 10, 20 and 110 ms; one fetch from 0 to 100 ms with 100 units: 10 in the first
    # interval, 80 in the second.
    run = from_arrays(
        wait_ns=[1 * MS, 1 * MS, 85 * MS],
        step_ns=[9 * MS, 5 * MS, 1],
        ask_ns=[9 * MS, 19 * MS, 25 * MS],
        got_ns=[10 * MS, 20 * MS, 110 * MS],
        fetch_start_ns=[-1, -1, 0],
        fetch_end_ns=[-1, -1, 100 * MS],
        rchar=[-1, -1, 100],
        num_workers=1,
    )
    row = rows(run, stall_ns=50 * MS)["worker_rchar"]
    assert value(row.fast) == 10
    assert value(row.slow) == 80


@given(
    st.lists(
        st.tuples(st.integers(0, 500), st.integers(0, 200), st.integers(0, 1000)), min_size=1, max_size=30
    ),
    st.lists(st.integers(0, 800), min_size=3, max_size=20, unique=True),
)
def test_apportioned_work_agrees_with_adding_up_overlaps(
    fetches: list[tuple[int, int, int]], times: list[int]
) -> None:
    got = np.sort(times)
    n = max(len(got), len(fetches))
    got = np.concatenate((got, got[-1] + 1 + np.arange(n - len(got))))
    start = np.full(n, -1)
    end, amount = start.copy(), start.copy()
    for i, (s, length, a) in enumerate(fetches):
        start[i], end[i], amount[i] = s, s + length, a
    stalled = np.arange(n) % 2 == 0
    run = from_arrays(
        wait_ns=np.ones(n, dtype=int), got_ns=got, fetch_start_ns=start, fetch_end_ns=end, rchar=amount
    )
    found = contrast(look(run.main), stalled)
    assert isinstance(found, Contrast)
    row = next(r for r in found.rows if r.key == "worker_rchar")
    spent = [
        sum(a * max(0, min(s + max(d, 1), right) - max(s, left)) / max(d, 1) for s, d, a in fetches)
        for left, right in pairwise(got)
    ]
    slow = [x for x, is_slow in zip(spent, stalled[1:], strict=True) if is_slow]
    fast = [x for x, is_slow in zip(spent, stalled[1:], strict=True) if not is_slow]
    missing = sum(a < 0 for a in amount)
    assert missing == n - len(fetches)
    # Amounts are rounded to whole units before the median.
    assert value(row.slow) == pytest.approx(np.median(slow), abs=0.501)
    assert value(row.fast) == pytest.approx(np.median(fast), abs=0.501)


def test_slow_intervals_of_a_saturated_pool_hold_the_workers_cpu() -> None:
    found = rows(pool(12, cpu_ns=[200 * MS] * 48, major_faults=[0] * 48, read_bytes=[0] * 48))
    assert value(found["interval_ns"].slow) == 370 * MS
    assert value(found["interval_ns"].fast) == 10 * MS
    # Four workers at half a core each keep two cores busy all the time.
    assert value(found["worker_cores"].slow) == pytest.approx(2)
    assert value(found["worker_cores"].fast) == pytest.approx(2)
    assert value(found["worker_cpu_ns"].slow) == pytest.approx(740 * MS)
    assert value(found["worker_major_faults"].slow) == 0


def test_a_counter_that_was_not_read_is_missing_in_both() -> None:
    row = rows(pool(12))["worker_rchar"]
    assert reason(row.slow) == reason(row.fast) == "not given"


def test_a_counter_missing_in_many_fetches_is_missing_and_not_understated() -> None:
    row = rows(pool(12, rchar=np.where(np.arange(48) % 3 == 0, -1, 5)))["worker_rchar"]
    assert "missing in 16 of 48" in reason(row.slow)


def test_no_interval_crosses_an_epoch() -> None:
    table = dict(pool(12).main.deliveries.columns)
    table["epoch"] = np.repeat([0, 1], 24)
    table["delivery"] = np.tile(np.arange(24), 2)
    found = summarize(from_arrays(num_workers=4, prefetch_factor=2, **table)).contrast
    assert isinstance(found, Contrast)
    assert found.slow_intervals + found.fast_intervals == 46


def test_without_slow_or_fast_intervals_nothing_is_set_side_by_side() -> None:
    run = chain([5] * 20, [1] * 20, fetch_start_ns=[0] * 20, fetch_end_ns=[1] * 20, num_workers=1)
    assert "no interval is slow" in reason(summarize(run, stall_ns=10**9).contrast)
    assert "no interval is fast" in reason(summarize(run, stall_ns=1).contrast)


def test_a_sampled_trace_has_no_intervals() -> None:
    run = with_trace(pool(12), sampled="some", delivered=4800)
    assert "sampled" in reason(summarize(run).contrast)


def test_waits_alone_have_no_intervals() -> None:
    assert "got_ns" in reason(summarize(from_arrays(wait_ns=[1, 2, 3])).contrast)
