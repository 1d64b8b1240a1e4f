"""Recording fetches: ``_DatasetKind.create_fetcher`` in a worker, ``_dataset_fetcher`` in the consumer.

A fetcher keeps its identity and gets a cached subclass of its own class with a ``fetch`` of ours. An
attribute on the instance would make a reference cycle and delay the closing of the dataset's iterator.
"""

from __future__ import annotations

from typing import Any

from traceml_lite.probe.core import fetch_method
from traceml_lite.probe.fetch import FetchRecorder

_RECORDER = "_traceml_lite_recorder"

_recording_classes: dict[type[Any], type[Any]] = {}


def _recording(fetcher_class: type[Any]) -> type[Any]:
    if fetcher_class not in _recording_classes:
        _recording_classes[fetcher_class] = _make_recording(fetcher_class)
    return _recording_classes[fetcher_class]


def _make_recording(fetcher_class: type[Any]) -> type[Any]:
    # _IterableDatasetFetcher draws samples itself: its index says nothing about what comes.
    iterable = "Iterable" in fetcher_class.__name__

    members = {
        "fetch": fetch_method(fetcher_class, key=_RECORDER, iterable=iterable),
        _RECORDER: None,
        "__module__": fetcher_class.__module__,
    }
    return type(fetcher_class.__name__, (fetcher_class,), members)


def record_fetcher(fetcher: Any, recorder: FetchRecorder) -> None:
    """Make ``fetcher`` record; left alone when it is of a class that cannot be subclassed in place."""
    try:
        recording = _recording(type(fetcher))
        fetcher.__dict__[_RECORDER] = recorder
        fetcher.__class__ = recording
    except (AttributeError, TypeError):
        recorder.close()


def record_fetchers(recorder: FetchRecorder) -> None:
    """In a worker: record every fetcher that the worker's loop makes, one per pass of the iterator."""
    from torch.utils.data import _DatasetKind, get_worker_info

    make = _DatasetKind.create_fetcher
    first = True

    def create_fetcher(kind: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal first
        fetcher = make(kind, dataset, *args, **kwargs)
        info = get_worker_info()
        # A loader nested in the dataset makes fetchers too, for a dataset of its own.
        if first or (info is not None and info.dataset is dataset):
            if not first:
                recorder.next_turn()
            first = False
            record_fetcher(fetcher, recorder)
        return fetcher

    _DatasetKind.create_fetcher = staticmethod(create_fetcher)
