"""Control groups, version 1 and 2: where a process's groups stand, CPU quota, throttling, memory limit.

Formats: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst. A limit of an ancestor binds as well, so
`cgroup_directories` gives all of them and the reader takes the tightest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from traceml_lite.procfs._text import numbers_by_key, whole
from traceml_lite.procfs.mounts import Mount

# cgroup v1 says "no limit" with the largest page-aligned int64; anything in that range is not a limit.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class CgroupMembership:
    """One line of /proc/PID/cgroup."""

    controllers: tuple[str, ...]
    """Empty for version 2."""
    path: str
    """As seen from the cgroup namespace, ``/`` at its root."""


def parse_self_cgroup(text: str) -> tuple[CgroupMembership, ...]:
    """/proc/PID/cgroup, in the order of the file; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if whole(number) is not None and colon and path.startswith("/"):
            found.append(CgroupMembership(tuple(c for c in controllers.split(",") if c), path))
    return tuple(found)


def cgroup_directories(
    controller: str, memberships: Iterable[CgroupMembership], mounts: Iterable[Mount]
) -> tuple[tuple[int, PurePosixPath], ...]:
    """Directories of the groups that bind a process, own group first, then its visible ancestors.

    Args:
        controller: ``"cpu"`` or ``"memory"``.
        memberships: Of the process.
        mounts: As the process sees them.

    Returns:
        Pairs of the cgroup version (1 or 2) and a directory. A controller stands in one hierarchy only, so
        version 1 is left out where it is not mounted and so is version 2; both may appear on a hybrid host.
    """
    mounts = tuple(mounts)
    directories: list[tuple[int, PurePosixPath]] = []
    for member in memberships:
        version = 1 if member.controllers else 2
        if version == 1 and controller not in member.controllers:
            continue
        for mount in mounts:
            if mount.kind != ("cgroup" if version == 1 else "cgroup2"):
                continue
            if version == 1 and controller not in mount.options:
                continue
            point = PurePosixPath(mount.point)
            group = point / _below(member.path, mount.root)
            chain = [group, *group.parents]
            directories += [(version, each) for each in chain[: chain.index(point) + 1]]
            break
    return tuple(directories)


def _below(path: str, root: str) -> PurePosixPath:
    """The group's path below the mount's root; the mount itself where the path lies outside of it."""
    full = PurePosixPath(path)
    # Without a cgroup namespace a container mounts its own group only, and the path is the host's.
    if ".." in full.parts or not full.is_relative_to(root):
        return PurePosixPath()
    return full.relative_to(root)


@dataclass(frozen=True, slots=True)
class CpuBandwidth:
    """CPU quota of one group."""

    cpus: float | None
    """CPUs' worth of time it may use, e.g. 1.5; None when there is no quota."""
    period_ns: int
    """The quota is dealt out once per period; a group that has used it up freezes till the next."""


def parse_cpu_max(text: str) -> CpuBandwidth | None:
    """``cpu.max`` of version 2, e.g. ``150000 100000`` or ``max 100000``; None when it is neither."""
    words = text.split()
    if len(words) != 2:
        return None
    period = whole(words[1])
    quota = whole(words[0])
    if not period or (quota is None and words[0] != "max"):
        return None
    return CpuBandwidth(None if quota is None else quota / period, period * 1000)


def parse_cpu_quota(quota_text: str, period_text: str) -> CpuBandwidth | None:
    """``cpu.cfs_quota_us`` (-1 is none) and ``cpu.cfs_period_us`` of version 1; None when they are not."""
    period = whole(period_text.strip())
    quota = whole(quota_text.strip())
    if not period or (quota is None and quota_text.strip() != "-1"):
        return None
    return CpuBandwidth(None if quota is None else quota / period, period * 1000)


@dataclass(frozen=True, slots=True)
class CpuThrottling:
    """How often and how long a quota stopped a group; running totals."""

    periods: int
    """Periods in which the group ran."""
    throttled_periods: int
    throttled_ns: int
    """Summed over CPUs, so it can grow faster than the clock."""


def parse_cpu_stat(text: str) -> CpuThrottling | None:
    """``cpu.stat`` of either version; None where it says nothing of throttling (a root group)."""
    numbers = numbers_by_key(text)
    throttled_ns = numbers.get("throttled_time")
    if throttled_ns is None and "throttled_usec" in numbers:
        throttled_ns = numbers["throttled_usec"] * 1000
    if throttled_ns is None or "nr_periods" not in numbers or "nr_throttled" not in numbers:
        return None
    return CpuThrottling(numbers["nr_periods"], numbers["nr_throttled"], throttled_ns)


def parse_memory_limit(text: str) -> int | None:
    """``memory.max`` (v2) or ``memory.limit_in_bytes`` (v1) in bytes; None for no limit or another text."""
    limit = whole(text.strip())
    return None if limit is None or limit >= _UNLIMITED_BYTES else limit
