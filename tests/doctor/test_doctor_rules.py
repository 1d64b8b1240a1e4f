"""Facts in, problems out: each rule on a host with one fact changed."""

from dataclasses import fields, replace

import pytest
from made_up_hosts import BAD, GOOD

from traceml_lite.diagnose.doctor import cpu_ranges, find_problems
from traceml_lite.records.host import HostFacts, PathFacts, ThreadCount, TorchFacts


def keys(**changes):
    return {problem.key: problem.severity for problem in find_problems(replace(GOOD, **changes))}


def only(**changes):
    (problem,) = find_problems(replace(GOOD, **changes))
    return problem


def path(kind):
    return PathFacts("/d", kind, "source", False, 1, 1)


def test_nothing_is_wrong_with_a_good_host():
    assert find_problems(GOOD) == ()


def test_nothing_known_is_no_reason_for_a_problem_but_what_needs_to_be_there():
    empty = HostFacts(
        **{
            field.name: None
            for field in fields(HostFacts)
            if field.name not in ("threads", "binding", "versions", "pressure", "counters", "unknown")
        }
        | {"platform": "", "python": "", "start_method": "fork", "threads": ()},
        **{name: {} for name in ("binding", "versions", "pressure", "counters", "unknown")},
    )
    assert {problem.key for problem in find_problems(empty)} == {"shm_missing", "torch"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"cpus_affinity": (3,)},
            {"affinity": "warning", "one_cpu": "warning", "threads_above_cpus": "warning"},
        ),
        ({"cpus_affinity": tuple(range(7)), "threads": ()}, {"affinity": "note"}),
        ({"cpu_quota": 2.5, "threads": ()}, {"quota": "warning"}),
        ({"cpu_quota": 8.0}, {}),
        ({"periods": 1000, "throttled_periods": 51}, {"throttled": "warning"}),
        ({"periods": 1000, "throttled_periods": 50}, {}),
        ({"periods": 99, "throttled_periods": 99}, {}),
        ({"shm_bytes": (1 << 30) - 1, "shm_used_bytes": 0}, {"shm_small": "warning"}),
        ({"shm_bytes": 1 << 30, "shm_used_bytes": 0}, {}),
        ({"shm_used_bytes": 15 << 30}, {"shm_full": "warning"}),
        ({"shm_bytes": None}, {"shm_missing": "warning"}),
        ({"open_files_soft": 1024}, {"open_files": "note"}),
        ({"open_files_soft": 256}, {"open_files": "warning"}),
        ({"open_files_soft": -1}, {}),
        ({"open_files": 60000}, {"open_files_used": "warning"}),
        ({"start_method": "forkserver"}, {"start_method": "note"}),
        ({"load_1min": 12.1}, {"busy": "warning"}),
        ({"load_1min": 11.9}, {}),
        ({"load_1min": 20.0, "pressure": {"cpu": 0.9}}, {"busy": "warning"}),
        ({"pressure": {"cpu": 0.21}}, {"busy": "warning"}),
        ({"pressure": {"io": 0.3}}, {"pressure_io": "warning"}),
        ({"pressure": {"memory": 0.3}}, {"pressure_memory": "warning"}),
        ({"memory_available_bytes": 1 << 30}, {"memory_low": "warning"}),
        ({"memory_limit_bytes": 8 << 30}, {"memory_limit": "note"}),
        ({"counters": {"rchar": "no permission"}}, {"counter_rchar": "note"}),
        ({"not_compiled": "it was not built"}, {"probe_core": "note"}),
        ({"unknown": {"pressure_cpu": "no such file"}}, {"pressure": "note"}),
        ({"binding": {"OMP_PROC_BIND": "spread"}}, {"binding": "warning"}),
        ({"binding": {"OMP_PROC_BIND": "FALSE", "KMP_AFFINITY": "disabled"}}, {}),
        ({"path": None}, {}),
        ({"path": path("nfs4")}, {"path_remote": "warning"}),
        ({"path": path("fuse.s3fs")}, {"path_remote": "warning"}),
        ({"path": path("fuseblk")}, {}),
        ({"path": path("tmpfs")}, {"path_in_memory": "note"}),
        ({"path": path("overlay")}, {"path_layer": "note"}),
        ({"path": path(None)}, {"path": "note"}),
    ],
)
def test_one_changed_fact_gives_one_problem(changes, expected):
    assert keys(**changes) == expected


