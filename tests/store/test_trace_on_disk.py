from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import traceml_lite as tl
from traceml_lite._errors import TraceFormatError
from traceml_lite.records.run import FETCH_DONE, FETCH_STARTED, MISSING
from traceml_lite.store import read, write_bundle
from traceml_lite.store.layout import (
    DELIVERIES,
    EVENTS,
    FETCH,
    FETCH_START_STRUCT,
    FETCH_STRUCT,
    FETCHES,
    MANIFEST,
    ring_slots,
)
from traceml_lite.store.ring import Ring, RingReader


def record(path: Path, batches: int = 20, workers: int = 1) -> Path:
    with tl.record(path):
        for _ in DataLoader(list(range(batches)), batch_size=1, num_workers=workers):
            pass
    return path


def test_plain_numpy_and_the_manifest_are_enough_to_read_a_trace(trace_path: Path) -> None:
    record(trace_path)
    manifest = json.loads((trace_path / MANIFEST).read_text())
    rows = np.fromfile(trace_path / DELIVERIES, dtype=np.dtype(manifest["layout"][DELIVERIES]))
    assert rows["rank"].tolist() == list(range(20))
    assert (rows["got_ns"] >= rows["ask_ns"]).all()


def test_nothing_but_the_files_of_the_trace_is_left_in_its_directory(trace_path: Path) -> None:
    record(trace_path)
    assert sorted(os.listdir(trace_path)) == [
        "deliveries.bin", "events.jsonl", "fetches.bin", "host.bin", "manifest.json",
    ]  # fmt: skip


def test_a_file_cut_in_the_middle_of_a_record_loses_that_record_only(trace_path: Path) -> None:
    record(trace_path)
    size = (trace_path / DELIVERIES).stat().st_size
    os.truncate(trace_path / DELIVERIES, size - 50)
    with open(trace_path / EVENTS, "a") as file:
        file.write('{"kind": "epoch_')
    run = tl.load(trace_path)
    assert run.main.deliveries["rank"].tolist() == list(range(19))
    assert not run.complete
    assert "the trace is damaged: deliveries.bin has 2510 of 2560 bytes" in run.ending


def test_a_lost_file_of_fetches_is_damage_and_not_a_run_without_fetches(trace_path: Path) -> None:
    record(trace_path)
    (trace_path / FETCHES).unlink()
    run = tl.load(trace_path)
    assert run.ending == "the trace is damaged: fetches.bin is gone"
    assert len(run.main.deliveries) == 20


def test_deliveries_whose_loader_is_lost_are_an_error_and_not_an_empty_run(trace_path: Path) -> None:
    record(trace_path)
    (trace_path / EVENTS).write_text("")
    with pytest.raises(TraceFormatError, match=r"events\.jsonl has 0 of"):
        tl.load(trace_path)


def test_a_bundle_reads_as_the_directory_does(trace_path: Path, tmp_path: Path) -> None:
    record(trace_path)
    bundle = write_bundle(trace_path, tmp_path / "ticket.zip")
    ours, theirs = tl.load(trace_path).main.deliveries, tl.load(bundle).main.deliveries
    assert list(ours) == list(theirs)
    for name in ours:
        assert np.array_equal(ours[name], theirs[name])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda m: {**m, "format": "something else"}, "not ours"),
        (lambda m: {**m, "version": [99, 0]}, "pip install -U traceml-lite"),
        (lambda m: {k: v for k, v in m.items() if k != "version"}, "damaged or not ours"),
        (lambda m: {**m, "session": "of another trace"}, "two different traces"),
    ],
)
def test_what_is_not_a_trace_of_ours_is_refused_with_what_to_do(
    trace_path: Path, damage, message: str
) -> None:  # type: ignore[no-untyped-def]
    record(trace_path)
    manifest = json.loads((trace_path / MANIFEST).read_text())
    (trace_path / MANIFEST).write_text(json.dumps(damage(manifest)))
    with pytest.raises(TraceFormatError, match=message):
        tl.load(trace_path)


def test_a_manifest_that_is_no_json_an_empty_directory_a_text_and_a_missing_path_are_refused(
    tmp_path: Path,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / MANIFEST).write_text("{")
    for name, message in (
        ("empty", "no manifest"),
        ("text", "not a trace"),
        ("broken", "damaged"),
        ("none", "no such"),
    ):
        with pytest.raises(TraceFormatError, match=message):
            tl.load(tmp_path / name)


def test_a_trace_of_an_older_minor_version_lacks_a_column_and_says_so(trace_path: Path) -> None:
    record(trace_path)
    manifest = json.loads((trace_path / MANIFEST).read_text())
    layout = manifest["layout"][FETCHES]
    keep = [i for i, name in enumerate(layout["names"]) if name != "read_bytes"]
    for part in ("names", "formats", "offsets"):
        layout[part] = [layout[part][i] for i in keep]
    (trace_path / MANIFEST).write_text(json.dumps(manifest))
    deliveries = tl.load(trace_path).main.deliveries
    assert "read_bytes" not in deliveries
    assert "cpu_ns" in deliveries


