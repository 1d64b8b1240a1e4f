from __future__ import annotations

import numpy as np
import pytest
from summary_runs import MS, chain, nothing, pool, reason, value, with_trace

from traceml_lite._errors import MissingColumnError, UsageError
from traceml_lite.diagnose.summary import summarize
from traceml_lite.diagnose.summary.numbers import ratio_estimate
from traceml_lite.records.results import Estimate
from traceml_lite.records.run import LoaderConfig, Run, from_arrays
from traceml_lite.records.summary import Gaps, Stalls, Waits, Workers


def waits(found: object) -> Waits:
    assert isinstance(found, Waits), found
    return found


def stalls(run: Run, stall_ns: int | None = None) -> Stalls:
    found = summarize(run, stall_ns=stall_ns).stalls
    assert isinstance(found, Stalls), found
    return found


def test_share_and_pace_are_waits_and_steps_over_time() -> None:
    whole = waits(summarize(chain([30, 10, 20], [10, 20, 10])).whole)
    assert value(whole.wait_share) == pytest.approx(0.6)
    assert value(whole.deliveries_per_s) == pytest.approx(30)
    assert value(whole.deliveries_per_s_without_waiting) == pytest.approx(75)
    assert value(whole.total_wait_ns) == 60 * MS


def test_a_delivery_whose_step_was_broken_off_counts_as_a_wait_but_not_in_the_share() -> None:
    run = from_arrays(wait_ns=[10 * MS, 90 * MS], step_ns=[10 * MS, -1])
    whole = waits(summarize(run).whole)
    assert value(whole.wait_share) == pytest.approx(0.5)
    assert value(whole.max_wait_ns) == 90 * MS


def test_steps_follow_from_asking_and_getting_where_they_are_not_recorded() -> None:
    run = from_arrays(
        wait_ns=[10, 10, 10], ask_ns=[0, 40, 80], got_ns=[10, 50, 90], epoch=[0, 0, 1], delivery=[0, 1, 0]
    )
    whole = waits(summarize(run).whole)
    assert value(whole.wait_share) == pytest.approx(0.25)
    assert isinstance(whole.wait_share, Estimate)
    assert whole.wait_share.n == 1, "no step crosses an epoch"


def test_samples_per_second_need_a_batch_size() -> None:
    run = chain([30, 10], [10, 10])
    assert "batch_size" in reason(waits(summarize(run).whole).samples_per_s)
    known = with_trace(run, config=LoaderConfig(batch_size=8))
    assert value(waits(summarize(known).whole).samples_per_s) == pytest.approx(8 * 2 / 0.06)


def test_the_first_prefetched_batches_of_each_epoch_are_not_the_steady_state() -> None:
    delivery = np.concatenate((np.arange(10), np.arange(7)))
    wait = np.where(delivery < 4, 500, 1)
    run = chain(
        wait, np.full(17, 9), delivery=delivery, epoch=[0] * 10 + [1] * 7, num_workers=2, prefetch_factor=2
    )
    summary = summarize(run)
    assert waits(summary.steady).deliveries == 9
    assert value(waits(summary.steady).max_wait_ns) == 1 * MS
    assert waits(summary.whole).deliveries == 17


def test_a_run_within_the_first_batches_has_no_steady_state_and_says_so() -> None:
    summary = summarize(chain([1] * 4, [1] * 4, num_workers=2, prefetch_factor=2))
    assert "W·F = 4" in reason(summary.steady)
    assert waits(summary.whole).deliveries == 4


def test_without_workers_everything_is_the_steady_state() -> None:
    assert waits(summarize(chain([5] * 3, [1] * 3, num_workers=0)).steady).deliveries == 3


def test_waits_alone_give_quantiles_and_no_share() -> None:
    whole = waits(summarize(from_arrays(wait_ns=np.arange(1, 101) * MS)).whole)
    assert value(whole.p50_wait_ns) == 50.5 * MS
    assert value(whole.p99_wait_ns) == pytest.approx(99.01 * MS)
    assert reason(whole.wait_share) == "not given"
    assert reason(whole.deliveries_per_s) == "not given"


def test_no_quantile_has_an_interval() -> None:
    whole = waits(summarize(pool(50)).whole)
    for measured in (whole.p50_wait_ns, whole.p95_wait_ns, whole.p99_wait_ns, whole.max_wait_ns):
        assert isinstance(measured, Estimate)
        assert measured.low is None
        assert measured.method


