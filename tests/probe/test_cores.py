"""Both cores of the probe, the compiled one and the one in Python, held to the same sentences.

``TRACEML_LITE_CORE=python pytest tests/probe tests/matrix`` runs everything else on the one in Python.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from traceml_lite.probe import core_python
from traceml_lite.probe.core_python import HERE, IN_ORDER, OVERTAKING, UNSEEN
from traceml_lite.probe.counters import Counters
from traceml_lite.records.run import FETCH_DONE, FETCH_RAISED, FETCH_STARTED, FETCH_STOPPED, MISSING
from traceml_lite.store.layout import (
    DELIVERY,
    DELIVERY_STRUCT,
    FETCH,
    FETCH_STRUCT,
    RECORD_SIZE,
    RING_COUNTS,
    RING_COUNTS_OFFSET,
    RING_HEADER_SIZE,
)

try:
    from traceml_lite.probe import _core as compiled
except ImportError:
    compiled = None

NAMES = ("queue", "info", "outstanding", "send", "received")
SLOTS = 8


@pytest.fixture(
    params=[
        "python",
        pytest.param(
            "compiled", marks=pytest.mark.skipif(compiled is None, reason="the compiled core was not built")
        ),
    ]
)
def core(request: pytest.FixtureRequest) -> Any:
    return compiled if request.param == "compiled" else core_python


def ring(slots: int = SLOTS) -> mmap.mmap:
    return mmap.mmap(-1, RING_HEADER_SIZE + slots * RECORD_SIZE)


def records(memory: mmap.mmap, dtype: Any) -> Any:
    count, _ = RING_COUNTS.unpack_from(memory, RING_COUNTS_OFFSET)
    slots = (len(memory) - RING_HEADER_SIZE) // RECORD_SIZE
    rows = np.frombuffer(bytes(memory), dtype=dtype, offset=RING_HEADER_SIZE)
    first = max(0, count - slots)
    return rows[np.arange(first, count) % slots]


# -- deliveries ---------------------------------------------------------------------------------------------


class Loader:
    """What torch's iterator does, as far as a core looks at it: tasks dealt in turn, a queue that fills."""

    def __init__(
        self, workers: int, length: int, prefetch: int = 2, order: Callable[[int], int] = int
    ) -> None:
        self.queue: Any = queue.Queue()
        self.info: dict[int, tuple[int, ...]] = {}
        self.send = self.received = self.outstanding = self.delivered = 0
        self.workers, self.length, self.order = workers, length, order
        for _ in range(workers * prefetch):
            self.put()

    def put(self) -> None:
        if self.send < self.length:
            self.info[self.send] = (self.send % self.workers,)
            self.send += 1
            self.outstanding += 1

    def __next__(self) -> int:
        if self.delivered >= self.length:
            raise StopIteration
        rank = self.order(self.delivered)
        self.recorder.last_index = rank
        self.delivered += 1
        self.received += 1
        self.outstanding -= 1
        del self.info[rank]
        self.put()
        return rank


def traced(
    core: Any, loader: Any, *, fetching: int = IN_ORDER, slots: int = SLOTS, reading: bool = False
) -> tuple[Any, mmap.mmap]:
    """Make ``loader`` record, and give its recorder, which notes what it is told, and its ring."""

    class Recorder(core.DeliveryCore):
        def __init__(self) -> None:
            self.told: list[Any] = []

        def asked(self, now_ns: int) -> None:
            self.told.append(("asked", now_ns))

        def read_wait(self, number: int, asked_ns: int, got_ns: int) -> None:
            self.told.append(("read_wait", number, asked_ns, got_ns))
            self.wait_cpu_ns, self.wait_run_queue_ns = 5, 6

        def look(self, got_ns: int) -> None:
            self.told.append(("look", got_ns))

        def dispatched(self, task_info: Any, sent: int, now_ns: int) -> None:
            for rank in range(self.sent, sent):
                self.give(rank, task_info[rank][0], now_ns)
            self.sent = sent

        def broken(self, doing: str, error: Exception) -> None:
            self.told.append((doing, error))
            self.live = False

        def ended(self, error: BaseException, asked_ns: int, now_ns: int) -> None:
            self.told.append(("ended", error, asked_ns <= now_ns))

    memory = ring(slots)
    recorder = Recorder()
    recorder.begin(memory, slots, 7, getattr(loader, "workers", 0), itertools.count(100), 1 << 40, 100_000)
    recorder.turn, recorder.epoch, recorder.due_ns = 3, 4, 1 << 62
    recorder.reading = reading
    plain = type(loader)
    loader.recorder = recorder
    loader.__class__ = type(
        plain.__name__,
        (plain,),
        {
            "__next__": core.next_method(
                plain,
                fetching=fetching,
                key="recorder",
                names=NAMES,
                sized=True,
                ended=lambda loader, recorder, error, asked, now: recorder.ended(error, asked, now),
                constructing=lambda frame: frame.f_code.co_name == "__init__",
            ),
            "__iter__": lambda self: self,
        },
    )
    if fetching in (IN_ORDER, OVERTAKING):
        recorder.dispatched(loader.info, loader.send, 1)
    return recorder, memory


