"""A real LeRobotDataset behind a DataLoader as ``lerobot-train`` makes it: the target ``lerobot:ROOT``.

Works with lerobot 0.4.0 to 0.6.1 and never asks the hub: a wrong ``root`` would send LeRobot there, so the
folder is checked first. ``python -m traceml_lite.consumers.lerobot make ROOT`` makes data offline. What
``lerobot-train`` does beside loading (policy, Accelerate) is not here; run it under ``traceml-lite run``.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.metadata
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from traceml_lite._errors import TargetError, TracemlLiteError, UsageError
from traceml_lite.consumers import _lerobot_data
from traceml_lite.consumers._torchvision import Declared, declare_missing_operators
from traceml_lite.consumers.arguments import bind_arguments

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

# Folder inside the dataset for what Hugging Face derives from it (parquet as Arrow), so that nothing is
# left in the user's home, the next pass starts faster, and removing the dataset removes it.
CACHE_FOLDER = ".traceml-lite"


def _option(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class Options:
    """What ``-a name=value`` may set. The defaults are those of ``lerobot-train`` with ACT."""

    batch_size: int = _option(8, "samples per batch")
    num_workers: int = _option(4, "worker processes; 0 fetches in the consumer")
    prefetch_factor: int = _option(2, "batches prefetched per worker")
    in_order: bool = _option(True, "deliver in the sampler's order; false needs torch 2.6")
    shuffle: bool = _option(True, "draw the samples at random")
    batches: int = _option(0, "length of an epoch, repeating samples; 0: the data once")
    chunk: int = _option(100, "actions per sample, ACT's chunk_size; 0: the frame alone")
    access: Literal["as_installed", "select_columns"] = _option(
        "as_installed", "as_installed, or select_columns: read one column at a time"
    )
    persistent_workers: bool = _option(False, "keep the workers between epochs")
    start_method: Literal["fork", "spawn", "forkserver"] | None = _option(None, "how workers start")
    pin_memory: bool = _option(False, "copy batches to pinned memory")
    drop_last: bool = _option(False, "leave out a shorter last batch")

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            if (found := getattr(self, name)) < least:
                raise UsageError(f"lerobot:ROOT: {name}={found}: expected at least {least}")


_LEAST = {"batch_size": 1, "num_workers": 0, "prefetch_factor": 1, "batches": 0, "chunk": 0}


def build(root: Path, arguments: Mapping[str, str], seed: int) -> DataLoader[Any]:
    """A DataLoader over the LeRobotDataset in ``root``.

    Args:
        root: The dataset's own folder, the one that holds ``meta/info.json``.
        arguments: Options by name, as text; see `Options`.
        seed: Seed of the sampler and of the workers: the same seed gives the same batches.

    Returns:
        The loader; each iterator over it starts an epoch.

    Raises:
        TargetError: lerobot is not installed, or ``root`` holds no dataset that this version can read.
        UsageError: An unknown option, or a value that does not fit it.
    """
    options = Options(**bind_arguments(Options, arguments, whose="lerobot:ROOT"))
    info = read_info(root)
    _require_lerobot()
    prepare_environment(root)
    declare_missing_operators()

    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from torch.utils.data import DataLoader, RandomSampler

    dataset = LeRobotDataset(
        repo_id=f"local/{root.resolve().name}",
        root=root,
        delta_timestamps=_action_chunk(info, options.chunk),
    )
    if options.access == "select_columns":
        use_column_views(dataset)
    # A spawned worker unpickles the dataset before any code of ours runs there, and that imports torchvision.
    ForkingPickler.register(LeRobotDataset, _reduce_with_operators)

    generator = torch.Generator().manual_seed(seed)
    samples = options.batches * options.batch_size if options.batches else None
    sampler: Any
    if options.shuffle:
        sampler = RandomSampler(dataset, num_samples=samples, generator=generator)
    else:
        sampler = _Cycle(len(dataset), samples if samples is not None else len(dataset))
    workers = options.num_workers
    return DataLoader(
        dataset,
        batch_size=options.batch_size,
        sampler=sampler,
        num_workers=workers,
        prefetch_factor=options.prefetch_factor if workers else None,
        persistent_workers=options.persistent_workers and workers > 0,
        multiprocessing_context=options.start_method if workers else None,
        pin_memory=options.pin_memory,
        drop_last=options.drop_last,
        generator=generator,
        # Not known to torch before 2.6, which is why it is passed only where it was asked for.
        **({} if options.in_order else {"in_order": False}),
    )


def read_info(root: Path) -> dict[str, Any]:
    """``meta/info.json`` of the dataset in ``root``.

    Raises:
        TargetError: There is no dataset here that lerobot can read.
    """
    path = root / "meta" / "info.json"
    hint = f"Make one offline with: python -m traceml_lite.consumers.lerobot make {root}"
    if not path.is_file():
        found = "a folder without it" if root.is_dir() else "no such folder"
        raise TargetError(
            f"lerobot:{root}: expected a LeRobotDataset, a folder with meta/info.json; found {found}. "
            + (hint if not root.exists() else "Give the dataset's own folder, not the one above it.")
        )
    try:
        info: dict[str, Any] = json.loads(path.read_text())
        version, _, _ = str(info["codebase_version"]), info["fps"], info["features"]
    except (ValueError, KeyError, TypeError) as error:
        raise TargetError(f"{path}: not a LeRobotDataset's info file ({error!r}). {hint}-new") from error
    if not version.startswith("v3"):
        raise TargetError(
            f"{path}: dataset format {version}, expected v3.x, which lerobot 0.4 and later read. "
            "Convert it with: python -m lerobot.datasets.v30.convert_dataset_v21_to_v30"
        )
    if not any((root / "data").glob("*/*.parquet")):
        raise TargetError(f"lerobot:{root}: expected data/chunk-*/file-*.parquet, found none. {hint}-new")
    return info


def _require_lerobot() -> None:
    if _version("lerobot") is None:
        raise TargetError("lerobot is not installed. Install it with: pip install 'traceml-lite[lerobot]'")


def prepare_environment(root: Path) -> None:
    """Keep Hugging Face's libraries offline, and their caches beside the data unless the user placed them.

    Only what is not set is set; it goes into ``os.environ`` so that workers inherit it. A dataset folder
    that cannot be written to gets a temporary cache, removed when this process ends.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    placed = {"HF_HOME", "HF_DATASETS_CACHE"} & set(os.environ)
    if placed or "datasets" in sys.modules:
        return
    if os.access(root, os.W_OK):
        # One cache per version, since they do not promise to read each other's.
        os.environ["HF_HOME"] = str(root.resolve() / CACHE_FOLDER / f"datasets-{_version('datasets')}")
        return
    scratch = tempfile.mkdtemp(prefix="traceml-lite-hf-")
    os.environ["HF_HOME"] = scratch
    atexit.register(_remove_if_owner, scratch, os.getpid())


