"""Bytes of a trace: record layouts, ring files, format version.

Every record is written with ``struct`` by the probe and read with numpy. Minor versions add columns,
major versions change meaning and come with a migration in ``read``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

FORMAT_NAME = "traceml-lite trace"
FORMAT_MAJOR, FORMAT_MINOR = 1, 0

MANIFEST, DELIVERIES, FETCHES, HOST, EVENTS, LIVE = (
    "manifest.json",
    "deliveries.bin",
    "fetches.bin",
    "host.bin",
    "events.jsonl",
    "live",
)

# One delivery, 128 bytes: two cache lines, and a power of two so that a torn write cannot straddle a page.
# Of the last four fields the step is filled in at the next ask, and its counters where they were read.
DELIVERY_STRUCT = struct.Struct("<iiihHqqqqqqqiiqqqqqq")
DELIVERY_STEP_OFFSET = 96
DELIVERY = np.dtype(
    [
        ("iterator", "<i4"),
        ("turn", "<i4"),
        ("epoch", "<i4"),
        ("worker", "<i2"),
        ("flags", "<u2"),
        ("sequence", "<i8"),
        ("delivery", "<i8"),
        ("rank", "<i8"),
        ("k", "<i8"),
        ("ask_ns", "<i8"),
        ("got_ns", "<i8"),
        ("dispatch_ns", "<i8"),
        ("queue_size", "<i4"),
        ("held_back", "<i4"),
        ("wait_cpu_ns", "<i8"),
        ("wait_run_queue_ns", "<i8"),
        ("step_ns", "<i8"),
        ("step_cpu_ns", "<i8"),
        ("step_process_cpu_ns", "<i8"),
        ("step_run_queue_ns", "<i8"),
    ]
)
FLAG_FAST_FORWARD = 1

FETCH_STRUCT = struct.Struct("<iiihBxqqqqqqiiiiqqqiiqq")
# The mark of a fetch in flight: the head of the record, up to its start. What lies behind it in the slot is
# left over from the round before.
FETCH_START_STRUCT = struct.Struct("<iiihBxqq")
FETCH = np.dtype(
    {
        "names": [
            "iterator", "turn", "pid", "worker", "state", "k", "fetch_start_ns", "fetch_end_ns", "cpu_ns",
            "thread_cpu_ns", "run_queue_ns", "minor_faults", "major_faults", "voluntary_switches",
            "involuntary_switches", "read_bytes", "rchar", "rss_bytes", "samples", "threads",
        ],
        "formats": [
            "<i4", "<i4", "<i4", "<i2", "u1", "<i8", "<i8", "<i8", "<i8", "<i8", "<i8",
            "<i4", "<i4", "<i4", "<i4", "<i8", "<i8", "<i8", "<i4", "<i4",
        ],
        "offsets": [0, 4, 8, 12, 14, 16, 24, 32, 40, 48, 56, 64, 68, 72, 76, 80, 88, 96, 104, 108],
        "itemsize": 128,
    }
)  # fmt: skip

RING_MAGIC = b"TLRING1\0"
# magic, record size, capacity, owner pid, iterator, worker, bits of what could not be read, its errno
RING_HEADER = struct.Struct("<8sIIiiiII")
RING_HEADER_SIZE = 128
# CPUs in the owner's affinity mask once the user's worker_init_fn has run; 0 is "not read".
RING_CPUS = struct.Struct("<i")
RING_CPUS_OFFSET = 48
# Running counts that the owner updates: records committed, own time spent on bookkeeping (ns).
RING_COUNTS = struct.Struct("<qq")
RING_COUNTS_OFFSET = 64
RECORD_SIZE = 128

# Bits of a ring's "could not be read" word, with the columns each stands for.
ABSENT_BITS: dict[int, tuple[str, ...]] = {
    1: ("run_queue_ns",),
    2: ("rchar",),
    4: ("rss_bytes", "threads"),
}
RCHAR_SWITCHED_OFF = 0xFFFF
"""In place of an errno: the user switched rchar off."""

assert DELIVERY.itemsize == DELIVERY_STRUCT.size == RECORD_SIZE
assert FETCH.itemsize == FETCH_STRUCT.size == RECORD_SIZE
assert DELIVERY.fields is not None
assert FETCH.fields is not None
assert FETCH.fields["fetch_end_ns"][1] == FETCH_START_STRUCT.size
assert DELIVERY.fields["step_ns"][1] == DELIVERY_STEP_OFFSET


@dataclass(frozen=True, slots=True)
class RingHeader:
    """What a ring file says about itself."""

    record_size: int
    capacity: int
    pid: int
    iterator: int
    worker: int
    absent: int
    errno: int
    committed: int
    own_ns: int
    cpus: int


def parse_ring_header(head: bytes) -> RingHeader | None:
    """The header of a ring file from its first 128 bytes; None when these are not a ring's."""
    if len(head) < RING_HEADER_SIZE:
        return None
    magic, size, capacity, pid, iterator, worker, absent, error = RING_HEADER.unpack_from(head)
    if magic != RING_MAGIC or size != RECORD_SIZE or capacity <= 0:
        return None
    committed, own_ns = RING_COUNTS.unpack_from(head, RING_COUNTS_OFFSET)
    (cpus,) = RING_CPUS.unpack_from(head, RING_CPUS_OFFSET)
    return RingHeader(size, capacity, pid, iterator, worker, absent, error, committed, own_ns, cpus)


def ring_slots(committed: int, since: int, capacity: int) -> tuple[list[tuple[int, int]], int]:
    """Where records ``since .. committed`` lie in a ring.

    Returns:
        ``(spans, lost)``: byte spans ``(offset, length)`` in order, and how many were overwritten already.
    """
    lost = max(0, committed - capacity - since)
    first = since + lost
    spans = []
    while first < committed:
        slot = first % capacity
        count = min(committed - first, capacity - slot)
        spans.append((RING_HEADER_SIZE + slot * RECORD_SIZE, count * RECORD_SIZE))
        first += count
    return spans, lost
