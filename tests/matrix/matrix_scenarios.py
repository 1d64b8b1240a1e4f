"""The matrix: every way of loading that the probe promises to leave as it is.

A scenario drives loaders and tells an `Observer` what came out. It knows nothing of the probe: the same
function runs in a process with it and in one without, and the two observations are compared.
"""

# ruff: noqa: NPY002 - numpy's global generator is one of the things that are watched.

from __future__ import annotations

import gc
import hashlib
import inspect
import multiprocessing
import os
import random
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import loader_forms as forms
import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, RandomSampler

# torch before 2.6 delivers in order only.
CAN_OVERTAKE = "in_order" in inspect.signature(DataLoader).parameters


class Observer:
    """What one scenario saw, as plain JSON."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}
        self.errors: list[dict[str, str]] = []
        self.generators: dict[str, torch.Generator] = {}
        self.ordered = True

    def batch(self, data: Any, loader: str = "Map", epoch: int = 0, rank: int | None = None) -> None:
        """Keep a batch; ``rank`` is its place in the sampler's order where the scenario can tell it."""

        def listed(name: str) -> list[Any]:
            value = data[name]
            return value.reshape(-1).tolist() if isinstance(value, torch.Tensor) else [value]

        content = hashlib.sha256()
        for name in sorted(set(data) - {"pid"}):
            value = data[name]
            content.update(name.encode())
            content.update(
                value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
            )
        self.batches.append(
            {
                "loader": loader,
                "epoch": epoch,
                "rank": rank,
                "index": listed("index"),
                "worker": listed("worker")[0],
                "pid": listed("pid")[0],
                "draws": [float(x).hex() for x in listed("draws")],
                "content": content.hexdigest(),
            }
        )

    def error(self, error: BaseException) -> None:
        """Keep an exception: type, arguments and text, without PIDs and without frames of the probe."""
        cause = error.__cause__ or error.__context__
        self.errors.append(
            {"type": type(error).__qualname__, "text": plain(str(error)), "cause": type(cause).__qualname__}
        )

    def result(self) -> dict[str, Any]:
        states = {
            "random": repr(random.getstate()),
            "numpy": repr([x.tolist() if hasattr(x, "tolist") else x for x in np.random.get_state()]),
            "torch": torch.get_rng_state().numpy().tobytes().hex(),
        }
        states.update({k: g.get_state().numpy().tobytes().hex() for k, g in self.generators.items()})
        return {
            "pid": os.getpid(),
            "ordered": self.ordered,
            "batches": self.batches,
            "errors": self.errors,
            "notes": self.notes,
            "states": {k: hashlib.sha256(v.encode()).hexdigest() for k, v in states.items()},
            "children_left": len(psutil.Process().children()),
        }


def plain(text: str) -> str:
    """The text of an exception without PIDs and without the lines of the probe's own frame."""
    kept, skipping = [], False
    for line in text.splitlines():
        if line.lstrip().startswith('File "'):
            skipping = "traceml_lite" in line
        elif skipping and not line.startswith("    "):
            skipping = False
        if not skipping:
            kept.append(line)
    return re.sub(r"\b(pids?(?:\(s\))?) [\d, ]+", r"\1 N", "\n".join(kept))


SCENARIOS: dict[str, Callable[[Observer], None]] = {}
SLOW: set[str] = set()


def scenario(name: str, function: Callable[[Observer], None], slow: bool = False) -> None:
    assert name not in SCENARIOS, name
    SCENARIOS[name] = function
    if slow:
        SLOW.add(name)


def epochs(obs: Observer, loader: DataLoader, n: int, label: str = "Map", order: Any = None) -> None:
    """Iterate ``n`` epochs; ``order`` gives the rank of a batch from its first index and worker."""
    for epoch in range(n):
        for data in loader:
            first = data["index"].reshape(-1)[0].item() if torch.is_tensor(data["index"]) else data["index"]
            worker = (
                data["worker"].reshape(-1)[0].item() if torch.is_tensor(data["worker"]) else data["worker"]
            )
            obs.batch(data, label, epoch, None if order is None else order(first, worker))


