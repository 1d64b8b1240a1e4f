"""The built-in workloads: each is a real loader with the same data everywhere, and costs what it says."""

import fcntl
import itertools
import os
import pickle
import resource
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from traceml_lite._errors import TargetError, UsageError
from traceml_lite.consumers.demos import DEMOS, costs, files, shapes, work
from traceml_lite.consumers.parse import parse_consumer
from traceml_lite.procfs.process import parse_io, parse_stat

SHAPES = {
    *("none", "start_up", "uniform", "saturated_pool", "slow_worker", "slow_sample", "data_period"),
    *("worker_period", "clock_period", "epoch_boundary", "shard_starvation", "drift"),
}
COSTS = {
    *("cpu", "run_queue", "threads", "affinity", "storage", "remote", "lock", "memory", "delivery", "start"),
    *("consumer", "step_starved", "neighbours"),
}
# Every argument that a demo's time or size depends on, made small.
QUICK = {
    **dict.fromkeys(
        ("fetch_ms", "slow_ms", "first_ms", "start_ms", "pause_ms", "held_ms", "latency_ms"), 0.5
    ),
    "cpu_ms": 0.2,
    "heap_mib": 2,
    "kept_kib": 8,
    "file_mib": 1,
    "objects": 20,
    "processes": 1,
    "reads": 2,
}


def quick(demo, **options):
    return demo.build(**{name: value for name, value in QUICK.items() if name in demo.accepts()}, **options)


def first_batches(loader, count=6):
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == count:
            break
    return batches


def test_every_shape_and_every_cost_that_can_be_made_here_has_a_demo():
    assert {demo.expects_shape for demo in DEMOS.values()} - {None} == SHAPES
    assert {demo.expects_cost for demo in DEMOS.values()} - {None} == COSTS
    assert all(name == demo.name and demo.text.endswith(".") for name, demo in DEMOS.items())


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_is_a_dataloader_that_delivers_the_same_batches_whatever_the_number_of_workers(name):
    demo = DEMOS[name]
    parse_consumer(demo.consumer_default)
    assert demo.build.__self__ is demo
    alone, pooled = quick(demo, num_workers=0), quick(demo, num_workers=2)
    assert type(alone) is type(pooled) is DataLoader
    if name == "shard-starvation":
        # Two workers read two shards side by side, so the order is another one.
        seen = {float(batch[0, 0]) for batch in first_batches(pooled)}
        assert len(seen) == 6
        return
    for one, other in zip(first_batches(alone), first_batches(pooled), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["storage", "remote", "shard-starvation"])
def test_a_demo_works_with_spawned_workers(name):
    loader = quick(DEMOS[name], num_workers=1, multiprocessing_context="spawn")
    assert len(first_batches(loader, 2)) == 2


def test_a_demo_that_is_given_options_torch_refuses_says_which():
    with pytest.raises(UsageError, match=r"demo healthy: the DataLoader refuses.*batch_size"):
        DEMOS["healthy"].build(batch_size=-1)
    with pytest.raises(UsageError, match=r"no option frobnicate; it accepts: fetch_ms"):
        DEMOS["healthy"].build(frobnicate=1)


def test_options_that_need_workers_are_left_out_without_workers():
    loader = DEMOS["start"].build(num_workers=0, prefetch_factor=4, persistent_workers=True, objects=1)
    assert (loader.num_workers, loader.prefetch_factor) == (0, None)


@pytest.fixture
def slept(monkeypatch):
    durations = []
    monkeypatch.setattr(shapes, "sleep_ms", durations.append)
    return durations


def fetch_all(dataset, batches, batch_size=4):
    for number in range(batches):
        dataset.__getitems__(list(range(number * batch_size, (number + 1) * batch_size)))


def test_steady_fetches_spread_around_their_time_and_are_the_same_in_every_run(slept):
    for _ in range(2):
        fetch_all(shapes.Steady(fetch_ms=20.0, spread=0.1, seed=3), 100)
    assert slept[:100] == slept[100:]
    assert 18.0 <= min(slept) < 19.0
    assert 21.0 < max(slept) <= 22.0


