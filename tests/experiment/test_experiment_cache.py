"""The page cache as a condition of whole passes over real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traceml_lite.experiment import pagecache
from traceml_lite.experiment.plan import Request
from traceml_lite.experiment.sweep import run_sweep

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FACTORY = """
import torch
from torch.utils.data import DataLoader, Dataset


class Shards(Dataset):
    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 40

    def __getitem__(self, index):
        with open(f"{self.folder}/shard-{index % 20:02d}.bin", "rb") as file:
            return torch.frombuffer(bytearray(file.read(1 << 16)), dtype=torch.uint8)


def make(root):
    return DataLoader(Shards(root), 2, num_workers=1)
"""


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(20):
        with (folder / f"shard-{number:02d}.bin").open("wb") as file:
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    paths = [str(path) for path in folder.iterdir()]
    pagecache.evict(paths)
    if pagecache.cache_state(paths).state != "cold":
        pytest.skip("this file system keeps its pages (tmpfs, overlay in memory)")
    return folder


@pytest.mark.parametrize("wanted", ["cold", "warm"])
def test_each_pass_begins_with_the_cache_that_was_asked_for(shards: Path, tmp_path: Path, wanted: str):
    place = tmp_path / "sharded.py"
    place.write_text(FACTORY)
    request = Request(
        f"{place}:make", settings=("num_workers=1,2",), arguments=(("root", str(shards)),), deliveries=6,
        one_direction=True, cache=wanted,
    )  # fmt: skip
    result = run_sweep(request, tmp_path / "sweep")
    assert [one.status.value for one in result.passes] == ["done", "done"]
    # Four of the twenty shards were read in the first pass; the others lie beside them.
    assert [one.cache for one in result.passes] == [wanted, wanted]
    shares = [one.cache_share for one in result.passes]
    assert all(share <= 0.05 if wanted == "cold" else share >= 0.95 for share in shares)


def test_what_the_first_reading_brought_into_memory_is_faster_the_second_time(shards: Path, tmp_path: Path):
    place = tmp_path / "sharded.py"
    place.write_text(FACTORY)
    request = Request(
        f"{place}:make", controls=("repeat",), arguments=(("root", str(shards)),), deliveries=10,
        one_direction=True, cache="cold",
    )  # fmt: skip
    (answer,) = run_sweep(request, tmp_path / "sweep").controls
    assert answer.control == "repeat"
    assert answer.numbers["ranks"] == 10
    assert answer.numbers["second_over_first"] > 0
