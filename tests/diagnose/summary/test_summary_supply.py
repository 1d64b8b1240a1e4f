from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from summary_runs import MS, chain, pool, reason, value, with_fetches, with_trace

from traceml_lite.diagnose.summary import summarize
from traceml_lite.diagnose.summary.supply import order, supply
from traceml_lite.diagnose.summary.view import look
from traceml_lite.records.run import FETCH_RAISED, LoaderConfig, Run, from_arrays
from traceml_lite.records.summary import Order


def ready_mean(run: Run) -> float:
    return value(supply(look(run.main), None).ready_at_ask_batches)


def test_ready_at_ask_is_fetched_less_delivered() -> None:
    # Of each round of four, the asks find 0, 3, 2 and 1 ready.
    assert ready_mean(pool(12)) == pytest.approx(1.5)
    assert value(summarize(pool(12)).supply.none_ready_share) == pytest.approx(0.25)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=40))
def test_ready_at_ask_agrees_with_counting_one_by_one(pairs: list[tuple[int, int]]) -> None:
    ends = np.sort([end for end, _ in pairs]) + 1
    ask = np.maximum.accumulate(np.array([sum(x) for x in pairs]))
    got = np.maximum(ask, ends)
    run = from_arrays(
        wait_ns=got - ask,
        ask_ns=ask,
        got_ns=got,
        fetch_start_ns=ends - 1,
        fetch_end_ns=ends,
        num_workers=None,
    )
    expected = [max(sum(e <= a for e in ends) - i, 0) for i, a in enumerate(ask)]
    assert ready_mean(run) == pytest.approx(np.mean(expected))


def test_batches_fetched_but_never_delivered_are_ready_too() -> None:
    run = pool(6)
    table = run.main.deliveries
    extra = 5
    more = with_fetches(
        run,
        fetch_start_ns=np.append(table["fetch_start_ns"], [0] * extra),
        fetch_end_ns=np.append(table["fetch_end_ns"], [1] * extra),
        worker=np.append(table["worker"], [0] * extra),
        iterator=np.append(table["iterator"], [0] * extra),
        epoch=np.append(table["epoch"], [0] * extra),
    )
    more = with_trace(more, config=LoaderConfig(num_workers=4, prefetch_factor=4))
    assert ready_mean(more) == pytest.approx(ready_mean(run) + extra)


def test_a_fetch_that_raised_is_not_ready() -> None:
    run = with_fetches(pool(6))
    state = run.main.fetches["state"].copy()
    state[-1] = FETCH_RAISED
    raised = with_fetches(pool(6), state=state)
    # Its batch was delivered here all the same, so the joined columns still know its end.
    assert look(raised.main).fetches.count == 23  # type: ignore[union-attr]


def test_each_epoch_is_counted_by_itself() -> None:
    one = pool(6)
    two = from_arrays(
        num_workers=4,
        prefetch_factor=2,
        **{
            name: np.concatenate(
                (
                    column,
                    column
                    + (10_000 * MS if name.endswith("_ns") and name not in ("wait_ns", "step_ns") else 0),
                )
            )
            for name, column in one.main.deliveries.columns.items()
            if name not in ("epoch", "iterator")
        },
        epoch=np.repeat([0, 1], 24),
        iterator=np.repeat([0, 1], 24),
    )
    assert ready_mean(two) == pytest.approx(ready_mean(one))
    assert ready_mean(with_fetches(two)) == pytest.approx(ready_mean(one))


def test_clocks_that_do_not_agree_are_found_out() -> None:
    run = pool(12)
    table = dict(run.main.deliveries.columns)
    table["fetch_end_ns"] = table["fetch_end_ns"] + 3600 * 10**9
    other = from_arrays(num_workers=4, prefetch_factor=2, **table)
    found = summarize(other).supply
    assert "clocks" in reason(found.ready_at_ask_batches)
    assert "clocks" in reason(found.p50_lag_ns)


def test_more_ready_batches_than_the_loader_may_hold_are_found_out() -> None:
    run = pool(12)
    table = dict(run.main.deliveries.columns)
    table["fetch_end_ns"] = np.zeros_like(table["fetch_end_ns"])
    assert "W·F = 8" in reason(
        summarize(from_arrays(num_workers=4, prefetch_factor=2, **table)).supply.ready_at_ask_batches
    )


