"""The short first pass: the target as it is, to learn what there is to vary and how long it takes.

It changes nothing and its waits are in no comparison. Reading what it left is all that happens here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from traceml_lite import store
from traceml_lite._errors import TargetError, TracemlLiteError, UsageError
from traceml_lite.experiment.plan import Facts
from traceml_lite.records.run import LoaderTrace, Run

# Enough to tell a training loader from the two batches of a sanity check, few enough to be short.
SCOUT_DELIVERIES = 16
# With slow batches it ends at the first ask after this, whatever it has.
SCOUT_LIMIT_S = 20.0
# Below this many fetches their variation is not told.
MIN_FETCHES = 8
# Lines of a failed child's stderr that go into the error.
TAIL_LINES = 12


def read_facts(folder: Path, result: Mapping[str, Any] | None, started_ns: int, wanted: int | None) -> Facts:
    """What the first pass says about the target.

    Args:
        folder: Of the pass.
        result: Its ``result.json``; None where it did not come to its end.
        started_ns: When its process was started.
        wanted: Number of the loader that was asked for, or None for the one that delivers most.

    Raises:
        TargetError: It failed, or nothing was delivered.
        UsageError: There is no loader of that number.
    """
    if result is None:
        raise TargetError(f"the first pass of the target did not come to its end.{tail(folder)}")
    if result["ended"] == "error":
        kind: type[TracemlLiteError] = UsageError if result.get("kind") == "UsageError" else TargetError
        raise kind(
            f"the target raised {result['kind']}: {result['message']}"
            + ("" if result.get("ours") else tail(folder))
        )
    loaders = result["loaders"]
    if not loaders:
        raise TargetError(f"the target made no DataLoader before it ended.{tail(folder)}")
    number = _choose(loaders, wanted)
    chosen = loaders[number]
    if not chosen["deliveries"]:
        raise TargetError(f"loader {number} ({_words(chosen)}) delivered nothing in the first pass")
    run = store.load(folder / "trace")
    trace = loader_trace(run, chosen)
    columns = trace.deliveries
    got, ask = columns["got_ns"], columns["ask_ns"]
    if not len(got):
        failed = [str(event.data.get("message", "")) for event in run.events if event.kind == "probe_error"]
        why = f": {failed[0]}" if failed else ""
        raise TargetError(
            f"loader {number} ({_words(chosen)}) delivered, but the probe recorded none of it{why}"
        )
    notes = [] if result["ended"] != "target" else [f"the target ended by itself after {len(got)} deliveries"]
    return Facts(
        loader=number,
        loader_type=chosen["loader"],
        dataset=chosen["dataset"],
        iterable=chosen["iterable"],
        options={**chosen["options"], "batch_sampler": None},
        batches=chosen["batches"],
        deliveries=len(got),
        start_s=max(0.0, float(ask.min() - started_ns) / 1e9),
        delivery_s=float(got.max() - ask.min()) / 1e9 / len(got),
        fetch_s=_fetch_s(trace),
        step_s=_median_s(columns.get("step_ns")),
        cpus=run.environment.cpus_usable or 1.0,
        fetch_cv=_fetch_cv(trace),
        accelerator=bool(result["accelerator"]),
        known_options=tuple(result["known_options"]),
        others=tuple(f"loader {one['number']}: {_words(one)}" for one in loaders if one["number"] != number),
        notes=tuple(notes),
    )


def loader_trace(run: Run, chosen: Mapping[str, Any]) -> LoaderTrace:
    """The trace of the loader that a child's result describes: by data set, then by its deliveries."""
    same = [
        one for one in run.loaders if one.config.dataset.split(".")[-1] == chosen["dataset"].split(".")[-1]
    ]
    candidates = same or list(run.loaders)
    if not candidates:
        raise TargetError(f"{run.source}: no delivery was recorded")
    return min(candidates, key=lambda one: abs(one.delivered - chosen["deliveries"]))


def tail(folder: Path) -> str:
    """The last lines of a pass's stderr, as a sentence to append to an error."""
    place = folder / "stderr.txt"
    if not place.is_file():
        return ""
    lines = place.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-TAIL_LINES:]
    return f" Last lines of {place}:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def _choose(loaders: list[Mapping[str, Any]], wanted: int | None) -> int:
    if wanted is None:
        return int(max(loaders, key=lambda one: one["deliveries"])["number"])
    if not 0 <= wanted < len(loaders):
        listed = "\n".join(f"  {one['number']}: {_words(one)}" for one in loaders)
        raise UsageError(f"--loader {wanted}: the target has {len(loaders)}:\n{listed}")
    return wanted


def _words(one: Mapping[str, Any]) -> str:
    short = one["dataset"].split(".")[-1]
    return f"{one['loader'].split('.')[-1] or 'DataLoader'} of {short}, {one['deliveries']} deliveries seen"


def _fetch_s(trace: LoaderTrace) -> float | None:
    """Median fetch without the time it waited for a CPU, so that it can be scaled to other worker counts."""
    start, end = trace.fetches.get("fetch_start_ns"), trace.fetches.get("fetch_end_ns")
    if start is None or end is None:
        return None
    known = (start >= 0) & (end > start)
    if not known.any():
        return None
    length = (end - start)[known]
    run_queue = trace.fetches.get("run_queue_ns")
    if run_queue is not None:
        length = length - np.maximum(run_queue[known], 0)
    return float(np.median(np.maximum(length, 0))) / 1e9


def _fetch_cv(trace: LoaderTrace) -> float | None:
    """Variation of the fetch times within workers, robust against the first and the slow ones."""
    table = trace.fetches
    start, end, worker = table.get("fetch_start_ns"), table.get("fetch_end_ns"), table.get("worker")
    if start is None or end is None or worker is None:
        return None
    logs = []
    for one in np.unique(worker):
        mine = (worker == one) & (start >= 0) & (end > start)
        # A worker's first fetch opens files and fills caches.
        lengths = np.log((end - start)[mine].astype(float))[1:]
        if len(lengths) >= 2:
            logs.append(lengths - np.median(lengths))
    if sum(map(len, logs)) < MIN_FETCHES:
        return None
    low, high = np.quantile(np.concatenate(logs), [0.25, 0.75])
    # A normal distribution's quartiles are 1.349 standard deviations apart.
    return float((high - low) / 1.349)


def _median_s(column: Any) -> float | None:
    if column is None:
        return None
    known = column[column >= 0]
    return float(np.median(known)) / 1e9 if len(known) else None


def describe_facts(facts: Facts) -> list[str]:
    """What the first pass told, in a few lines."""
    workers = facts.options.get("num_workers")
    lines = [
        f"varied: loader {facts.loader}, {facts.loader_type.split('.')[-1]} of "
        f"{facts.dataset.split('.')[-1]} (num_workers={workers}, "
        f"batch_size={facts.options.get('batch_size')}, "
        f"{'?' if facts.batches is None else facts.batches} batches an epoch)",
        f"as it is: {facts.delivery_s * 1e3:.3g} ms a delivery, {facts.start_s:.2g} s to the first ask, "
        f"{facts.cpus:g} CPUs",
    ]
    if facts.others:
        lines.append("not varied: " + "; ".join(facts.others))
    return lines
