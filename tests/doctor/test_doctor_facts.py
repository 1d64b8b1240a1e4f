"""Reading the host's facts, on the real host and on a made-up root directory."""

import os
import sys
import types
from pathlib import Path

import pytest

from traceml_lite.probe import facts
from traceml_lite.probe.facts import read_host_facts, read_path_facts


def counts(environ, **modules):
    torch, cv2 = modules.get("torch"), modules.get("cv2")
    return {count.name: count for count in facts._threads(torch, cv2, environ)}


def fake_torch(intra=4, inter=8):
    return types.SimpleNamespace(get_num_threads=lambda: intra, get_num_interop_threads=lambda: inter)


def test_this_host_has_facts_and_no_reason_is_missing_for_those_it_lacks():
    seen = read_host_facts(Path("/proc"))
    assert seen.cpus_online
    assert seen.cpus_affinity == tuple(sorted(os.sched_getaffinity(0)))
    assert seen.cpus_usable
    assert seen.start_method in ("fork", "spawn", "forkserver")
    assert seen.torch is not None
    assert seen.torch.sharing_strategy in seen.torch.sharing_strategies
    assert seen.path is not None
    assert seen.path.kind == "proc"
    # A limit that does not exist has no reason; a fact that could not be read has.
    for name in ("memory_bytes", "shm_bytes", "open_files", "load_1min"):
        assert (getattr(seen, name) is None) == (name in seen.unknown)


def test_a_host_without_proc_still_gives_the_other_facts_and_reasons_for_the_rest(tmp_path):
    seen = read_host_facts(root=tmp_path, environ={})
    assert (seen.memory_bytes, seen.shm_bytes, seen.open_files) == (None, None, None)
    assert {"memory_bytes", "shm_bytes", "open_files", "pressure_cpu"} <= set(seen.unknown)
    assert "does not exist" in seen.unknown["memory_bytes"]
    assert all("does not exist" in reason for reason in seen.counters.values())
    assert seen.cpus_online


def test_throttling_is_that_of_the_group_with_the_quota(tmp_path):
    for name, text in {
        "proc/self/cgroup": "0::/a/b\n",
        "proc/self/mountinfo": "1 2 0:3 / /cg rw - cgroup2 cgroup2 rw\n",
        "cg/a/cpu.max": "50000 100000\n",
        "cg/a/cpu.stat": "nr_periods 200\nnr_throttled 30\nthrottled_usec 9\n",
        "cg/a/b/cpu.max": "max 100000\n",
        "cg/a/b/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = read_host_facts(root=tmp_path, environ={})
    assert (seen.cpu_quota, seen.cpu_quota_period_ns) == (0.5, 100_000_000)
    assert (seen.periods, seen.throttled_periods) == (200, 30)


def test_a_thread_count_names_the_variable_it_comes_from():
    seen = counts({"OMP_NUM_THREADS": "4"}, torch=fake_torch(intra=4))
    assert seen["torch intra-op"].variable == "OMP_NUM_THREADS"
    assert seen["OMP_NUM_THREADS"].threads == 4
    assert seen["MKL_NUM_THREADS"].set_by == "not set"


def test_a_variable_that_the_library_did_not_follow_is_not_named_as_its_source():
    seen = counts({"OMP_NUM_THREADS": "7"}, torch=fake_torch(intra=2))["torch intra-op"]
    assert (seen.threads, seen.variable) == (2, None)
    assert "in spite of OMP_NUM_THREADS=7" in seen.set_by


@pytest.mark.parametrize(
    ("environ", "who"),
    [
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, "torchrun"),
        ({"OMP_NUM_THREADS": "6", "SLURM_CPUS_PER_TASK": "6"}, "SLURM_CPUS_PER_TASK"),
    ],
)
def test_the_launcher_that_set_a_variable_is_named(environ, who):
    assert who in counts(environ)["OMP_NUM_THREADS"].set_by


@pytest.mark.parametrize(
    ("text", "threads"), [("4,2", 4), (" 3 ", 3), ("", None), ("many", None), ("9" * 40, None)]
)
def test_a_variable_may_hold_a_list_or_nonsense(text, threads):
    assert counts({"OMP_NUM_THREADS": text})["OMP_NUM_THREADS"].threads == threads


def test_a_worker_has_the_threads_that_torchs_own_loop_sets():
    torch = pytest.importorskip("torch")
    seen = {count.name: count for count in facts._threads(torch, None, {})}
    assert seen["torch in a worker"].threads == 1


def test_a_library_that_cannot_say_its_threads_leaves_them_unknown():
    def fail():
        raise RuntimeError

    seen = counts({}, cv2=types.SimpleNamespace(getNumThreads=fail))
    assert seen["cv2"].threads is None


def test_a_library_that_is_installed_but_broken_is_unknown_with_its_error(tmp_path, monkeypatch):
    (tmp_path / "cv2.py").write_text("raise OSError('libGL.so.1: cannot open')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    assert "libGL.so.1" in read_host_facts(environ={}).unknown["cv2"]


def test_a_path_is_told_through_its_symbolic_links(tmp_path):
    (tmp_path / "link").symlink_to("/proc")
    assert read_path_facts(tmp_path / "link").kind == "proc"


def test_a_path_without_mounts_has_an_unknown_kind_and_still_a_size(tmp_path):
    seen = read_path_facts(tmp_path, root=tmp_path)
    assert seen.kind is None
    assert seen.size_bytes