def test_only_worker_zero_is_slow(slept, monkeypatch):
    for worker in (0, 1, 3, None):
        monkeypatch.setattr(shapes, "worker_id", lambda worker=worker: worker)
        fetch_all(shapes.SlowWorker(fetch_ms=1, slow_ms=5), 1)
    assert slept == [5, 1, 1, 1]


def test_the_slow_samples_are_rare_irregular_and_the_same_in_every_order(slept):
    dataset = shapes.SlowSample(fetch_ms=1, slow_ms=9, one_in=120, seed=0)
    fetch_all(dataset, 3000)
    slow = [number for number, duration in enumerate(slept) if duration == 9]
    assert 60 < len(slow) < 140
    assert len({b - a for a, b in itertools.pairwise(slow)}) > 20
    slept.clear()
    for number in reversed(range(3000)):
        dataset.__getitems__(range(number * 4, number * 4 + 4))
    assert [number for number, duration in enumerate(reversed(slept)) if duration == 9] == slow


@pytest.mark.parametrize(("batch_size", "period"), [(4, 11), (2, 22), (11, 4)])
def test_the_period_of_row_groups_is_fixed_in_samples(slept, batch_size, period):
    fetch_all(shapes.DataPeriod(fetch_ms=1, slow_ms=9, group_samples=44), 8 * period, batch_size)
    slow = [number for number, duration in enumerate(slept) if duration == 9]
    assert {b - a for a, b in itertools.pairwise(slow)} == {period}
    assert len(slow) == 8


def test_every_third_fetch_of_a_worker_is_slow_whatever_it_fetches(slept):
    dataset = shapes.WorkerPeriod(fetch_ms=1, slow_ms=9, every=3)
    for index in (5, 80, 3, 9, 41, 7):
        dataset.__getitems__([index])
    assert slept == [1, 1, 9, 1, 1, 9]


@pytest.mark.parametrize(("now_s", "pause_ms"), [(10.05, 150.0), (10.2, 0.0), (10.45, -250.0), (10.5, 200.0)])
def test_a_fetch_that_ends_in_a_pause_ends_with_it(slept, monkeypatch, now_s, pause_ms):
    monkeypatch.setattr(shapes.time, "monotonic", lambda: now_s)
    fetch_all(shapes.ClockPeriod(fetch_ms=1, period_ms=500, pause_ms=200), 1)
    assert slept == [1, pytest.approx(pause_ms, abs=1e-6)]


def test_only_the_first_fetch_of_a_worker_opens_files(slept):
    fetch_all(shapes.StartUp(fetch_ms=1, first_ms=9), 3)
    assert slept == [9, 1, 1]


def test_drifting_fetches_grow_by_the_same_step(slept):
    fetch_all(shapes.Drift(fetch_ms=1, growth_ms=0.5), 4)
    assert slept == [1, 1.5, 2, 2.5]


def test_one_worker_has_the_large_shard_whatever_their_number():
    for workers in (1, 2, 4):
        loader = DEMOS["shard-starvation"].build(num_workers=workers, fetch_ms=0, small_shard_samples=8)
        steady = [int(batch[0, 0]) for batch in first_batches(loader, 60)][-20:]
        assert all(b - a == 4 for a, b in itertools.pairwise(steady))


def test_cpu_work_is_measured_in_cpu_time():
    before_ns = time.thread_time_ns()
    work.burn_ms(15)
    assert 15_000_000 <= time.thread_time_ns() - before_ns < 60_000_000


def test_helper_threads_do_the_work_while_the_fetching_thread_waits():
    dataset = costs.HelperThreads(threads=3, cpu_ms=15)
    process_ns, thread_ns = time.process_time_ns(), time.thread_time_ns()
    fetch_all(dataset, 1)
    assert time.process_time_ns() - process_ns >= 44_000_000
    assert time.thread_time_ns() - thread_ns < 15_000_000
    assert pickle.loads(pickle.dumps(dataset)).pool is None
    dataset.pool.shutdown()


