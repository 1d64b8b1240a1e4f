"""Reads the SQLite file of a TraceML run (``traceml-ai`` 0.3 to 0.5) as a run of ours.

TraceML keeps, for every training step, how long ``next(loader)`` took; its own text reports only the mean of
that. The shape of the waiting in time is in the file nevertheless, and this module hands it to the diagnosis.
It sees waits and steps only: what the workers did was never written there. Nothing is written to the file or
beside it, and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite._errors import TraceFormatError
from traceml_lite.records.run import (
    DELIVERY_COLUMNS,
    FETCH_COLUMNS,
    MISSING,
    Environment,
    LoaderConfig,
    LoaderTrace,
    Run,
    Table,
)

TABLE = "step_time_samples"
# Without these columns a row is neither placed in time nor worth anything; all releases from 0.3.0 have them.
NEEDED_COLUMNS = ("id", "step", "events_json")
WAIT_EVENT = "_traceml_internal:dataloader_next"
STEP_EVENT = "_traceml_internal:step_time"

_SQLITE_MAGIC = b"SQLite format 3\x00"
# Where a run directory of TraceML keeps its database; the file has no suffix.
_DATABASE_IN_RUN = Path("aggregator") / "telemetry"

# TraceML stamps with time.time(), whose double resolves 0.24 us today. Stamps that contradict the durations
# by more than this are not rounding: the clock was set, or next() ran inside the timed step.
STAMP_SLACK_NS = 1_000_000

_NOT_RECORDED = f"TraceML's {TABLE} does not record it"
_NO_FETCHES = f"TraceML's {TABLE} holds no fetch times: it times next(loader) in the training process only"
_MAKE_ONE = "Run the script with `traceml-lite run` for a trace of our own"


@dataclass(frozen=True, slots=True)
class _Row:
    """One step of one rank as TraceML wrote it."""

    rank: int
    step: int
    end_s: float | None
    """Wall clock at the end of the step, seconds since 1970."""
    wait_ns: int
    calls: int | None
    """Calls of next() summed in ``wait_ns``; more than one at an epoch's end, or with accumulation."""
    traced_ns: int | None
    """Duration of the body of ``trace_step``."""
    host: str


def is_traceml(path: str | Path) -> bool:
    """Whether ``path`` is a SQLite file or a run directory of TraceML, so that `load` is the one to ask.

    A SQLite file of something else is also claimed: no other reader here takes one, and `load` says what it
    expected to find.
    """
    database = _database(Path(path))
    try:
        with database.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return False


def load(path: str | Path) -> Run:
    """The waits and steps of a TraceML run, one loader per rank of a distributed job.

    Args:
        path: The database (``logs/RUN/aggregator/telemetry``) or its run directory (``logs/RUN``). It is
            opened read-only; a run that is still going may be read.

    Returns:
        A run with the columns ``wait_ns`` and ``step_ns``; ``ask_ns`` and ``got_ns`` where the file's wall
        clock agrees with its durations, from 0 at the first ask. Everything else is absent, with the reason.

    Raises:
        TraceFormatError: Not a TraceML database, a damaged one, or one without any DataLoader timing.
    """
    path = _database(Path(path))
    with _reading(path) as connection:
        _check_schema(path, connection)
        total = int(connection.execute(f"SELECT COUNT(*) FROM {TABLE}").fetchone()[0])
        rows = list(_rows(connection))
        environment = _environment(connection, rows)
    if not rows:
        found = f"{total} steps, none with a '{WAIT_EVENT}' event" if total else "no steps"
        raise TraceFormatError(
            f"{path}: expected steps with DataLoader timing in {TABLE}, found {found}. TraceML writes them "
            f"for steps inside traceml.trace_step() after traceml.init(mode='auto'). {_MAKE_ONE}."
        )
    ranks = sorted({row.rank for row in rows})
    loaders = [_loader([row for row in rows if row.rank == rank], len(ranks)) for rank in ranks]
    live = _wal(path) is not None
    return Run(
        source=str(path),
        loaders=tuple(sorted(loaders, key=lambda loader: -len(loader.deliveries))),
        environment=environment,
        capabilities={
            "fetches": _NO_FETCHES,
            "rchar": _NOT_RECORDED,
            "run_queue": _NOT_RECORDED,
            "loader_config": "TraceML does not record the options of the DataLoader",
            "single_waits": _summed_waits(rows),
        },
        complete=not live,
        ending="still running, or killed (the database has a write-ahead log)" if live else "not recorded",
    )


def _database(path: Path) -> Path:
    inside = path / _DATABASE_IN_RUN
    return inside if inside.is_file() else path


