"""Texts of /proc, cgroup and PSI files turned into frozen records.

Pure parsers: whoever has a clock or a descriptor reads, and hands the text in. A text that is not what
its kernel documentation says gives ``None`` (for a record) or ``None`` in a field, never a guess and
never an exception, because these parsers run inside other people's training processes.
"""

from __future__ import annotations

from traceml_lite.procfs.cgroups import (
    CgroupMembership,
    CpuBandwidth,
    CpuThrottling,
    cgroup_directories,
    parse_cpu_max,
    parse_cpu_quota,
    parse_cpu_stat,
    parse_memory_limit,
    parse_self_cgroup,
)
from traceml_lite.procfs.mounts import Mount, mount_of, parse_mountinfo
from traceml_lite.procfs.process import (
    Limit,
    ProcessIo,
    ProcessStat,
    ProcessStatus,
    Schedstat,
    parse_io,
    parse_limits,
    parse_schedstat,
    parse_stat,
    parse_status,
)
from traceml_lite.procfs.system import (
    CpuTimes,
    Pressure,
    PressureLine,
    parse_cpu_list,
    parse_cpu_times,
    parse_meminfo,
    parse_pressure,
)

__all__ = [
    "CgroupMembership",
    "CpuBandwidth",
    "CpuThrottling",
    "CpuTimes",
    "Limit",
    "Mount",
    "Pressure",
    "PressureLine",
    "ProcessIo",
    "ProcessStat",
    "ProcessStatus",
    "Schedstat",
    "cgroup_directories",
    "mount_of",
    "parse_cpu_list",
    "parse_cpu_max",
    "parse_cpu_quota",
    "parse_cpu_stat",
    "parse_cpu_times",
    "parse_io",
    "parse_limits",
    "parse_meminfo",
    "parse_memory_limit",
    "parse_mountinfo",
    "parse_pressure",
    "parse_schedstat",
    "parse_self_cgroup",
    "parse_stat",
    "parse_status",
]
