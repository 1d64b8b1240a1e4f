"""TraceML's databases: real ones made by TraceML 0.3 to 0.5 (see make_fixtures.py), and broken ones."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from traceml_lite._errors import TraceFormatError
from traceml_lite.integrations import traceml
from traceml_lite.records.run import FETCH_COLUMNS

FIXTURES = Path(__file__).parent / "fixtures"
REAL = sorted(FIXTURES.glob("*.sqlite.gz"))
BATCHES = 48

SCHEMA = """CREATE TABLE step_time_samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT, recv_ts_ns INTEGER NOT NULL, rank INTEGER, global_rank INTEGER,
    local_rank INTEGER, world_size INTEGER, local_world_size INTEGER, node_rank INTEGER, hostname TEXT,
    sample_ts_s REAL, seq INTEGER, step INTEGER, events_json TEXT NOT NULL)"""


def unpack(fixture: Path, folder: Path) -> Path:
    database = folder / fixture.name.removesuffix(".gz")
    database.write_bytes(gzip.decompress(fixture.read_bytes()))
    return database


def event(ms, calls=1, **more):
    return {
        "cpu": {"is_gpu": False, "duration_ms": ms, "cpu_ms": ms, "gpu_ms": None, "n_calls": calls, **more}
    }


def events(wait_ms, step_ms=10.0, calls=1):
    return json.dumps({traceml.WAIT_EVENT: event(wait_ms, calls), traceml.STEP_EVENT: event(step_ms)})


def database(path: Path, rows, schema=SCHEMA) -> Path:
    """``rows``: (rank, end_s, step, events_json), written as TraceML writes them."""
    connection = sqlite3.connect(path)
    connection.execute(schema)
    connection.executemany(
        "INSERT INTO step_time_samples"
        "(recv_ts_ns, rank, global_rank, hostname, sample_ts_s, step, events_json)"
        " VALUES (0, ?1, ?1, 'node', ?2, ?3, ?4)",
        rows,
    )
    connection.commit()
    connection.close()
    return path


def a_loop(waits_ms, step_ms=10.0, gap_ms=0.5, start_s=1.8e9, rank=0):
    """Rows of a loop: wait, traced step, then ``gap_ms`` outside both."""
    now, rows = start_s, []
    for step, wait in enumerate(waits_ms, start=1):
        now += (wait + step_ms) / 1e3
        rows.append((rank, now, step, events(wait, step_ms)))
        now += gap_ms / 1e3
    return rows


@pytest.mark.parametrize("fixture", REAL, ids=lambda p: p.name)
def test_every_release_from_0_3_to_0_5_is_read_with_its_epochs_and_waits(fixture, tmp_path):
    path = unpack(fixture, tmp_path)
    assert traceml.is_traceml(path)
    loader = traceml.load(path).main
    deliveries = loader.deliveries
    assert len(deliveries) == loader.delivered == 2 * BATCHES
    assert deliveries["epoch"].tolist() == [0] * BATCHES + [1] * BATCHES
    assert deliveries["delivery"].tolist() == [*range(BATCHES)] * 2
    assert (deliveries["wait_ns"] > 0).all()
    assert (deliveries["step_ns"] >= 10_000_000).all(), "the loop sleeps 10 ms in forward()"
    assert np.array_equal(deliveries["got_ns"] - deliveries["ask_ns"], deliveries["wait_ns"])
    assert (np.diff(deliveries["ask_ns"]) > 0).all()
    assert loader.sampled is None


def test_the_versions_0_3_0_0_3_6_0_4_2_and_0_5_0_are_among_the_fixtures():
    assert {p.name.split("-")[1] for p in REAL} == {"0.3.0", "0.3.6", "0.4.2", "0.5.0"}


def test_five_inputs_that_traceml_words_alike_come_out_with_five_different_shapes_of_waiting(tmp_path):
    waits = {}
    for kind in ("healthy", "uniform", "every_fourth", "random", "drift"):
        run = traceml.load(unpack(FIXTURES / f"traceml-0.5.0-{kind}.sqlite.gz", tmp_path))
        # The first deliveries of an epoch fill the pool; they look alike in all five.
        waits[kind] = run.main.deliveries["wait_ns"][8:BATCHES] / 1e6
    assert np.median(waits["healthy"]) < 3
    assert waits["uniform"].min() > 11
    slow = np.flatnonzero(waits["every_fourth"] > 8)
    assert len(slow) >= 8
    assert (np.diff(slow) == 4).mean() > 0.8
    assert np.median(waits["random"]) < 3 < 30 < waits["random"].max()
    assert waits["drift"][-8:].mean() > 3 * waits["drift"][:8].mean()


def test_what_the_file_does_not_hold_is_absent_with_a_reason(tmp_path):
    run = traceml.load(database(tmp_path / "db", a_loop([1, 2, 3])))
    assert "fetch times" in (run.capabilities["fetches"] or "")
    for column in FETCH_COLUMNS:
        assert column.name not in run.main.deliveries
        assert "training process only" in run.main.deliveries.why_absent(column.name)
    assert "worker" not in run.main.deliveries
    assert run.main.config.num_workers is None


def test_a_step_reaches_from_a_batch_to_the_next_ask_and_nothing_is_lost(tmp_path):
    waits = [3.0, 1.0, 2.0, 40.0, 1.0]
    run = traceml.load(database(tmp_path / "db", a_loop(waits, step_ms=10, gap_ms=0.5)))
    step_ms = run.main.deliveries["step_ns"] / 1e6
    # The last step has no next ask, so only its traced part is known.
    assert step_ms == pytest.approx([10.5, 10.5, 10.5, 10.5, 10.0], abs=0.002)


def test_ranks_of_a_distributed_job_become_loaders_of_their_own(tmp_path):
    rows = a_loop([1] * 6, rank=0) + a_loop([20] * 9, rank=3)
    run = traceml.load(database(tmp_path / "db", rows))
    assert [loader.name for loader in run.loaders] == ["rank 3 (of 2 ranks)", "rank 0 (of 2 ranks)"]
    assert [len(loader.deliveries) for loader in run.loaders] == [9, 6]
    assert (run.loaders[0].deliveries["wait_ns"] == 20_000_000).all()


def test_steps_that_history_retention_dropped_are_told_and_keep_their_numbers(tmp_path):
    run = traceml.load(database(tmp_path / "db", a_loop([1] * 20)[12:]))
    assert run.main.sampled is not None
    assert run.main.sampled.startswith("12 of 20 steps are not in the file")
    assert run.main.delivered == 20
    assert run.main.deliveries["delivery"].tolist() == [*range(12, 20)]


def test_a_step_after_a_hole_is_not_given_the_time_of_the_hole(tmp_path):
    rows = a_loop([1] * 20)
    run = traceml.load(database(tmp_path / "db", rows[:5] + rows[15:]))
    assert run.main.deliveries["step_ns"].max() < 11_000_000


def test_a_step_written_twice_counts_once_by_its_last_row(tmp_path):
    rows = a_loop([1, 2, 3])
    again = (0, rows[1][1], 2, events(7))
    run = traceml.load(database(tmp_path / "db", [*rows, again]))
    assert (run.main.deliveries["wait_ns"] / 1e6).tolist() == [1, 7, 3]


def test_skipped_batches_are_not_taken_for_epochs(tmp_path):
    rows = a_loop([1] * 30)
    for step in (4, 9, 21):
        rows[step] = (*rows[step][:3], events(1, calls=2))
    run = traceml.load(database(tmp_path / "db", rows))
    assert set(run.main.deliveries["epoch"]) == {0}
    assert (run.capabilities["single_waits"] or "").startswith("3 of 30 waits sum several calls")


def test_a_clock_that_was_set_leaves_the_durations_and_withdraws_the_moments(tmp_path):
    rows = a_loop([20] * 10)
    rows[6:] = [(rank, end - 3600, step, text) for rank, end, step, text in rows[6:]]
    run = traceml.load(database(tmp_path / "db", rows))
    assert "ask_ns" not in run.main.deliveries
    assert "wall clock contradicts" in run.main.deliveries.why_absent("ask_ns")
    assert (run.main.deliveries["step_ns"] == 10_000_000).all()


def test_a_wait_inside_the_traced_step_is_taken_out_of_the_step(tmp_path):
    now, rows = 1.8e9, []
    for step in range(1, 11):
        now += 0.030
        rows.append((0, now, step, events(20, 30)))
    run = traceml.load(database(tmp_path / "db", rows))
    assert (run.main.deliveries["step_ns"] == 10_000_000).all()
    assert "inside trace_step" in run.main.deliveries.why_absent("got_ns")


def test_a_gpu_duration_is_never_taken_for_a_wait_of_the_loop(tmp_path):
    text = json.dumps({traceml.WAIT_EVENT: {"cuda:0": {"is_gpu": True, "duration_ms": 99.0, "n_calls": 1}}})
    rows = a_loop([1, 2, 3])
    rows[1] = (*rows[1][:3], text)
    run = traceml.load(database(tmp_path / "db", rows))
    assert (run.main.deliveries["wait_ns"] / 1e6).tolist() == [1, 3]


def test_rows_that_are_not_json_are_passed_over_and_counted_as_missing(tmp_path):
    rows = a_loop([1] * 5)
    rows[2] = (*rows[2][:3], "{broken")
    run = traceml.load(database(tmp_path / "db", rows))
    assert len(run.main.deliveries) == 4
    assert (run.main.sampled or "").startswith("1 of 5 steps")


def test_a_run_directory_is_found_by_its_database(tmp_path):
    folder = tmp_path / "logs" / "run" / "aggregator"
    folder.mkdir(parents=True)
    database(folder / "telemetry", a_loop([1, 2, 3]))
    assert traceml.is_traceml(tmp_path / "logs" / "run")
    assert len(traceml.load(tmp_path / "logs" / "run").main.deliveries) == 3


def test_reading_leaves_the_file_and_its_directory_untouched(tmp_path):
    path = unpack(FIXTURES / "traceml-0.5.0-uniform.sqlite.gz", tmp_path)
    before = path.read_bytes()
    tmp_path.chmod(0o555)
    try:
        traceml.load(path)
    finally:
        tmp_path.chmod(0o755)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_run_that_is_still_going_is_read_up_to_its_last_commit(tmp_path):
    path = database(tmp_path / "db", a_loop([1] * 4))
    writer = sqlite3.connect(path)
    try:
        writer.execute("PRAGMA journal_mode = WAL")
        rank, end, step, text = a_loop([1] * 5)[4]
        writer.execute(
            "INSERT INTO step_time_samples(recv_ts_ns, global_rank, sample_ts_s, step, events_json)"
            " VALUES (0, ?, ?, ?, ?)",
            (rank, end, step, text),
        )
        writer.commit()
        run = traceml.load(path)
    finally:
        writer.close()
    assert len(run.main.deliveries) == 5
    assert not run.complete


def test_another_sqlite_file_is_an_error_that_names_the_tables_found(tmp_path):
    path = tmp_path / "db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.commit()
    connection.close()
    assert traceml.is_traceml(path)
    with pytest.raises(
        TraceFormatError, match=r"expected .* step_time_samples, found the tables \['songs'\]"
    ):
        traceml.load(path)


def test_a_table_without_its_columns_is_an_error_that_names_them(tmp_path):
    path = tmp_path / "db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE step_time_samples (id INTEGER PRIMARY KEY, step INTEGER)")
    connection.commit()
    connection.close()
    with pytest.raises(TraceFormatError, match=r"\['events_json'\] are not there"):
        traceml.load(path)


@pytest.mark.parametrize("rows", [[], [(0, 1.8e9, 1, "{}")]], ids=["no steps", "no waits"])
def test_a_database_without_loader_timing_says_how_traceml_would_have_written_it(rows, tmp_path):
    with pytest.raises(TraceFormatError, match=r"trace_step\(\) after traceml.init"):
        traceml.load(database(tmp_path / "db", rows))


def test_a_truncated_database_is_an_error_and_no_traceback(tmp_path):
    path = unpack(FIXTURES / "traceml-0.5.0-uniform.sqlite.gz", tmp_path)
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(TraceFormatError, match="expected a readable SQLite database"):
        traceml.load(path)


@pytest.mark.parametrize("content", [b"", b"SQLite", b"{}"])
def test_what_is_not_sqlite_is_not_claimed(content, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    assert not traceml.is_traceml(path)
    assert not traceml.is_traceml(tmp_path)
    assert not traceml.is_traceml(tmp_path / "absent")
