"""Files of the whole machine: /proc/stat, /proc/meminfo, pressure (PSI) and lists of CPUs.

Formats: proc(5), Documentation/accounting/psi.rst.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceml_lite.procfs._text import numbers_by_key, whole

# No kernel has this many CPUs (NR_CPUS is at most 8192); a larger number is not a list of CPUs.
_MAX_CPU = 1 << 16


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Totals of one CPU, or of all of them, since boot."""

    busy_ns: int
    """User, nice, system, irq and softirq; guests are inside user already."""
    idle_ns: int
    iowait_ns: int
    """Idle while I/O was outstanding. A lower bound at best: the kernel may even take it back."""
    steal_ns: int | None
    """Taken by the hypervisor; None where the kernel has no such column."""


def parse_cpu_times(text: str, ticks_per_second: int) -> dict[str, CpuTimes]:
    """The ``cpu`` lines of /proc/stat: ``"cpu"`` for all together, ``"cpu0"`` and so on for each.

    Args:
        text: The file, or the beginning of it: a line cut off before its end is left out.
        ticks_per_second: ``SC_CLK_TCK``, 100 on every usual Linux.

    Returns:
        Name to times; empty when the text is not a /proc/stat.
    """
    if ticks_per_second <= 0:
        return {}
    tick_ns = 1_000_000_000 // ticks_per_second
    times: dict[str, CpuTimes] = {}
    for line in text.splitlines(keepends=True):
        words = line.split()
        if not line.startswith("cpu") or not line.endswith("\n"):
            continue
        name, values = words[0], [whole(word) for word in words[1:]]
        # Seven columns since Linux 2.6.0; steal came with 2.6.11, the guests later.
        if (name != "cpu" and whole(name[3:]) is None) or len(values) < 7 or None in values:
            continue
        user, nice, system, idle, iowait, irq, softirq = (int(value or 0) for value in values[:7])
        steal = values[7] if len(values) > 7 else None
        times[name] = CpuTimes(
            busy_ns=(user + nice + system + irq + softirq) * tick_ns,
            idle_ns=idle * tick_ns,
            iowait_ns=iowait * tick_ns,
            steal_ns=None if steal is None else steal * tick_ns,
        )
    return times


@dataclass(frozen=True, slots=True)
class PressureLine:
    """One line of a pressure file."""

    avg10_share: float
    """Share of the last 10 s, in [0, 1]; likewise 60 s and 300 s."""
    avg60_share: float
    avg300_share: float
    total_ns: int
    """Running total since boot."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """Pressure stall information of one resource."""

    some: PressureLine
    """Some task was waiting for the resource."""
    full: PressureLine | None
    """All tasks were, at once; None for the CPU before Linux 5.13."""


def parse_pressure(text: str) -> Pressure | None:
    """/proc/pressure/* or a cgroup's *.pressure; None when it is not one."""
    lines: dict[str, PressureLine] = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        pairs = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        total = whole(pairs.get("total", ""))
        try:
            shares = [float(pairs[key]) / 100 for key in ("avg10", "avg60", "avg300")]
        except (KeyError, ValueError):
            continue
        if total is not None:
            lines[kind] = PressureLine(shares[0], shares[1], shares[2], total * 1000)
    return Pressure(lines["some"], lines.get("full")) if "some" in lines else None


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes by the kernel's names, e.g. ``"MemTotal"``; empty when it is not one."""
    sized = "\n".join(line for line in text.splitlines() if line.rstrip().endswith(" kB"))
    return {name: kib * 1024 for name, kib in numbers_by_key(sized, ":").items()}


def parse_cpu_list(text: str) -> tuple[int, ...] | None:
    """A kernel list of CPUs such as ``0-3,8``; None when it is not one, empty for an empty list."""
    if not text.strip():
        return ()
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        low = whole(first)
        high = whole(last) if dash else low
        if low is None or high is None or not low <= high <= _MAX_CPU:
            return None
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))
