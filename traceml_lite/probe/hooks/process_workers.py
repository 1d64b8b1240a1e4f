"""Iterators whose workers are processes, or which fetch in the consumer: torch 2.0 to 2.14, torchdata 0.11.

The private names used here are checked on each class before it is touched; a class that lacks one is
timed from outside only.
"""

from __future__ import annotations

import contextlib
import multiprocessing.queues
import sys
import time
from types import FrameType
from typing import Any

from traceml_lite.probe.core import next_method
from traceml_lite.probe.core_python import HERE, IN_ORDER, OVERTAKING, UNSEEN
from traceml_lite.probe.deliveries import IteratorRecorder, own_fetch_ring, worker_ring_capacity
from traceml_lite.probe.fetch import FetchRecorder
from traceml_lite.probe.hooks.fetcher import record_fetcher
from traceml_lite.probe.worker import WorkerInit
from traceml_lite.records.run import IN_CONSUMER, MISSING

_now = time.perf_counter_ns
_KEY = "_traceml_lite"
_SETTINGS = "_traceml_lite_settings"

# Names that the code below reads, by the method of the iterator that uses them in torch itself.
_WORKER_NAMES = {
    "_try_put_index": {"_send_idx", "_task_info", "_index_queues"},
    "_next_data": {"_rcvd_idx", "_task_info", "_tasks_outstanding", "_get_data"},
    "_reset": {"_rcvd_idx", "_send_idx", "_task_info"},
}
_CONSUMER_NAMES = {"_next_data": {"_dataset_fetcher"}}
# What ``core.next_method`` reads of an iterator with workers.
_READ_NAMES = ("_data_queue", "_task_info", "_tasks_outstanding", "_send_idx", "_rcvd_idx")


def unverified(cls: type[Any]) -> str | None:
    """Why a class of iterators does not have a shape known here, or None if it has."""
    workers = hasattr(cls, "_try_put_index")
    for method, names in (_WORKER_NAMES if workers else _CONSUMER_NAMES).items():
        code = getattr(getattr(cls, method, None), "__code__", None)
        if code is None:
            return f"{cls.__module__}.{cls.__name__} has no {method}: an unverified torch, timed from outside"
        lacking = sorted(names - set(code.co_names))
        if lacking:
            return (
                f"{cls.__module__}.{cls.__name__}.{method} does not use {', '.join(lacking)}: "
                "an unverified torch, timed from outside"
            )
    return None


_traced: dict[tuple[type[Any], bool, bool], type[Any] | str] = {}
_outside: dict[type[Any], type[Any]] = {}


def traced_class(cls: type[Any], *, unordered: bool, iterable: bool) -> type[Any] | str:
    """The recording subclass of a class of iterators, made once; the reason in words where there is none.

    Args:
        cls: The class that torch or a wrapper made.
        unordered: Whether batches may overtake.
        iterable: Whether the workers iterate over the dataset and may run dry.
    """
    if (cls, unordered, iterable) not in _traced:
        _traced[cls, unordered, iterable] = _make_traced(cls, unordered, iterable)
    return _traced[cls, unordered, iterable]


def _make_traced(cls: type[Any], unordered: bool, iterable: bool) -> type[Any] | str:
    reason = unverified(cls)
    if reason is not None:
        return reason
    if not hasattr(cls, "_try_put_index"):
        return _subclass(cls, _consumer_members(cls))
    fetching = OVERTAKING if unordered else IN_ORDER
    return _subclass(cls, _worker_members(cls, fetching, iterable))


def outside_class(cls: type[Any]) -> type[Any]:
    """The subclass that only times ``next``."""
    if cls not in _outside:
        _outside[cls] = _subclass(cls, _members(cls, UNSEEN))
    return _outside[cls]


def attach(iterator: Any, recorder: IteratorRecorder, traced: type[Any], *, rchar: bool) -> None:
    """Make ``iterator`` record into ``recorder``."""
    iterator.__dict__[_KEY] = recorder
    iterator.__dict__[_SETTINGS] = rchar
    iterator.__class__ = traced
    if not recorder.workers:
        recorder.ready([])


def _subclass(cls: type[Any], members: dict[str, Any]) -> type[Any]:
    # The same name and module: messages and torch's own profiler label read as without the probe.
    return type(
        cls.__name__, (cls,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__, **members}
    )