def test_the_longest_wait_names_its_delivery() -> None:
    run = chain([1, 1, 70, 1], [1] * 4, rank=[0, 2, 1, 3], worker=[0, 1, 0, 1], num_workers=2, in_order=False)
    longest = waits(summarize(run).whole).longest
    assert (longest.delivery, longest.rank, longest.worker) == (2, 1, 0)


def test_stalls_of_a_pool_in_phase_stand_four_apart_and_carry_the_waiting() -> None:
    found = stalls(pool(4))
    assert [p.delivery for p in found.places] == [0, 4, 8, 12]
    assert value(found.share_of_waiting) == pytest.approx(1.0)
    assert found.n_warm_up == 2
    assert isinstance(found.gaps, Gaps)
    assert found.gaps.common == ((4, 3),)
    assert value(found.gaps.median_interval_ns) == 400 * MS


def test_gaps_do_not_cross_epochs() -> None:
    delivery = np.tile(np.arange(10), 3)
    run = chain(
        np.where(delivery % 5 == 3, 500, 1),
        np.full(30, 10),
        delivery=delivery,
        epoch=np.repeat([0, 1, 2], 10),
    )
    gaps = stalls(run).gaps
    assert isinstance(gaps, Gaps)
    assert gaps.common == ((5, 3),)


def test_a_given_threshold_is_taken_as_it_is() -> None:
    found = stalls(chain([10, 20, 30, 40], [1] * 4), stall_ns=25 * MS)
    assert (found.n, found.threshold_source, found.threshold_ns) == (2, "given", 25 * MS)


def test_one_delivery_has_no_stall_unless_a_threshold_is_given() -> None:
    run = from_arrays(wait_ns=[5 * MS])
    assert "one delivery" in reason(summarize(run).stalls)
    assert stalls(run, stall_ns=MS).n == 1


def test_a_run_without_deliveries_has_reasons_everywhere_and_zeros_nowhere() -> None:
    summary = summarize(nothing())
    for found in (summary.steady, summary.whole, summary.stalls, summary.order, summary.workers):
        assert reason(found)
    assert summary.subject.deliveries == 0
    assert reason(summary.supply.ready_at_ask_batches)


def test_batches_fast_forwarded_inside_iter_are_left_out_and_counted() -> None:
    run = chain([900, 900, 1, 1], [1] * 4, fast_forward=[1, 1, 0, 0])
    summary = summarize(run)
    assert (summary.subject.fast_forwarded, summary.subject.deliveries) == (2, 2)
    assert value(waits(summary.whole).max_wait_ns) == MS


def test_two_iterators_at_once_are_told_apart() -> None:
    run = chain(
        [500, 1, 1, 1, 500, 1],
        [1] * 6,
        iterator=[0, 1, 0, 1, 0, 1],
        delivery=[0, 0, 1, 1, 2, 2],
        epoch=[0, 1] * 3,
    )
    gaps = stalls(run).gaps
    assert isinstance(gaps, Gaps)
    assert gaps.common == ((2, 1),)
    assert summarize(run).subject.iterators == 2


def test_a_sampled_run_gives_the_shares_of_the_whole_one() -> None:
    random = np.random.default_rng(5)
    n, floor = 40_000, 80 * MS
    wait = np.where(random.random(n) < 0.03, random.uniform(80, 120, n), random.exponential(2, n))
    full = chain(wait, np.full(n, 5.0), num_workers=2, prefetch_factor=2)
    kept = (np.arange(n) % 10 == 0) | (full.main.deliveries["wait_ns"] >= floor)
    sampled = with_trace(
        full,
        deliveries=full.main.deliveries.take(kept),
        sampled="1 in 10",
        delivered=n,
        sampled_floor_ns=floor,
    )
    whole, part = waits(summarize(full).whole), waits(summarize(sampled).whole)
    assert value(part.wait_share) == pytest.approx(value(whole.wait_share), rel=0.02)
    assert value(part.deliveries_per_s) == pytest.approx(value(whole.deliveries_per_s), rel=0.02)
    assert value(part.total_wait_ns) == pytest.approx(value(whole.total_wait_ns), rel=0.02)
    assert value(part.p50_wait_ns) == pytest.approx(value(whole.p50_wait_ns), rel=0.1)
    assert value(stalls(sampled).share_of_waiting) == pytest.approx(
        value(stalls(full).share_of_waiting), rel=0.02
    )
    assert stalls(sampled).n == pytest.approx(stalls(full).n, rel=0.02)
    assert stalls(sampled).deliveries == n
    assert summarize(sampled).subject.deliveries == n


