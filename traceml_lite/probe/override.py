"""Override options of a script's DataLoader where it is constructed, and end its pass after N deliveries.

This is how an unchanged script becomes the target of an experiment. It acts in the child process of one
pass and nowhere else: a plain `run` overrides nothing. It measures nothing; the probe does.

Loaders are numbered by their data sets, in the order in which the script first makes a loader of each: a
framework that rebuilds a loader (Accelerate, Lightning) keeps the number, a validation loader has another.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from traceml_lite.probe import controls
from traceml_lite.probe.hooks import passes
from traceml_lite.probe.index_stream import IndexStream
from traceml_lite.probe.options import resolve_options

# Controls that act in the workers, through worker_init_fn.
WORKER_CONTROLS = ("stagger", "threads", "trivial")


class PassEnd(SystemExit):
    """Ends the script in order once the pass has what it wanted: its ``finally`` and ``atexit`` run."""

    def __init__(self, why: str) -> None:
        super().__init__(0)
        self.why = why
        """``"deliveries"`` or ``"limit"``."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What one pass changes, and when it ends."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the chosen loader to set, by name; ``start_method`` for the multiprocessing context."""
    loader: int | None = None
    """Number of the chosen loader; None watches all and changes none."""
    deliveries: int | None = None
    """End when the chosen loader (any, if none is chosen) has delivered this many; None: the target ends."""
    limit_s: float | None = None
    """End at the first ask this long after the first delivery, whatever the count."""
    seed: int = 0
    """Torch's seed at each new iterator of the chosen loader, so that every arm draws the same order."""
    control: str | None = None
    shift_ns: int = 0
    """For ``stagger``: the period over which the workers' starts are spread."""
    meeting: str = ""
    """For ``stagger``: path of a file by which workers agree on the first start."""
    cached_batches: int = 1
    """For ``ceiling``: batches to fetch for real before they are replayed."""
    endless: bool = False
    """Begin the sampler again where it ends, so that no epoch boundary falls into the pass."""
    repeat_after: int | None = None
    """For ``repeat``: after this many batches of an iterator, dispatch the same indices once more."""
    opened: str | None = None
    """Folder for the lists of files that the workers opened; None does not look."""


