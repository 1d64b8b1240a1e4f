"""Writing a trace: append-only files in one directory, bounded in size, whole after every call.

The writer lives in the training process. It raises plain ``OSError``; the probe turns that into a counted
gap in the trace and lets the training go on.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from traceml_lite.records.run import HOST_COLUMNS
from traceml_lite.store.layout import (
    DELIVERIES,
    DELIVERY,
    EVENTS,
    FETCH,
    FETCHES,
    FORMAT_MAJOR,
    FORMAT_MINOR,
    FORMAT_NAME,
    HOST,
    LIVE,
    MANIFEST,
)
from traceml_lite.store.thin import thin_files


class TraceWriter:
    """One trace directory, open for writing.

    All methods may be called from any thread. The lock is re-entrant because a signal handler that closes
    the trace may interrupt a write of its own thread.
    """

    def __init__(self, path: Path, *, limit_bytes: int, manifest: Mapping[str, Any]) -> None:
        """Create the directory and its first manifest.

        Args:
            path: Directory to make; it must not exist, or be empty.
            limit_bytes: Bound for the record files together; above it the trace is thinned.
            manifest: Facts to store beside the format and layouts.

        Raises:
            OSError: It exists and is not empty, or cannot be written.
        """
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise FileExistsError(f"{path} exists and is not empty")
        (path / LIVE).mkdir()
        self.path = path
        self.limit_bytes = limit_bytes
        self.written_bytes = 0
        self._stride = 1
        self._lock = threading.RLock()
        self._manifest: dict[str, Any] = {
            "format": FORMAT_NAME,
            "version": [FORMAT_MAJOR, FORMAT_MINOR],
            "layout": {
                DELIVERIES: _described(DELIVERY),
                FETCHES: _described(FETCH),
                HOST: [column.name for column in HOST_COLUMNS],
            },
            "limit_bytes": limit_bytes,
            **manifest,
        }
        self._write_manifest()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._files = {
            name: os.open(path / name, flags, 0o666) for name in (DELIVERIES, FETCHES, HOST, EVENTS)
        }

    def update_manifest(self, **facts: Any) -> None:
        """Add or replace facts; the file is replaced in one step."""
        with self._lock:
            self._manifest.update(facts)
            self._write_manifest()

    def append(self, name: str, records: bytes | memoryview) -> None:
        """Append whole records to one of the record files.

        Raises:
            OSError: Nothing of ``records`` is in the file then: a part that was written is taken back.
        """
        if not records:
            return
        with self._lock:
            descriptor = self._files.get(name)
            if descriptor is None:
                raise OSError(errno.EBADF, "the trace is closed")
            end = os.lseek(descriptor, 0, os.SEEK_END)
            written = 0
            try:
                while written < len(records):
                    written += os.write(descriptor, records[written:])
            except OSError:
                os.ftruncate(descriptor, end)
                raise
            self.written_bytes += written

    def event(self, kind: str, time_ns: int, iterator: int | None, data: Mapping[str, Any]) -> None:
        """Append one event as a line of JSON."""
        line = {"kind": kind, "time_ns": time_ns, "iterator": iterator, **data}
        self.append(EVENTS, json.dumps(line, default=str).encode() + b"\n")

    def host_row(self, row: Sequence[int]) -> None:
        """Append one row of ``HOST_COLUMNS``."""
        self.append(HOST, np.asarray(row, dtype="<i8").tobytes())

    def thin_if_over(self) -> Mapping[str, int] | None:
        """Thin the trace if its record files have outgrown the limit.

        Returns:
            What was done (``stride``, ``deliveries``, ``kept``), or None when there was room.
        """
        with self._lock:
            if self.written_bytes <= self.limit_bytes or not os.fstat(self._files[DELIVERIES]).st_size:
                return None
            # Half of the limit, so that thinnings are rare; a delivery and its fetch are a record each.
            target = self.limit_bytes // 2 // (DELIVERY.itemsize + FETCH.itemsize)
            done = thin_files(self.path, self._stride, target)
            self._stride = done["stride"]
            for name in (DELIVERIES, FETCHES):
                os.close(self._files[name])
                self._files[name] = os.open(
                    self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
                )
            self.written_bytes = sum((self.path / name).stat().st_size for name in self._files)
            self.update_manifest(sampling=dict(done))
            return done

    def close(self, **facts: Any) -> None:
        """Write the last manifest and close the files; rings still live are left to the reader."""
        with self._lock:
            if not self._files:
                return
            try:
                sizes = {name: os.fstat(descriptor).st_size for name, descriptor in self._files.items()}
                self.update_manifest(sizes=sizes, **facts)
            finally:
                for descriptor in self._files.values():
                    os.close(descriptor)
                self._files = {}
            live = self.path / LIVE
            if not any(live.iterdir()):
                live.rmdir()

    def _write_manifest(self) -> None:
        partial = self.path / f".{MANIFEST}.partial"
        partial.write_text(json.dumps(self._manifest, indent=1, default=str))
        partial.replace(self.path / MANIFEST)


def _described(dtype: np.dtype[Any]) -> dict[str, Any]:
    """A dtype as JSON, enough to rebuild it: names, formats, offsets, itemsize."""
    assert dtype.names is not None
    assert dtype.fields is not None
    return {
        "names": list(dtype.names),
        "formats": [dtype.fields[name][0].str for name in dtype.names],
        "offsets": [dtype.fields[name][1] for name in dtype.names],
        "itemsize": dtype.itemsize,
    }
