"""The reader of the host: on a made-up root directory, and on the real one."""

import os
import subprocess
import sys
import time

import pytest

from traceml_lite.probe import host
from traceml_lite.records.run import HOST_COLUMNS, MISSING

NAMES = [column.name for column in HOST_COLUMNS]


@pytest.fixture
def root(tmp_path):
    """A root directory with a cgroup of version 2 below a tighter parent."""
    files = {
        "proc/stat": "cpu  100 0 50 1000 20 0 0 7 0 0\ncpu0 100 0 50 1000 20 0 0 7 0 0\n",
        "proc/meminfo": "MemTotal:       8000 kB\n",
        "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\n",
        "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\n",
        "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=13\n",
        "proc/self/cgroup": "0::/parent/own\n",
        "proc/self/mountinfo": "40 23 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "proc/self/fd/0": "",
        "sys/fs/cgroup/parent/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/parent/cpu.stat": "nr_periods 9\nnr_throttled 4\nthrottled_usec 5\n",
        "sys/fs/cgroup/parent/memory.max": "4096000\n",
        "sys/fs/cgroup/parent/own/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/parent/own/cpu.stat": "nr_periods 9\nnr_throttled 0\nthrottled_usec 0\n",
        "sys/fs/cgroup/parent/own/memory.max": "max\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "dev/shm").mkdir(parents=True)
    return tmp_path


def row(sampler, pids=()):
    return dict(zip(NAMES, sampler.sample(pids), strict=True))


def test_a_row_holds_the_totals_of_the_machine_and_of_the_group_that_throttles(root):
    with host.HostSampler(root) as sampler:
        values = row(sampler)
        assert sampler.absent == {}
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert values["cpu_busy_ns"] == 150 * tick_ns
    assert values["cpu_steal_ns"] == 7 * tick_ns
    assert [values[f"pressure_{name}_ns"] for name in ("cpu", "io", "memory")] == [11_000, 12_000, 13_000]
    assert (values["throttled_periods"], values["throttled_ns"]) == (4, 5_000)


def test_the_tightest_quota_and_limit_of_all_ancestors_bind(root):
    bandwidth, directory = host.read_cpu_bandwidth(root)
    assert (bandwidth.cpus, directory.name) == (1.5, "parent")
    assert host.read_memory_limit(root) == 4_096_000
    assert host.read_memory_bytes(root) == 4_096_000


def test_without_a_quota_there_is_none_and_the_machines_memory_counts(root):
    (root / "sys/fs/cgroup/parent/cpu.max").write_text("max 100000\n")
    (root / "sys/fs/cgroup/parent/own/cpu.max").unlink()
    (root / "sys/fs/cgroup/parent/memory.max").unlink()
    assert host.read_cpu_bandwidth(root) is None
    assert host.read_memory_bytes(root) == 8000 * 1024


def test_version_1_files_are_read_where_that_version_is_mounted(root):
    (root / "proc/self/cgroup").write_text("1:cpu,cpuacct:/job\n2:memory:/job\n")
    (root / "proc/self/mountinfo").write_text(
        "1 2 0:1 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "1 2 0:1 / /cg/memory rw - cgroup cgroup rw,memory\n"
    )
    for name, text in {
        "cg/cpu/job/cpu.cfs_quota_us": "50000\n",
        "cg/cpu/job/cpu.cfs_period_us": "100000\n",
        "cg/cpu/job/cpu.stat": "nr_periods 1\nnr_throttled 2\nthrottled_time 3\n",
        "cg/memory/job/memory.limit_in_bytes": "1048576\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    bandwidth, _ = host.read_cpu_bandwidth(root)
    assert bandwidth.cpus == 0.5
    assert host.read_memory_limit(root) == 1 << 20
    with host.HostSampler(root) as sampler:
        assert (row(sampler)["throttled_periods"], row(sampler)["throttled_ns"]) == (2, 3)


@pytest.mark.parametrize("name", ["stat", "pressure/cpu", "self/cgroup", "self/mountinfo"])
@pytest.mark.parametrize("text", [None, "", "garbage \0 \xff"])
def test_an_unreadable_file_leaves_its_columns_missing_with_a_reason_and_the_others_measured(
    root, name, text
):
    if text is None:
        (root / "proc" / name).unlink()
    else:
        (root / "proc" / name).write_text(text, encoding="latin-1")
    with host.HostSampler(root) as sampler:
        values = row(sampler)
        missing = {column for column, value in values.items() if value == MISSING}
        assert missing == set(sampler.absent)
        assert all(sampler.absent.values())
    expected = {
        "stat": {"cpu_busy_ns", "cpu_steal_ns", "cpu_iowait_ns"},
        "pressure/cpu": {"pressure_cpu_ns"},
    }.get(name, {"throttled_periods", "throttled_ns"})
    assert missing == expected


def test_a_host_without_proc_gives_rows_of_missing_values_and_no_error(tmp_path):
    with host.HostSampler(tmp_path) as sampler:
        values = row(sampler)
    assert {name for name, value in values.items() if value != MISSING} == {"time_ns", "own_cpu_ns"}
    assert "does not exist" in sampler.absent["cpu_busy_ns"]


def test_a_closed_sampler_gives_its_descriptors_back_and_does_not_raise():
    before = set(os.listdir("/proc/self/fd"))
    sampler = host.HostSampler()
    assert set(os.listdir("/proc/self/fd")) != before
    sampler.close()
    sampler.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert row(sampler)["cpu_busy_ns"] == MISSING


def test_open_files_follow_what_this_process_opens():
    with host.HostSampler() as sampler:
        before = row(sampler)["open_files"]
        pipes = [os.pipe() for _ in range(5)]
        assert row(sampler)["open_files"] == before + 10
        for pair in pipes:
            for end in pair:
                os.close(end)


SPIN = "import time\nwhile time.process_time() < 0.3: pass\nprint('spun', flush=True)\ninput()\n"


def test_cpu_time_of_a_worker_counts_while_it_lives_and_after_it_has_ended():
    with host.HostSampler() as sampler:
        start_ns = row(sampler)["own_cpu_ns"]
        with subprocess.Popen(
            [sys.executable, "-S", "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout.readline() == "spun\n"
            alive_ns = row(sampler, [child.pid])["own_cpu_ns"]
            child.communicate("\n")
        ended_ns = row(sampler, [child.pid])["own_cpu_ns"]
    assert alive_ns - start_ns > 280_000_000
    assert alive_ns <= ended_ns < alive_ns + 2_000_000_000


def test_cpu_time_of_a_worker_that_nobody_reaped_for_us_is_kept(monkeypatch):
    with host.HostSampler() as sampler:
        monkeypatch.setattr(host, "process_cpu_ns", {7: 5_000_000_000}.get)
        with_it = row(sampler, [7])["own_cpu_ns"]
        monkeypatch.setattr(host, "process_cpu_ns", {}.get)
        assert row(sampler, [7])["own_cpu_ns"] >= with_it
        assert row(sampler)["own_cpu_ns"] >= with_it


def test_the_cpu_clock_of_a_process_that_does_not_exist_is_unknown():
    assert host.process_cpu_ns(2**22 + 1) is None
    assert host.process_cpu_ns(os.getpid()) == pytest.approx(time.process_time_ns(), rel=0.5, abs=5e7)


def test_the_environment_is_read_without_importing_torch():
    code = (
        "import sys\nfrom traceml_lite.probe.host import read_environment\n"
        "e = read_environment()\nassert 'torch' not in sys.modules\n"
        "assert e.torch_threads is None and e.pid and e.cpus_usable and e.started_ns > 0\n"
        "print(e.torch)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == host.installed_versions().get("torch", "")


class _BrokenTorch:
    __version__ = "2.99"

    @staticmethod
    def get_num_threads():
        raise RuntimeError("broken")


def test_a_torch_that_cannot_say_its_threads_leaves_them_unknown():
    environment = host.read_environment(_BrokenTorch())
    assert (environment.torch, environment.torch_threads) == ("2.99", None)


@pytest.mark.parametrize("function", ["uname", "sysconf", "sched_getaffinity", "statvfs"])
def test_a_system_call_that_is_refused_leaves_one_fact_unknown(monkeypatch, function):
    def refuse(*_):
        raise PermissionError("not here")

    monkeypatch.setattr(os, function, refuse)
    environment = host.read_environment()
    unknown = {
        "uname": environment.host or None,
        "sysconf": environment.cpus_online,
        "sched_getaffinity": environment.cpus_affinity,
        "statvfs": environment.shm_bytes,
    }
    assert unknown[function] is None
    assert environment.python


def test_a_command_line_keeps_its_words_but_not_its_secrets() -> None:
    from traceml_lite.probe.host import without_secrets

    words = [
        "python",
        "train.py",
        "--api-key",
        "abc",
        "--wandb.token=def",
        "--lr",
        "0.1",
        "--monkey",
        "x",
        "HF_TOKEN=z",
    ]
    assert without_secrets(words) == (
        "python", "train.py", "--api-key", "***", "--wandb.token=***", "--lr", "0.1", "--monkey", "x",
        "HF_TOKEN=***",
    )  # fmt: skip
