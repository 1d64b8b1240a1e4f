"""Batches of the real LeRobotDataset: right, the same whatever fetches them, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_batches import FRAMES, HEIGHT, WIDTH, digest

from traceml_lite._errors import TargetError, UsageError
from traceml_lite.consumers import lerobot

pytestmark = [
    pytest.mark.lerobot,
    # Importing lerobot takes seconds, and a spawned worker does it again; on a busy host a minute.
    pytest.mark.timeout(600),
    # Warnings of lerobot, datasets, torch and av are not ours to mend.
    pytest.mark.filterwarnings("default"),
]

SUMMARY = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from lerobot_batches import digest
from traceml_lite.consumers.lerobot import build
if __name__ == "__main__":
    print(digest(build(Path({root!r}), {arguments!r}, seed=3), 3))
"""


def files_in(folder: Path) -> list[Path]:
    """The files below a folder. torch itself leaves an empty one in the temporary directory."""
    return [path for path in folder.rglob("*") if not path.is_dir()]


def in_a_process(
    root: Path, arguments: dict[str, str], python: str | Path = sys.executable, **environ: str
) -> str:
    code = SUMMARY.format(tests=str(Path(__file__).parent), root=str(root), arguments=arguments)
    own = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [str(python), "-W", "ignore", "-c", code],
        env=own | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_sample_holds_a_frame_and_the_actions_that_follow_it(root: Path) -> None:
    import pyarrow.parquet as pq

    [file] = (root / "data").glob("*/*.parquet")
    actions = np.array(pq.read_table(file, columns=["action"])["action"].to_pylist(), dtype=np.float32)
    loader = lerobot.build(root, {"num_workers": "0", "batch_size": "4", "chunk": "50"}, seed=1)
    batch = next(iter(loader))
    assert batch["observation.images.top"].shape == (4, 3, HEIGHT, WIDTH)
    for index, chunk, padded in zip(batch["index"], batch["action"], batch["action_is_pad"], strict=True):
        wanted = np.minimum(int(index) + np.arange(50), FRAMES - 1)
        np.testing.assert_array_equal(chunk.numpy(), actions[wanted])
        np.testing.assert_array_equal(padded.numpy(), int(index) + np.arange(50) >= FRAMES)


@pytest.mark.parametrize(
    "other",
    [
        {"num_workers": "2"},
        {"num_workers": "2", "start_method": "spawn"},
        {"num_workers": "1", "start_method": "forkserver", "access": "select_columns"},
        {"num_workers": "0", "access": "select_columns"},
        {"num_workers": "2", "persistent_workers": "true", "prefetch_factor": "4"},
    ],
)
def test_batches_are_identical_whatever_fetches_them(root: Path, other: dict[str, str]) -> None:
    plain = digest(lerobot.build(root, {"num_workers": "0"}, seed=3), 3)
    assert digest(lerobot.build(root, other, seed=3), 3) == plain


def test_another_seed_draws_other_samples(root: Path) -> None:
    first, second = (digest(lerobot.build(root, {"num_workers": "0"}, seed=seed), 3) for seed in (3, 4))
    assert first != second


