"""What an experiment needs of torch's private names: the index stream, the count of deliveries, the fetch.

Used in the child process of an experiment only; a plain `run` installs none of it. Each function replaces
methods of torch's own base classes and returns how to put them back. It is installed after the probe, whose
recording stays as it is.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, Protocol

from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import fetch as torch_fetch

Undo = Callable[[], None]

# Where an iterator keeps what its pass knows about it. A plain object without a reference back to the
# iterator: a cycle would let its workers outlive an early break.
_STATE = "_traceml_lite_pass"


class IteratorWatch(Protocol):
    """What is told about one iterator of a watched loader."""

    def begin(self, first: bool) -> None:
        """An epoch begins, just before its sampler is asked for an iterator; ``first`` of this iterator."""

    def index(self, draw: Callable[[], Any], restart: Callable[[], None]) -> Any:
        """The next index to dispatch; ``draw`` takes it from the sampler, ``restart`` begins it again."""

    def ask(self) -> None:
        """The consumer asks for a batch; may raise to end the pass."""

    def got(self) -> None:
        """The consumer got one."""


def watch_iterators(watch: Callable[[Any], IteratorWatch | None]) -> Undo:
    """Call ``watch(loader)`` for every iterator made in this process, and follow those that it returns.

    Args:
        watch: Gives what follows the iterator of this loader, or None to leave the iterator alone.

    Returns:
        A function that puts torch's own methods back.
    """
    base = torch_dataloader._BaseDataLoaderIter
    make, next_index, reset = base.__init__, base._next_index, base._reset
    owner = os.getpid()

    def __init__(self: Any, loader: Any) -> None:
        if os.getpid() == owner:
            follower = watch(loader)
            if follower is not None:
                self.__dict__[_STATE] = follower
                follower.begin(first=True)
        make(self, loader)
        if _STATE in self.__dict__:
            # After ``make``: the probe has put its class there, and a pass that ends must not be recorded by
            # it as an error of the loader. So the question whether it ends is asked outside of it.
            self.__class__ = _counting(self.__class__)

    def _reset(self: Any, loader: Any, first_iter: bool = False, *args: Any, **kwargs: Any) -> None:
        follower = self.__dict__.get(_STATE)
        if follower is not None:
            follower.begin(first=first_iter)
        reset(self, loader, first_iter, *args, **kwargs)

    def _next_index(self: Any) -> Any:
        follower = self.__dict__.get(_STATE)
        if follower is None:
            return next_index(self)

        def restart() -> None:
            self._sampler_iter = iter(self._index_sampler)

        return follower.index(lambda: next_index(self), restart)

    base.__init__, base._next_index, base._reset = __init__, _next_index, _reset

    def undo() -> None:
        base.__init__, base._next_index, base._reset = make, next_index, reset

    return undo


@functools.cache
def _counting(cls: type[Any]) -> type[Any]:
    take = cls.__next__

    def __next__(self: Any) -> Any:
        follower = self.__dict__[_STATE]
        follower.ask()
        batch = take(self)
        follower.got()
        return batch

    members = {"__next__": __next__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls,), members)


def wrap_fetches(around: Callable[[Any, Callable[[], Any]], Any]) -> Undo:
    """Put ``around(dataset, fetch)`` in place of every fetch of this process.

    The classes' own method is replaced, below whatever the probe puts on an instance, so that the probe
    times what really happens.

    Args:
        around: Called with the dataset and with the real fetch of this batch; what it returns is the batch.

    Returns:
        A function that puts torch's own methods back.
    """
    undo: list[Undo] = []
    for kind in (torch_fetch._MapDatasetFetcher, torch_fetch._IterableDatasetFetcher):
        undo.append(_wrap_fetch(kind, around))

    def undo_all() -> None:
        for one in undo:
            one()

    return undo_all


def _wrap_fetch(kind: Any, around: Callable[[Any, Callable[[], Any]], Any]) -> Undo:
    original = kind.fetch

    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        return around(self.dataset, lambda: original(self, possibly_batched_index))

    kind.fetch = fetch

    def undo() -> None:
        kind.fetch = original

    return undo
