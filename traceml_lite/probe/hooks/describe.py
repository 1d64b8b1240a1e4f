"""Identity and options of a DataLoader, read from its public attributes."""

from __future__ import annotations

import itertools
import multiprocessing
import weakref
from dataclasses import asdict
from typing import Any

from traceml_lite.records.run import DatasetKind, LoaderConfig

_numbers = itertools.count()
_numbered: dict[int, tuple[weakref.ref[Any] | None, int]] = {}


def describe(loader: Any) -> tuple[Any, dict[str, Any]]:
    """The identity of a loader in a trace, and its options as JSON.

    Two DataLoader objects with the same options over the same dataset object are one loader: many
    scripts make a new one each epoch. Two datasets (train and validation) are never one.
    """
    config = read_config(loader)
    options = asdict(config)
    options["dataset_kind"] = config.dataset_kind.value
    identity = (_number(loader.dataset), tuple(options.items()))
    return identity, options


def read_config(loader: Any) -> LoaderConfig:
    """The options of a loader; what it does not have is None."""
    dataset = loader.dataset
    workers = getattr(loader, "num_workers", None)
    kind = getattr(loader, "_dataset_kind", None)
    sampler = getattr(loader, "batch_sampler", None)
    if sampler is None:  # not "or": a sampler's truth is its length, which it may not have
        sampler = getattr(loader, "sampler", None)
    if type(sampler).__name__ == "BatchSampler":
        sampler = getattr(sampler, "sampler", sampler)
    return LoaderConfig(
        num_workers=workers,
        prefetch_factor=getattr(loader, "prefetch_factor", None) if workers else None,
        # Without the option batches come in order.
        in_order=bool(getattr(loader, "in_order", True)),
        batch_size=getattr(loader, "batch_size", None),
        persistent_workers=getattr(loader, "persistent_workers", None),
        pin_memory=getattr(loader, "pin_memory", None),
        drop_last=getattr(loader, "drop_last", None),
        timeout_s=getattr(loader, "timeout", None),
        start_method=_start_method(loader) if workers else None,
        dataset_kind={0: DatasetKind.MAP, 1: DatasetKind.ITERABLE}.get(kind, DatasetKind.UNKNOWN)
        if isinstance(kind, int)
        else DatasetKind.UNKNOWN,
        dataset=_name(dataset),
        sampler=_name(sampler),
        collate=_name(getattr(loader, "collate_fn", None)),
        loader=_name(loader),
        batches=_length(loader) if kind == 0 else None,
        dataset_len=_length(dataset) if kind == 0 else None,
    )


def _start_method(loader: Any) -> str | None:
    context = getattr(loader, "multiprocessing_context", None)
    method = (
        context.get_start_method()
        if context is not None
        else multiprocessing.get_start_method(allow_none=True)
    )
    # None: nobody has chosen yet and the platform's default will be used.
    return method or multiprocessing.get_all_start_methods()[0]


def _name(thing: Any) -> str:
    if thing is None:
        return ""
    described = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(described, '__module__', '')}.{getattr(described, '__qualname__', '')}"


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except Exception:  # a user's __len__ may raise anything; the length is a nicety
        return None


def _number(dataset: Any) -> int:
    """A number for this very object; reused never, also when its address is."""
    known = _numbered.get(id(dataset))
    if known is not None and (known[0] is None or known[0]() is dataset):
        return known[1]
    number = next(_numbers)
    try:
        reference = weakref.ref(dataset)
    except TypeError:
        reference = None
    _numbered[id(dataset)] = (reference, number)
    return number
