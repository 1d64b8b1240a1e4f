"""What a DataLoader worker runs at its start: open its ring, call the user's ``worker_init_fn``, hook in.

``WorkerInit`` travels to the worker in place of ``worker_init_fn`` and pickles wherever the user's does.
Importing this module loads neither torch nor numpy, so a spawned worker pays milliseconds for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from traceml_lite.probe.fetch import FetchRecorder
from traceml_lite.store.ring import Ring

# The ring this worker process records into; a second WorkerInit for the same ring does nothing more.
_installed: str | None = None


class WorkerInit:
    """A picklable stand-in for ``worker_init_fn``."""

    __slots__ = ("_capacity", "_iterator", "_owner", "_path", "_rchar", "_turn", "_user")

    def __init__(
        self,
        user: Callable[[int], Any] | None,
        *,
        path: str,
        iterator: int,
        turn: int,
        capacity: int,
        rchar: bool,
    ) -> None:
        """Remember what the worker will need.

        Args:
            user: The loader's own ``worker_init_fn``.
            path: Prefix of the ring file; the worker's number is appended.
            iterator: Number of the iterator in the trace.
            turn: Pass of the iterator the worker starts with.
            capacity: Records the ring holds.
            rchar: Whether to read ``rchar``.
        """
        self._owner = os.getpid()
        self._user = user
        self._path = path
        self._iterator = iterator
        self._turn = turn
        self._capacity = capacity
        self._rchar = rchar

    def __getstate__(self) -> tuple[Any, ...]:
        return (
            self._user, self._path, self._iterator, self._turn, self._capacity, self._rchar, self._owner,
        )  # fmt: skip

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        (
            self._user, self._path, self._iterator, self._turn, self._capacity, self._rchar, self._owner,
        ) = state  # fmt: skip

    def __call__(self, worker_id: int) -> None:
        """Run in the worker; what the user's function raises goes through unchanged."""
        recorder = self._open(worker_id)
        if self._user is not None:
            self._user(worker_id)
        if recorder is not None:
            recorder.note_cpus()
            # Imported here, in a process that has torch anyway; after the user's function, so that a
            # loader that it makes is not taken for the worker's own.
            from traceml_lite.probe.hooks.fetcher import record_fetchers

            record_fetchers(recorder)

    def _open(self, worker_id: int) -> FetchRecorder | None:
        global _installed
        path = f"{self._path}{worker_id}"
        if _installed == path or os.getpid() == self._owner:
            return None  # called twice, or by a worker that is a thread of the training process
        try:
            ring = Ring(path, self._capacity, iterator=self._iterator, worker=worker_id)
            recorder = FetchRecorder(
                ring, iterator=self._iterator, worker=worker_id, turn=self._turn, rchar=self._rchar
            )
        except (OSError, ValueError):
            return None  # a full disk, a closed trace: the consumer notes that no ring appeared
        _installed = path
        return recorder
