"""What was not measured, and why, gathered by reason so that a report can say it in a few lines."""

from __future__ import annotations

from collections.abc import Callable

from traceml_lite.records.run import FETCH_COLUMNS, FETCH_KEY_COLUMNS, HOST_COLUMNS, LoaderTrace, Run, Table
from traceml_lite.records.summary import Absence

Say = Callable[[str, tuple[str, ...], str], None]

# Columns that a reader thinks of as one thing, in words.
TOPICS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("fetches in the workers", tuple(c.name for c in FETCH_COLUMNS)),
    ("step time", ("step_ns",)),
    ("times of asking and getting", ("ask_ns", "got_ns")),
    ("order of delivery (rank)", ("rank",)),
    ("worker of a delivery", ("worker",)),
    ("state of the result queue", ("queue_size", "held_back")),
    ("dispatch of batches to workers", ("dispatch_ns",)),
    (
        "CPU time and run-queue delay of the consumer's step",
        ("step_cpu_ns", "step_process_cpu_ns", "step_run_queue_ns"),
    ),
    ("CPU time and run-queue delay of the consumer's wait", ("wait_cpu_ns", "wait_run_queue_ns")),
)
# The same for single columns of a fetch or of the host, where not all of them are absent.
WORDS = {
    "fetch_start_ns": "start of a fetch",
    "fetch_end_ns": "end of a fetch",
    "pid": "process of a fetch",
    "cpu_ns": "CPU time of a fetch",
    "thread_cpu_ns": "CPU time of the fetching thread",
    "run_queue_ns": "run-queue delay of a fetch",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "voluntary_switches": "voluntary switches",
    "involuntary_switches": "involuntary switches",
    "read_bytes": "bytes read from disk",
    "rchar": "bytes asked for by read calls (rchar)",
    "rss_bytes": "resident memory of the workers",
    "threads": "threads of the workers",
    "samples": "samples per batch",
    "cpu_busy_ns": "busy CPU time of the host",
    "cpu_steal_ns": "steal time",
    "cpu_iowait_ns": "I/O wait of the host",
    "pressure_cpu_ns": "CPU pressure (PSI)",
    "pressure_io_ns": "I/O pressure (PSI)",
    "pressure_memory_ns": "memory pressure (PSI)",
    "throttled_periods": "throttled periods",
    "throttled_ns": "throttled time",
    "own_cpu_ns": "CPU time of this job",
    "shm_used_bytes": "use of /dev/shm",
    "open_files": "open files",
}
# Columns that only some runs can have and whose absence is no gap.
OPTIONAL = frozenset({"fast_forward", "iterator", "epoch", "delivery", "k", "state", "time_ns"})


def not_measured(run: Run, trace: LoaderTrace) -> tuple[Absence, ...]:
    """Everything that this run lacks, one entry per reason."""
    if not trace.delivered and not len(trace.deliveries):
        return ()
    by_reason: dict[str, tuple[list[str], list[str]]] = {}

    def say(words: str, columns: tuple[str, ...], reason: str) -> None:
        what, which = by_reason.setdefault(reason, ([], []))
        if words not in what:
            what.append(words)
        which.extend(column for column in columns if column not in which)

    absent = _absent(trace)
    for words, columns in TOPICS:
        reasons = {absent.get(column) for column in columns}
        if len(reasons) == 1 and (reason := reasons.pop()) is not None:
            say(words, columns, reason)
            for column in columns:
                absent.pop(column)
    for column, reason in absent.items():
        say(WORDS.get(column, column), (column,), reason)
    _host(run.host, say)
    for capability, why in run.capabilities.items():
        if why is not None and capability != "fetches" and why not in by_reason:
            say(WORDS.get(capability, capability.replace("_", " ")), (), why)
    return tuple(Absence(tuple(what), tuple(which), reason) for reason, (what, which) in by_reason.items())


def _absent(trace: LoaderTrace) -> dict[str, str]:
    fetch_names = {c.name for c in FETCH_COLUMNS + FETCH_KEY_COLUMNS}
    known = {
        name: reason
        for name, reason in trace.deliveries.absent.items()
        if name not in OPTIONAL and name not in trace.deliveries and name not in trace.fetches
    }
    for name, reason in trace.fetches.absent.items():
        if (
            len(trace.fetches)
            and name in fetch_names
            and name not in OPTIONAL
            and name not in trace.deliveries
        ):
            known.setdefault(name, reason)
    return known


def _host(host: Table, say: Say) -> None:
    if not len(host):
        reason = host.absent.get("time_ns", "the host was not watched in this run")
        say("pressure of the host", tuple(c.name for c in HOST_COLUMNS), reason)
        return
    for name, reason in host.absent.items():
        say(WORDS.get(name, name), (name,), reason)
