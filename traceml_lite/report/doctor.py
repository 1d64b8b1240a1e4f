"""What `doctor` prints: the facts of the host, what is wrong with them, what is not known.

Lays out and computes nothing; the rules are in `diagnose`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from traceml_lite.records.host import HostFacts, HostProblem
from traceml_lite.report import format as f
from traceml_lite.report.jsondoc import plain

# Memory and /dev/shm are dealt out in powers of two, and --shm-size=8g means them.
_SIZES = (
    f.Unit("TiB", 2.0**40),
    f.Unit("GiB", 2.0**30),
    f.Unit("MiB", 2.0**20),
    f.Unit("KiB", 2.0**10),
    f.ONE,
)
_LABEL = 16
_UNKNOWN = "not known"

# Raised when a key changes its meaning or goes; a new key does not raise it.
DOCUMENT_VERSION = 1


def render_doctor(
    facts: HostFacts,
    problems: Sequence[HostProblem],
    *,
    width: int = f.WIDTH,
    color: bool = False,
) -> list[str]:
    """Lines for a terminal.

    Args:
        facts: Of the host.
        problems: Found in them, in the order to show.
        width: Columns.
        color: Whether headings may be set off with escape codes.
    """
    heading = f.bold(color)
    lines = [heading("Host")]
    for label, text in _facts(facts):
        lines += f.labelled(f"  {label}", text, width=width, indent=_LABEL + 2)
    lines += ["", heading("Threads")]
    lines += _threads(facts, width)
    lines += ["", heading(_verdict(problems))]
    for problem in problems:
        lines += f.labelled(f"  {problem.severity}", problem.statement, width=width, indent=_LABEL + 2)
        lines += f.labelled("", f"-> {problem.advice}", width=width, indent=_LABEL + 2)
    if facts.unknown:
        lines += ["", heading("Not known")]
        for name, reason in facts.unknown.items():
            lines += f.labelled(f"  {name}", reason, width=width, indent=_LABEL + 2)
    return lines


def doctor_document(facts: HostFacts, problems: Sequence[HostProblem]) -> dict[str, Any]:
    """The same as one JSON document of plain types; keys are the field names of the records."""
    return {
        "format": "traceml-lite doctor",
        "version": DOCUMENT_VERSION,
        "facts": {**plain(facts), "cpus_usable": facts.cpus_usable},
        "problems": plain(tuple(problems)),
    }


def _verdict(problems: Sequence[HostProblem]) -> str:
    warnings = sum(problem.severity == "warning" for problem in problems)
    notes = len(problems) - warnings
    if not problems:
        return "Nothing wrong was found"
    counts = [f.count(number, noun) for number, noun in ((warnings, "warning"), (notes, "note")) if number]
    return ", ".join(counts)


def _facts(facts: HostFacts) -> Iterator[tuple[str, str]]:
    yield "system", f"{facts.platform}, Python {facts.python}"
    yield "CPUs", _cpus(facts)
    yield "quota", _quota(facts)
    yield "load", _load(facts)
    yield "memory", _memory(facts)
    yield "/dev/shm", _of(facts.shm_used_bytes, facts.shm_bytes, "used")
    yield "open files", _open_files(facts)
    yield "workers start", f"by {facts.start_method} unless the loader says otherwise"
    yield "torch", _torch(facts)
    others = [f"{name} {version}" for name, version in facts.versions.items() if name != "torch"]
    yield "packages", ", ".join(others)
    yield "probe reads", _counters(facts)
    yield "path", _path(facts)


def _cpus(facts: HostFacts) -> str:
    online = _UNKNOWN if facts.cpus_online is None else f"{facts.cpus_online} online"
    allowed = (
        "affinity not known" if facts.cpus_affinity is None else f"{len(facts.cpus_affinity)} in the mask"
    )
    usable = "usable not known" if facts.cpus_usable is None else f"{_cpu_number(facts.cpus_usable)} usable"
    return f"{online}, {allowed}, {usable}"


def _cpu_number(cpus: float) -> str:
    return f"{cpus:.0f}" if cpus == int(cpus) else f.digits(cpus)


def _quota(facts: HostFacts) -> str:
    if facts.cpu_quota is None:
        return _UNKNOWN if "cpu_quota" in facts.unknown else "none"
    text = f"{_cpu_number(facts.cpu_quota)} CPUs"
    if facts.cpu_quota_period_ns is not None:
        text += f" per period of {f.duration(facts.cpu_quota_period_ns)}"
    if facts.throttled_periods is not None:
        text += f"; stopped in {facts.throttled_periods} of {facts.periods} periods"
    return text


def _load(facts: HostFacts) -> str:
    tasks = _UNKNOWN if facts.load_1min is None else f"{f.digits(facts.load_1min)} tasks (mean of one minute)"
    waited = [f"{name} {f.percent(share)}" for name, share in facts.pressure.items()]
    return f"{tasks}; pressure of the last 10 s: {', '.join(waited) or _UNKNOWN}"


def _memory(facts: HostFacts) -> str:
    text = _of(facts.memory_available_bytes, facts.memory_bytes, "available")
    limit = facts.memory_limit_bytes
    return text if limit is None else f"{text}; a cgroup allows {_size(limit)}"


def _open_files(facts: HostFacts) -> str:
    limits = (facts.open_files_soft, facts.open_files_hard, facts.open_files)
    soft, hard, now = (_UNKNOWN if number is None else str(number) for number in limits)
    return f"at most {soft} (up to {hard} on request), {now} open"


def _torch(facts: HostFacts) -> str:
    torch = facts.torch
    if torch is None:
        return facts.unknown.get("torch", _UNKNOWN)
    build = "CPU build" if torch.cuda is None else f"CUDA {torch.cuda}"
    choices = ", ".join(torch.sharing_strategies)
    return f"{torch.version} ({build}), tensors shared by {torch.sharing_strategy} (of {choices})"


def _counters(facts: HostFacts) -> str:
    readable = [name for name, reason in facts.counters.items() if reason is None]
    blocked = [f"not {name} ({reason})" for name, reason in facts.counters.items() if reason is not None]
    core = "is compiled" if facts.not_compiled is None else "runs in Python"
    return f"{', '.join(readable + blocked)}; its core {core}"


def _path(facts: HostFacts) -> str:
    path = facts.path
    if path is None:
        return ""
    kind = "a file system that is not known" if path.kind is None else f"{path.kind} ({path.source})"
    mode = ", read-only" if path.read_only else ""
    return f"{path.path} on {kind}{mode}; size {_of(path.free_bytes, path.size_bytes, 'free')}"


def _threads(facts: HostFacts, width: int) -> list[str]:
    """One line per library or variable; variables that are not set share one."""
    lines: list[str] = []
    unset = [count.name for count in facts.threads if count.threads is None and count.set_by == "not set"]
    label = max([_LABEL, *(len(count.name) + 1 for count in facts.threads if count.name not in unset)])
    for count in facts.threads:
        if count.name not in unset:
            number = _UNKNOWN if count.threads is None else str(count.threads)
            lines += f.labelled(
                f"  {count.name}", f"{number:<4}{count.set_by}", width=width, indent=label + 2
            )
    for name, text in facts.binding.items():
        lines += f.labelled(f"  {name}", text, width=width, indent=label + 2)
    return lines + f.labelled("  not set", ", ".join(unset), width=width, indent=label + 2)


def _of(part: int | None, whole: int | None, word: str) -> str:
    if whole is None:
        return _UNKNOWN
    return f"{_size(whole)}, {_UNKNOWN if part is None else _size(part)} {word}"


def _size(count: int) -> str:
    unit = f.unit_for([float(count)], _SIZES)
    return f"{f.digits(count / unit.size)} {unit.name or 'bytes'}"