def _members(cls: type[Any], fetching: int) -> dict[str, Any]:
    """``__next__`` and ``__del__``."""
    own_module = cls.__module__
    workers = fetching in (IN_ORDER, OVERTAKING)

    def constructing(asking: FrameType) -> bool:
        # torchdata resumes by next() from the constructor; only the class's own code does that.
        return asking.f_code.co_name == "__init__" and asking.f_globals.get("__name__") == own_module

    def ended(
        self: Any, recorder: IteratorRecorder, error: BaseException, asked_ns: int, ended_ns: int
    ) -> None:
        if isinstance(error, StopIteration):
            _guard(recorder, recorder.stopped, asked_ns, ended_ns)
            return
        rank = recorder.asks - 1 if fetching == HERE else MISSING
        if workers:
            rank = recorder.last_index if fetching == OVERTAKING else self._rcvd_idx - 1
            _guard(recorder, recorder.dispatched, self._task_info, self._send_idx, ended_ns)
        _guard(recorder, recorder.failed, error, asked_ns, rank, _processes(self))

    __next__ = next_method(
        cls,
        fetching=fetching,
        key=_KEY,
        names=_READ_NAMES,
        sized=sys.platform != "darwin",  # macOS does not tell how full a multiprocessing queue is
        ended=ended,
        constructing=constructing,
    )

    def __del__(self: Any) -> None:
        try:
            if hasattr(cls, "__del__"):
                cls.__del__(self)
        finally:
            recorder = self.__dict__.get(_KEY)
            if recorder is not None and _guard is not None:
                _guard(recorder, recorder.close)

    return {"__next__": __next__, "__del__": __del__}


def _guard(recorder: IteratorRecorder, call: Any, *args: Any) -> None:
    try:
        call(*args)
    except Exception as error:
        recorder.broken(call.__name__, error)


def _processes(self: Any) -> list[Any]:
    return list(self.__dict__.get("_workers", ()))


def _measure_queue(self: Any, recorder: IteratorRecorder) -> None:
    """Where the workers' queue is multiprocessing's own: ask its semaphore, as its ``qsize`` does."""
    queue = self._data_queue
    room = getattr(getattr(getattr(queue, "_sem", None), "_semlock", None), "_get_value", None)
    limit = getattr(queue, "_maxsize", None)
    if type(queue) is not multiprocessing.queues.Queue or not isinstance(limit, int) or room is None:
        return
    with contextlib.suppress(NotImplementedError):  # macOS does not tell how full a queue is
        if limit - room() == queue.qsize():
            recorder.queue_room, recorder.queue_limit = room, limit


def _worker_members(cls: type[Any], fetching: int, iterable: bool) -> dict[str, Any]:
    def _try_put_index(self: Any) -> None:
        rank = self._send_idx
        dispatch_ns = _now()  # before the put: a worker may begin at once
        cls._try_put_index(self)
        if self._send_idx != rank:
            recorder: IteratorRecorder = self._traceml_lite
            if recorder.live:
                _guard(recorder, recorder.dispatched, self._task_info, self._send_idx, dispatch_ns)

    def _reset(self: Any, loader: Any, first_iter: bool = False, *args: Any, **kwargs: Any) -> None:
        recorder = self.__dict__[_KEY]
        if recorder.live and not first_iter:
            _guard(recorder, recorder.next_turn)
        cls._reset(self, loader, first_iter, *args, **kwargs)
        if recorder.live:
            _guard(recorder, recorder.dispatched, self._task_info, self._send_idx, _now())
            _guard(recorder, _measure_queue, self, recorder)
            _guard(recorder, recorder.ready, [process.pid for process in _processes(self)])

    def _get_data(self: Any) -> Any:
        message = cls._get_data(self)
        index = message[0]
        if type(index) is int:
            self.__dict__[_KEY].last_index = index
        return message

    members = _members(cls, fetching)
    if iterable or not cls.__module__.startswith("torch."):
        # A worker that runs dry has its next task answered within the same next(), and torchdata hands out
        # the first tasks in its constructor: there each put is watched.
        members["_try_put_index"] = _try_put_index
    members["_reset"] = _reset
    members["_worker_init_fn"] = property(_wrapped_init, _store("_worker_init_fn"))
    if fetching == OVERTAKING:
        members["_get_data"] = _get_data
    return members


def _store(name: str) -> Any:
    def store(self: Any, value: Any) -> None:
        self.__dict__[name] = value

    return store


def _wrapped_init(self: Any) -> Any:
    user = self.__dict__["_worker_init_fn"]
    recorder = self.__dict__[_KEY]
    if not recorder.live:
        return user
    return WorkerInit(
        user,
        path=recorder.ring_prefix(),
        iterator=recorder.iterator,
        turn=recorder.turn,
        capacity=worker_ring_capacity(recorder.workers, self.__dict__.get("_prefetch_factor") or 2),
        rchar=self.__dict__[_SETTINGS],
    )


def _consumer_members(cls: type[Any]) -> dict[str, Any]:
    def set_fetcher(self: Any, fetcher: Any) -> None:
        self.__dict__["_dataset_fetcher"] = fetcher
        recorder = self.__dict__[_KEY]
        if recorder.live:
            _guard(recorder, _record_own, self, recorder, fetcher)

    members = _members(cls, HERE)
    members["_dataset_fetcher"] = property(lambda self: self.__dict__["_dataset_fetcher"], set_fetcher)
    return members


def _record_own(self: Any, recorder: IteratorRecorder, fetcher: Any) -> None:
    if recorder.own is None:
        recorder.own = FetchRecorder(
            own_fetch_ring(recorder),
            iterator=recorder.iterator,
            worker=IN_CONSUMER,
            turn=recorder.turn,
            rchar=self.__dict__[_SETTINGS],
        )
    record_fetcher(fetcher, recorder.own)
