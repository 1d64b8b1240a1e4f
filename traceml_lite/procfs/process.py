"""Files of one process: stat, status, io, schedstat and limits of /proc/PID.

Formats: proc(5) and Documentation/filesystems/proc.rst. Clock ticks are turned into nanoseconds with the
tick rate handed in (``os.sysconf("SC_CLK_TCK")``), as nothing here asks the system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from traceml_lite.procfs._text import numbers_by_key, whole
from traceml_lite.procfs.system import parse_cpu_list


@dataclass(frozen=True, slots=True)
class Schedstat:
    """Scheduler totals of one task."""

    on_cpu_ns: int
    """Time on a CPU. Updated once a tick, so up to 4 ms stale; a clock of the thread is better."""
    run_queue_ns: int
    """Time runnable without a CPU; exact at each switch-in."""
    slices: int
    """Times it was given a CPU."""


def parse_schedstat(text: str) -> Schedstat | None:
    """/proc/PID/schedstat, three numbers on a line; None when it is anything else."""
    values = [whole(word) for word in text.split()]
    if len(values) != 3:
        return None
    on_cpu, run_queue, slices = values
    if on_cpu is None or run_queue is None or slices is None:
        return None
    return Schedstat(on_cpu, run_queue, slices)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that bear on loading."""

    pid: int
    name: str
    """Command name, at most 15 characters; may hold blanks and parentheses."""
    state: str
    """One letter, e.g. ``R`` running, ``S`` sleeping, ``D`` waiting for I/O, ``Z`` ended, not yet reaped."""
    parent_pid: int
    minor_faults: int
    major_faults: int
    user_ns: int
    system_ns: int
    """Both in ticks of the kernel (10 ms at 100 Hz), so good for seconds, not for one fetch."""
    threads: int
    start_ticks: int
    """Start after boot in ticks; with the PID it names a process for good."""
    rss_pages: int


def parse_stat(text: str, ticks_per_second: int) -> ProcessStat | None:
    """/proc/PID/stat; None when it is not one.

    Args:
        text: The file.
        ticks_per_second: ``SC_CLK_TCK``, 100 on every usual Linux.
    """
    # The name is the only field that may hold blanks and parentheses: the last ")" ends it.
    head, closing, tail = text.rpartition(")")
    pid_word, opening, name = head.partition("(")
    pid = whole(pid_word.strip())
    fields = tail.split()
    if not closing or not opening or pid is None or len(fields) < 22 or ticks_per_second <= 0:
        return None
    # Numbers are those of proc(5) minus 3, as the tail starts with field 3 (state).
    picked = [whole(fields[i]) for i in (1, 7, 9, 11, 12, 17, 19, 21)]
    if any(value is None for value in picked):
        return None
    parent, minor, major, user, system, threads, start, rss = (int(value or 0) for value in picked)
    tick_ns = 1_000_000_000 // ticks_per_second
    return ProcessStat(
        pid, name, fields[0], parent, minor, major, user * tick_ns, system * tick_ns, threads, start, rss
    )


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The lines of /proc/PID/status that bear on loading; None for a line this kernel does not print."""

    rss_bytes: int | None
    rss_shared_bytes: int | None
    """Shared memory in the resident set (``RssShmem``, Linux 4.5): batches in /dev/shm."""
    swap_bytes: int | None
    threads: int | None
    cpus_allowed: int | None
    """CPUs in the affinity mask."""
    voluntary_switches: int | None
    involuntary_switches: int | None


def parse_status(text: str) -> ProcessStatus | None:
    """/proc/PID/status; None when no line of it is known."""
    numbers = numbers_by_key(text, ":")
    cpus = None
    for line in text.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            listed = parse_cpu_list(line.partition(":")[2])
            cpus = len(listed) if listed else None

    def kib(key: str) -> int | None:
        return numbers[key] * 1024 if key in numbers else None

    status = ProcessStatus(
        rss_bytes=kib("VmRSS"),
        rss_shared_bytes=kib("RssShmem"),
        swap_bytes=kib("VmSwap"),
        threads=numbers.get("Threads"),
        cpus_allowed=cpus,
        voluntary_switches=numbers.get("voluntary_ctxt_switches"),
        involuntary_switches=numbers.get("nonvoluntary_ctxt_switches"),
    )
    return None if status == ProcessStatus(None, None, None, None, None, None, None) else status


@dataclass(frozen=True, slots=True)
class ProcessIo:
    """I/O totals of one process."""

    rchar: int
    """Bytes asked for by read calls, page cache, pipes and sockets included."""
    wchar: int
    read_calls: int
    write_calls: int
    read_bytes: int
    """Bytes fetched from the block device."""
    write_bytes: int


def parse_io(text: str) -> ProcessIo | None:
    """/proc/PID/io; None when a line is missing (the file is empty without permission on some kernels)."""
    numbers = numbers_by_key(text, ":")
    try:
        return ProcessIo(
            rchar=numbers["rchar"],
            wchar=numbers["wchar"],
            read_calls=numbers["syscr"],
            write_calls=numbers["syscw"],
            read_bytes=numbers["read_bytes"],
            write_bytes=numbers["write_bytes"],
        )
    except KeyError:
        return None


@dataclass(frozen=True, slots=True)
class Limit:
    """One resource limit; None is unlimited."""

    soft: int | None
    hard: int | None


_LIMIT = re.compile(r"^(?P<name>\S.*?)\s{2,}(?P<soft>\d+|unlimited)\s+(?P<hard>\d+|unlimited)(\s|$)")


def parse_limits(text: str) -> dict[str, Limit]:
    """/proc/PID/limits by the kernel's own names, e.g. ``"Max open files"``; empty when it is not one."""
    limits: dict[str, Limit] = {}
    for line in text.splitlines():
        found = _LIMIT.match(line)
        if found:
            limits[found["name"]] = Limit(whole(found["soft"]), whole(found["hard"]))
    return limits