@dataclass(slots=True)
class LoaderSeen:
    """One loader of the target, as the pass saw it."""

    number: int
    loader: str
    dataset: str
    iterable: bool
    options: dict[str, Any] = field(default_factory=dict)
    """Plain options it was last constructed with, after the overrides."""
    batches: int | None = None
    constructed: int = 0
    iterators: int = 0
    deliveries: int = 0
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class Session:
    """Follows every loader of one process. Made by :func:`installed`; read after the target has ended."""

    def __init__(self, overrides: Overrides) -> None:
        self.overrides = overrides
        self.loaders: list[LoaderSeen] = []
        self.streams: dict[int, IndexStream] = {}
        self.known: frozenset[str] = frozenset(inspect.signature(DataLoader.__init__).parameters) - {"self"}
        self._datasets: list[Any] = []
        self._of_loader: weakref.WeakKeyDictionary[Any, LoaderSeen] = weakref.WeakKeyDictionary()
        self._first_delivery_s: float | None = None

    def chosen(self, seen: LoaderSeen) -> bool:
        """Whether the overrides are meant for this loader."""
        return seen.number == self.overrides.loader

    def is_chosen_dataset(self, dataset: Any) -> bool:
        """Whether a data set belongs to the chosen loader."""
        number = self.overrides.loader
        return number is not None and number < len(self._datasets) and self._datasets[number] is dataset

    def arguments_for(self, arguments: dict[str, Any]) -> tuple[LoaderSeen, dict[str, Any]]:
        """Register a construction, and give the arguments it shall have."""
        dataset = arguments.get("dataset")
        seen = self._seen(dataset)
        if not self.chosen(seen):
            return seen, arguments
        resolved = resolve_options(
            arguments, self.overrides.options, iterable=seen.iterable, known=self.known
        )
        seen.notes.extend(note for note in resolved.notes if note not in seen.notes)
        # A loader that is built twice (first plain, then by a framework from the first) may refuse the
        # option the second time because it has it already; it counts as refused only where no build took it.
        if seen.constructed == 0:
            seen.refused = list(resolved.refused)
        else:
            seen.refused = [name for name in seen.refused if name in resolved.refused]
        changed = dict(resolved.arguments)
        self._add_worker_start(changed)
        if self.overrides.control == "trivial" and not changed.get("num_workers", 0):
            controls.FETCHES.activate(controls.zeros_after_first())
        return seen, changed

    def constructed(self, loader: Any, seen: LoaderSeen) -> None:
        """Note a loader once torch has made it."""
        self._of_loader[loader] = seen
        seen.constructed += 1
        seen.loader = _type_name(loader)
        seen.options = {
            "num_workers": loader.num_workers,
            "batch_size": loader.batch_size,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "pin_memory": bool(loader.pin_memory),
            "drop_last": bool(loader.drop_last),
            "timeout": loader.timeout,
            "in_order": getattr(loader, "in_order", None),
        }
        try:
            seen.batches = len(loader)
        except Exception:  # len() runs the script's own code, which may raise anything
            seen.batches = None

    def watch(self, loader: Any) -> passes.IteratorWatch | None:
        """What follows a new iterator of this loader."""
        seen = self._of_loader.get(loader)
        if seen is None:
            return None
        seen.iterators += 1
        generators = _generators(loader) if self.chosen(seen) else []
        return _Follower(self, seen, self.streams.setdefault(seen.number, IndexStream()), generators)

    def may_ask(self, seen: LoaderSeen) -> None:
        """Raise :class:`PassEnd` when this pass has what it wanted."""
        wanted = self.overrides
        counts = wanted.loader is None or self.chosen(seen)
        if counts and wanted.deliveries is not None and seen.deliveries >= wanted.deliveries:
            raise PassEnd("deliveries")
        began = self._first_delivery_s
        if wanted.limit_s is not None and began is not None and time.monotonic() - began > wanted.limit_s:
            raise PassEnd("limit")

    def delivered(self, seen: LoaderSeen) -> None:
        """Count a delivery."""
        seen.deliveries += 1
        if self._first_delivery_s is None:
            self._first_delivery_s = time.monotonic()

    def _seen(self, dataset: Any) -> LoaderSeen:
        for number, known in enumerate(self._datasets):
            if known is dataset:
                return self.loaders[number]
        self._datasets.append(dataset)
        seen = LoaderSeen(
            number=len(self.loaders),
            loader="",
            dataset=_type_name(dataset),
            iterable=isinstance(dataset, IterableDataset),
        )
        self.loaders.append(seen)
        return seen

    def _add_worker_start(self, arguments: dict[str, Any]) -> None:
        workers = arguments.get("num_workers", 0)
        control = self.overrides.control if self.overrides.control in WORKER_CONTROLS else None
        if not workers or (control is None and self.overrides.opened is None):
            return
        user = arguments.get("worker_init_fn")
        if isinstance(user, controls.WorkerStart):
            user = user.user
        arguments["worker_init_fn"] = controls.WorkerStart(
            user,
            workers=workers,
            control=control,
            shift_ns=self.overrides.shift_ns,
            # Each set of workers has a meeting of its own.
            meeting=f"{self.overrides.meeting}.{sum(one.constructed for one in self.loaders)}",
            opened=self.overrides.opened,
        )


