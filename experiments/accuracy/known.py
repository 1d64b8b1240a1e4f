"""Runs with a known cause, from a labelled file or made up, and what counts as right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traceml_lite.records.results import Evidence, Verdict
from traceml_lite.records.run import LoaderTrace, from_arrays
from traceml_lite.simulate.labelled import CASES, labelled_run

FETCH_COLUMNS = ("rank", "worker", "fetch_start_ns", "fetch_end_ns", "ask_ns", "got_ns")
OPTIONS = ("num_workers", "prefetch_factor", "in_order")
PERIODIC = ("data_period", "worker_period", "clock_period", "saturated_pool", "slow_worker")
# Cases whose stalls fall at random.
RANDOM_CASES = ("heavy_random", "poisson_hard")
# A made-up run is as short as its case allows.
LEAST = {"worker_local": 64, "clock": 64, "mixed_data_heavy": 64}


@dataclass(frozen=True)
class Known:
    case: str
    shape: str
    columns: dict[str, Any]
    options: dict[str, Any]

    @property
    def n(self) -> int:
        return len(self.columns["wait_ns"])

    @property
    def period(self) -> float | None:
        return self.options.get("truth", {}).get("period")

    def loader(self, fetches: bool) -> LoaderTrace:
        columns = {k: v for k, v in self.columns.items() if fetches or k not in FETCH_COLUMNS}
        return from_arrays(**columns, **{k: self.options[k] for k in OPTIONS}).loaders[0]


def from_file(path: Path) -> Iterator[Known]:
    with np.load(path) as archive:
        arrays = {k: archive[k] for k in archive.files}
    for run in json.loads(bytes(arrays.pop("meta"))):
        at = slice(run["start"], run["start"] + run["n"])
        yield Known(run["case"], run["shape"], {k: v[at] for k, v in arrays.items()}, run)


def made_up(seeds: range, lengths: list[int]) -> Iterator[Known]:
    for n in lengths:
        # A long run weighs as much as sixteen short ones in time, and its verdict varies less.
        for seed in seeds if n < 4096 else seeds[: max(1, len(seeds) // 8)]:
            for case in CASES:
                if n >= LEAST.get(case, 16):
                    columns, options, shape = labelled_run(case, n, seed)
                    yield Known(case, shape, columns, options)


def family(key: str, period: float | None, workers: int) -> str:
    """The shapes that waits alone cannot part."""
    if key in ("saturated_pool", "slow_worker") or (key == "data_period" and period == workers):
        return "recurs with the round"
    return "recurs in batches" if key in ("data_period", "worker_period") else key


def is_right(known: Known, verdict: Verdict, evidence: tuple[Evidence, ...], fetches: bool) -> bool:
    workers = known.options["num_workers"]
    if fetches:
        alike = known.period == workers and known.shape in ("data_period", "slow_worker")
        return verdict.key == known.shape or (alike and verdict.key in ("data_period", "slow_worker"))
    found = next((e.numbers.get("period_batches") for e in evidence if e.key == "data_period"), None)
    return family(verdict.key, found, workers) == family(known.shape, known.period, workers)