def _remove_if_owner(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _version(package: str) -> str | None:
    """Version of an installed distribution; a folder that happens to have its name is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _action_chunk(info: Mapping[str, Any], chunk: int) -> dict[str, list[float]] | None:
    """ACT's request: the action now and at the next ``chunk`` - 1 frames, as offsets in seconds."""
    if not chunk or "action" not in info["features"]:
        return None
    return {"action": [i / info["fps"] for i in range(chunk)]}


class _Cycle(Sequence[int]):
    """Indices 0, 1, 2 ... of a dataset of ``length``, over again until there are ``samples`` of them."""

    def __init__(self, length: int, samples: int) -> None:
        self._length, self._samples = length, samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < self._samples:
            raise IndexError(place)
        return place % self._length

    def __iter__(self) -> Iterator[int]:
        return (place % self._length for place in range(self._samples))


class ColumnViews:
    """Stands in for LeRobot's ``_query_hf_dataset`` and reads, for each key, that column only.

    LeRobot sets a transform on its table. `datasets` before 4.4 applies it to one column when one is asked
    for; from 4.4 it decodes the whole row, images included, to return a few floats. A view made with
    ``select_columns`` has no other column to decode, whatever the version. The idea is that of
    lerobot#4314.
    """

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._source: Any = None
        self._views: dict[str, Any] = {}

    def __call__(self, query_indices: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """The rows asked for of each key, stacked; keys that are videos are left to LeRobot."""
        import torch

        table = self._owner.hf_dataset
        if table is not self._source:
            # LeRobot replaces its table when it reloads; views of the former one would be stale.
            self._source, self._views = table, {}
        meta = getattr(self._owner, "meta", None) or self._owner._meta  # noqa: SLF001 - 0.6's reader has no other name
        relative = getattr(self._owner, "_absolute_to_relative_idx", None)
        result = {}
        for key, rows in query_indices.items():
            if key in meta.video_keys:
                continue
            if key not in self._views:
                self._views[key] = table.select_columns([key])
            wanted = list(rows) if relative is None else [relative[row] for row in rows]
            result[key] = torch.stack(self._views[key][wanted][key])
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {"_owner": self._owner, "_source": None, "_views": {}}


def use_column_views(dataset: Any) -> None:
    """Make ``dataset`` (a LeRobotDataset of any version) read single columns through `ColumnViews`."""
    owner = dataset if hasattr(dataset, "_query_hf_dataset") else dataset.reader
    owner._query_hf_dataset = ColumnViews(owner)  # noqa: SLF001 - the one access path of every version


def _reduce_with_operators(dataset: Any) -> tuple[Any, ...]:
    make, arguments, *rest = dataset.__reduce_ex__(4)
    return (_rebuild, (Declared(), make, arguments), *rest)


def _rebuild(declared: Declared, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    del declared  # Unpickled ahead of the class, which is all it is for.
    return make(*arguments)


def make(root: Path, **sizes: int) -> Path:
    """Make a dataset offline in ``root``; see `_lerobot_data.make_dataset` for the sizes.

    Raises:
        TargetError: lerobot is not installed, or ``root`` exists.
        UsageError: A size out of range.
    """
    _require_lerobot()
    # The folder is not there yet, so this gives a temporary cache; without it a loader built later in this
    # process would leave its cache in the user's home.
    prepare_environment(root)
    declare_missing_operators()
    return _lerobot_data.make_dataset(root, **sizes)


def main(arguments: Sequence[str] | None = None) -> int:
    """The module's own command line: ``make ROOT``. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m traceml_lite.consumers.lerobot",
        description="Make data for the target lerobot:ROOT, offline.",
        epilog="options of lerobot:ROOT, each given as -a name=value:\n"
        + "\n".join(
            f"  {f.name:<19} {f.metadata['meaning']} (default: {f.default})" for f in fields(Options)
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser(
        "make",
        help="make a LeRobotDataset shaped like ALOHA-sim",
        description="Make a LeRobotDataset shaped like ALOHA-sim: one camera stored as images in parquet, a "
        "state and an action of 14 numbers. 1000 frames take about 7 MB at 96 x 96, 124 MB at 240 x 320 and "
        "493 MB at 480 x 640.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    maker.add_argument("root", type=Path, help="folder to make; it must not exist")
    maker.add_argument("--frames", type=int, default=1000, help="frames in all, in episodes of at most 500")
    maker.add_argument("--height", type=int, default=240, help="height of an image in pixels")
    maker.add_argument("--width", type=int, default=320, help="width of an image in pixels")
    maker.add_argument("--fps", type=int, default=_lerobot_data.FPS, help="frames per second")
    maker.add_argument("--seed", type=int, default=0, help="seed of the drawing")
    given = vars(parser.parse_args(arguments))
    given.pop("command")
    root = given.pop("root")
    try:
        make(root, **given)
    except TracemlLiteError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(f"{root}: {given['frames']} frames of {given['height']} x {given['width']}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
