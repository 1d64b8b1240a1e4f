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
        meeting: For ``stagger``: path of a file, not there yet, by which workers agree on the first start.
        opened: Folder in which each worker leaves the list of files it opened, or None.
    """

    def __init__(
        self,
        user: Any,
        *,
        workers: int,
        control: str | None = None,
        shift_ns: int = 0,
        meeting: str = "",
        opened: str | None = None,
    ) -> None:
        self.user, self.workers, self.control = user, workers, control
        self.shift_ns, self.meeting, self.opened = shift_ns, meeting, opened

    def __call__(self, worker: int) -> None:
        """Run in the worker before its first fetch."""
        if self.opened is not None:
            OpenedFiles.install(self.opened)
        if self.user is not None:
            self.user(worker)
        if self.control == "threads":
            one_thread()
        elif self.control == "trivial":
            FETCHES.activate(zeros_after_first())
        elif self.control == "stagger":
            FETCHES.activate(late_first(worker, self.workers, self.shift_ns, self.meeting))


def meet(path: str, now_ns: int) -> int:
    """The moment that all processes which come here agree on: that of the first to come.

    A file that is linked into place, since it works alike for fork, spawn and forkserver.

    Args:
        path: Of the file.
        now_ns: On the clock that all processes of one boot share.

    Raises:
        OSError: The folder cannot be written.
    """
    beside = f"{path}.{os.getpid()}"
    with open(beside, "w", encoding="ascii") as file:
        file.write(str(now_ns))
    with contextlib.suppress(FileExistsError):
        os.link(beside, path)
    os.unlink(beside)
    with open(path, encoding="ascii") as file:
        return int(file.read())


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


class WorkerFetches:
    """A control that acts on the fetches of a worker, from its first one on.

    Installed, inactive, in the consumer before any loader is used and inherited by its workers, which
    activate it for themselves: the probe keeps the method that it finds first.
    """

    def __init__(self) -> None:
        self._undo: passes.Undo | None = None
        self._around: Callable[[Callable[[], Any]], Any] | None = None

    def install(self) -> passes.Undo:
        """Put it in front of the fetches of this process; the second call changes nothing."""
        if self._undo is None:
            self._undo = passes.wrap_fetches(self._fetch)
        return self._uninstall

    def activate(self, around: Callable[[Callable[[], Any]], Any]) -> None:
        """From the next fetch of this process on, ``around(fetch)`` gives the batch."""
        self.install()
        self._around = around

    def _uninstall(self) -> None:
        if self._undo is not None:
            self._undo()
        self._undo, self._around = None, None

    def _fetch(self, dataset: Any, fetch: Callable[[], Any]) -> Any:
        return fetch() if self._around is None else self._around(fetch)


# One per process, as the methods that it stands in front of are.
FETCHES = WorkerFetches()


def zeros_after_first() -> Callable[[Callable[[], Any]], Any]:
    """From the second fetch on, zeros of the first one's shapes.

    What remains is everything but the data set: collating is gone too; delivery, pinning and the host stay.
    """
    first: list[Any] = []

    def around(fetch: Callable[[], Any]) -> Any:
        if not first:
            first.append(fetch())
            return first[0]
        return map_leaves(first[0], _zeros)

    return around


def late_first(worker: int, workers: int, period_ns: int, meeting: str) -> Callable[[Callable[[], Any]], Any]:
    """The first fetch begins k/W of the period after the pool's first; it is that much longer in the trace.

    Not in ``worker_init_fn``: indices come only when the last worker has been forked, and whoever waited less
    than that would start together after all. And in the order of the workers: were the first one last, every
    round would wait for it, and ordered delivery would keep the cadence though no two are in phase.
    """
    waited = False

    def around(fetch: Callable[[], Any]) -> Any:
        nonlocal waited
        if not waited:
            waited = True
            now_ns = time.monotonic_ns()
            due_ns = meet(meeting, now_ns) + period_ns * worker // workers
            time.sleep(max(0, min(due_ns - now_ns, period_ns)) / 1e9)
        return fetch()

    return around


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
