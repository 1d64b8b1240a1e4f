"""Loaders that a framework rebuilds, wraps or resumes: the same data, every delivery joined, loaders apart.

Each test trains twice from the same seeds, without the probe and with it. The batches are caught where the
user's code gets them; the datasets put index, worker, PID and random draws into them.
"""

# ruff: noqa: NPY002 - numpy's global generator is one of the things that are watched.

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info  # noqa: E402

from traceml_lite.probe import record  # noqa: E402
from traceml_lite.records.run import LoaderTrace, Run  # noqa: E402
from traceml_lite.store import load  # noqa: E402

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.timeout(600),
    # The frameworks warn about their own choices (few workers, no logger), which is theirs to do.
    pytest.mark.filterwarnings("ignore"),
]

BATCH = 3
Seen = list[dict[str, Any]]


def sample(index: int) -> dict[str, Any]:
    info = get_worker_info()
    return {
        "index": index,
        "worker": -1 if info is None else info.id,
        "pid": os.getpid(),
        "x": torch.full((4,), float(index)),
        "draws": torch.tensor(
            [random.random(), np.random.random(), torch.rand(()).item()], dtype=torch.float64
        ),
    }


class Train(Dataset):
    length = 24

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return sample(index)


class Valid(Train):
    length = 9


class Stream(IterableDataset):
    def __iter__(self):
        for k in range(12):
            yield sample(k)


def catch(seen: Seen, batch: dict[str, Any], loader: str = "Train") -> None:
    seen.append(
        {
            "loader": loader,
            "index": batch["index"].tolist(),
            "worker": int(batch["worker"][0]),
            "pid": int(batch["pid"][0]),
            "draws": batch["draws"].tolist(),
        }
    )


def states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def twice(train: Callable[[Path], Seen], folder: Path) -> tuple[Seen, Run]:
    """Run ``train`` without the probe and with it, assert that they are alike, return what the latter saw."""
    results = []
    for mode in ("plain", "traced"):
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        (folder / mode).mkdir()
        around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if mode == "traced":
            around = record(folder / "trace")
        with around:
            seen = train(folder / mode)
        results.append((seen, states()))
    (plain, plain_states), (traced, traced_states) = results
    assert plain, "the training saw no batch"
    assert without_pid(traced) == without_pid(plain)
    assert traced_states == plain_states
    return traced, load(folder / "trace")


def without_pid(seen: Seen) -> Seen:
    return [{k: v for k, v in batch.items() if k != "pid"} for batch in seen]


def of(run: Run, label: str) -> LoaderTrace:
    found = [loader for loader in run.loaders if loader.config.dataset.endswith(f".{label}")]
    assert len(found) == 1, f"{label}: {[loader.name for loader in run.loaders]}"
    return found[0]


def check(run: Run, seen: Seen, labels: Iterable[str] = ("Train",)) -> None:
    assert sorted(loader.config.dataset.rsplit(".", 1)[-1] for loader in run.loaders) == sorted(labels)
    for label in labels:
        mine = [batch for batch in seen if batch["loader"] == label]
        deliveries = of(run, label).deliveries
        deliveries = deliveries.take(deliveries["fast_forward"] == 0)
        assert deliveries["worker"].tolist() == [b["worker"] for b in mine]
        assert deliveries["pid"].tolist() == [b["pid"] for b in mine]
        assert deliveries["samples"].tolist() == [len(b["index"]) for b in mine]
        assert (deliveries["fetch_start_ns"] > 0).all()
        assert (deliveries["fetch_end_ns"] <= deliveries["got_ns"]).all()
    events = [*run.events, *(event for loader in run.loaders for event in loader.events)]
    assert [dict(e.data) for e in events if e.kind == "probe_error"] == []