class _Follower:
    """Follows one iterator; implements what the hooks call.

    The order must be the same for every number of workers, and what a sampler draws its seed from is not:
    torch's own draws at its first index, torchdata's when it is iterated, which workers make happen twice. So
    torch's seed and those of the samplers' own generators are set before each of these moments, to a value
    that the epoch decides.
    """

    __slots__ = ("_begun", "_generators", "_kept", "_repeat_after", "_seen", "_session", "_stream")

    def __init__(
        self, session: Session, seen: LoaderSeen, stream: IndexStream, generators: list[torch.Generator]
    ) -> None:
        self._session, self._seen, self._stream = session, seen, stream
        self._generators = generators
        self._repeat_after: int | None = None
        self._kept: list[Any] = []
        self._begun = False

    def begin(self, first: bool) -> None:
        if not (first and self._begun):
            self._stream.begin()
            self._kept = []
            chosen = self._session.chosen(self._seen)
            self._repeat_after = self._session.overrides.repeat_after if chosen else None
        self._begun = True
        self._seed(0)

    def _seed(self, moment: int) -> None:
        if self._session.chosen(self._seen):
            seed = self._session.overrides.seed + 2 * self._stream.epoch + moment
            torch.manual_seed(seed)
            for generator in self._generators:
                generator.manual_seed(seed)

    def index(self, draw: Callable[[], Any], restart: Callable[[], None]) -> Any:
        if not self._stream.samples:
            self._seed(1)
        index = self._again() if self._second_round() else self._draw(draw, restart)
        if self._repeat_after is not None:
            self._kept.append(index)
        self._stream.add(index)
        return index

    def ask(self) -> None:
        self._session.may_ask(self._seen)

    def got(self) -> None:
        self._session.delivered(self._seen)

    def _second_round(self) -> bool:
        return self._repeat_after is not None and len(self._kept) >= self._repeat_after

    def _again(self) -> Any:
        assert self._repeat_after is not None
        place = len(self._kept) - self._repeat_after
        if place >= self._repeat_after:
            raise StopIteration
        return self._kept[place]

    def _draw(self, draw: Callable[[], Any], restart: Callable[[], None]) -> Any:
        try:
            return draw()
        except StopIteration:
            if self._repeat_after is not None and self._kept:
                # The epoch is shorter than the round; the second round begins where it ends.
                self._repeat_after = len(self._kept)
                return self._again()
            if not (self._session.overrides.endless and self._session.chosen(self._seen)):
                raise
            restart()
            return draw()


@contextmanager
def installed(overrides: Overrides) -> Iterator[Session]:
    """Within the block, every DataLoader that is constructed or iterated in this process is followed.

    Args:
        overrides: What to change and when to end.

    Yields:
        The session, whose ``loaders`` and ``streams`` tell afterwards what happened.
    """
    session = Session(overrides)
    undo = [_override_construction(kind, session) for kind in _loader_classes()]
    undo.append(passes.watch_iterators(session.watch))
    if overrides.control == "ceiling":
        undo.append(controls.replay_after(overrides.cached_batches, session.is_chosen_dataset))
    elif overrides.control in ("trivial", "stagger"):
        undo.append(controls.FETCHES.install())
    try:
        yield session
    finally:
        for one in reversed(undo):
            one()


def _loader_classes() -> list[Any]:
    kinds: list[Any] = [DataLoader]
    # torchdata's StatefulDataLoader derives from DataLoader but never calls its __init__.
    if importlib.util.find_spec("torchdata") is not None:
        try:
            from torchdata.stateful_dataloader import StatefulDataLoader
        except ImportError:
            return kinds
        kinds.append(StatefulDataLoader)
    return kinds


def _override_construction(kind: Any, session: Session) -> passes.Undo:
    original = kind.__init__
    signature = inspect.signature(original)
    owner = os.getpid()

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if os.getpid() != owner:
            original(self, *args, **kwargs)
            return
        try:
            bound = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            original(self, *args, **kwargs)  # raises the script's own error, in torch's words
            return
        arguments = {name: value for name, value in bound.items() if name != "self"}
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                arguments.update(arguments.pop(name, {}))
        seen, arguments = session.arguments_for(arguments)
        original(self, **arguments)
        session.constructed(self, seen)

    kind.__init__ = __init__

    def undo() -> None:
        kind.__init__ = original

    return undo


def _generators(loader: Any) -> list[torch.Generator]:
    """What the loader and its samplers draw from, as far as they have a generator of their own."""
    found: list[torch.Generator] = []
    places = [loader]
    # A batch sampler over a sampler over another one; the bound is against a sampler that contains itself.
    for _ in range(4):
        for place in places:
            generator = getattr(place, "generator", None)
            if isinstance(generator, torch.Generator) and all(generator is not one for one in found):
                found.append(generator)
        inner = [getattr(place, name, None) for place in places for name in ("batch_sampler", "sampler")]
        places = [place for place in inner if place is not None]
    return found


def has_accelerator() -> bool:
    """Whether torch sees a device that memory could be pinned for."""
    asked = getattr(torch, "accelerator", None)
    return bool(asked.is_available()) if asked is not None else bool(torch.cuda.is_available())


def _type_name(thing: Any) -> str:
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"