def _wal(path: Path) -> Path | None:
    wal = path.with_name(path.name + "-wal")
    return wal if wal.exists() and wal.stat().st_size > 0 else None


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    # A database in WAL mode gets two files beside it when it is opened, even to read; `immutable` avoids
    # that and is right whenever no log is there, as then nobody is writing.
    options = "mode=ro" if _wal(path) is not None else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise TraceFormatError(
            f"{path}: expected a readable SQLite database of TraceML, found: {error}. If the run is still "
            "going or its directory is read-only, copy the file together with its -wal and read the copy."
        ) from error


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {str(row[1]) for row in connection.execute(f"PRAGMA table_info({table})")}


def _check_schema(path: Path, connection: sqlite3.Connection) -> None:
    columns = _columns(connection, TABLE)
    if not columns:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")
        tables = [str(row[0]) for row in names]
        raise TraceFormatError(
            f"{path}: expected a database of TraceML with the table {TABLE}, found the tables "
            f"{tables}. Give logs/RUN/aggregator/telemetry of a `traceml run`. {_MAKE_ONE}."
        )
    lacking = [name for name in NEEDED_COLUMNS if name not in columns]
    if lacking:
        raise TraceFormatError(
            f"{path}: expected the columns {list(NEEDED_COLUMNS)} in {TABLE} (traceml-ai 0.3 to 0.5), found "
            f"{sorted(columns)}; {lacking} are not there. {_MAKE_ONE}."
        )


def _rows(connection: sqlite3.Connection) -> Iterator[_Row]:
    columns = _columns(connection, TABLE)
    rank = "COALESCE(" + ", ".join([c for c in ("global_rank", "rank") if c in columns] + ["0", "0"]) + ")"
    end = "sample_ts_s" if "sample_ts_s" in columns else "NULL"
    host = "hostname" if "hostname" in columns else "NULL"
    # A step that was written twice counts once, by its last row, as TraceML itself reads it.
    query = f"""
        SELECT {rank}, step, {end}, {host}, events_json FROM {TABLE}
        WHERE id IN (SELECT MAX(id) FROM {TABLE} WHERE step IS NOT NULL GROUP BY {rank}, step)
        ORDER BY {rank}, step"""
    for row_rank, step, end_s, hostname, text in connection.execute(query):
        try:
            events = json.loads(text)
        except (TypeError, ValueError):
            continue
        wait = _event_ns(events, WAIT_EVENT)
        if wait is None:
            continue
        traced = _event_ns(events, STEP_EVENT)
        yield _Row(
            rank=int(row_rank),
            step=int(step),
            end_s=end_s if isinstance(end_s, float) and math.isfinite(end_s) else None,
            wait_ns=wait[0],
            calls=wait[1],
            traced_ns=traced[0] if traced else None,
            host=hostname or "",
        )


def _event_ns(events: Any, name: str) -> tuple[int, int | None] | None:
    """Host duration in nanoseconds and number of calls of one event, over its devices; None if not timed."""
    by_device = events.get(name) if isinstance(events, dict) else None
    if not isinstance(by_device, dict):
        return None
    durations, calls = [], []
    for stats in by_device.values():
        if not isinstance(stats, dict):
            continue
        # `duration_ms` is the GPU's time when `is_gpu` says so, and that is not what the loop was blocked.
        on_host = stats.get("cpu_ms")
        if on_host is None and not stats.get("is_gpu"):
            on_host = stats.get("duration_ms")
        if isinstance(on_host, (int, float)) and math.isfinite(on_host) and on_host >= 0:
            durations.append(float(on_host))
            calls.append(stats.get("n_calls"))
    if not durations:
        return None
    known = [c for c in calls if isinstance(c, int)]
    return round(sum(durations) * 1e6), sum(known) if len(known) == len(calls) else None


def _loader(rows: list[_Row], ranks: int) -> LoaderTrace:
    """The deliveries of one rank, in order of step."""
    steps = np.array([row.step for row in rows], dtype=np.int64)
    waits = np.array([row.wait_ns for row in rows], dtype=np.int64)
    traced = np.array([MISSING if row.traced_ns is None else row.traced_ns for row in rows], dtype=np.int64)
    calls = np.array([MISSING if row.calls is None else row.calls for row in rows], dtype=np.int64)
    first = _epoch_starts(steps, calls)
    epoch = np.searchsorted(first, steps, side="right").astype("i4")
    begins = np.concatenate([[min(1, int(steps[0]))], first])[epoch]
    columns: dict[str, NDArray[Any]] = {
        "iterator": epoch,
        "epoch": epoch,
        "delivery": steps - begins,
        "wait_ns": waits,
    }
    absent = {c.name: _NOT_RECORDED for c in DELIVERY_COLUMNS}
    absent.update({c.name: _NO_FETCHES for c in FETCH_COLUMNS})
    times, why = _times(rows, waits, traced, epoch)
    columns.update(times)
    absent.update({"ask_ns": why, "got_ns": why} if why else {})
    name = f"rank {rows[0].rank} (of {ranks} ranks)" if ranks > 1 else "loader of TraceML's traced steps"
    return LoaderTrace(
        name=name,
        config=LoaderConfig(),
        deliveries=Table(columns, {k: v for k, v in absent.items() if k not in columns}),
        fetches=Table({}, {c.name: _NO_FETCHES for c in FETCH_COLUMNS}),
        sampled=_sampled(steps),
        delivered=int(steps[-1] - min(1, int(steps[0])) + 1),
    )