# Every form of a loader: its label (the dataset's type), its arguments, and how a batch tells its rank.
def form_options(form: str, workers: int) -> tuple[str, dict[str, Any], Any]:
    def place(i: int, _: int) -> int:
        return i // forms.BATCH

    if form == "map":
        return "Map", {"dataset": forms.Map(slow=4), "batch_size": forms.BATCH}, place
    if form == "getitems":
        return "GetItems", {"dataset": forms.GetItems(), "batch_size": forms.BATCH}, place
    if form == "sampler":
        return (
            "Map",
            {"dataset": forms.Map(slow=4), "batch_size": forms.BATCH, "sampler": forms.Fixed(forms.ORDER)},
            lambda i, _: forms.ORDER.index(i) // forms.BATCH,
        )
    if form == "batch_sampler":
        starts = [batch[0] for batch in forms.Uneven()]
        return (
            "Map",
            {"dataset": forms.Map(slow=4), "batch_sampler": forms.Uneven()},
            lambda i, _: starts.index(i),
        )
    if form == "collate":
        return (
            "Map",
            {"dataset": forms.Map(slow=4), "batch_size": forms.BATCH, "collate_fn": forms.collate_reversed},
            place,
        )
    if form == "no_batch":
        return "Map", {"dataset": forms.Map(slow=4), "batch_size": None}, lambda i, _: i
    lanes = max(workers, 1)
    if form == "stream":
        per_worker = (4 * forms.BATCH,) * lanes
        return (
            "Stream",
            {"dataset": forms.Stream(per_worker), "batch_size": forms.BATCH},
            lambda i, w: i // forms.BATCH * lanes + max(w, 0),
        )
    if form == "stream_no_batch":
        return (
            "Stream",
            {"dataset": forms.Stream((5,) * lanes), "batch_size": None},
            lambda i, w: i * lanes + max(w, 0),
        )
    raise ValueError(form)


FORMS = ("map", "getitems", "sampler", "batch_sampler", "collate", "no_batch", "stream", "stream_no_batch")


def add_form(form: str, workers: int, in_order: bool, persistent: bool, start: str | None = None) -> None:
    def run(obs: Observer) -> None:
        label, options, order = form_options(form, workers)
        obs.ordered = in_order
        # Unordered streams: whose turn it is depends on time, so only the worker's own count is certain.
        if not in_order and form.startswith("stream"):
            order = None
        loader = DataLoader(
            num_workers=workers,
            **({} if in_order else {"in_order": False}),
            persistent_workers=persistent,
            multiprocessing_context=start,
            **options,
        )
        epochs(obs, loader, 2, label, order)
        obs.notes["loader attributes"] = sorted(vars(loader))
        del loader

    if not in_order and not CAN_OVERTAKE:
        return
    name = f"{form}-{workers}w-{'ordered' if in_order else 'unordered'}{'-persistent' if persistent else ''}"
    scenario(f"{start}-{name}" if start else name, run, slow=start is not None)


for _form in FORMS:
    add_form(_form, 0, True, False)
    add_form(_form, 1, True, False)
    for _ordered in (True, False):
        for _persistent in (True, False):
            add_form(_form, 2, _ordered, _persistent)
for _form in ("map", "sampler", "stream"):
    for _ordered in (True, False):
        for _persistent in (True, False):
            add_form(_form, 3, _ordered, _persistent)
# Workers that are started anew import torch, seconds each: few, and persistent but once.
add_form("map", 2, True, True, "spawn")
add_form("getitems", 1, False, False, "spawn")
add_form("stream", 2, True, True, "spawn")
add_form("map", 2, False, True, "forkserver")


def _shuffled(workers: int, own_generator: bool) -> Callable[[Observer], None]:
    def run(obs: Observer) -> None:
        generator = torch.Generator().manual_seed(11) if own_generator else None
        if generator is not None:
            obs.generators["loader"] = generator
        loader = DataLoader(
            forms.Map(), batch_size=forms.BATCH, shuffle=True, num_workers=workers, generator=generator
        )
        epochs(obs, loader, 3)

    return run


for _w in (0, 2):
    scenario(f"shuffle-{_w}w-global_generator", _shuffled(_w, False))
    scenario(f"shuffle-{_w}w-own_generator", _shuffled(_w, True))


