"""Reading a trace: running, ended, killed, bundled, thinned, older. No step of recovery is ever needed.

What a killed process left in its rings is read like the rest. A file that ends in the middle of a record
loses that record only.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from traceml_lite._errors import TraceFormatError
from traceml_lite._together import in_turn, keep_memory_at_hand, together
from traceml_lite.records.run import (
    FETCH_STARTED,
    HOST_COLUMNS,
    MISSING,
    Environment,
    Event,
    Run,
    Table,
)
from traceml_lite.store.columns import (
    BLOCK,
    DELIVERY_TYPES,
    FETCH_TYPES,
    Columns,
    chosen,
    rows_of,
    take_apart,
    with_more,
)
from traceml_lite.store.join import build_loaders
from traceml_lite.store.layout import (
    ABSENT_BITS,
    DELIVERIES,
    DELIVERY,
    EVENTS,
    FETCH,
    FETCH_START_STRUCT,
    FETCHES,
    FORMAT_MAJOR,
    FORMAT_NAME,
    HOST,
    LIVE,
    MANIFEST,
    RCHAR_SWITCHED_OFF,
    RECORD_SIZE,
    RING_HEADER_SIZE,
    RingHeader,
    parse_ring_header,
    ring_slots,
)
from traceml_lite.store.thin import kept, steps_of

# From major version n to n + 1; none yet. A migration takes and returns (manifest, deliveries, fetches).
MIGRATIONS: Mapping[int, Callable[..., Any]] = {}


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` looks like a trace directory or a bundle of one."""
    place = Path(path)
    if place.is_dir():
        return (place / MANIFEST).is_file()
    return place.is_file() and zipfile.is_zipfile(place)


# From here on it pays to read both files at once.
_LONG_BYTES = 1 << 24