def _epoch_starts(steps: NDArray[np.int64], calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Steps that begin a later epoch, as far as the file tells; empty when it does not.

    The call of next() that ends an epoch is summed into the following step, so that step has more calls than
    the others. A step skipped by the loop looks the same; only where all such steps stand at multiples of one
    length, and nothing runs longer, is that length taken for an epoch.
    """
    nothing = np.empty(0, dtype=np.int64)
    if (calls < 0).any():
        return nothing
    usual = int(np.bincount(calls).argmax())
    extra = steps[(calls > usual) & (steps > 1)]
    if len(extra) == 0:
        return nothing
    length = int(extra[0]) - 1
    expected = np.arange(1 + length, int(steps[-1]) + 1, length, dtype=np.int64)
    # One batch is no epoch that a loop is diagnosed by; two calls in every step are something else.
    return expected if length > 1 and np.array_equal(extra, expected) else nothing


def _times(
    rows: list[_Row], waits: NDArray[np.int64], traced: NDArray[np.int64], epoch: NDArray[np.int32]
) -> tuple[dict[str, NDArray[np.int64]], str | None]:
    """``step_ns`` and, where the stamps allow it, ``ask_ns`` and ``got_ns``; else why they do not.

    A step ends at its stamp, began ``traced`` before, and the wait lies just before that. What the loop does
    between two traced steps (logging, moving the batch) thus counts to the step before the wait.
    """
    if (traced < 0).any() or any(row.end_s is None for row in rows):
        return {"step_ns": traced}, "some steps carry no duration or no time stamp"
    origin = min(row.end_s for row in rows if row.end_s is not None)
    # Relative to the first stamp before scaling: 1.8e9 s in nanoseconds does not fit a double exactly.
    end = np.array([round(((row.end_s or 0.0) - origin) * 1e9) for row in rows], dtype=np.int64)
    got = end - traced
    ask = got - waits
    early = ask[1:] < end[:-1] - STAMP_SLACK_NS
    blocked = waits[1:] > STAMP_SLACK_NS
    if early.any() and early.sum() > blocked.sum() / 2:
        inside = np.maximum(traced - waits, 0)
        return {"step_ns": inside}, "next(loader) is called inside trace_step: when in it, is not recorded"
    if early.any():
        return {"step_ns": traced}, f"the wall clock contradicts the durations at {int(early.sum())} steps"
    step = traced.copy()
    # Across a missing step or an epoch's end the time until the next ask is not this step's alone.
    adjacent = np.diff([row.step for row in rows]) == 1
    within = adjacent & (epoch[1:] == epoch[:-1])
    step[:-1] = np.where(within, np.maximum(ask[1:] - got[:-1], 0), traced[:-1])
    return {"ask_ns": ask - ask[0], "got_ns": got - ask[0], "step_ns": step}, None


def _sampled(steps: NDArray[np.int64]) -> str | None:
    missing = int(steps[-1]) - len(steps) if steps[0] >= 1 else 0
    if missing <= 0:
        return None
    return (
        f"{missing} of {int(steps[-1])} steps are not in the file or without DataLoader timing (TraceML "
        "keeps 30 minutes of history unless told otherwise, and drops steps when its queue is full)"
    )


def _summed_waits(rows: list[_Row]) -> str | None:
    """Why some waits are not one delivery's, or None when each is."""
    sums = sum(row.calls is not None and row.calls > 1 for row in rows)
    unknown = sum(row.calls is None for row in rows)
    if unknown:
        return f"{unknown} of {len(rows)} waits do not say how many calls of next(loader) they sum"
    if sums:
        return (
            f"{sums} of {len(rows)} waits sum several calls of next(loader), as at an epoch's end, with "
            "validation between epochs, or with accumulation of gradients"
        )
    return None


def _environment(connection: sqlite3.Connection, rows: Iterable[_Row]) -> Environment:
    host = next((row.host for row in rows if row.host), "")
    facts = _columns(connection, "process_samples")
    if not {"cpu_logical_core_count", "ram_total_bytes"} <= facts:
        return Environment(host=host)
    cpus, memory = connection.execute(
        "SELECT MAX(cpu_logical_core_count), MAX(ram_total_bytes) FROM process_samples"
    ).fetchone()
    return Environment(
        host=host,
        cpus_online=int(cpus) if cpus else None,
        memory_bytes=int(memory) if memory else None,
    )
