from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import traceml_lite as tl
from traceml_lite._errors import UsageError
from traceml_lite.records.run import IN_CONSUMER, MISSING


class Sleepy(Dataset):
    """Says in each sample who made it; sleeps where told."""

    def __init__(self, length: int = 32, slow: tuple[int, ...] = (), seconds: float = 0.05) -> None:
        self.length, self.slow, self.seconds = length, slow, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index in self.slow:
            time.sleep(self.seconds)
        info = get_worker_info()
        return torch.tensor([index, IN_CONSUMER if info is None else info.id, os.getpid()])


def test_deliveries_carry_the_rank_worker_and_pid_that_the_dataset_itself_saw(trace_path: Path) -> None:
    loader = DataLoader(Sleepy(), batch_size=1, num_workers=2, in_order=False)
    with tl.record(trace_path):
        seen = torch.cat(list(loader)).numpy()
    deliveries = tl.load(trace_path).main.deliveries
    assert deliveries["rank"].tolist() == seen[:, 0].tolist()
    assert deliveries["worker"].tolist() == seen[:, 1].tolist()
    assert deliveries["pid"].tolist() == seen[:, 2].tolist()


def test_a_slow_batch_is_overtaken_without_order_and_holds_back_the_others_with_it(tmp_path: Path) -> None:
    ranks = {}
    for in_order in (True, False):
        loader = DataLoader(
            Sleepy(16, slow=(4,), seconds=0.4), batch_size=1, num_workers=2, in_order=in_order
        )
        with tl.record(tmp_path / str(in_order)):
            for _ in loader:
                pass
        deliveries = tl.load(tmp_path / str(in_order)).main.deliveries
        ranks[in_order] = deliveries["rank"].tolist()
        if in_order:
            after = deliveries["held_back"][5]
            assert after >= 1  # rank 5 and 7 were finished by the other worker and had to wait
    assert ranks[True] == list(range(16))
    assert ranks[False] != list(range(16))
    assert sorted(ranks[False]) == list(range(16))


def test_waits_and_steps_are_those_of_the_consumer(trace_path: Path) -> None:
    with tl.record(trace_path):
        for _ in DataLoader(Sleepy(6, slow=(0, 3), seconds=0.2), batch_size=1):
            time.sleep(0.05)
    deliveries = tl.load(trace_path).main.deliveries
    slow = np.isin(deliveries["rank"], [0, 3])
    assert (deliveries["wait_ns"][slow] > 0.19e9).all()
    assert (deliveries["wait_ns"][~slow] < 0.15e9).all()
    assert (deliveries["step_ns"] > 0.049e9).all()