def test_a_quota_of_an_ancestor_tells_workers_and_threads_to_use():
    problem = only(cpu_quota=2.5, threads=())
    assert problem.statement.startswith(
        "a cgroup quota allows 2.50 CPUs' worth of time of the 8 that are seen"
    )
    assert "at most 2 workers and OMP_NUM_THREADS=2" in problem.advice
    assert problem.numbers == {"quota_cpus": 2.5, "seen_cpus": 8.0}


def test_the_quota_is_compared_with_the_mask_and_not_with_the_machine():
    assert set(keys(cpu_quota=4.0, cpus_affinity=(0, 1, 2, 3), threads=())) == {"affinity"}


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (ThreadCount("torch intra-op", 16, "torch: one per core"), {"threads_above_cpus": "warning"}),
        (ThreadCount("torch intra-op", 16, "OMP_NUM_THREADS=16 ...", "OMP_NUM_THREADS"), {}),
        (ThreadCount("torch inter-op", 16, "torch: one per core"), {}),
        (
            ThreadCount("OMP_NUM_THREADS", 16, "in the environment", "OMP_NUM_THREADS"),
            {"threads_above_cpus": "warning"},
        ),
        (ThreadCount("OMP_NUM_THREADS", 1, "in the environment", "OMP_NUM_THREADS"), {"one_thread": "note"}),
        (ThreadCount("cv2", 8, "OpenCV"), {"cv2_threads": "warning"}),
        (ThreadCount("cv2", 1, "OpenCV"), {}),
        (ThreadCount("cv2", None, "OpenCV"), {}),
    ],
)
def test_threads_are_held_against_the_cpus_that_may_be_used(count, expected):
    assert keys(threads=(count,)) == expected


def test_half_a_cpu_is_no_reason_to_call_one_thread_too_many():
    assert "threads_above_cpus" not in keys(cpu_quota=0.5, threads=(ThreadCount("OMP_NUM_THREADS", 1, "x"),))


@pytest.mark.parametrize(
    ("version", "old"),
    [("2.3.1", True), ("1.13.0", True), ("2.4.0", False), ("2.13.0+cpu", False), ("git", False)],
)
def test_a_torch_older_than_the_hooks_is_a_problem(version, old):
    torch = TorchFacts(version, None, "file_descriptor", ("file_descriptor",))
    assert ("torch_old" in keys(torch=torch)) is old


def test_without_descriptors_for_sharing_their_limit_does_not_matter():
    torch = TorchFacts("2.13.0", None, "file_system", ("file_system",))
    assert keys(torch=torch, open_files_soft=256) == {"file_system_sharing": "note"}


def test_a_hard_limit_below_the_advice_is_what_can_be_asked_for():
    assert "ulimit -n 2048" in only(open_files_soft=1024, open_files_hard=2048).advice


def test_a_missing_torch_says_why():
    problem = only(
        torch=None, unknown={"torch": "torch is installed but cannot be imported: OSError: libcudart"}
    )
    assert "libcudart" in problem.statement


def test_warnings_come_before_notes_and_every_problem_says_what_to_do():
    problems = find_problems(BAD)
    severities = [problem.severity for problem in problems]
    assert severities == sorted(severities, reverse=True)
    assert {"warning", "note"} == set(severities)
    assert all(problem.statement and problem.advice for problem in problems)
    assert len({problem.key for problem in problems}) == len(problems)


@pytest.mark.parametrize(
    ("cpus", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 5), "0-2,5"), ((1, 3, 4), "1,3-4")]
)
def test_cpus_are_shown_as_the_kernel_writes_them(cpus, text):
    assert cpu_ranges(cpus) == text
