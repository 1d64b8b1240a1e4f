"""The trace on disk: layout, writing, reading, bounding, bundling. Nothing is ever unpickled.

A trace is a directory, readable at any moment with plain numpy, also after SIGKILL of anything::

    manifest.json     format name and version, environment, file layouts, how it ended
    deliveries.bin    fixed-size records, one per batch handed over (layout.DELIVERY)
    fetches.bin       fixed-size records, one per fetch (layout.FETCH)
    host.bin          rows of int64, about one a second (records.run.HOST_COLUMNS)
    events.jsonl      iterators, epochs, workers, errors
    live/             rings that processes write into while they run; what a killed run left is read too

Names are loaded when first used: what writes a trace does not pay for what reads it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceml_lite.store.bundle import write_bundle
    from traceml_lite.store.read import is_trace, load

__all__ = ["is_trace", "load", "write_bundle"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "bundle" if name == "write_bundle" else "read"
        return getattr(import_module(f"traceml_lite.store.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
