"""What a control does inside the training process: delays, replays, zeros, single threads.

A control changes one thing and leaves the script, the sampler and the random state alone. Used in the
child process of an experiment only. It decides nothing: which control runs, and with which numbers, is the
plan's business.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from traceml_lite.probe.files import OpenedFiles
from traceml_lite.probe.hooks import passes

# What libraries read when they start their thread pools.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


class WorkerStart:
    """Stands in for the loader's ``worker_init_fn``; calls the script's own first, then acts.

    Picklable as far as the script's own function is, since spawn and forkserver send it to the worker.

    Args:
        user: The script's ``worker_init_fn``, or None.
        workers: Number of workers of the loader.
        control: Name of the control that acts in workers, or None.
        shift_ns: For ``stagger``: the period; worker k begins k/workers of it after the first one.
        opened: Folder in which each worker leaves the list of files it opened, or None.
    """

    def __init__(
        self,
        user: Any,
        *,
        workers: int,
        control: str | None = None,
        shift_ns: int = 0,
        opened: str | None = None,
    ) -> None:
        self.user, self.workers, self.control = user, workers, control
        self.shift_ns, self.opened = shift_ns, opened

    def __call__(self, worker: int) -> None:
        """Run in the worker before its first fetch."""
        if self.opened is not None:
            OpenedFiles.install(self.opened)
        if self.user is not None:
            self.user(worker)
        if self.control == "threads":
            one_thread()
        elif self.control == "trivial":
            ZEROS.activate()
        elif self.control == "stagger":
            time.sleep(stagger_ns(worker, self.workers, self.shift_ns, time.monotonic_ns()) / 1e9)


def stagger_ns(worker: int, workers: int, period_ns: int, now_ns: int) -> int:
    """How long a worker waits for its place in the period, nanoseconds.

    Places are moments of the clock that all processes share and not delays from a worker's own start: forks
    are themselves some milliseconds apart, which would add up to another phase than the one that is wanted.
    """
    return int((period_ns * worker // workers - now_ns) % period_ns) if period_ns > 0 else 0


def one_thread() -> list[str]:
    """Make this process compute with one thread, as far as its libraries can be told at run time.

    Returns:
        The names of what was told; a library that reads its setting only when it is imported is not there.
    """
    told = ["torch"]
    torch.set_num_threads(1)
    for name in THREAD_VARIABLES:
        os.environ[name] = "1"
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(1)
        told.append("cv2")
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.set_cpu_count(1)
        arrow.set_io_thread_count(1)
        told.append("pyarrow")
    with contextlib.suppress(ImportError):
        # Reaches the BLAS and OpenMP pools that are loaded already; only there where it is installed.
        import threadpoolctl  # type: ignore[import-not-found,unused-ignore]

        threadpoolctl.threadpool_limits(1)
        told.append("threadpoolctl")
    return told


class ZerosAfterFirst:
    """From the second fetch of a process on, a fetch gives zeros of the first one's shapes.

    What remains is everything but the data set: collating is gone too; delivery, pinning and the host stay.
    Installed in the consumer before any loader is used and inherited by its workers, which switch it on for
    themselves: the probe keeps the method that it finds first.
    """

    def __init__(self) -> None:
        self._undo: passes.Undo | None = None
        self._active = False
        self._first: Any = None
        self._has_first = False

    def install(self) -> passes.Undo:
        """Put the switch, off, in front of the fetches of this process; the second call changes nothing."""
        if self._undo is None:
            self._undo = passes.wrap_fetches(self._around)
        return self._uninstall

    def activate(self) -> None:
        """Switch it on in this process, from its next fetch on."""
        self.install()
        self._active = True
        self._first, self._has_first = None, False

    def _uninstall(self) -> None:
        if self._undo is not None:
            self._undo()
        self._undo, self._active = None, False

    def _around(self, dataset: Any, fetch: Callable[[], Any]) -> Any:
        if not self._active:
            return fetch()
        if not self._has_first:
            self._first, self._has_first = fetch(), True
            return self._first
        return map_leaves(self._first, _zeros)


# One per process, as the methods that it stands in front of are.
ZEROS = ZerosAfterFirst()


def replay_after(count: int, wanted: Callable[[Any], bool]) -> passes.Undo:
    """After ``count`` real fetches in this process, replay them round and round.

    Args:
        count: Batches to keep.
        wanted: Tells the dataset that is replayed from others, which are fetched as ever.

    Returns:
        A function that ends the replay.
    """
    kept: list[Any] = []
    served = 0

    def around(dataset: Any, fetch: Callable[[], Any]) -> Any:
        nonlocal served
        if not wanted(dataset):
            return fetch()
        if len(kept) < count:
            batch = fetch()
            # Kept with containers of its own: a script may put tensors of its device into the batch.
            kept.append(map_leaves(batch, lambda leaf: leaf))
            return batch
        served += 1
        return map_leaves(kept[served % len(kept)], lambda leaf: leaf)

    return passes.wrap_fetches(around)


def map_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """A batch with new containers (dict, list, tuple, named tuple) around ``change(leaf)`` of every leaf."""
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_leaves(item, change) for item in batch))
    if type(batch) in (list, tuple):
        return type(batch)(map_leaves(item, change) for item in batch)
    if isinstance(batch, Mapping):
        changed = {key: map_leaves(value, change) for key, value in batch.items()}
        try:
            return changed if type(batch) is dict else type(batch)(changed)  # type: ignore[call-arg]
        except TypeError:
            return changed
    return change(batch)


def _zeros(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return torch.zeros_like(leaf)
    if isinstance(leaf, (bool, int, float)):
        return type(leaf)(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(leaf, numpy.ndarray) and leaf.dtype.kind in "biufc":
        return numpy.zeros_like(leaf)
    return leaf
