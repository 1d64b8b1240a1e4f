"""Whole sweeps over an unedited script: order, resumption, hangs, failures, refusal. Real processes."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import scripts

from traceml_lite import store
from traceml_lite._errors import TargetError, UsageError
from traceml_lite.experiment.folder import SweepFolder
from traceml_lite.experiment.plan import Request
from traceml_lite.experiment.runner import Limits
from traceml_lite.experiment.sweep import load_sweep, run_sweep
from traceml_lite.records.sweep import PassStatus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Long enough for a process to start on a busy machine, so that the hang is within the training loop.
HANG_TIMEOUT_S = 25.0


def of_sweep(folder: Path) -> list[int]:
    """PIDs of processes that belong to a sweep."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("train") / "train.py"
    place.write_text(scripts.TRAIN)
    return place


@pytest.fixture(scope="module")
def plain(script: Path, tmp_path_factory: pytest.TempPathFactory):
    """A sweep that is interrupted within its third pass, and goes on with the same request."""
    folder = tmp_path_factory.mktemp("sweep") / "plain"
    request = Request(
        str(script), settings=("num_workers=0,2",), deliveries=12, script_arguments=("--lr", "0.1")
    )

    def interrupt(progress):
        if progress.planned is not None and progress.planned.number == 3 and progress.result is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(request, folder, progress=interrupt)
    left = of_sweep(folder)
    document = json.loads((folder / "sweep.json").read_text())
    first = {path: path.stat().st_mtime_ns for path in folder.glob("passes/*/trace/manifest.json")}
    lines: list[str] = []
    ended = []
    result = run_sweep(
        request, folder, say=lines.append, progress=lambda p: p.result is not None and ended.append(p)
    )
    return folder, request, document["result"], left, first, result, lines, ended


def test_an_interrupt_leaves_no_process_and_a_result_of_what_finished(plain):
    _, _, document, left, *_ = plain
    assert left == []
    assert document["complete"] is False
    assert document["why_incomplete"] == "interrupted"
    assert [one["status"] for one in document["passes"]] == ["done", "done", "interrupted"]


def test_the_same_command_again_runs_only_what_is_missing(plain):
    _, _, _, _, first, result, _, ended = plain
    kept = [path for path in first if path.parts[-3][:3] in ("000", "001", "002")]
    assert len(kept) == 3
    assert all(path.stat().st_mtime_ns == first[path] for path in kept)
    assert [one.planned.number for one in ended] == [3, 4]
    assert result.complete
    assert result.planned == 4


def test_two_arms_ran_a_b_b_a_and_each_saw_the_same_indices(plain):
    *_, result, _, _ = plain
    assert [one.condition for one in result.passes] == [
        "num_workers=0",
        "num_workers=2",
        "num_workers=2",
        "num_workers=0",
    ]
    hashes = {one.indices_hash for one in result.passes}
    assert len(hashes) == 1
    assert None not in hashes
    assert any("same indices in the same order" in note for note in result.notes)


def test_each_pass_has_the_loader_of_its_condition_and_its_deliveries(plain):
    folder, *_, result, _, _ = plain
    for one in result.passes:
        run = store.load(folder / one.trace)
        trace = next(loader for loader in run.loaders if loader.config.dataset.endswith("Slow"))
        workers = int(one.condition[-1])
        assert trace.config.num_workers == workers
        assert one.deliveries == trace.delivered == 12 + one.warmup
        assert one.warmup == 3 * workers
        assert one.mean_wait_ns == pytest.approx(trace.deliveries["wait_ns"][one.warmup :].mean())


def test_the_loader_that_delivers_most_is_varied_and_the_other_is_named(plain):
    folder, request, *_, result, lines, _ = plain
    assert result.loader == "DataLoader of Slow"
    _, facts, _ = SweepFolder(folder).read_plan(request)
    assert facts.loader == 1
    assert any("Small" in line for line in lines)


def test_what_torch_would_not_combine_is_said(plain):
    *_, result, _, _ = plain
    assert any("prefetch_factor=3 left out" in note for note in result.notes)


def test_the_script_is_not_edited(plain, script: Path):
    assert script.read_text() == scripts.TRAIN


def test_a_sweep_is_read_back_as_it_was_concluded(plain):
    folder, *_, result, _, _ = plain
    again = load_sweep(folder)
    assert again.passes == result.passes
    assert again.complete


def test_another_request_is_not_mixed_into_a_directory_that_holds_one(plain):
    folder, request, *_ = plain
    other = Request(request.target, settings=("num_workers=0,1",))
    with pytest.raises(UsageError, match="holds another sweep"):
        run_sweep(other, folder)


@pytest.fixture(scope="module")
def mixed(script: Path, tmp_path_factory: pytest.TempPathFactory):
    """Passes that end well, fail, hang, and draw another order."""
    folder = tmp_path_factory.mktemp("sweep") / "mixed"
    request = Request(
        str(script),
        settings=("env.TRAIN_MODE=plain,fail,hang,unseeded",),
        deliveries=20,
        one_direction=True,
        script_arguments=("--lr", "0.1"),
    )
    result = run_sweep(request, folder, Limits(pass_timeout_s=HANG_TIMEOUT_S))
    return folder, result


