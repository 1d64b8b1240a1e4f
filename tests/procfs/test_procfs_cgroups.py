"""Control groups of both versions, in and out of containers, and mounts."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_lite.procfs.cgroups import (
    CpuBandwidth,
    CpuThrottling,
    cgroup_directories,
    parse_cpu_max,
    parse_cpu_quota,
    parse_cpu_stat,
    parse_memory_limit,
    parse_self_cgroup,
)
from traceml_lite.procfs.mounts import mount_of, parse_mountinfo

MOUNTS_V2 = """22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 25 0:27 / /dev/shm rw,relatime - tmpfs shm rw,size=65536k
40 23 0:30 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate
50 27 0:44 /export/a /mnt/with\\040blank rw - nfs4 server:/export ro,vers=4.2
51 50 0:45 / /mnt/with\\040blank/deep rw - fuse.s3fs s3fs rw
"""
MOUNTS_V1_CONTAINER = """31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory
"""


def directories(controller, cgroup, mounts):
    found = cgroup_directories(controller, parse_self_cgroup(cgroup), parse_mountinfo(mounts))
    return [(version, str(directory)) for version, directory in found]


def test_in_version_2_all_ancestors_bind_up_to_the_mount():
    assert directories("cpu", "0::/user.slice/job.scope\n", MOUNTS_V2) == [
        (2, "/sys/fs/cgroup/user.slice/job.scope"),
        (2, "/sys/fs/cgroup/user.slice"),
        (2, "/sys/fs/cgroup"),
    ]


def test_a_container_without_a_namespace_has_its_group_at_the_mount_itself():
    cgroup = "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n"
    assert directories("cpu", cgroup, MOUNTS_V1_CONTAINER) == [(1, "/sys/fs/cgroup/cpu,cpuacct")]
    assert directories("memory", cgroup, MOUNTS_V1_CONTAINER) == [(1, "/sys/fs/cgroup/memory")]


@pytest.mark.parametrize("path", ["/another/group", "/../other"])
def test_a_group_outside_of_what_is_mounted_falls_back_to_the_mount(path):
    assert directories("cpu", f"1:cpu,cpuacct:{path}\n", MOUNTS_V1_CONTAINER) == [
        (1, "/sys/fs/cgroup/cpu,cpuacct")
    ]


def test_a_controller_that_is_not_mounted_has_no_directory():
    assert directories("cpu", "1:cpuset:/x\n", MOUNTS_V1_CONTAINER) == []
    assert directories("cpu", "", MOUNTS_V2) == []


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("150000 100000\n", 1.5), ("max 100000\n", None), ("50000 20000", 2.5)],
)
def test_the_quota_of_version_2_is_in_cpus(text, cpus):
    bandwidth = parse_cpu_max(text)
    assert bandwidth is not None
    assert bandwidth.cpus == cpus


def test_the_quota_of_version_1_is_in_cpus_and_minus_one_is_none():
    assert parse_cpu_quota("50000\n", "100000\n") == CpuBandwidth(0.5, 100_000_000)
    assert parse_cpu_quota("-1\n", "100000\n") == CpuBandwidth(None, 100_000_000)


@pytest.mark.parametrize("text", ["", "max", "max 0", "x 100000", "1 2 3", "-1 100000"])
def test_another_text_is_no_quota(text):
    assert parse_cpu_max(text) is None


def test_throttled_time_is_nanoseconds_in_version_1_and_microseconds_in_version_2():
    v1 = parse_cpu_stat("nr_periods 10\nnr_throttled 3\nthrottled_time 1234567\n")
    v2 = parse_cpu_stat("usage_usec 1\nnr_periods 10\nnr_throttled 3\nthrottled_usec 1234\n")
    assert v1 == CpuThrottling(10, 3, 1_234_567)
    assert v2 == CpuThrottling(10, 3, 1_234_000)


def test_a_root_group_that_counts_no_throttling_did_not_measure_it():
    assert parse_cpu_stat("usage_usec 100\nuser_usec 60\nsystem_usec 40\n") is None


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("9223372036854771712\n", None), ("1073741824\n", 1 << 30), ("", None), ("-1", None)],
)
def test_a_memory_limit_of_version_1_near_the_largest_number_is_no_limit(text, limit):
    assert parse_memory_limit(text) == limit


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/data", "ext4"),
        ("/dev/shm/x", "tmpfs"),
        ("/mnt/with blank/a", "nfs4"),
        ("/mnt/with blank/deep/a", "fuse.s3fs"),
        ("/mnt/with blanket", "ext4"),
    ],
)
def test_the_longest_mount_point_holds_the_path(path, kind):
    mount = mount_of(PurePosixPath(path), parse_mountinfo(MOUNTS_V2))
    assert mount is not None
    assert mount.kind == kind


def test_a_later_mount_on_the_same_point_hides_the_earlier():
    text = MOUNTS_V2 + "60 27 0:50 / /dev/shm rw - ramfs none rw\n"
    mount = mount_of(PurePosixPath("/dev/shm"), parse_mountinfo(text))
    assert mount is not None
    assert mount.kind == "ramfs"


def test_without_mounts_the_file_system_is_unknown():
    assert mount_of(PurePosixPath("/x"), ()) is None


@given(st.text(max_size=300))
def test_no_text_makes_a_parser_of_groups_or_mounts_raise(text):
    parse_self_cgroup(text)
    parse_mountinfo(text)
    parse_mountinfo(f"1 2 3:4 / / rw - {text}")
    parse_cpu_max(text)
    parse_cpu_quota(text, text)
    parse_cpu_stat(text)
    parse_memory_limit(text)
