"""The trace on disk: layout, writing, reading, bounding, bundling. Nothing is ever unpickled.

A trace is a directory, readable at any moment with plain numpy, also after SIGKILL of anything::

    manifest.json     format name and version, environment, file layouts, how it ended
    deliveries.bin    fixed-size records, one per batch handed over (layout.DELIVERY)
    fetches.bin       fixed-size records, one per fetch (layout.FETCH)
    host.bin          rows of int64, about one a second (records.run.HOST_COLUMNS)
    events.jsonl      iterators, epochs, workers, errors
    live/             rings that processes write into while they run; what a killed run left is read too
"""

from traceml_lite.store.bundle import write_bundle
from traceml_lite.store.read import is_trace, load

__all__ = ["is_trace", "load", "write_bundle"]
