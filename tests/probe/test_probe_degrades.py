from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import traceml_lite as tl
from traceml_lite.probe.counters import Counters
from traceml_lite.probe.hooks import process_workers


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unverified_torch_is_timed_from_outside_and_the_run_says_so(
    trace_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setattr(process_workers, "unverified", lambda cls: "an unverified torch, timed from outside")
    monkeypatch.setattr(process_workers, "_traced", {})
    with tl.record(trace_path) as session:
        seen = [int(batch) for batch in DataLoader(list(range(10)), batch_size=1, num_workers=workers)]
    assert seen == list(range(10))
    assert not session.failures
    run = tl.load(trace_path)
    assert run.capabilities["fetches"] == "an unverified torch, timed from outside"
    deliveries = run.main.deliveries
    assert len(deliveries) == 10
    assert (deliveries["wait_ns"] > 0).all()
    for name in ("rank", "fetch_start_ns", "cpu_ns", "queue_size"):
        assert name not in deliveries
    assert tl.diagnose(run).shape.key
    assert tl.summarize(run).not_measured


def test_a_class_of_iterators_that_lacks_a_name_is_not_touched() -> None:
    class Strange:
        def _try_put_index(self) -> None:
            self._send_idx = self._task_info = self._index_queues = 0

        def _next_data(self) -> None:
            self._rcvd_idx = self._tasks_outstanding = self._get_data = 0

    reason = process_workers.unverified(Strange)
    assert reason is not None
    assert "_next_data does not use _task_info" in reason
    assert process_workers.traced_class(Strange, unordered=False, iterable=False) == reason


@pytest.mark.parametrize("path", ["/proc/self/io", "/proc/thread-self/schedstat", "/proc/self/stat", "/proc"])
def test_a_counter_that_cannot_be_read_is_missing_with_its_reason_and_never_zero(
    trace_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    real = Counters._open

    def refused(self: Counters, name: str, bit: int) -> int:
        return real(self, name if not name.startswith(path) else "/nowhere" + name, bit)

    monkeypatch.setattr(Counters, "_open", refused)  # a forked worker has it too
    with tl.record(trace_path):
        assert len(list(DataLoader(list(range(12)), batch_size=1, num_workers=1))) == 12
    run = tl.load(trace_path)
    deliveries = run.main.deliveries
    columns = {
        "/proc/self/io": ["rchar"],
        "/proc/thread-self/schedstat": ["run_queue_ns"],
        "/proc/self/stat": ["rss_bytes", "threads"],
        "/proc": ["rchar", "run_queue_ns", "rss_bytes", "threads"],
    }[path]
    for name in columns:
        assert name not in deliveries
        assert "cannot be read in the worker" in deliveries.why_absent(name)
    assert (deliveries["cpu_ns"] >= 0).all()
    assert (deliveries["read_bytes"] >= 0).all()


def test_a_disk_that_is_full_for_the_rings_leaves_deliveries_without_fetches(
    trace_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = os.getpid()
    real = os.posix_fallocate

    def full_in_workers(descriptor: int, offset: int, length: int) -> None:
        if os.getpid() != main:
            raise OSError(28, "No space left on device")
        real(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full_in_workers)
    with tl.record(trace_path):
        assert len(list(DataLoader(list(range(12)), batch_size=1, num_workers=2))) == 12
    loader = tl.load(trace_path).main
    assert len(loader.deliveries) == 12
    assert "fetch_start_ns" not in loader.deliveries
    assert "no fetch was recorded" in loader.deliveries.why_absent("cpu_ns")


def test_a_trace_directory_that_disappears_does_not_disturb_the_loop(trace_path: Path) -> None:
    import shutil

    seen = 0
    with tl.record(trace_path):
        for batch in DataLoader(list(range(600)), batch_size=1, num_workers=1):
            if seen == 5:
                shutil.rmtree(trace_path)
            seen += len(batch)
        seen += len(list(DataLoader(list(range(4)), batch_size=1, num_workers=1)))
    assert seen == 604


def test_memory_does_not_grow_with_deliveries_or_with_iterators(tmp_path: Path) -> None:
    import gc
    import tracemalloc

    def use(iterators: int, length: int) -> None:
        for _ in range(iterators):
            for _ in DataLoader(range(length), batch_size=None):
                pass

    with tl.record(tmp_path / "t"):
        use(20, 500)
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        use(20, 1000)
        use(100, 5)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert grown < 60_000
    assert np.isfinite(grown)