def test_a_sample_that_does_not_say_what_was_kept_gives_no_share() -> None:
    run = with_trace(chain([1, 2], [1, 1]), sampled="some", delivered=100)
    whole = waits(summarize(run).whole)
    assert "sampled" in reason(whole.wait_share)
    assert "sampled" in reason(whole.p50_wait_ns)
    assert value(whole.max_wait_ns) == 2 * MS


def test_gaps_need_every_stall_to_have_been_kept() -> None:
    run = with_trace(pool(20), sampled="some", delivered=800, sampled_floor_ns=10_000 * MS)
    assert "not every stall" in reason(stalls(run).gaps)


@pytest.mark.parametrize("n", [48, 400])
def test_the_interval_of_the_share_covers_the_truth(n: int) -> None:
    random = np.random.default_rng(n)
    covered = 0
    for _ in range(100):
        wait = np.zeros(n)
        wait[::4] = random.normal(40, 12, n // 4).clip(0)
        step = random.normal(5, 0.5, n)
        found = ratio_estimate(wait, wait + step, 8, what="")
        assert isinstance(found, Estimate)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 10 / 15 <= found.high
    # 95 are aimed at; fewer than 86 of 100 would happen once in 5000 times.
    assert covered >= 86


def test_too_few_blocks_give_no_interval_and_say_so() -> None:
    share = waits(summarize(pool(4)).steady).wait_share
    assert isinstance(share, Estimate)
    assert share.low is None
    assert "no interval" in share.method


def test_the_same_run_gives_the_same_summary() -> None:
    assert summarize(pool(40)) == summarize(pool(40))


def test_a_loader_is_chosen_by_number_name_or_part_of_a_name() -> None:
    run = pool(2)
    first, second = with_trace(run, name="train").main, with_trace(pool(3), name="validation").main
    both = Run("two", (first, second))
    assert summarize(both, loader=0).subject.loader == "train"
    assert summarize(both, loader="1").subject.loader == "validation"
    assert summarize(both, loader="val").subject.loader == "validation"
    assert [other.name for other in summarize(both, loader="train").others] == ["validation"]
    with pytest.raises(UsageError, match=r"several loaders match 'i'.*0: train; 1: validation"):
        summarize(both, loader="i")
    with pytest.raises(UsageError, match="loader 2"):
        summarize(both, loader=2)


def test_a_run_without_a_loader_is_an_error_that_says_so() -> None:
    with pytest.raises(MissingColumnError, match="no DataLoader"):
        summarize(Run("nowhere", ()))


def test_what_goes_on_around_the_waits_of_a_sampled_run_is_that_of_the_whole_one() -> None:
    # Long waits go with long steps, slow fetches and an empty queue; a sample holds too many of them.
    random = np.random.default_rng(6)
    n, floor = 40_000, 80 * MS
    long = random.random(n) < 0.03
    full = chain(
        np.where(long, 100.0, random.exponential(2, n)),
        np.where(long, 50.0, 5.0),
        num_workers=2,
        prefetch_factor=2,
        worker=np.arange(n) % 2,
        queue_size=np.where(long, 0, 3),
        fetch_start_ns=np.zeros(n),
        fetch_end_ns=np.where(long, 90 * MS, 10 * MS),
    )
    kept = (np.arange(n) % 10 == 0) | long
    sampled = with_trace(
        full,
        deliveries=full.main.deliveries.take(kept),
        sampled="1 in 10",
        delivered=n,
        sampled_floor_ns=floor,
    )
    whole, part = summarize(full), summarize(sampled)
    assert value(part.consumer.p95_step_ns) == value(whole.consumer.p95_step_ns)
    assert value(part.supply.queue_empty_share) == pytest.approx(
        value(whole.supply.queue_empty_share), abs=0.003
    )
    assert isinstance(part.workers, Workers)
    assert isinstance(whole.workers, Workers)
    assert value(part.workers.pool.p95_fetch_ns) == value(whole.workers.pool.p95_fetch_ns)
    assert value(part.workers.pool.deliveries) == pytest.approx(n, rel=0.001)
    assert value(part.workers.lines[1].deliveries) > 0


def test_overtakings_cannot_be_counted_in_a_sample() -> None:
    run = with_trace(chain([1] * 4, [1] * 4, rank=[0, 2, 1, 3]), sampled="some", delivered=40)
    assert "sampled" in reason(summarize(run).order)
