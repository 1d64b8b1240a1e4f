"""Datasets that put their own worker, PID and random draws into the batch, and the loaders made of them.

Imported by workers under every start method, so everything here is at module level and picklable.
"""

# ruff: noqa: NPY002 - numpy's global generator is one of the things that are watched.

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

LENGTH = 24
BATCH = 3
# An order that is neither sorted nor shuffled by chance, so that rank and index are not confused.
ORDER = [(7 * i + 5) % LENGTH for i in range(LENGTH)]


def item(index: int) -> dict[str, object]:
    """What a dataset knows about itself while it makes the sample ``index``."""
    info = get_worker_info()
    return {
        "index": index,
        "worker": -1 if info is None else info.id,
        "pid": os.getpid(),
        # One draw from each global generator: a fetch that used one up, or a fork at another moment, shows.
        "draws": torch.tensor(
            [random.random(), np.random.random(), torch.rand(()).item()], dtype=torch.float64
        ),
        "seed": 0 if info is None else info.seed % 2**62,
    }


class Map(Dataset):
    def __init__(self, length: int = LENGTH, slow: int | None = None) -> None:
        self.length, self.slow = length, slow

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, object]:
        if index == self.slow:
            time.sleep(0.03)
        return item(index)


class OtherMap(Map):
    """The same under another type name, so that two loaders of a run can be told apart."""


class GetItems(Map):
    def __getitems__(self, indices: list[int]) -> list[dict[str, object]]:
        assert type(indices) is list, f"the index is a {type(indices)}, not torch's plain list"
        return [{**item(i), "together": len(indices)} for i in indices]


class Stream(IterableDataset):
    """``per_worker[w]`` samples from worker ``w``; ``index`` counts them within the worker."""

    def __init__(self, per_worker: tuple[int, ...]) -> None:
        self.per_worker = per_worker

    def __iter__(self):
        info = get_worker_info()
        for k in range(self.per_worker[0 if info is None else info.id]):
            yield item(k)


class Failing(Map):
    """Raises the error named ``how`` at sample ``at``."""

    def __init__(self, how: str, at: int = 8) -> None:
        super().__init__()
        self.how, self.at = how, at

    def __getitem__(self, index: int) -> dict[str, object]:
        if index == self.at:
            # Long enough for what was sent before to arrive; torch itself stumbles when it has not.
            time.sleep(0.3 if self.how in ("kill", "exit") else 0)
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "exit":
                os._exit(7)
            raise ERRORS[self.how]()
        return super().__getitem__(index)


class NeedsArguments(Exception):
    """An exception that cannot be made from a message alone; torch wraps it in a RuntimeError."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


ERRORS = {
    "value": lambda: ValueError("no such sample"),
    "key": lambda: KeyError("name\nwith a line break"),
    "arguments": lambda: NeedsArguments(1, 2),
    "stop": lambda: StopIteration("from a map dataset"),
    "interrupt": lambda: KeyboardInterrupt("in the fetch"),
}


class Nested(Map):
    """Iterates a loader of its own inside the worker."""

    def __getitem__(self, index: int) -> dict[str, object]:
        inner = sum(int(batch["index"].sum()) for batch in DataLoader(OtherMap(5), batch_size=2))
        return {**item(index), "inner": inner}


class Fixed(Sampler):
    """A sampler of the user's: the same order each epoch."""

    def __init__(self, order: list[int]) -> None:
        self.order = order

    def __iter__(self):
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class Uneven(Sampler):
    """A batch sampler of the user's: batches of 1, 2, 3, 1, 2, 3 ... samples of ``ORDER``."""

    def __iter__(self):
        at, size = 0, 1
        while at < LENGTH:
            yield ORDER[at : at + size]
            at, size = at + size, size % 3 + 1

    def __len__(self) -> int:
        return len(list(iter(self)))


def collate_reversed(samples):
    return torch.utils.data.default_collate(samples[::-1])


def collate_failing(samples):
    if any(s["index"] == 8 for s in samples):
        raise TypeError("cannot put these together")
    return torch.utils.data.default_collate(samples)


def init_seeding(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert info.id == worker
    assert type(info.dataset).__name__ == "Map"
    random.seed(1000 + worker)
    np.random.seed(2000 + worker)


def init_failing(worker: int) -> None:
    if worker == 0:
        raise OSError("no licence for this worker")


class InitObject:
    """A callable object as worker_init_fn, with state that must reach the worker."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __call__(self, worker: int) -> None:
        torch.manual_seed(self.offset + worker)
