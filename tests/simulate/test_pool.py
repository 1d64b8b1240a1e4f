import math

import pytest

from traceml_lite.simulate.pool import Job, Pool


def fetch_all(pool, *jobs):
    for job in jobs:
        pool.submit(job, pool.now)
    return [pool.next_message() for _ in jobs]


def test_two_jobs_share_one_core_and_end_together():
    results = fetch_all(Pool(2, 1.0, 0.0), Job(0, 0, cpu=10.0), Job(1, 1, cpu=10.0))
    assert [at for at, _ in results] == pytest.approx([20.0, 20.0])


def test_the_shorter_of_two_sharing_jobs_leaves_the_core_to_the_other():
    short, long = Job(0, 0, cpu=10.0), Job(1, 1, cpu=30.0)
    fetch_all(Pool(2, 1.0, 0.0), short, long)
    assert (short.end, long.end) == pytest.approx((20.0, 40.0))
    assert (short.run_queue, long.run_queue) == pytest.approx((10.0, 10.0))


def test_jobs_up_to_the_number_of_cores_do_not_disturb_each_other():
    jobs = [Job(k, k, cpu=7.0) for k in range(3)]
    fetch_all(Pool(3, 3.0, 0.0), *jobs)
    assert [job.end for job in jobs] == pytest.approx([7.0] * 3)
    assert all(job.run_queue == pytest.approx(0.0) for job in jobs)


def test_a_quota_of_half_a_core_doubles_the_time():
    job = Job(0, 0, cpu=7.0)
    fetch_all(Pool(1, 0.5, 0.0), job)
    assert job.end == pytest.approx(14.0)


def test_storage_time_needs_no_core():
    jobs = [Job(k, k, io=5.0) for k in range(8)]
    fetch_all(Pool(8, 1.0, 0.0), *jobs)
    assert {job.end for job in jobs} == {5.0}


def test_a_lock_is_held_by_one_worker_at_a_time():
    jobs = [Job(k, k, io=1.0, lock=4.0, cpu=1.0) for k in range(3)]
    fetch_all(Pool(3, math.inf, 0.0), *jobs)
    assert [job.end for job in jobs] == pytest.approx([6.0, 10.0, 14.0])
    assert all(job.run_queue == pytest.approx(0.0) for job in jobs), "waiting for a lock is not a run queue"


def test_a_worker_serves_its_queue_first_in_first_out():
    results = fetch_all(Pool(1, math.inf, 0.0), Job(7, 0, io=3.0), Job(2, 0, io=1.0), Job(9, 0, io=1.0))
    assert [(at, job.rank) for at, job in results] == [(3.0, 7), (4.0, 2), (5.0, 9)]


def test_results_of_one_worker_leave_its_feeder_one_after_another():
    results = fetch_all(Pool(1, math.inf, 5.0), Job(0, 0, io=1.0), Job(1, 0, io=1.0))
    assert [at for at, _ in results] == [6.0, 11.0]


@pytest.mark.parametrize("job", [Job(0, 0, io=10.0), Job(0, 0, cpu=10.0), Job(0, 0, lock=10.0)])
def test_a_pause_lengthens_what_it_meets_by_its_length(job):
    fetch_all(Pool(1, 1.0, 0.0, pauses=[(4.0, 7.0, 0)]), job)
    assert job.end == pytest.approx(13.0)
    assert job.run_queue == pytest.approx(0.0)


def test_overlapping_pauses_count_once():
    job = Job(0, 0, io=10.0)
    fetch_all(Pool(1, 1.0, 0.0, pauses=[(4.0, 7.0, 0), (5.0, 9.0, None)]), job)
    assert job.end == pytest.approx(15.0)


def test_a_paused_worker_leaves_its_core_to_the_others():
    paused, other = Job(0, 0, cpu=10.0), Job(1, 1, cpu=10.0)
    fetch_all(Pool(2, 1.0, 0.0, pauses=[(0.0, 10.0, 0)]), paused, other)
    assert (other.end, paused.end) == pytest.approx((10.0, 20.0))


def test_a_worker_that_has_not_started_takes_no_task():
    job = Job(0, 0, io=1.0)
    fetch_all(Pool(1, math.inf, 0.0, ready=[50.0]), job)
    assert (job.start, job.end) == (50.0, 51.0)


def test_the_lock_passes_to_a_paused_worker_only_to_wait_for_it():
    first, second = Job(0, 0, lock=4.0), Job(1, 1, lock=4.0)
    fetch_all(Pool(2, math.inf, 0.0, pauses=[(2.0, 10.0, 1)]), first, second)
    assert (first.end, second.end) == pytest.approx((4.0, 14.0))


def test_the_consumer_competes_for_the_cores():
    pool = Pool(1, 1.0, 0.0)
    job = Job(0, 0, cpu=10.0)
    pool.submit(job, 0.0)
    pool.advance(0.0)
    work = pool.run(4.0)
    assert work.end == pytest.approx(8.0)
    assert work.run_queue == pytest.approx(4.0)
    pool.next_message()
    assert job.end == pytest.approx(14.0)


def test_waiting_for_a_batch_that_nobody_fetches_is_an_error_and_not_a_hang():
    with pytest.raises(RuntimeError, match="nobody fetches"):
        Pool(1, 1.0, 0.0).next_message()