def test_a_delivery_carries_its_task_and_its_place_in_turn_and_epoch(core: Any) -> None:
    loader = Loader(workers=2, length=20)
    recorder, memory = traced(core, loader)
    began = time.perf_counter_ns()
    assert list(loader) == list(range(20))
    rows = records(memory, DELIVERY)
    assert rows["delivery"].tolist() == list(range(12, 20)), "the ring holds the last eight"
    assert rows["sequence"].tolist() == list(range(112, 120))
    assert (rows["rank"] == rows["delivery"]).all()
    assert (rows["worker"] == rows["rank"] % 2).all()
    assert (rows["k"] == rows["rank"] // 2).all()
    assert {(int(r["iterator"]), int(r["turn"]), int(r["epoch"])) for r in rows} == {(7, 3, 4)}
    assert (rows["ask_ns"] >= began).all()
    assert (rows["got_ns"] >= rows["ask_ns"]).all()
    assert (rows["dispatch_ns"] <= rows["got_ns"]).all()
    # At an ask four tasks are out; the last asks find fewer.
    assert (rows["held_back"] == 0).all()
    counters = [name for name in DELIVERY.names if name.startswith(("wait_", "step_"))]
    assert all((rows[name] == MISSING).all() for name in counters)
    assert recorder.committed == 20
    assert recorder.own_ns > 0
    assert recorder.told[-1][0] == "ended"
    assert recorder.open_tasks() == {}


def test_a_batch_that_thousands_have_overtaken_keeps_its_task(core: Any) -> None:
    """Rank 0 comes last: its place among the open tasks is wanted by others long before."""
    length = 2000
    loader = Loader(workers=3, length=length, order=lambda number: (number + 1) % length)
    recorder, memory = traced(core, loader, fetching=OVERTAKING, slots=2048)
    assert list(loader) == [*range(1, length), 0]
    rows = records(memory, DELIVERY)
    assert (rows["worker"] == rows["rank"] % 3).all()
    assert (rows["k"] == rows["rank"] // 3).all()
    assert rows["dispatch_ns"][-1] == 1
    assert recorder.open_tasks() == {}


def test_open_tasks_are_told_by_worker_and_number_and_can_be_taken_once(core: Any) -> None:
    loader = Loader(workers=2, length=100)
    recorder, _ = traced(core, loader)
    assert recorder.open_tasks() == {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 3}
    assert recorder.take(2) == 0
    assert recorder.take(2) is None
    assert recorder.take(-1) is None
    with pytest.raises(IndexError):
        recorder.give(50, 2, 0)
    recorder.new_turn()
    assert recorder.open_tasks() == {}
    recorder.give(0, 1, 9)
    assert recorder.open_tasks() == {(1, 0): 0}, "each worker's tasks are counted from nothing again"


def test_without_workers_the_consumer_is_the_worker_and_asks_are_the_ranks(core: Any) -> None:
    loader = Loader(workers=1, length=3)
    _, memory = traced(core, loader, fetching=HERE)
    list(loader)
    rows = records(memory, DELIVERY)
    assert rows["rank"].tolist() == rows["k"].tolist() == [0, 1, 2]
    assert (rows["worker"] == -1).all()
    assert (rows["queue_size"] == MISSING).all()


def test_of_a_class_that_is_not_known_only_the_times_are_taken(core: Any) -> None:
    loader = Loader(workers=1, length=2)
    loader.queue = None  # would fail if it were looked at
    _, memory = traced(core, loader, fetching=UNSEEN)
    list(loader)
    rows = records(memory, DELIVERY)
    assert (rows["worker"] == -2).all()
    assert (rows["rank"] == MISSING).all()


def test_counters_are_read_around_a_wait_only_while_reading(core: Any) -> None:
    loader = Loader(workers=1, length=10)
    recorder, memory = traced(core, loader, reading=True)
    next(loader)
    assert [what for what, *_ in recorder.told] == ["asked", "read_wait", "look"]
    recorder.reading = False
    next(loader)
    assert len(recorder.told) == 3
    rows = records(memory, DELIVERY)
    assert rows["wait_cpu_ns"].tolist() == [5, MISSING]
    assert rows["wait_run_queue_ns"].tolist() == [6, MISSING]
    recorder.due_ns = 0
    next(loader)
    assert recorder.told[3][0] == "look", "something was due"


def test_the_size_of_the_queue_is_its_own_or_what_room_it_has(core: Any) -> None:
    loader = Loader(workers=1, length=10)
    recorder, memory = traced(core, loader)
    loader.queue.put("a batch")
    next(loader)
    recorder.queue_room, recorder.queue_limit = (lambda: 30), 32
    next(loader)
    assert records(memory, DELIVERY)["queue_size"].tolist() == [1, 2]


def test_an_error_of_the_loader_is_told_and_goes_through_as_it_is(core: Any) -> None:
    class Failing(Loader):
        def __next__(self) -> int:
            raise error

    error = KeyError("the user's")
    loader = Failing(workers=1, length=3)
    recorder, _ = traced(core, loader)
    with pytest.raises(KeyError) as caught:
        next(loader)
    assert caught.value is error
    assert recorder.told == [("ended", error, True)]
    assert [frame.name for frame in caught.traceback][-1] == "__next__"


def test_a_failure_of_the_probe_is_told_and_the_batch_goes_out(core: Any) -> None:
    loader = Loader(workers=1, length=4)
    recorder, _ = traced(core, loader)
    loader.queue = None
    assert next(loader) == 0
    assert recorder.told[0][0] == "before a batch"
    assert isinstance(recorder.told[0][1], AttributeError)
    assert next(loader) == 1, "and from then on it passes through"

    loader = Loader(workers=1, length=4)
    recorder, _ = traced(core, loader)
    recorder.read_wait, recorder.reading = None, True  # not callable
    assert next(loader) == 0
    assert recorder.told[-1][0] == "after a batch"


def test_an_interrupt_inside_the_probe_is_the_users(core: Any) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for method in ("asked", "read_wait", "look"):
        loader = Loader(workers=1, length=4)
        recorder, _ = traced(core, loader, reading=True)
        setattr(recorder, method, interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        assert all("batch" not in str(what) for what, *_ in recorder.told)


def test_a_batch_asked_for_by_the_constructor_is_flagged(core: Any) -> None:
    class Resuming:
        def __init__(self, loader: Loader) -> None:
            next(loader)

    loader = Loader(workers=1, length=4)
    recorder, memory = traced(core, loader)
    Resuming(loader)
    next(loader)
    Resuming(loader)
    assert records(memory, DELIVERY)["flags"].tolist() == [1, 0, 0]
    assert recorder.constructing is False


def test_a_patch_of_the_loaders_class_made_later_is_seen(core: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = Loader(workers=1, length=4)
    traced(core, loader)
    monkeypatch.setattr(Loader, "__next__", lambda self: "patched")
    assert next(loader) == "patched"


def test_an_iterator_and_its_recorder_go_when_they_are_dropped(core: Any) -> None:
    loader = Loader(workers=1, length=4)
    recorder, _ = traced(core, loader)
    next(loader)
    gone = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert gone() is None
    finally:
        gc.enable()
    assert recorder.live


def test_a_ring_that_is_too_small_is_refused() -> None:
    if compiled is None:
        pytest.skip("the compiled core was not built")
    with pytest.raises(ValueError, match="does not hold 9 records"):
        compiled.DeliveryCore().begin(ring(8), 9, 0, 1, itertools.count(), 1, 1)


def test_a_compiled_core_without_a_ring_refuses_and_does_not_crash() -> None:
    if compiled is None:
        pytest.skip("the compiled core was not built")
    recorder = compiled.DeliveryCore()
    for call in (
        recorder.new_turn,
        recorder.open_tasks,
        lambda: recorder.take(1),
        lambda: recorder.give(1, 0, 0),
    ):
        with pytest.raises(RuntimeError, match="begin"):
            call()
    loader = Loader(workers=1, length=2)
    traced(compiled, loader)
    loader.recorder = recorder
    recorder.live = True
    assert Loader.__next__(loader) == 0
    assert next(loader) == 1
    fetcher, _, _ = recording(compiled, lambda index: index, descriptors=(-1, -1, False))
    fetcher.recorder = compiled.FetchCore()
    assert fetcher.fetch([1]) == [1]
    with pytest.raises(ValueError, match="rchar_every"):
        compiled.FetchCore().begin(
            ring(), SLOTS, 0, 0, 0, rchar_below_ns=0, rchar_every=0, resident_every_ns=0, preempted_ns=0
        )


def test_the_compiled_core_writes_the_records_that_the_layout_describes() -> None:
    if compiled is None:
        pytest.skip("the compiled core was not built")
    assert DELIVERY_STRUCT.format == compiled.DELIVERY_FORMAT
    assert FETCH_STRUCT.format == compiled.FETCH_FORMAT


# -- fetches ------------------------------------------------------------------------------------------------


class Fetcher:
    recorder: Any = None

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work

    def fetch(self, possibly_batched_index: Any) -> Any:
        return self.work(possibly_batched_index)


@pytest.fixture
def counters() -> Iterator[Counters]:
    found = Counters()
    yield found
    found.close()


def recording(
    core: Any,
    work: Callable[[Any], Any],
    *,
    descriptors: tuple[int, int, bool],
    iterable: bool = False,
    below_ns: int = 0,
) -> tuple[Any, Any, mmap.mmap]:
    """A fetcher that records, its recorder, and its ring."""

    class Recorder(core.FetchCore):
        moves = 0

        def resident(self) -> tuple[int, int]:
            return 1 << 40, 9

        def moved(self) -> None:
            self.moves += 1
            self.read_from(*descriptors)

    memory = ring()
    recorder = Recorder()
    recorder.begin(
        memory, SLOTS, 7, 2, 3, rchar_below_ns=below_ns, rchar_every=4, resident_every_ns=1 << 62,
        preempted_ns=100_000,
    )  # fmt: skip
    recorder.read_from(*descriptors)
    method = core.fetch_method(Fetcher, key="recorder", iterable=iterable)
    fetcher = type("Fetcher", (Fetcher,), {"fetch": method})(work)
    fetcher.recorder = recorder
    return fetcher, recorder, memory


def busy(_: Any) -> str:
    until = time.thread_time_ns() + 20_000_000
    while time.thread_time_ns() < until:
        pass
    return "batch"


@pytest.mark.parametrize("live", [True, False])
def test_a_fetch_is_recorded_with_its_cpu_time_whichever_clock_gives_it(
    core: Any, counters: Counters, live: bool
) -> None:
    if live and not counters.exec_live():
        pytest.skip("schedstat's first field is not live here")
    fetcher, _, memory = recording(core, busy, descriptors=(counters.sched, counters.io, live))
    assert fetcher.fetch([1, 2, 3]) == "batch"
    (row,) = records(memory, FETCH)
    assert (row["iterator"], row["turn"], row["worker"], row["k"]) == (7, 3, 2, 0)
    assert (row["pid"], row["state"], row["samples"]) == (os.getpid(), FETCH_DONE, 3)
    assert row["fetch_end_ns"] - row["fetch_start_ns"] >= 20_000_000
    assert 20_000_000 <= row["thread_cpu_ns"] < 40_000_000
    assert 19_000_000 <= row["cpu_ns"] < 80_000_000
    assert row["run_queue_ns"] >= 0
    assert row["rchar"] == row["read_bytes"] == 0
    assert (row["rss_bytes"], row["threads"]) == (MISSING, MISSING)


def test_bytes_that_a_fetch_reads_are_counted_and_those_of_the_counters_are_not(
    core: Any, counters: Counters
) -> None:
    def read(_: Any) -> int:
        with open("/dev/zero", "rb", buffering=0) as zeros:
            return len(zeros.read(12345))

    fetcher, _, memory = recording(core, read, descriptors=(counters.sched, counters.io, True))
    for _ in range(3):
        fetcher.fetch([0])
    assert records(memory, FETCH)["rchar"].tolist() == [12345] * 3


def test_of_short_fetches_rchar_is_read_on_one_in_so_many(core: Any, counters: Counters) -> None:
    fetcher, _, memory = recording(
        core, lambda index: None, descriptors=(counters.sched, counters.io, True), below_ns=10**9
    )
    for _ in range(8):
        fetcher.fetch([0])
    assert (records(memory, FETCH)["rchar"] != MISSING).tolist() == [True, *[False] * 3, True, *[False] * 3]


def test_what_cannot_be_read_is_missing(core: Any) -> None:
    fetcher, _, memory = recording(core, busy, descriptors=(MISSING, MISSING, False))
    fetcher.fetch([0])
    (row,) = records(memory, FETCH)
    assert (row["run_queue_ns"], row["rchar"]) == (MISSING, MISSING)
    assert row["thread_cpu_ns"] >= 20_000_000


def test_resident_set_is_asked_for_now_and_then(core: Any, counters: Counters) -> None:
    fetcher, recorder, memory = recording(
        core, lambda index: None, descriptors=(counters.sched, counters.io, True)
    )
    recorder.begin(
        memory, SLOTS, 7, 2, 3, rchar_below_ns=0, rchar_every=4, resident_every_ns=10**12,
        preempted_ns=1,
    )  # fmt: skip
    # The clock of this host is past the first 1000 s, or it is not: either way one reading at most.
    for _ in range(3):
        fetcher.fetch([0])
    expected = [1 << 40, MISSING, MISSING] if time.perf_counter_ns() > 10**12 else [MISSING] * 3
    assert records(memory, FETCH)["rss_bytes"].tolist() == expected


@pytest.mark.parametrize(
    ("error", "state"), [(KeyError("x"), FETCH_RAISED), (StopIteration(), FETCH_STOPPED)]
)
def test_a_fetch_that_raises_is_recorded_and_raises_the_same(
    core: Any, counters: Counters, error: Exception, state: int
) -> None:
    def fail(_: Any) -> None:
        raise error

    fetcher, _, memory = recording(core, fail, descriptors=(counters.sched, counters.io, True))
    with pytest.raises(type(error)) as caught:
        fetcher.fetch([0])
    assert caught.value is error
    assert caught.value.__context__ is None
    assert records(memory, FETCH)["state"].tolist() == [state]


def test_the_mark_of_a_fetch_in_flight_is_there_while_it_runs(core: Any, counters: Counters) -> None:
    seen: list[Any] = []

    def look(_: Any) -> None:
        slot = np.frombuffer(bytes(memory), dtype=FETCH, offset=RING_HEADER_SIZE)[1]
        seen.append((int(slot["state"]), int(slot["k"]), int(slot["fetch_start_ns"]) > 0))

    fetcher, recorder, memory = recording(core, lambda _: None, descriptors=(-1, -1, False))
    fetcher.fetch([0])
    fetcher.work = look
    fetcher.fetch([0])
    assert seen == [(FETCH_STARTED, 1, True)]
    recorder.next_turn()
    fetcher.work = lambda _: None
    fetcher.fetch([0])
    assert records(memory, FETCH)["k"].tolist() == [0, 1, 0]
    assert records(memory, FETCH)["turn"].tolist() == [3, 3, 4]


def test_samples_are_told_of_what_has_a_length_and_of_no_dataset_that_iterates(core: Any) -> None:
    for index, iterable, samples in (([1, 2], False, 2), (5, False, 1), ([None, None], True, MISSING)):
        fetcher, _, memory = recording(core, lambda _: None, descriptors=(-1, -1, False), iterable=iterable)
        fetcher.fetch(index)
        assert records(memory, FETCH)["samples"].tolist() == [samples]


def test_the_index_may_be_passed_by_name(core: Any) -> None:
    fetcher, _, memory = recording(core, lambda index: index, descriptors=(-1, -1, False))
    assert fetcher.fetch(possibly_batched_index=[4, 5]) == [4, 5]
    assert records(memory, FETCH)["samples"].tolist() == [2]


def test_a_descriptor_that_fails_ends_the_recording_and_never_a_fetch(core: Any) -> None:
    descriptor = os.open("/proc/self/stat", os.O_RDONLY)
    os.close(descriptor)
    fetcher, recorder, memory = recording(core, lambda index: index, descriptors=(descriptor, -1, False))
    assert fetcher.fetch([1]) == [1]
    assert "OSError" in recorder.failed
    assert "Bad file descriptor" in recorder.failed
    assert fetcher.fetch([2]) == [2]
    assert len(records(memory, FETCH)) == 0


def test_a_thread_with_the_number_of_an_ended_one_opens_its_own_files(core: Any, counters: Counters) -> None:
    ended = os.open("/proc/self/stat", os.O_RDONLY)
    os.close(ended)
    fetcher, recorder, memory = recording(core, busy, descriptors=(counters.sched, counters.io, True))
    recorder.read_from(ended, ended, True)
    assert fetcher.fetch([1]) == "batch"
    assert recorder.moves == 1
    assert recorder.failed is None
    (row,) = records(memory, FETCH)
    assert row["rchar"] == 0
    assert 20_000_000 <= row["thread_cpu_ns"] < 40_000_000


def test_an_index_whose_length_fails_ends_the_recording_and_never_a_fetch(core: Any) -> None:
    class Odd:
        def __len__(self) -> int:
            raise OSError("no")

    index = Odd()
    fetcher, recorder, _ = recording(core, lambda index: index, descriptors=(-1, -1, False))
    assert fetcher.fetch(index) is index
    assert "no" in recorder.failed


def test_a_fetch_in_another_thread_reads_the_counters_of_that_thread(core: Any, counters: Counters) -> None:
    fetcher, recorder, _ = recording(core, lambda _: None, descriptors=(counters.sched, counters.io, True))
    fetcher.fetch([0])
    assert recorder.moves == 0
    thread = threading.Thread(target=lambda: [fetcher.fetch([0]), fetcher.fetch([0])])
    thread.start()
    thread.join()
    assert recorder.moves == 1
    fetcher.fetch([0])
    assert recorder.moves == 2


def test_a_fetcher_without_a_recorder_is_left_alone(core: Any) -> None:
    fetcher, _, memory = recording(core, lambda index: index, descriptors=(-1, -1, False))
    fetcher.recorder = None
    assert fetcher.fetch([1]) == [1]
    assert len(records(memory, FETCH)) == 0


def test_bookkeeping_that_lost_the_cpu_counts_as_long_as_the_time_before_and_never_as_nothing(
    core: Any,
) -> None:
    fetcher, recorder, memory = recording(core, lambda _: None, descriptors=(-1, -1, False))
    # A limit that every bookkeeping is above: each counts as the one before, the first as the limit.
    recorder.begin(
        memory, SLOTS, 7, 2, 3, rchar_below_ns=0, rchar_every=4, resident_every_ns=1 << 62, preempted_ns=5
    )
    for _ in range(3):
        fetcher.fetch([0])
    assert RING_COUNTS.unpack_from(memory, RING_COUNTS_OFFSET) == (3, 15)


# -- which one runs -----------------------------------------------------------------------------------------


def chosen(**environment: str) -> tuple[str, str]:
    asked = "from traceml_lite.probe import core; print(core.NAME); print(core.REASON)"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    name, reason = done.stdout.split("\n", 1)
    return name, reason.strip()


def test_the_core_in_python_can_be_asked_for_and_says_that_it_was() -> None:
    assert chosen(TRACEML_LITE_CORE="python") == ("python", "TRACEML_LITE_CORE=python")
    if compiled is not None:
        assert chosen(TRACEML_LITE_CORE="") == ("compiled", "None")


def test_a_compiled_core_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from traceml_lite import probe
    from traceml_lite.probe import core as chooser

    monkeypatch.delenv("TRACEML_LITE_CORE", raising=False)
    other = SimpleNamespace(DELIVERY_FORMAT=DELIVERY_STRUCT.format, FETCH_FORMAT="<i")
    monkeypatch.setitem(sys.modules, "traceml_lite.probe._core", other)
    monkeypatch.setattr(probe, "_core", other, raising=False)
    assert "another version" in (chooser._why_not_compiled() or "")
    monkeypatch.setitem(sys.modules, "traceml_lite.probe._core", None)
    monkeypatch.delattr(probe, "_core")
    assert "not built" in (chooser._why_not_compiled() or "")


def test_a_python_without_the_global_lock_keeps_doing_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from traceml_lite.probe import core as chooser

    monkeypatch.delenv("TRACEML_LITE_CORE", raising=False)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert "global lock" in (chooser._why_not_compiled() or "")
