"""The measured loops of `per_delivery.py`: one with the tool and one without, delivery by delivery in turn.

What is measured of an iteration is what is left when the parts that depend on the neighbours are taken out:
waiting on the queue and unpickling (`_get_data`), putting an index (`Queue.put`), the dataset, and the step
itself. What remains is Python code of torch and of the tool. The two loops alternate in one process, so each
pair of iterations sees the same machine, and the difference within the pair is the tool's. It is read on two
clocks: wall, and CPU time of the thread, which being preempted does not lengthen.
"""

from __future__ import annotations

import contextlib
import multiprocessing.queues
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import _harness
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

WARM = 50
BLOCK = 100
MAIN_PID = os.getpid()

# Wall and thread CPU time, nanoseconds, that the running iteration has spent in excluded parts.
excluded = [0, 0]
# In a worker: both clocks when it took its task.
took_task = [0, 0]


def clocks() -> tuple[int, int]:
    return time.perf_counter_ns(), time.thread_time_ns()


@contextlib.contextmanager
def left_out() -> Iterator[None]:
    wall, cpu = clocks()
    try:
        yield
    finally:
        after = clocks()
        excluded[0] += after[0] - wall
        excluded[1] += after[1] - cpu


def exclude(owner: Any, name: str, instead: Callable[..., Any] | None = None) -> None:
    original = instead or getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        with left_out():
            return original(*args, **kwargs)

    setattr(owner, name, timed)


def put_at_once(self: Any, item: Any, block: bool = True, timeout: float | None = None) -> None:
    """``Queue.put`` without its feeder thread, whose fight for the GIL takes up to 1 ms of the loop."""
    if os.getpid() != MAIN_PID and took_task[0]:
        # A worker sends its batch: what lay between task and batch, less the dataset's own time.
        wall, cpu = clocks()
        rank, inside = item
        if isinstance(inside, tuple):
            item = (rank, (wall - took_task[0] - inside[0], cpu - took_task[1] - inside[1]))
    self._sem.acquire(block, timeout)
    with self._wlock:
        self._writer.send_bytes(ForkingPickler.dumps(item))


def note_task(get: Callable[..., Any]) -> Callable[..., Any]:
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        item = get(self, *args, **kwargs)
        if os.getpid() != MAIN_PID:
            took_task[:] = clocks()
        return item

    return noting


def busy(ns: int) -> None:
    until = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < until:
        pass


class Data(Dataset):
    """``cost_ns`` of work per batch; a batch is its own duration on both clocks."""

    def __init__(self, length: int, cost_ns: int) -> None:
        self.length, self.cost_ns = length, cost_ns

    def __len__(self) -> int:
        return self.length

    def __getitems__(self, indices: list[int]) -> tuple[int, int]:
        wall, cpu = clocks()
        busy(self.cost_ns)
        after = clocks()
        return after[0] - wall, after[1] - cpu


def keep(batch: tuple[int, int]) -> tuple[int, int]:
    return batch


def turn_on(tool: str, folder: str, stack: contextlib.ExitStack) -> Callable[[], Any]:
    """Switch the tool on for what is made from now on; returns what it wants around a step."""
    if tool.startswith("traceml-lite"):
        from traceml_lite.probe import record

        stack.enter_context(record(f"{folder}/trace", rchar="without rchar" not in tool))
    elif tool.startswith("TraceML"):
        import traceml_ai

        traceml_ai.init(mode="auto")
        model = torch.nn.Linear(1, 1)
        if "patch only" not in tool:
            return lambda: traceml_ai.trace_step(model)
    return contextlib.nullcontext


def one(iterator: Iterator[Any], around_step: Callable[[], Any], step: Callable[[], None]) -> Any:
    """One iteration: its batch and its own time on both clocks."""
    excluded[:] = (0, 0)
    wall, cpu = clocks()
    batch = next(iterator)
    with around_step(), left_out():
        step()
    after = clocks()
    return batch, (after[0] - wall - excluded[0], after[1] - cpu - excluded[1])


def main() -> None:
    torch.set_num_threads(1)
    asked = _harness.settings()
    place, pairs, step_ns, tool = asked["place"], asked["pairs"], asked["step_ns"], asked["tool"]
    exclude(_MultiProcessingDataLoaderIter, "_get_data")
    multiprocessing.queues.Queue.get = note_task(multiprocessing.queues.Queue.get)
    exclude(multiprocessing.queues.Queue, "put", put_at_once)

    def loader() -> DataLoader[Any]:
        return DataLoader(
            Data(pairs, asked["cost_ns"]),
            batch_size=1,
            collate_fn=keep,
            num_workers=0 if place == "no workers" else 1,
        )

    def step() -> None:
        # A long step waits as for a GPU; a short one computes.
        time.sleep(step_ns / 1e9) if step_ns > 5_000_000 else busy(step_ns)

    def spent(batch: Any, own: tuple[int, int]) -> tuple[int, int]:
        if place == "worker":
            return batch
        inside = batch if place == "no workers" else (0, 0)
        return own[0] - inside[0], own[1] - inside[1]

    found = np.empty((pairs, 2, 2), dtype=np.int64)
    with contextlib.ExitStack() as stack:
        plain = iter(loader())
        around_step = turn_on(tool, asked["folder"], stack)
        traced = iter(loader())
        for number in range(0, pairs, BLOCK):
            block = range(number, min(number + BLOCK, pairs))
            if tool == "torch.profiler":
                # It is on or off for the whole process: the two halves of a pair are a block apart.
                for at in block:
                    found[at, 0] = spent(*one(plain, contextlib.nullcontext, step))
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                    for at in block:
                        found[at, 1] = spent(*one(traced, contextlib.nullcontext, step))
                continue
            for at in block:
                # Each of the two goes first as often as the other.
                for which in (at % 2, 1 - at % 2):
                    iterator, around = (traced, around_step) if which else (plain, contextlib.nullcontext)
                    found[at, which] = spent(*one(iterator, around, step))
    kept = found[WARM:] / 1e3
    added = kept[:, 1] - kept[:, 0]
    tail = np.quantile(kept[:, 1, 1], 0.99) - np.quantile(kept[:, 0, 1], 0.99)
    _harness.answer(
        {
            "none_cpu_us": float(np.median(kept[:, 0, 1])),
            "added_wall_us": float(np.median(added[:, 0])),
            "added_cpu_us": float(np.median(added[:, 1])),
            "added_cpu_mean_us": float(added[:, 1].mean()),
            "added_cpu_p99_us": float(tail),
        }
    )


if __name__ == "__main__":
    main()