def test_a_trace_over_its_limit_keeps_every_stall_and_an_even_sample_and_says_so(trace_path: Path) -> None:
    slow = {401, 1111, 1777}

    class Mostly(list):  # type: ignore[type-arg]
        def __getitem__(self, index: int) -> int:  # type: ignore[override]
            if index in slow:
                time.sleep(0.03)
            return index

    with tl.record(trace_path, limit_bytes=200_000):
        for _ in DataLoader(Mostly(range(3000)), batch_size=1, num_workers=1):
            pass
    trace = tl.load(trace_path).main
    files = sum((trace_path / name).stat().st_size for name in (DELIVERIES, FETCHES))
    assert files < 400_000
    assert trace.sampled is not None
    assert trace.delivered == 3000
    kept = trace.deliveries["delivery"]
    assert slow <= set(kept.tolist())
    assert 150 < len(kept) < 2000
    counts = np.histogram(kept, bins=6, range=(0, 3000))[0]
    assert counts.max() < 2 * counts.min() + 40
    assert (trace.deliveries["step_ns"][:-1] >= 0).mean() > 0.99
    assert (trace.deliveries["fetch_end_ns"] > 0).mean() > 0.95


SCRIPT = """
import sys, time
from torch.utils.data import DataLoader, Dataset
import traceml_lite as tl
class Slow(Dataset):
    def __len__(self): return 100000
    def __getitem__(self, i):
        time.sleep(30 if i == 700 else 0.0005)
        return i
if __name__ == "__main__":
    with tl.record(sys.argv[1]):
        for number, _ in enumerate(DataLoader(Slow(), batch_size=1, num_workers=2, in_order=False)):
            if number == 600:
                print("ready", flush=True)
"""


def test_a_consumer_killed_with_sigkill_leaves_a_trace_that_reads_without_any_repair(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    path = tmp_path / "trace"
    process = subprocess.Popen([sys.executable, str(script), str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)
    running = tl.load(path)
    assert not running.complete
    assert running.ending == "still running"
    assert len(running.main.deliveries) > 600
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    run = tl.load(path)
    assert not run.complete
    assert "killed" in run.ending
    deliveries = run.main.deliveries
    assert len(deliveries) > 600
    assert deliveries["delivery"].tolist() == list(range(len(deliveries)))
    assert (deliveries["fetch_end_ns"] > 0).all()
    fetches = run.main.fetches
    stuck = fetches["state"] == 0  # the start mark of the batch that was in flight, and since when
    assert stuck.sum() >= 1
    assert (fetches["fetch_start_ns"][stuck] > 0).all()
    assert (fetches["fetch_end_ns"][stuck] == -1).all()
    time.sleep(6)  # the workers look for their parent every 5 s


def test_a_ring_gives_its_records_in_order_also_when_it_has_wrapped(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path / "r"), 4, iterator=1, worker=2)
    reader = RingReader(str(tmp_path / "r"))
    for number in range(3):
        ring.memory[ring.offset(number) : ring.offset(number) + 1] = bytes([number])
        ring.publish(number + 1, number + 1)
    assert list(reader.take()[0][::128]) == [0, 1, 2]
    for number in range(3, 6):
        ring.memory[ring.offset(number) : ring.offset(number) + 1] = bytes([number])
        ring.publish(number + 1, number + 1)
    assert list(reader.take()[0][::128]) == [3, 4, 5]
    ring.publish(12, 12)
    assert len(reader.take()[0]) == 4 * 128
    assert reader.lost == 2
    assert reader.header is not None
    assert reader.header.own_ns == 12
    ring.unlink()


def test_a_start_mark_in_a_used_slot_has_nothing_of_the_record_that_was_there(tmp_path: Path) -> None:
    ring = Ring(str(tmp_path / "r"), 2, iterator=1, worker=3)
    for k in range(2):
        values = [1, 0, 77, 3, FETCH_DONE, k, *range(10, 15), *range(15, 19), *range(19, 22), 22, 23, 0, 0]
        FETCH_STRUCT.pack_into(ring.memory, ring.offset(k), *values)
        ring.publish(k + 1, k + 1)
    FETCH_START_STRUCT.pack_into(ring.memory, ring.offset(2), 1, 0, 77, 3, FETCH_STARTED, 2, 99)
    (tmp_path / "copy").write_bytes((tmp_path / "r").read_bytes())
    _, records, mark = read._ring((tmp_path / "copy").read_bytes())
    assert np.frombuffer(records, dtype=FETCH)["k"].tolist() == [1], "not the one being overwritten"
    row = np.frombuffer(mark, dtype=FETCH)[0]
    assert (row["worker"], row["pid"], row["k"], row["fetch_start_ns"]) == (3, 77, 2, 99)
    behind = [name for name in FETCH.names if FETCH.fields[name][1] >= FETCH_START_STRUCT.size]
    assert {int(row[name]) for name in behind} == {MISSING}
    ring.unlink()


def test_spans_of_a_ring_never_reach_beyond_it() -> None:
    for committed in range(40):
        for since in range(committed + 1):
            spans, lost = ring_slots(committed, since, 8)
            assert sum(length for _, length in spans) // 128 == committed - since - lost
            assert all(offset >= 128 and offset + length <= 128 + 8 * 128 for offset, length in spans)


def test_a_ring_on_a_full_disk_is_an_error_and_not_a_sigbus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Ring(str(tmp_path / "r"), 4, iterator=1, worker=2)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_traces_names_them_and_an_empty_one_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="Expected a directory written by"):
        read.load(tmp_path)
    for number in range(4):
        with tl.record(tmp_path / f"run-{number}"):
            pass
        os.utime(tmp_path / f"run-{number}", (number, number))
    with pytest.raises(TraceFormatError, match=r"run-3, .*run-2, .*run-1 and 1 more \(the newest first\)"):
        read.load(tmp_path)