def test_a_fetch_that_computes_shows_cpu_and_one_that_sleeps_does_not(trace_path: Path) -> None:
    class Mixed(Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            if index % 2:
                time.sleep(0.1)
            else:
                end = time.thread_time() + 0.1
                while time.thread_time() < end:
                    pass
            return index

    with tl.record(trace_path):
        for _ in DataLoader(Mixed(), batch_size=1, num_workers=1):
            pass
    deliveries = tl.load(trace_path).main.deliveries
    computed = deliveries["rank"] % 2 == 0
    assert (deliveries["cpu_ns"][computed] > 90e6).all()
    assert (deliveries["cpu_ns"][~computed] < 50e6).all()
    wall = deliveries["fetch_end_ns"] - deliveries["fetch_start_ns"]
    assert (deliveries["cpu_ns"] + deliveries["run_queue_ns"] <= wall * 1.1 + 5e6).all()


def test_reading_a_file_from_the_page_cache_is_rchar_and_not_read_bytes(tmp_path: Path) -> None:
    file = tmp_path / "one_mebibyte"
    file.write_bytes(b"x" * (1 << 20))

    class Reader(Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            with open(file, "rb", buffering=0) as stream:
                return len(stream.read())

    with tl.record(tmp_path / "trace"):
        for _ in DataLoader(Reader(), batch_size=1):
            pass
    deliveries = tl.load(tmp_path / "trace").main.deliveries
    rchar = deliveries["rchar"][deliveries["rchar"] != MISSING]
    assert len(rchar)
    assert (rchar == 1 << 20).all()
    assert (deliveries["read_bytes"] == 0).all()


def test_rchar_can_be_switched_off_and_is_then_absent_with_its_reason(trace_path: Path) -> None:
    with tl.record(trace_path, rchar=False):
        for _ in DataLoader(Sleepy(8), batch_size=1, num_workers=1):
            pass
    run = tl.load(trace_path)
    assert "rchar" not in run.main.deliveries
    assert "--no-rchar" in run.main.deliveries.why_absent("rchar")
    assert "--no-rchar" in str(run.capabilities["rchar"])
    assert "run_queue_ns" in run.main.deliveries


def test_a_slot_of_the_ring_that_is_used_again_keeps_no_counter_of_its_last_use(trace_path: Path) -> None:
    with tl.record(trace_path):
        loader = DataLoader(Sleepy(1200), batch_size=1, num_workers=1, persistent_workers=True)
        for _ in range(2):
            for _ in loader:
                pass
    deliveries = tl.load(trace_path).main.deliveries
    assert len(deliveries) == 2400
    for name in ("step_cpu_ns", "wait_cpu_ns"):
        read = deliveries[name] != MISSING
        # The first 32 of each epoch are read, the slots of the ring are 512, and later readings are few.
        for start in (0, 1200):
            assert read[start : start + 30].all()
            assert read[start + 32 : start + 1199].sum() < 30
    assert deliveries["epoch"].tolist() == [0] * 1200 + [1] * 1200
    assert deliveries["delivery"].tolist() == [*range(1200), *range(1200)]


def test_train_and_validation_are_two_loaders_and_each_keeps_its_epochs(trace_path: Path) -> None:
    train, validation = Sleepy(8), Sleepy(4)
    with tl.record(trace_path):
        for _ in range(3):
            # A new DataLoader over the same dataset each epoch is still the same loader.
            for _ in DataLoader(train, batch_size=2, num_workers=1):
                pass
            for _ in DataLoader(validation, batch_size=2):
                pass
    run = tl.load(trace_path)
    assert [len(loader.deliveries) for loader in run.loaders] == [12, 6]
    assert run.loaders[0].deliveries["epoch"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert run.loaders[1].deliveries["epoch"].tolist() == [0, 0, 1, 1, 2, 2]


def test_persistent_workers_keep_their_pids_over_epochs_and_every_fetch_is_joined(trace_path: Path) -> None:
    loader = DataLoader(Sleepy(12), batch_size=2, num_workers=2, persistent_workers=True)
    with tl.record(trace_path):
        for _ in range(3):
            for _ in loader:
                pass
        del loader
    deliveries = tl.load(trace_path).main.deliveries
    assert len(set(deliveries["pid"].tolist())) == 2
    assert (deliveries["fetch_end_ns"] > 0).all()
    assert deliveries["epoch"].tolist() == [0] * 6 + [1] * 6 + [2] * 6


def test_an_iterable_dataset_of_uneven_shards_shows_the_ranks_it_used_up(
    trace_path: Path,
) -> None:
    class Shards(IterableDataset):
        def __iter__(self):  # type: ignore[no-untyped-def]
            info = get_worker_info()
            yield from range(2 if info is not None and info.id == 0 else 8)

    with tl.record(trace_path):
        seen = [int(b) for b in DataLoader(Shards(), batch_size=1, num_workers=2)]
    trace = tl.load(trace_path).main
    assert len(trace.deliveries) == len(seen) == 10
    assert (np.diff(trace.deliveries["rank"]) >= 1).all()
    assert trace.deliveries["rank"][-1] > 9  # the tasks of the worker that had ended used up ranks
    assert (trace.deliveries["fetch_end_ns"] > 0).all()
    assert (trace.fetches["state"] == 3).sum() >= 1


def test_an_early_break_ends_the_workers_at_once_with_the_garbage_collector_off(trace_path: Path) -> None:
    import gc

    import psutil

    gc.collect()
    gc.disable()
    try:
        with tl.record(trace_path):
            for number, _ in enumerate(DataLoader(Sleepy(64), batch_size=1, num_workers=2)):
                if number == 3:
                    break
            alive = [
                c for c in psutil.Process().children() if "resource_tracker" not in " ".join(c.cmdline())
            ]
        assert alive == []
    finally:
        gc.enable()
    trace = tl.load(trace_path).main
    assert len(trace.deliveries) == 4
    assert [e.data["deliveries"] for e in trace.events if e.kind == "closed"] == [4]
    assert not (trace_path / "live").exists()


def test_a_killed_worker_is_reported_with_the_batch_it_had_in_hand(trace_path: Path) -> None:
    class Suicide(Dataset):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> int:
            if index == 6:
                time.sleep(0.3)  # what was fetched before is delivered first
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    with tl.record(trace_path), pytest.raises(RuntimeError, match="DataLoader worker"):
        # batch_size=None: numbers travel in the pipe itself, and no shared memory dies with its worker.
        for _ in DataLoader(Suicide(), batch_size=None, num_workers=2):
            pass
    trace = tl.load(trace_path).main
    gone = [event for event in trace.events if event.kind == "worker_gone"]
    assert len(gone) == 1
    assert gone[0].data["rank"] == 6
    assert gone[0].data["exit_code"] == -signal.SIGKILL
    assert gone[0].data["since_ns"] > 0


def test_an_error_in_a_fetch_goes_through_unchanged_and_is_an_event_with_its_rank(trace_path: Path) -> None:
    class Faulty(Dataset):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise KeyError("the third")
            return index

    with tl.record(trace_path), pytest.raises(KeyError, match="the third"):
        for _ in DataLoader(Faulty(), batch_size=1, num_workers=2):
            pass
    errors = [event for event in tl.load(trace_path).main.events if event.kind == "error"]
    assert [(e.data["rank"], e.data["type"], e.data["deliveries"]) for e in errors] == [(3, "KeyError", 3)]


def test_a_fork_that_goes_on_with_an_inherited_iterator_records_nothing(trace_path: Path) -> None:
    with tl.record(trace_path):
        batches = iter(DataLoader(Sleepy(12), batch_size=1))
        for _ in range(4):
            next(batches)
        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if len([*batches]) == 8 else 2
                del batches
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert len([*batches]) == 8
    run = tl.load(trace_path)
    assert run.main.deliveries["delivery"].tolist() == [*range(12)]
    assert len(run.main.fetches) == 12
    assert set(run.main.deliveries["pid"].tolist()) == {os.getpid()}


def test_the_last_step_of_an_epoch_keeps_its_counters(trace_path: Path) -> None:
    with tl.record(trace_path):
        for _ in DataLoader(Sleepy(5), batch_size=1):
            time.sleep(0.01)
    deliveries = tl.load(trace_path).main.deliveries
    assert (deliveries["step_ns"] > 9_000_000).all()
    assert (deliveries["step_cpu_ns"] >= 0).all()


def test_two_recordings_at_once_are_refused_but_not_one_after_another(tmp_path: Path) -> None:
    with (
        tl.record(tmp_path / "a"),
        pytest.raises(UsageError, match="runs already"),
        tl.record(tmp_path / "b"),
    ):
        pass
    with tl.record(tmp_path / "b"):
        list(DataLoader(Sleepy(4), batch_size=1))
    assert len(tl.load(tmp_path / "b").main.deliveries) == 4


def test_after_the_recording_the_loader_is_as_it_was(trace_path: Path) -> None:
    from torch.utils.data import dataloader

    before = dataloader._BaseDataLoaderIter.__init__
    loader = DataLoader(Sleepy(8), batch_size=1, num_workers=1)
    with tl.record(trace_path):
        iterator = iter(loader)
        next(iterator)
    assert dataloader._BaseDataLoaderIter.__init__ is before
    assert len(list(iterator)) == 7  # an iterator made inside goes on outside
    assert len(tl.load(trace_path).main.deliveries) == 1


def test_a_loader_iterated_in_a_thread_reads_the_counters_of_that_thread(trace_path: Path) -> None:
    def consume() -> None:
        for _ in DataLoader(Sleepy(6), batch_size=1, num_workers=1):
            end = time.thread_time() + 0.05
            while time.thread_time() < end:
                pass

    with tl.record(trace_path):
        thread = threading.Thread(target=consume)
        thread.start()
        thread.join()
    steps = tl.load(trace_path).main.deliveries["step_cpu_ns"]
    assert (steps[steps != MISSING] > 45e6).all()


def test_a_failure_of_the_probe_is_counted_and_the_training_goes_on(
    trace_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, name: str, records: bytes) -> None:
        raise OSError(28, "No space left on device")

    with tl.record(trace_path) as session:
        monkeypatch.setattr("traceml_lite.store.write.TraceWriter.append", full)
        seen = [len(batch) for batch in DataLoader(Sleepy(40), batch_size=4, num_workers=1)]
    assert seen == [4] * 10
    assert any("No space left" in what for what in session.failures)


def test_what_a_signal_handler_raises_inside_the_probe_reaches_the_user(trace_path: Path) -> None:
    def handler(number: int, frame: object) -> None:
        raise RuntimeError("from a handler")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with tl.record(trace_path) as session:
            with pytest.raises(RuntimeError, match="from a handler"), session.guarded("do something"):
                signal.raise_signal(signal.SIGUSR1)
            with session.guarded("do something else"):
                raise RuntimeError("ours")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert list(session.failures) == ["do something else: RuntimeError: ours"]


def test_user_code_that_raises_while_a_loader_is_described_does_no_harm(trace_path: Path) -> None:
    class Odd(Sleepy):
        @property
        def __class__(self) -> type:  # type: ignore[override]
            return Sleepy

        def __len__(self) -> int:
            if "describe.py" in __import__("sys")._getframe(1).f_code.co_filename:
                raise ValueError("no length for you")
            return 8

    with tl.record(trace_path):
        assert len(list(DataLoader(Odd(), batch_size=1, sampler=range(8)))) == 8
    assert tl.load(trace_path).main.config.dataset_len is None
