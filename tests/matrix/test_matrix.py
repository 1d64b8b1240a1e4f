"""With the probe and without, every scenario must come out the same; and the trace must tell the truth.

Both observations come from fresh processes (`matrix_observe`). The truth about worker, PID and rank is what
the datasets themselves put into the batches.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix_scenarios import SCENARIOS, SLOW

from traceml_lite.records.run import IN_CONSUMER, LoaderTrace, Run
from traceml_lite.store import load

# The first test of a group waits for all its scenarios: about 25 s alone, minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)

HERE = Path(__file__).parent
FAST = [name for name in SCENARIOS if name not in SLOW]
DEATH = re.compile(r"DataLoader worker \(pid.* N.*(exited unexpectedly|killed by signal: Killed)", re.S)
# Without workers a dataset's own loader runs in the training process, where it is a loader like any other.
INNER = {"loader_forms.OtherMap"}

NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SCENARIOS]


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """After an interruption: end the scenario that is running and its workers as well."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


class Observed:
    """Observations of both kinds, made when the first test asks, all scenarios of one group at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: set[str] = set()

    def __call__(self, mode: str, name: str) -> dict[str, Any]:
        group = "fast" if name in FAST else "slow"
        if group not in self.done:
            self.done.add(group)
            processes: list[subprocess.Popen[bytes]] = []
            names = FAST if group == "fast" else sorted(SLOW)
            # Side by side: both wait more than they compute.
            script = [sys.executable, "-W", "ignore", str(HERE / "matrix_observe.py")]
            with contextlib.ExitStack() as running:
                for each in ("plain", "traced"):
                    command = [*script, each, str(self.folder / each), *names]
                    process = running.enter_context(
                        subprocess.Popen(command, cwd=HERE, start_new_session=True)
                    )
                    running.callback(stop_group, process)
                    processes.append(process)
                for process in processes:
                    process.wait()
        path = self.folder / mode / f"{name}.json"
        if not path.exists():
            pytest.fail(f"{mode} {name} did not finish:\n{(path.with_suffix('.log')).read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def run(self, name: str) -> Run:
        return load(self.folder / "traced" / f"{name}.trace")


@pytest.fixture(scope="session")
def observed(tmp_path_factory):
    return Observed(tmp_path_factory.mktemp("matrix"))


def without_identity(batches):
    """Batches without what may differ between two runs of anything: the PID."""
    return [{k: v for k, v in batch.items() if k != "pid"} for batch in batches]


def draws_by_lane(batches, persistent):
    """The random draws of each worker process in its own order, which does not depend on who was faster."""
    lanes: dict[tuple[Any, ...], list[str]] = {}
    for batch in batches:
        lane = (batch["loader"], batch["worker"], None if persistent else batch["epoch"])
        lanes.setdefault(lane, []).extend(batch["draws"])
    return lanes


@pytest.mark.parametrize("name", NAMES)
def test_content_order_random_state_and_exceptions_are_the_same_with_and_without(name, observed):
    plain, traced = observed("plain", name), observed("traced", name)
    if plain["notes"].get("a worker dies"):
        # Whether the signal or the silent queue is noticed first is chance, and so is the wording.
        assert without_identity(traced["batches"]) == without_identity(plain["batches"])
        for found in (plain, traced):
            assert [e["type"] for e in found["errors"]] == ["RuntimeError"]
            assert DEATH.search(found["errors"][0]["text"]), found["errors"]
    elif plain["ordered"]:
        assert without_identity(traced["batches"]) == without_identity(plain["batches"])
        assert traced["errors"] == plain["errors"]
    else:
        # Which worker takes which batch depends on time, but not what a worker draws as its k-th.
        content = [sorted((b["epoch"], b["index"]) for b in found["batches"]) for found in (plain, traced)]
        if "Stream" not in {b["loader"] for b in plain["batches"]}:
            assert content[0] == content[1]
        lanes, other = (draws_by_lane(found["batches"], "persistent" in name) for found in (plain, traced))
        for lane in set(lanes) & set(other):
            shared = min(len(lanes[lane]), len(other[lane]))
            assert lanes[lane][:shared] == other[lane][:shared], lane
        assert [e["type"] for e in traced["errors"]] == [e["type"] for e in plain["errors"]]
    for key in ("notes", "states", "children_left"):
        assert traced[key] == plain[key], key


def rows_of(run: Run, label: str) -> tuple[LoaderTrace, ...]:
    return tuple(loader for loader in run.loaders if loader.config.dataset.rsplit(".", 1)[-1] == label)


@pytest.mark.parametrize("name", NAMES)
def test_the_trace_names_the_worker_pid_and_rank_that_the_dataset_itself_put_in_the_batch(name, observed):
    traced = observed("traced", name)
    run = observed.run(name)
    labels = {batch["loader"] for batch in traced["batches"]}
    others = {loader.config.dataset for loader in run.loaders if len(loader.deliveries)}
    others -= {f"loader_forms.{label}" for label in labels}
    assert others == (INNER if name == "nested_loader_without_workers" else set())
    for label in labels:
        seen = [batch for batch in traced["batches"] if batch["loader"] == label]
        loaders = rows_of(run, label)
        assert len(loaders) == 1, f"{label}: one loader of the user's is one loader of the trace"
        check_against(loaders[0], seen, traced["pid"], sampled_by=None)


def check_against(loader: LoaderTrace, seen: list[dict[str, Any]], pid: int, sampled_by: str | None) -> None:
    deliveries = loader.deliveries
    assert len(deliveries) == len(seen)
    # Two iterators at once interleave in time; within an epoch the order is the user's own.
    order = np.lexsort((deliveries["got_ns"],))
    deliveries = deliveries.take(order)
    assert deliveries["epoch"].tolist() == [b["epoch"] for b in seen]
    assert deliveries["worker"].tolist() == [b["worker"] for b in seen]
    assert deliveries["pid"].tolist() == [b["pid"] for b in seen]
    ranks = [(int(found), b["rank"]) for found, b in zip(deliveries["rank"], seen, strict=True)]
    assert [found for found, true in ranks if true is not None] == [
        true for _, true in ranks if true is not None
    ]
    assert (deliveries["ask_ns"] <= deliveries["got_ns"]).all()
    start, end = deliveries["fetch_start_ns"], deliveries["fetch_end_ns"]
    assert (start > 0).all(), "each delivery is joined to its fetch"
    assert (start < end).all()
    assert (end <= deliveries["got_ns"]).all()
    for name in ("cpu_ns", "thread_cpu_ns", "minor_faults", "voluntary_switches", "involuntary_switches"):
        assert (deliveries[name] >= 0).all(), name
    if (loader.config.num_workers or 0) > 0:
        assert (deliveries["dispatch_ns"] <= start).all()
        assert (deliveries["worker"] >= 0).all()
    else:
        assert (deliveries["worker"] == IN_CONSUMER).all()
        assert (deliveries["pid"] == pid).all()
    if loader.config.dataset_kind == "map":
        assert deliveries["samples"].tolist() == [len(b["index"]) for b in seen]


def test_a_killed_worker_leaves_the_batch_in_flight_in_the_trace(observed):
    observed("traced", "worker-killed")
    gone = [
        e
        for loader in observed.run("worker-killed").loaders
        for e in loader.events
        if e.kind == "worker_gone"
    ]
    assert len(gone) == 1
    assert gone[0].data["worker"] == 0
    # Sample 8 is in batch 2 of three samples each.
    assert gone[0].data["rank"] == 2
    assert gone[0].data["since_ns"] > 0


@pytest.mark.parametrize("name", ["error-value-0w", "error-value-2w", "error-collate-1w", "error-key-1w"])
def test_an_error_is_an_event_with_its_rank_and_type(name, observed):
    observed("traced", name)
    loader = observed.run(name).main
    errors = [e for e in loader.events if e.kind == "error"]
    assert errors
    assert errors[0].data["rank"] == 2
    expected = {"value": "ValueError", "collate": "TypeError", "key": "KeyError"}[name.split("-")[1]]
    assert errors[0].data["type"] == expected


def test_a_nested_loader_in_a_worker_and_a_forked_process_are_not_recorded(observed):
    observed("traced", "nested_loader_in_a_worker")
    assert len(observed.run("nested_loader_in_a_worker").loaders) == 1
    observed("traced", "a_forked_process_of_the_user_loads_too")
    assert len(observed.run("a_forked_process_of_the_user_loads_too").loaders) == 1


def test_the_probe_reports_no_failure_of_its_own_in_any_scenario(observed):
    observed("traced", FAST[0])
    failures = {}
    for name in FAST:
        run = observed.run(name)
        events = [*run.events, *(e for loader in run.loaders for e in loader.events)]
        found = [dict(e.data) for e in events if e.kind == "probe_error"]
        if found:
            failures[name] = found
    assert failures == {}