def test_a_hanging_pass_is_ended_and_its_trace_kept(mixed):
    folder, result = mixed
    hung = result.passes[2]
    assert hung.status is PassStatus.TIMEOUT
    assert "processes were killed" in hung.reason
    assert hung.deliveries == 18
    assert of_sweep(folder) == []
    stack = next(folder.glob("passes/003-*/stderr.txt")).read_text()
    assert "train.py" in stack


def test_a_failing_pass_has_the_scripts_own_error(mixed):
    _, result = mixed
    failed = result.passes[1]
    assert failed.status is PassStatus.FAILED
    assert failed.reason == "RuntimeError: the script's own error"


def test_arms_that_saw_other_indices_are_not_compared(mixed):
    _, result = mixed
    assert "saw other indices" in result.refused
    assert "unseeded" in result.refused
    assert result.comparisons == ()


def test_the_difference_is_named_where_it_is_allowed(mixed):
    folder, _ = mixed
    allowed = load_sweep(folder, allow_different=True)
    assert allowed.refused == ""
    assert any("other indices" in text for one in allowed.comparisons for text in one.unlike)


def test_what_was_allowed_when_the_sweep_ran_is_allowed_when_it_is_shown(mixed, tmp_path: Path):
    folder = tmp_path / "allowed"
    shutil.copytree(mixed[0], folder)
    document = json.loads((folder / "sweep.json").read_text())
    assert document["allow_different"] is False
    (folder / "sweep.json").write_text(json.dumps({**document, "allow_different": True}))
    assert load_sweep(folder).refused == ""
    del document["allow_different"]  # as an earlier version wrote it
    (folder / "sweep.json").write_text(json.dumps(document))
    assert load_sweep(folder).refused != ""


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)],
    ids=["control_c", "sigterm", "sighup"],
)
def test_an_interrupt_keeps_what_finished_and_leaves_no_process(
    script: Path, tmp_path: Path, number: int, code: int
):
    folder = tmp_path / "sweep"
    words = ["sweep", str(script), "-s", "num_workers=0,2", "-n", "8", "--out", str(folder)]
    command = [sys.executable, "-m", "traceml_lite", *words, "--", "--lr", "0.1"]
    # Under nohup, or behind a shell's &, a signal is inherited as ignored, and stays so.
    heard = functools.partial(signal.signal, number, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heard
    ) as sweep:
        deadline_s = time.monotonic() + 200
        while not list(folder.glob("passes/002-*/spec.json")):
            assert sweep.poll() is None, sweep.stderr.read()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        sweep.send_signal(number)
        _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == code, errors
    assert "1/4  num_workers=0  8 deliveries" in errors
    assert of_sweep(folder) == []
    document = json.loads((folder / "sweep.json").read_text())["result"]
    assert [one["status"] for one in document["passes"]] == ["done", "interrupted"]


def run_cli(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traceml_lite", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)


def test_a_sweep_of_which_no_pass_ends_well_is_no_success(tmp_path: Path):
    # Runs once, for the first look at the script, and never again.
    place = tmp_path / "once.py"
    once = "import os\nos.mkdir(__file__ + '.ran')\n"
    place.write_text(once + scripts.TRAIN)
    words = ("sweep", str(place), "-s", "num_workers=0,2", "-n", "8", "--one-direction", "--out", "s")
    done = run_cli(*words, "--", "--lr", "0.1", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("FileExistsError") == 2
    assert "Traceback" not in done.stderr


def test_a_module_is_swept_like_a_script(tmp_path: Path):
    package = tmp_path / "training"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "loop.py").write_text(scripts.TRAIN)
    words = ("sweep", "-m", "training.loop", "-s", "num_workers=0,2", "-n", "8", "--one-direction")
    done = run_cli(*words, "--out", "s", "--", "--lr", "0.1", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    passes = json.loads((tmp_path / "s" / "sweep.json").read_text())["result"]["passes"]
    assert [(one["condition"], one["status"]) for one in passes] == [
        ("num_workers=0", "done"),
        ("num_workers=2", "done"),
    ]
    assert passes[0]["indices_hash"] == passes[1]["indices_hash"] is not None


def test_a_script_without_a_loader_is_refused_with_its_reason(tmp_path: Path):
    place = tmp_path / "empty.py"
    place.write_text(scripts.NO_LOADER)
    with pytest.raises(TargetError, match="made no DataLoader"):
        run_sweep(Request(str(place), settings=("num_workers=0,2",)), tmp_path / "sweep")


def test_indices_stand_in_the_folder_of_each_pass(plain):
    folder, *_ = plain
    rows = np.load(next(folder.glob("passes/001-*/indices.npy")))
    assert rows.shape[1] == 3
    assert rows[-1, 1] >= 12 * 4