def _sampler_generator(obs: Observer) -> None:
    obs.generators["sampler"] = torch.Generator().manual_seed(5)
    data = forms.Map()
    sampler = RandomSampler(data, replacement=True, num_samples=30, generator=obs.generators["sampler"])
    epochs(obs, DataLoader(data, batch_size=4, sampler=sampler, num_workers=2, drop_last=True), 2)


scenario("random_sampler_with_a_generator_and_drop_last", _sampler_generator)


def _init(function: Any, start: str | None = None) -> Callable[[Observer], None]:
    def run(obs: Observer) -> None:
        loader = DataLoader(
            forms.Map(),
            batch_size=forms.BATCH,
            num_workers=2,
            worker_init_fn=function,
            multiprocessing_context=start,
            prefetch_factor=3,
        )
        epochs(obs, loader, 1 if start else 2, order=lambda i, _: i // forms.BATCH)
        obs.notes["init function is the user's"] = loader.worker_init_fn is function

    return run


scenario("worker_init_fn-function", _init(forms.init_seeding))
scenario("worker_init_fn-object", _init(forms.InitObject(9)))
scenario("spawn-worker_init_fn-object", _init(forms.InitObject(9), "spawn"), slow=True)


def _uneven_streams(obs: Observer) -> None:
    # Who serves the last ranks depends on which worker ends first, so only lanes are compared.
    obs.ordered = False
    loader = DataLoader(forms.Stream((9, 3, 0)), batch_size=2, num_workers=3)
    epochs(obs, loader, 2, "Stream")


scenario("streams_of_unequal_length", _uneven_streams)


def _several(obs: Observer) -> None:
    train = DataLoader(forms.Map(), batch_size=4, num_workers=2, persistent_workers=True)
    valid = DataLoader(forms.OtherMap(9), batch_size=2, num_workers=1)
    for epoch in range(2):
        for step, data in enumerate(train):
            obs.batch(data, "Map", epoch, step)
            if step == 2:
                for place, held in enumerate(valid):
                    obs.batch(held, "OtherMap", epoch, place)


scenario("validation_in_the_middle_of_an_epoch", _several)


def _zipped(obs: Observer) -> None:
    left = DataLoader(forms.Map(), batch_size=4, num_workers=1)
    right = DataLoader(forms.OtherMap(), batch_size=4, num_workers=0)
    for step, (a, b) in enumerate(zip(left, right, strict=True)):
        obs.batch(a, "Map", 0, step)
        obs.batch(b, "OtherMap", 0, step)


scenario("two_loaders_zipped", _zipped)


def _two_iterators(obs: Observer) -> None:
    loader = DataLoader(forms.Map(), batch_size=4, num_workers=1)
    first, second = iter(loader), iter(loader)
    for step in range(3):
        obs.batch(next(first), "Map", 0, step)
        obs.batch(next(second), "Map", 1, step)
    obs.notes["lengths"] = [len(first), len(second)]


scenario("two_iterators_of_one_loader_at_once", _two_iterators)


def _nested(workers: int) -> Callable[[Observer], None]:
    def run(obs: Observer) -> None:
        loader = DataLoader(forms.Nested(8), batch_size=2, num_workers=workers)
        epochs(obs, loader, 1, "Nested", order=lambda i, _: i // 2)

    return run


scenario("nested_loader_in_a_worker", _nested(2))
scenario("nested_loader_without_workers", _nested(0))


def _early_break(persistent: bool) -> Callable[[Observer], None]:
    def run(obs: Observer) -> None:
        gc.disable()
        loader = DataLoader(forms.Map(), batch_size=1, num_workers=2, persistent_workers=persistent)
        for epoch in range(2):
            for step, data in enumerate(loader):
                obs.batch(data, "Map", epoch, step)
                if step == 3:
                    break
            obs.notes[f"children after break {epoch}"] = len(psutil.Process().children())
        del loader
        obs.notes["children after del"] = len(psutil.Process().children())
        gc.enable()

    return run


scenario("early_break", _early_break(False))
scenario("early_break-persistent", _early_break(True))


def _failing(dataset: Any, workers: int, **options: Any) -> Callable[[Observer], None]:
    def run(obs: Observer) -> None:
        # Each worker's failure comes at its own moment; after the first one only the type is certain.
        loader = DataLoader(dataset, batch_size=forms.BATCH, num_workers=workers, **options)
        iterator = iter(loader)
        for _ in range(12):
            try:
                obs.batch(next(iterator), type(dataset).__name__)
            except StopIteration:
                obs.notes["stopped"] = True
                break
            except BaseException as error:
                obs.error(error)
                if len(obs.errors) > 2:
                    break

    return run


for _w in (0, 1, 2):
    for _how in ("value", "key", "arguments", "stop", "interrupt"):
        if _how != "interrupt" or _w == 0:
            scenario(f"error-{_how}-{_w}w", _failing(forms.Failing(_how), _w))
    scenario(f"error-collate-{_w}w", _failing(forms.Map(), _w, collate_fn=forms.collate_failing))
scenario("error-worker_init_fn", _failing(forms.Map(), 1, worker_init_fn=forms.init_failing))
if CAN_OVERTAKE:
    scenario("error-value-unordered", _failing(forms.Failing("value"), 1, in_order=False))


def _dies(how: str) -> Callable[[Observer], None]:
    def run(obs: Observer) -> None:
        obs.notes["a worker dies"] = True
        loader = DataLoader(forms.Failing(how), batch_size=forms.BATCH, num_workers=1)
        try:
            for data in loader:
                obs.batch(data, "Failing")
        except RuntimeError as error:
            obs.error(error)

    return run


scenario("worker-killed", _dies("kill"))
scenario("worker-exits", _dies("exit"))


def _timeout(obs: Observer) -> None:
    loader = DataLoader(forms.Map(slow=0), batch_size=1, num_workers=1, timeout=0.005)
    try:
        next(iter(loader))
    except RuntimeError as error:
        obs.error(error)


scenario("error-timeout", _timeout)


def _facts_of_the_iterator(obs: Observer) -> None:
    for workers in (0, 2):
        data_set = forms.OtherMap() if workers else forms.Map()
        loader = DataLoader(data_set, batch_size=6, num_workers=workers)
        iterator = iter(loader)
        base = torch.utils.data.dataloader._BaseDataLoaderIter
        obs.notes[f"{workers}w"] = {
            "isinstance": isinstance(iterator, base),
            "name": type(iterator).__name__,
            "qualname": type(iterator).__qualname__,
            "module": type(iterator).__module__,
            "length": len(iterator),
            "own iterator": iter(iterator) is iterator,
            "is an Iterator": isinstance(iterator, Iterator),
            "slow setting refused": _refuses(loader),
        }
        for data in iterator:
            obs.batch(data, type(data_set).__name__)
        try:
            next(iterator)
        except StopIteration:
            obs.notes[f"{workers}w stays stopped"] = True


def _refuses(loader: DataLoader) -> str:
    try:
        loader.batch_size = 2
    except ValueError as error:
        return str(error)
    return "it was accepted"


scenario("facts_of_the_iterator", _facts_of_the_iterator)


def _pin_without_accelerator(obs: Observer) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        epochs(obs, DataLoader(forms.Map(), batch_size=4, num_workers=1, pin_memory=True), 1)
    obs.notes["warnings"] = [str(w.message) for w in caught]


scenario("pin_memory_without_accelerator", _pin_without_accelerator)


class _FakeAccelerator:
    """Enough of ``torch.accelerator`` for the pin-memory thread to run where there is none."""

    type = "cuda"

    def __enter__(self) -> None:
        accelerator, pinning = torch.accelerator, torch.utils.data._utils.pin_memory
        self.patches = [
            mock.patch.object(accelerator, "is_available", return_value=True),
            mock.patch.object(accelerator, "current_accelerator", return_value=self),
            mock.patch.object(accelerator, "current_device_index", return_value=0),
            mock.patch.object(accelerator, "set_device_index", return_value=None),
            mock.patch.object(pinning, "pin_memory", lambda data, device=None: time.sleep(0.002) or data),
        ]
        for patch in self.patches:
            patch.start()

    def __exit__(self, *_: object) -> None:
        for patch in self.patches:
            patch.stop()


def _pin_thread(in_order: bool) -> Callable[[Observer], None]:
    def run(obs: Observer) -> None:
        obs.ordered = in_order
        with _FakeAccelerator():
            loader = DataLoader(
                forms.Map(slow=4),
                batch_size=forms.BATCH,
                num_workers=2,
                pin_memory=True,
                **({} if in_order else {"in_order": False}),
            )
            iterator = iter(loader)
            obs.notes["pin thread runs"] = iterator._pin_memory_thread.is_alive()
            del iterator
            epochs(obs, loader, 2, order=lambda i, _: i // forms.BATCH)

    return run


# Before 2.8 the pin thread asks torch.cuda, which cannot be emulated without a CUDA build.
if "torch.accelerator" in inspect.getsource(torch.utils.data.dataloader):
    scenario("pin_thread-ordered", _pin_thread(True))
    scenario("pin_thread-unordered", _pin_thread(False))


def _forked_user(obs: Observer) -> None:
    # A user's own process, forked while the probe is on, loads too; it must neither break nor be recorded.
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_load_in_child, args=(queue,))
    child.start()
    obs.notes["child"] = queue.get()
    child.join()
    obs.notes["exit code"] = child.exitcode
    epochs(obs, DataLoader(forms.Map(), batch_size=4, num_workers=1), 1)


def _load_in_child(queue: Any) -> None:
    indices = [b["index"].tolist() for b in DataLoader(forms.OtherMap(6), batch_size=2, num_workers=1)]
    queue.put(indices)


scenario("a_forked_process_of_the_user_loads_too", _forked_user)


def _warm_random(obs: Observer) -> None:
    # Draws between deliveries: a probe that used the global generators would shift them.
    drawn = []
    for data in DataLoader(forms.Map(), batch_size=4, shuffle=True, num_workers=1):
        obs.batch(data)
        drawn.append([random.random(), float(np.random.random()), float(torch.rand(()))])
    obs.notes["drawn in the loop"] = drawn


scenario("draws_in_the_training_loop", _warm_random)


def _many_workers(obs: Observer) -> None:
    loader = DataLoader(forms.Map(40), batch_size=1, num_workers=32)
    epochs(obs, loader, 1, order=lambda i, _: i)


scenario("map-32w", _many_workers)


def _many_epochs(workers: int) -> Callable[[Observer], None]:
    def run(obs: Observer) -> None:
        loader = DataLoader(
            forms.Map(4), batch_size=2, shuffle=True, num_workers=workers, persistent_workers=workers > 0
        )
        epochs(obs, loader, 60)

    return run


scenario("many_epochs-0w", _many_epochs(0))
scenario("many_epochs-1w-persistent", _many_epochs(1))


def _loop_raises(obs: Observer) -> None:
    try:
        for step, data in enumerate(DataLoader(forms.Map(), batch_size=3, num_workers=2)):
            obs.batch(data, rank=step)
            if step == 2:
                raise ZeroDivisionError("in the training step")
    except ZeroDivisionError as error:
        obs.error(error)
        # The traceback holds the frame, the frame the iterator, as with any loop.
        error.__traceback__ = None
    gc.collect()
    obs.notes["children after"] = len(psutil.Process().children())


scenario("the_training_step_raises", _loop_raises)


def _in_threads(obs: Observer) -> None:
    found: dict[str, list[Any]] = {}

    def consume(dataset: Any) -> None:
        found[type(dataset).__name__] = list(DataLoader(dataset, batch_size=3, num_workers=1))

    # One after the other, so that the draws from the global generator come in a fixed order.
    for dataset in (forms.Map(), forms.OtherMap()):
        thread = threading.Thread(target=consume, args=(dataset,))
        thread.start()
        thread.join()
    for label, batches in found.items():
        for rank, data in enumerate(batches):
            obs.batch(data, label, 0, rank)


scenario("consumed_in_threads", _in_threads)

if __name__ == "__main__":
    sys.stdout.write("\n".join(SCENARIOS) + "\n")
