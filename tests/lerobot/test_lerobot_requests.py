"""What `lerobot:ROOT` says before it touches lerobot; runs without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from traceml_lite._errors import TargetError, UsageError
from traceml_lite.consumers import lerobot

INFO = {"codebase_version": "v3.0", "fps": 50, "features": {"action": {}}}


def dataset_like(folder: Path, info: Any = INFO) -> Path:
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "info.json").write_text(info if isinstance(info, str) else json.dumps(info))
    (folder / "data" / "chunk-000").mkdir(parents=True)
    (folder / "data" / "chunk-000" / "file-000.parquet").touch()
    return folder


def test_a_missing_folder_is_named_with_the_command_that_makes_one_and_is_not_created(tmp_path: Path) -> None:
    root = tmp_path / "nowhere"
    with pytest.raises(TargetError, match=f"no such folder.*consumers.lerobot make {root}"):
        lerobot.build(root, {}, seed=0)
    assert not root.exists()


def test_the_folder_above_a_dataset_is_not_a_dataset(tmp_path: Path) -> None:
    dataset_like(tmp_path / "set")
    with pytest.raises(TargetError, match="not the one above it"):
        lerobot.build(tmp_path, {}, seed=0)


@pytest.mark.parametrize("info", ["{", "[]", '{"fps": 50}'])
def test_an_info_file_that_is_none_is_named(tmp_path: Path, info: str) -> None:
    with pytest.raises(TargetError, match=r"info.json: not a LeRobotDataset"):
        lerobot.read_info(dataset_like(tmp_path / "set", info))


def test_the_former_format_is_refused_with_its_converter(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"format v2.1, expected v3.*convert_dataset_v21_to_v30"):
        lerobot.read_info(dataset_like(tmp_path / "set", {**INFO, "codebase_version": "v2.1"}))


def test_a_dataset_without_its_data_is_refused_before_lerobot_would_download_it(tmp_path: Path) -> None:
    root = dataset_like(tmp_path / "set")
    (root / "data" / "chunk-000" / "file-000.parquet").unlink()
    with pytest.raises(TargetError, match="found none"):
        lerobot.read_info(root)


def test_without_lerobot_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot, "_version", lambda package: None)
    with pytest.raises(TargetError, match=r"traceml-lite\[lerobot\]"):
        lerobot.build(dataset_like(tmp_path / "set"), {}, seed=0)
    with pytest.raises(TargetError, match=r"traceml-lite\[lerobot\]"):
        lerobot.make(tmp_path / "new")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"worker": "2"}, "num_workers"),
        ({"num_workers": "many"}, "expected int, got 'many'"),
        ({"num_workers": "-1"}, "expected at least 0"),
        ({"batch_size": "0"}, "expected at least 1"),
        ({"access": "rows"}, "as_installed, select_columns"),
        ({"start_method": "thread"}, "fork"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_right(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lerobot.build(Path("unused"), arguments, seed=0)


def test_indices_are_repeated_in_order_up_to_the_number_asked_for() -> None:
    cycle = lerobot._Cycle(3, 7)
    assert (list(cycle), len(cycle), cycle[4]) == ([0, 1, 2, 0, 1, 2, 0], 7, 1)


def test_an_action_chunk_is_spaced_by_the_frame_rate() -> None:
    assert lerobot._action_chunk(INFO, 3) == {"action": [0.0, 0.02, 0.04]}
    assert lerobot._action_chunk(INFO, 0) is None
    assert lerobot._action_chunk({**INFO, "features": {}}, 3) is None


def test_caches_go_beside_the_data_and_what_the_user_set_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(lerobot.sys.modules, "datasets", raising=False)
    for name in ("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    lerobot.prepare_environment(tmp_path)
    assert lerobot.os.environ["HF_HOME"].startswith(str(tmp_path / lerobot.CACHE_FOLDER))
    assert lerobot.os.environ["HF_HUB_OFFLINE"] == "1"

    monkeypatch.setenv("HF_HOME", "/elsewhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    lerobot.prepare_environment(tmp_path)
    assert lerobot.os.environ["HF_HOME"] == "/elsewhere"
    assert lerobot.os.environ["HF_HUB_OFFLINE"] == "0"


def test_a_temporary_cache_is_removed_by_the_process_that_made_it_only(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    lerobot._remove_if_owner(str(scratch), lerobot.os.getpid() + 1)
    assert scratch.exists()
    lerobot._remove_if_owner(str(scratch), lerobot.os.getpid())
    assert not scratch.exists()