def load(path: str | os.PathLike[str]) -> Run:
    """Read a trace directory or a bundle.

    Args:
        path: Directory written by the probe (also while it is being written), or its zip.

    Returns:
        The run; ``run.complete`` says whether the traced process ended in order.

    Raises:
        TraceFormatError: Not a trace, damaged beyond reading, of a newer major version, or put together
            from files of two traces.
    """
    keep_memory_at_hand()
    place = Path(path)
    source = _open(place)
    manifest = _manifest(place, source)
    events = _events(place, source, manifest)
    # The rings before the files: what a run that goes on moves from one to the other is then read twice at
    # most, and never missed.
    headers: list[RingHeader] = []
    new_deliveries: list[Columns] = []
    new_fetches: list[Columns] = []
    for name in source.names(LIVE):
        ring = _ring(source.read(name))
        if ring is None:
            continue
        header, records, mark = ring
        headers.append(header)
        if name.endswith(".deliveries"):
            rows = take_apart([records], DELIVERY, DELIVERY_TYPES, len(records) // DELIVERY.itemsize)
            # Less the slots that have been emptied: before 0.1.0 they were, once they had been drained.
            new_deliveries.append(chosen(rows, rows["sequence"] >= 0))
        else:
            found = records + mark
            new_fetches.append(take_apart([found], FETCH, FETCH_TYPES, len(found) // FETCH.itemsize))
    long = source.size(DELIVERIES) + source.size(FETCHES) > _LONG_BYTES
    deliveries, fetches = (together if long else in_turn)(
        lambda: _records(source, DELIVERIES, manifest, DELIVERY_TYPES),
        lambda: _records(source, FETCHES, manifest, FETCH_TYPES),
    )
    for rows in new_deliveries:
        deliveries = with_more(deliveries, rows, ("sequence",))
    for rows in new_fetches:
        fetches = with_more(fetches, rows, ("iterator", "turn", "worker", "k"))
    deliveries["step_ns"] = steps_of(deliveries)
    sampled, floor_ns, delivered = None, None, rows_of(deliveries)
    sampling = manifest.get("sampling")
    if sampling:
        delivered = int(deliveries["sequence"].max()) + 1 if rows_of(deliveries) else 0
        floor_ns = int(sampling["floor_ns"])
        deliveries = chosen(deliveries, kept(deliveries, sampling["stride"], floor_ns))
        sampled = (
            f"the trace outgrew its limit of {manifest['limit_bytes']} bytes: 1 delivery in "
            f"{sampling['stride']} and every wait of at least {floor_ns / 1e6:.3g} ms were kept, "
            f"{rows_of(deliveries)} of {delivered}"
        )
    damage = _damage(source, manifest)
    if damage and rows_of(deliveries) and not any(event.kind == "iterator" for event in events):
        raise TraceFormatError(f"{place}: {damage}; which loader delivered the batches is not known any more")
    absent = _absent(events, headers)
    ended = manifest.get("ended")
    environment = _record(Environment, manifest.get("environment", {}))
    return Run(
        source=str(place),
        loaders=build_loaders(deliveries, fetches, events, absent, sampled, floor_ns),
        environment=environment,
        host=_host(source, manifest),
        capabilities=_capabilities(manifest, absent),
        events=tuple(e for e in events if e.iterator is None),
        probe_cost=manifest.get("probe_cost") or _cost_so_far(headers),
        probe_core=manifest.get("core"),
        complete=ended is not None and not damage,
        ending=damage or (ended["how"] if ended else _state_of_owner(manifest, environment)),
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """A directory or a zip, read the same way."""

    read: Callable[[str], bytes]
    open: Callable[[str], BinaryIO]
    names: Callable[[str], list[str]]
    has: Callable[[str], bool]
    size: Callable[[str], int]
    """Bytes of a file; 0 where there is none."""


def _open(place: Path) -> _Source:
    if place.is_dir():

        def names(folder: str) -> list[str]:
            inside = place / folder
            return sorted(f"{folder}/{n}" for n in os.listdir(inside)) if inside.is_dir() else []

        def read(name: str) -> bytes:
            try:
                return (place / name).read_bytes()
            except FileNotFoundError:
                return b""  # a ring that its iterator removed a moment ago; its records are in the main file

        def size(name: str) -> int:
            return (place / name).stat().st_size if (place / name).is_file() else 0

        return _Source(
            read, lambda name: open(place / name, "rb"), names, lambda name: (place / name).is_file(), size
        )
    if not place.exists():
        raise TraceFormatError(f"{place}: no such file or directory; expected a trace directory or its zip")
    if not zipfile.is_zipfile(place):
        raise TraceFormatError(
            f"{place}: not a trace. Expected a directory written by 'traceml-lite run' or 'probe', "
            "or a zip of one"
        )
    archive = zipfile.ZipFile(place)
    listed = archive.namelist()
    return _Source(
        lambda name: archive.read(name) if name in listed else b"",
        lambda name: cast("BinaryIO", archive.open(name)),
        lambda folder: sorted(n for n in listed if n.startswith(f"{folder}/") and not n.endswith("/")),
        lambda name: name in listed,
        lambda name: archive.getinfo(name).file_size if name in listed else 0,
    )


def _traces_inside(place: Path) -> str:
    """What to give instead where a folder of traces was given."""
    if not place.is_dir():
        return ""
    inside = [entry for entry in place.iterdir() if is_trace(entry)]
    if not inside:
        return ". Expected a directory written by 'traceml-lite run' or 'probe', or a zip of one"
    inside.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    names = ", ".join(str(entry) for entry in inside[:3])
    more = f" and {len(inside) - 3} more" if len(inside) > 3 else ""
    return f", but it holds traces: give one of {names}{more} (the newest first)"


def _manifest(place: Path, source: _Source) -> dict[str, Any]:
    if not source.has(MANIFEST):
        raise TraceFormatError(f"{place}: not a trace: it has no {MANIFEST}{_traces_inside(place)}")
    try:
        manifest = json.loads(source.read(MANIFEST))
        name, (major, minor) = manifest["format"], manifest["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise TraceFormatError(f"{place}: {MANIFEST} is damaged or not ours ({error!r})") from error
    if name != FORMAT_NAME:
        raise TraceFormatError(f"{place}: not ours: format {name!r}, expected {FORMAT_NAME!r}")
    if major > FORMAT_MAJOR:
        raise TraceFormatError(
            f"{place}: trace format {major}.{minor} is newer than this version reads ({FORMAT_MAJOR}.x). "
            "Upgrade with: pip install -U traceml-lite"
        )
    while major < FORMAT_MAJOR:
        manifest = MIGRATIONS[major](manifest)
        major += 1
    assert isinstance(manifest, dict)
    return manifest


def _damage(source: _Source, manifest: Mapping[str, Any]) -> str:
    """Which files are shorter than they were when the recording ended, in words; empty if none is."""
    found = []
    for name, size in manifest.get("sizes", {}).items():
        left = source.size(name)
        if left < size:
            found.append(f"{name} has {left} of {size} bytes" if source.has(name) else f"{name} is gone")
    return f"the trace is damaged: {', '.join(found)}" if found else ""


def _events(place: Path, source: _Source, manifest: Mapping[str, Any]) -> list[Event]:
    events = []
    for line in source.read(EVENTS).splitlines():
        try:
            data = json.loads(line)
            kind, time_ns, iterator = data.pop("kind"), data.pop("time_ns"), data.pop("iterator")
        except (ValueError, KeyError, AttributeError):
            continue  # the line being written when it was killed, or read at this very moment
        if kind == "session" and data.get("session") != manifest.get("session"):
            raise TraceFormatError(
                f"{place}: {EVENTS} and {MANIFEST} belong to two different traces "
                f"({data.get('host')} and {manifest.get('environment', {}).get('host')}). "
                "Keep the files of each trace in a directory of their own"
            )
        events.append(Event(kind, time_ns, iterator, data))
    return events


def _records(
    source: _Source, name: str, manifest: Mapping[str, Any], types: Mapping[str, np.dtype[Any]]
) -> Columns:
    layout = np.dtype(manifest["layout"][name])
    rows = source.size(name) // layout.itemsize
    if not rows:
        return take_apart([], layout, types, 0)
    with source.open(name) as file:
        return take_apart(_blocks(file, BLOCK * layout.itemsize), layout, types, rows)


def _blocks(file: BinaryIO, size: int) -> Iterator[memoryview]:
    """What a file holds, in one buffer that is filled again and again."""
    buffer = memoryview(bytearray(size))
    while length := file.readinto(buffer):  # type: ignore[attr-defined]
        yield buffer[:length]


def _ring(data: bytes) -> tuple[RingHeader, bytes, bytes] | None:
    header = parse_ring_header(data[:RING_HEADER_SIZE])
    if header is None:
        return None
    # Less the oldest of a full ring: its slot is the next one to be written.
    oldest = max(0, header.committed - header.capacity + 1)
    spans, _ = ring_slots(header.committed, oldest, header.capacity)
    records = b"".join(data[offset : offset + length] for offset, length in spans)
    following = RING_HEADER_SIZE + (header.committed % header.capacity) * RECORD_SIZE
    mark = data[following : following + RECORD_SIZE]
    return header, records, _in_flight(mark) if len(mark) == RECORD_SIZE else b""


def _in_flight(mark: bytes) -> bytes:
    """A start mark as a record that lacks all but its head; empty where the slot holds no start mark."""
    row = np.frombuffer(mark, dtype=FETCH).copy()
    if row["state"][0] != FETCH_STARTED or row["fetch_start_ns"][0] <= 0:
        return b""
    assert FETCH.fields is not None
    for name, field in FETCH.fields.items():
        if field[1] >= FETCH_START_STRUCT.size:
            row[name] = MISSING
    head: bytes = row.tobytes()
    return head


def _absent(events: list[Event], headers: list[RingHeader]) -> dict[str, str]:
    """Fetch columns that some worker could not read, with the reason in words."""
    found: dict[str, str] = {}
    seen = [(e.data["bits"], e.data["errno"]) for e in events if e.kind == "absent"]
    for bits, error in [*seen, *((h.absent, h.errno) for h in headers)]:
        for bit, columns in ABSENT_BITS.items():
            if bits & bit:
                found.update(dict.fromkeys(columns, _reason(bit, error)))
    return found


def _reason(bit: int, error: int) -> str:
    if error == RCHAR_SWITCHED_OFF:
        return "switched off (--no-rchar)"
    what = {1: "/proc/thread-self/schedstat", 2: "/proc/self/io", 4: "/proc/self/stat"}[bit]
    return f"{what} cannot be read in the worker: {os.strerror(error)}"


def _capabilities(manifest: Mapping[str, Any], absent: Mapping[str, str]) -> dict[str, str | None]:
    known: dict[str, str | None] = {"fetches": None, "rchar": None, "run_queue": None}
    known.update(manifest.get("capabilities", {}))
    for name, column in (("rchar", "rchar"), ("run_queue", "run_queue_ns"), ("rss", "rss_bytes")):
        if column in absent:
            known[name] = absent[column]
    return known


def _host(source: _Source, manifest: Mapping[str, Any]) -> Table:
    names = manifest["layout"][HOST]
    data = source.read(HOST)
    rows = np.frombuffer(data, dtype="<i8", count=len(data) // 8 // len(names) * len(names))
    rows = rows.reshape(-1, len(names))
    reasons = manifest.get("host_absent", {})
    columns, absent = {}, {}
    for column in HOST_COLUMNS:
        if column.name not in names:
            absent[column.name] = "this trace does not have it"
            continue
        values = rows[:, names.index(column.name)]
        if len(values) and (values == MISSING).all():
            absent[column.name] = reasons.get(column.name, "it could not be read")
        else:
            columns[column.name] = values
    return Table(columns, absent)


def _record(cls: type[Any], data: Mapping[str, Any]) -> Any:
    """A record from JSON: fields this version does not know are left out, tuples are restored."""
    known = {f.name for f in fields(cls)}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known})


def _cost_so_far(headers: list[RingHeader]) -> dict[str, float]:
    consumer = sum(h.own_ns for h in headers if h.worker == MISSING - 1)
    return {
        "consumer_ns": float(consumer),
        "worker_ns": float(sum(h.own_ns for h in headers)) - consumer,
        "partial": 1.0,
    }


def _state_of_owner(manifest: Mapping[str, Any], environment: Environment) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        ticks = Path(f"/proc/{environment.pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        boot, ticks = "", ""
    if boot and boot == environment.boot_id and ticks == str(manifest.get("owner_start_ticks")):
        return "still running"
    return "its process is gone and wrote no end: killed, or the machine went down"
