"""The page cache as a condition, on real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traceml_lite.experiment import pagecache


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    paths = []
    for number in range(3):
        place = tmp_path / f"shard-{number}.bin"
        with place.open("wb") as file:
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        paths.append(str(place))
    return paths


def _can_evict(paths: list[str]) -> bool:
    pagecache.evict(paths)
    return pagecache.cache_state(paths).state == "cold"


def test_reading_makes_warm_and_dropping_makes_cold(data: list[str]):
    if not _can_evict(data):
        pytest.skip("this file system keeps its pages (tmpfs, overlay in memory)")
    assert pagecache.warm(data, available_bytes=1 << 40)
    state = pagecache.cache_state(data)
    assert (state.state, state.resident, state.total_bytes, state.files) == ("warm", 1.0, 3 << 20, 3)
    pagecache.evict(data)
    assert pagecache.cache_state(data).resident == 0.0


def test_one_of_three_files_in_memory_is_neither_warm_nor_cold(data: list[str]):
    if not _can_evict(data):
        pytest.skip("this file system keeps its pages (tmpfs, overlay in memory)")
    Path(data[0]).read_bytes()
    assert pagecache.cache_state(data).state == "partly"


def test_more_data_than_half_of_the_memory_is_not_warmed(data: list[str]):
    assert not pagecache.warm(data, available_bytes=4 << 20)


def test_no_file_and_a_lost_file_are_said_to_be_so(tmp_path: Path):
    assert pagecache.cache_state([]).state == "no files"
    assert pagecache.cache_state([str(tmp_path / "gone")]).state == "unknown"


def test_software_and_the_sweeps_own_files_are_no_data(data: list[str], tmp_path: Path):
    code = tmp_path / "train.py"
    code.write_text("")
    seen = [*data, str(code), os.__file__, "/proc/self/maps", str(tmp_path), str(tmp_path / "gone.bin")]
    assert pagecache.data_files(seen) == data
    assert pagecache.data_files(seen, without=[tmp_path]) == []


def test_the_files_beside_one_that_was_read_are_found_by_their_suffix(data: list[str], tmp_path: Path):
    (tmp_path / "notes.txt").write_text("x")
    assert sorted(pagecache.with_siblings(data[:1])) == sorted(data)


def test_files_held_open_by_a_process_are_seen_from_outside(data: list[str]):
    with open(data[0], "rb"):
        assert data[0] in pagecache.held_files([os.getpid()])
    assert data[0] not in pagecache.held_files([os.getpid()])


def test_a_process_that_is_gone_holds_nothing():
    assert pagecache.held_files([2**22 + 1]) == set()