# -- torchdata ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_stateful_dataloader_gives_the_same_batches_over_two_epochs(workers, persistent, tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def train(_: Path) -> Seen:
        seen: Seen = []
        loader = stateful(
            Train(),
            batch_size=BATCH,
            shuffle=True,
            num_workers=workers,
            persistent_workers=persistent and workers > 0,
        )
        for _epoch in range(2):
            for batch in loader:
                catch(seen, batch)
        return seen

    seen, run = twice(train, tmp_path)
    check(run, seen)
    assert of(run, "Train").deliveries["epoch"].tolist() == [0] * 8 + [1] * 8
    assert of(run, "Train").config.loader.endswith("StatefulDataLoader")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_stateful_dataloader_flags_what_its_fast_forward_swallowed(workers, tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def train(_: Path) -> Seen:
        seen: Seen = []

        def make() -> Any:
            # A snapshot every third batch: after five, two have to be gone through again.
            return stateful(Train(), batch_size=BATCH, num_workers=workers, snapshot_every_n_steps=3)

        first = make()
        for number, batch in enumerate(first, start=1):
            catch(seen, batch)
            if number == 5:
                state = first.state_dict()
                break
        resumed = make()
        resumed.load_state_dict(state)
        for batch in resumed:
            catch(seen, batch)
        return seen

    seen, run = twice(train, tmp_path)
    assert [b["index"][0] // BATCH for b in seen] == [*range(8)]
    forward = [int(loader.deliveries["fast_forward"].sum()) for loader in run.loaders]
    assert sum(forward) == (2 if workers else 0)
    told = sorted(
        (int(got), int(worker), int(pid))
        for loader in run.loaders
        for got, worker, pid, ff in zip(
            *(loader.deliveries[c] for c in ("got_ns", "worker", "pid", "fast_forward")), strict=True
        )
        if not ff
    )
    assert [(worker, pid) for _, worker, pid in told] == [(b["worker"], b["pid"]) for b in seen]
    for loader in run.loaders:
        starts, ends = (loader.deliveries[name] for name in ("fetch_start_ns", "fetch_end_ns"))
        assert (starts > 0).all(), "each delivery is joined to its fetch"
        assert np.unique(starts).size == starts.size, "and no fetch to two"
        assert (ends <= loader.deliveries["got_ns"]).all()


def test_a_stateful_stream_is_joined_worker_by_worker(tmp_path):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def train(_: Path) -> Seen:
        seen: Seen = []
        for batch in stateful(Stream(), batch_size=BATCH, num_workers=2):
            catch(seen, batch, "Stream")
        return seen

    seen, run = twice(train, tmp_path)
    deliveries = of(run, "Stream").deliveries
    assert deliveries["worker"].tolist() == [b["worker"] for b in seen]
    assert deliveries["pid"].tolist() == [b["pid"] for b in seen]
    assert (deliveries["fetch_start_ns"] > 0).all()


# -- Accelerate --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stateful", [False, True], ids=["plain", "stateful"])
def test_accelerate_rebuilds_the_loader_and_all_of_it_is_seen(workers, stateful, tmp_path):
    accelerate = pytest.importorskip("accelerate")
    if stateful:
        pytest.importorskip("torchdata.stateful_dataloader")

    def train(_: Path) -> Seen:
        seen: Seen = []
        config = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=stateful)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
        train_loader, valid_loader = accelerator.prepare(
            DataLoader(Train(), batch_size=BATCH, shuffle=True, num_workers=workers),
            DataLoader(Valid(), batch_size=BATCH, num_workers=workers),
        )
        for _epoch in range(2):
            for batch in train_loader:
                catch(seen, batch)
            for batch in valid_loader:
                catch(seen, batch, "Valid")
        for batch in accelerator.skip_first_batches(train_loader, 5):
            seen.append({**caught(batch), "loader": "Skipped"})
        return seen

    seen, run = twice(train, tmp_path)
    epochs = [b for b in seen if b["loader"] != "Skipped"]
    skipped = [b for b in seen if b["loader"] == "Skipped"]
    deliveries = of(run, "Valid").deliveries
    assert deliveries["pid"].tolist() == [b["pid"] for b in epochs if b["loader"] == "Valid"]
    # skip_first_batches makes a loader of its own over the same dataset.
    train_seen = [b for b in epochs if b["loader"] == "Train"] + skipped
    told = sorted(
        (int(got), int(worker), int(pid), int(start))
        for loader in run.loaders
        if loader.config.dataset.endswith(".Train")
        for got, worker, pid, start in zip(
            *(loader.deliveries[c] for c in ("got_ns", "worker", "pid", "fetch_start_ns")), strict=True
        )
    )
    # Without state, the skipping loader's batch sampler skips; nothing more than what was seen is fetched.
    assert [(worker, pid) for _, worker, pid, _ in told] == [(b["worker"], b["pid"]) for b in train_seen]
    assert all(start > 0 for *_, start in told)


def caught(batch: dict[str, Any]) -> dict[str, Any]:
    one: Seen = []
    catch(one, batch)
    return one[0]


# -- Lightning ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_lightning_keeps_train_and_validation_apart(workers, persistent, tmp_path):
    lightning = pytest.importorskip("lightning")
    persistent = persistent and workers > 0

    class Module(lightning.LightningModule):
        def __init__(self, seen: Seen) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.seen = seen

        def training_step(self, batch, number):
            catch(self.seen, batch)
            return self.layer(batch["x"]).mean()

        def validation_step(self, batch, number):
            catch(self.seen, batch, "Valid")

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    def train(folder: Path) -> Seen:
        seen: Seen = []
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            num_sanity_val_steps=2,
        )
        options = {"batch_size": BATCH, "num_workers": workers, "persistent_workers": persistent}
        trainer.fit(
            Module(seen), DataLoader(Train(), shuffle=True, **options), DataLoader(Valid(), **options)
        )
        return seen

    seen, run = twice(train, tmp_path)
    check_up_to_prefetch(run, seen, ("Train", "Valid"))


def check_up_to_prefetch(run: Run, seen: Seen, labels: Iterable[str]) -> None:
    """As `check`, where the framework may ask for one batch more than it hands on (a sanity check)."""
    assert {loader.config.dataset.rsplit(".", 1)[-1] for loader in run.loaders} == set(labels)
    for label in labels:
        deliveries = of(run, label).deliveries
        told = list(zip(deliveries["worker"].tolist(), deliveries["pid"].tolist(), strict=True))
        mine = [(b["worker"], b["pid"]) for b in seen if b["loader"] == label]
        remaining = iter(told)
        assert all(one in remaining for one in mine), "what was trained on is in the trace, in this order"
        assert len(told) - len(mine) <= 1
        assert (deliveries["fetch_start_ns"] > 0).all()


# -- Hugging Face Trainer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_hugging_face_trainer_is_seen_through_accelerate(workers, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(torch.nn.Module):
        def __init__(self, seen: Seen) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.seen = seen

        def forward(self, index, worker, pid, x, draws, **_):
            batch = {"index": index, "worker": worker, "pid": pid, "draws": draws}
            catch(self.seen, batch, "Train" if self.training else "Valid")
            return {"loss": self.layer(x).mean(), "out": x}

    def train(folder: Path) -> Seen:
        seen: Seen = []
        arguments = transformers.TrainingArguments(
            output_dir=str(folder),
            use_cpu=True,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            num_train_epochs=2,
            dataloader_num_workers=workers,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            seed=7,
        )
        transformers.Trainer(
            model=Model(seen), args=arguments, train_dataset=Train(), eval_dataset=Valid()
        ).train()
        return seen

    seen, run = twice(train, tmp_path)
    check(run, seen, ("Train", "Valid"))