def in_child(function):
    """What a function returns in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, pickle.dumps(function()))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


def test_a_pinned_worker_may_use_one_cpu():
    def pin():
        costs.PinTo(1)(0)
        return os.sched_getaffinity(0)

    assert in_child(pin) == {min(os.sched_getaffinity(0))}


def test_a_cold_file_is_read_from_the_device():
    try:
        file = files.UnnamedFile(None, 4 << 20)
    except TargetError as error:
        pytest.skip(str(error))
    dataset = costs.ColdFile(file=file, reads=40)
    fetch_all(dataset, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    fetch_all(dataset, 4)
    blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before
    if blocks == 0 and files.file_system_kind("/tmp") not in ("ext4", "xfs", "btrfs"):
        pytest.skip("this file system does not count its reads")
    assert blocks * 512 >= 100 * 4096


def test_an_unnamed_file_has_no_name_and_goes_with_its_owner(tmp_path):
    file = files.UnnamedFile(str(tmp_path), 8192)
    assert list(tmp_path.iterdir()) == []
    with open(pickle.loads(pickle.dumps(file)).path, "rb") as stream:
        assert len(stream.read()) == 8192
    path = file.path
    del file
    assert not os.path.exists(path)


def test_a_place_that_cannot_be_written_is_an_error_of_the_target():
    with pytest.raises(TargetError, match="cannot write"):
        files.UnnamedFile("/proc", 8192)


def test_a_distant_read_is_counted_as_asked_for_and_not_as_from_the_device():
    server = files.SlowServer(latency_ms=20, answer_bytes=1 << 16)
    dataset = costs.Remote(server=server)
    fetch_all(dataset, 1)

    def io():
        with open("/proc/self/io") as stream:
            return parse_io(stream.read())

    before, began_ns, cpu_ns = io(), time.perf_counter_ns(), time.thread_time_ns()
    fetch_all(dataset, 3)
    after = io()
    assert after.rchar - before.rchar >= 3 << 16
    assert after.read_bytes - before.read_bytes < 1 << 16
    assert time.perf_counter_ns() - began_ns >= 60_000_000
    assert time.thread_time_ns() - cpu_ns < 30_000_000
    server.close()


def test_a_server_ends_its_threads_with_its_owner():
    server = files.SlowServer(latency_ms=1, answer_bytes=8)
    dataset = costs.Remote(server=server)
    fetch_all(dataset, 1)
    del server, dataset
    deadline = time.monotonic() + 5
    while any(thread.name == "demo-server" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_only_one_fetch_holds_the_lock_at_a_time(monkeypatch):
    file = files.UnnamedFile(None, 4096)
    other = os.open(file.path, os.O_RDONLY)
    refused = []

    def while_held(_):
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refused.append(True)

    monkeypatch.setattr(costs, "sleep_ms", while_held)
    fetch_all(costs.Locked(file=file), 2)
    assert refused == [True, True]
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


def test_a_forked_worker_copies_the_pages_it_touches_and_keeps_what_it_reads():
    parts = DEMOS["memory"].make(seed=0, heap_mib=16, kept_kib=256, touched=400)

    def touch():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        fetch_all(parts.dataset, 8)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, len(parts.dataset.cache)

    faults, kept = in_child(touch)
    # 400 objects of a page each per fetch are copied, whatever the allocator adds to that.
    assert faults > 8 * 300
    assert kept == 8


def test_many_small_fields_become_as_many_tensors():
    (batch,) = first_batches(DEMOS["delivery"].build(num_workers=0, fields=5), 1)
    assert [tuple(tensor.shape) for tensor in batch.values()] == [(4, work.SAMPLE_VALUES)] * 5


def test_a_dataset_that_is_slow_to_unpickle_carries_its_state_in_the_pickle_only():
    dataset = costs.SlowToUnpickle(objects=500)
    assert not hasattr(dataset, "state")
    assert len(pickle.loads(pickle.dumps(dataset)).state) == 500


def test_neighbours_use_cpu_and_end_with_their_owner():
    neighbours = costs.Neighbours(1)
    (burner,) = neighbours._end.peek()[2][0:1][0]
    deadline = time.monotonic() + 20
    stat = Path(f"/proc/{burner.pid}/stat")
    while parse_stat(stat.read_text(), 100).user_ns < 50_000_000:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    del neighbours
    assert burner.returncode is not None