def test_a_column_view_decodes_one_image_a_sample_and_not_one_a_row(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets.features import Image

    decoded: Counter[str] = Counter()
    original = Image.decode_example

    def count(self: Any, *values: Any, **named: Any) -> Any:
        decoded["images"] += 1
        return original(self, *values, **named)

    loader = lerobot.build(
        root, {"num_workers": "0", "batch_size": "2", "access": "select_columns", "chunk": "20"}, seed=0
    )
    monkeypatch.setattr(Image, "decode_example", count)
    next(iter(loader))
    assert decoded["images"] == 2


def test_a_view_follows_the_table_when_lerobot_replaces_it(root: Path) -> None:
    loader = lerobot.build(root, {"num_workers": "0", "access": "select_columns", "chunk": "2"}, seed=0)
    dataset: Any = loader.dataset
    owner = dataset if "_query_hf_dataset" in vars(dataset) else dataset.reader
    before = owner._query_hf_dataset({"action": [0, 1]})["action"]
    owner.hf_dataset = owner.hf_dataset.select(list(range(1, FRAMES)))
    after = owner._query_hf_dataset({"action": [0, 1]})["action"]
    assert after[0].equal(before[1])
    assert not after[0].equal(before[0])


def test_an_epoch_can_be_longer_than_the_data(root: Path) -> None:
    loader = lerobot.build(
        root, {"num_workers": "0", "batches": "20", "shuffle": "false", "chunk": "0"}, seed=0
    )
    indices = [int(index) for batch in loader for index in batch["index"]]
    assert indices == [place % FRAMES for place in range(20 * 8)]
    assert len(lerobot.build(root, {"batches": "30"}, seed=0)) == 30


def test_options_reach_the_loader(root: Path) -> None:
    loader = lerobot.build(root, {"in_order": "false", "drop_last": "true", "prefetch_factor": "3"}, seed=0)
    assert (loader.in_order, loader.drop_last, loader.prefetch_factor) == (False, True, 3)
    assert lerobot.build(root, {"num_workers": "0"}, seed=0).prefetch_factor is None


def test_nothing_is_left_outside_the_dataset(root: Path, tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    in_a_process(root, {"num_workers": "2", "start_method": "spawn"}, HOME=str(home), TMPDIR=str(temporary))
    assert files_in(home) == files_in(temporary) == []
    assert list((root / lerobot.CACHE_FOLDER).iterdir())


def test_making_data_and_reading_it_in_one_process_leaves_nothing_outside(tmp_path: Path) -> None:
    home, temporary, root = tmp_path / "home", tmp_path / "tmp", tmp_path / "set"
    home.mkdir()
    temporary.mkdir()
    code = (
        "from pathlib import Path\nfrom traceml_lite.consumers.lerobot import build, make\n"
        f"root = make(Path({str(root)!r}), frames=10, height=16, width=16)\n"
        "print(len(list(build(root, {'num_workers': '0'}, seed=0))))"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=own | {"HOME": str(home), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr
    assert files_in(home) == files_in(temporary) == []


def test_a_dataset_that_cannot_be_written_to_gets_a_cache_that_goes_away(root: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.access = lambda *a, **k: False\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environ = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", "TMPDIR": str(temporary)}
    assert in_a_process(root, {"num_workers": "0"}, **environ) == in_a_process(root, {"num_workers": "0"})
    assert files_in(temporary) == []


def test_the_same_sizes_and_seed_make_the_same_data(root: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    again = lerobot.make(tmp_path / "again", frames=FRAMES, height=HEIGHT, width=WIDTH)
    one, other = (pq.read_table(next((folder / "data").glob("*/*.parquet"))) for folder in (root, again))
    assert one.equals(other)
    assert sorted(path.name for path in again.iterdir()) == ["data", "meta"]


def test_data_is_never_made_over_something(root: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="exists already"):
        lerobot.make(root)
    with pytest.raises(UsageError, match="16 x 16"):
        lerobot.make(tmp_path / "tiny", height=4)
    assert not (tmp_path / "tiny").exists()


def test_data_whose_making_broke_off_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("traceml_lite.consumers._lerobot_data._image", fail)
    with pytest.raises(KeyboardInterrupt):
        lerobot.make(tmp_path / "set", frames=3, height=16, width=16)
    assert list(tmp_path.iterdir()) == []


def test_the_command_makes_data_and_reports_an_error_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["make", str(tmp_path / "set"), "--frames", "5", "--height", "16", "--width", "16"]
    assert lerobot.main(arguments) == 0
    assert "5 frames of 16 x 16" in capsys.readouterr().out
    assert json.loads((tmp_path / "set" / "meta" / "info.json").read_text())["total_frames"] == 5
    assert lerobot.main(arguments) == 1
    assert "exists already" in capsys.readouterr().err


OVERLAYS = Path(sys.prefix).parent / "overlays"


@pytest.mark.slow
@pytest.mark.skipif(not OVERLAYS.is_dir(), reason="no other versions are laid out beside this environment")
@pytest.mark.parametrize(
    ("versions", "access"),
    [
        (("lerobot-0.4.1",), "as_installed"),
        (("datasets-4.8.5",), "as_installed"),
        (("lerobot-0.4.4", "datasets-4.8.5"), "as_installed"),
        (("lerobot-0.4.4", "datasets-4.8.5"), "select_columns"),
    ],
)
def test_every_version_gives_identical_batches(root: Path, versions: tuple[str, ...], access: str) -> None:
    plain = digest(lerobot.build(root, {"num_workers": "0"}, seed=3), 3)
    path = ":".join(str(OVERLAYS / version) for version in versions)
    assert in_a_process(root, {"num_workers": "0", "access": access}, PYTHONPATH=path) == plain


CURRENT = Path(sys.prefix).parent / "current" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(not CURRENT.exists(), reason="today's LeRobot is not set up (environment.py --current)")
@pytest.mark.parametrize("access", ["as_installed", "select_columns"])
def test_todays_lerobot_gives_identical_batches(root: Path, access: str) -> None:
    plain = digest(lerobot.build(root, {"num_workers": "0"}, seed=3), 3)
    assert in_a_process(root, {"num_workers": "0", "access": access}, CURRENT) == plain