def test_without_workers_nothing_can_be_ready() -> None:
    run = chain([5] * 4, [1] * 4, num_workers=0, fetch_start_ns=[0] * 4, fetch_end_ns=[5 * MS] * 4)
    found = summarize(run).supply
    assert "num_workers=0" in reason(found.ready_at_ask_batches)
    assert "num_workers=0" in reason(found.p50_lag_ns)


def test_lag_runs_from_the_later_of_ask_and_fetch_end() -> None:
    # Fetched at 5 and 8 ms, asked at 0 and 20, delivered at 6 and 23 ms: lags of 1 and 3 ms.
    run = from_arrays(
        wait_ns=[6 * MS, 3 * MS],
        step_ns=[14 * MS, MS],
        ask_ns=[0, 20 * MS],
        got_ns=[6 * MS, 23 * MS],
        fetch_start_ns=[0, 0],
        fetch_end_ns=[5 * MS, 8 * MS],
        num_workers=1,
    )
    found = supply(look(run.main), None)
    assert value(found.max_lag_ns) == 3 * MS
    assert value(found.lag_share_of_waiting) == pytest.approx(4 / 9)


def test_at_a_stall_the_awaited_batch_is_told_from_the_others() -> None:
    # Three stalls: the batch itself was ready and slow to come; only a later one was ready; none was.
    run = from_arrays(
        wait_ns=[100 * MS] * 3,
        step_ns=[MS] * 3,
        ask_ns=[0, 101 * MS, 202 * MS],
        got_ns=[100 * MS, 201 * MS, 302 * MS],
        fetch_start_ns=[-1 + 1] * 3,
        fetch_end_ns=[0, 200 * MS, 50 * MS],
        rank=[0, 1, 2],
        num_workers=None,
    )
    found = summarize(run, stall_ns=10 * MS).supply
    assert value(found.stalls_awaited_ready_share) == pytest.approx(2 / 3)
    assert value(found.stalls_other_ready_share) == pytest.approx(1 / 3)


def test_a_sampled_trace_has_no_ready_count() -> None:
    run = with_trace(pool(6), sampled="some", delivered=1000)
    assert "sampled" in reason(summarize(run).supply.ready_at_ask_batches)


def test_the_result_queue_is_a_mean_over_measured_asks() -> None:
    found = summarize(chain([1] * 4, [1] * 4, queue_size=[0, 2, 4, -1])).supply
    assert value(found.queue_batches) == 2
    assert value(found.queue_empty_share) == pytest.approx(1 / 3)


def found_order(ranks: list[int], **columns: object) -> Order:
    run = from_arrays(wait_ns=[1] * len(ranks), rank=ranks, **columns)
    found = order(look(run.main))
    assert isinstance(found, Order)
    return found


def test_two_that_changed_places_are_one_that_passed_and_one_passed() -> None:
    assert found_order([0, 2, 1, 3]) == Order(2, 1, 1, 1, 4)


def test_deliveries_in_order_are_no_overtakings() -> None:
    assert found_order([0, 1, 2, 3]) == Order(0, 0, 0, 0, 4)


def test_ranks_used_up_by_the_end_of_an_iterable_are_no_overtakings() -> None:
    assert found_order([0, 1, 3, 4, 7]).overtakings == 0


def test_a_new_epoch_starts_a_new_order() -> None:
    assert found_order([0, 1, 2, 0, 1, 2], epoch=[0, 0, 0, 1, 1, 1]).overtakings == 0


@given(st.permutations(range(12)))
def test_overtakings_agree_with_their_definition(ranks: list[int]) -> None:
    passed = [any(later < rank for later in ranks[i + 1 :]) for i, rank in enumerate(ranks)]
    were = [any(earlier > rank for earlier in ranks[:i]) for i, rank in enumerate(ranks)]
    found = found_order(list(ranks))
    assert found.passed == sum(passed)
    assert found.were_passed == sum(were)
    assert found.overtakings == sum(p or w for p, w in zip(passed, were, strict=True))
    assert found.farthest_places == max(abs(rank - i) for i, rank in enumerate(ranks))


def test_without_ranks_the_order_is_not_measured() -> None:
    assert reason(order(look(from_arrays(wait_ns=[1, 2]).main))) == "not given"
