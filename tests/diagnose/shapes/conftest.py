"""Made-up runs for the shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from traceml_lite.diagnose.shapes import shape_verdict
from traceml_lite.records.results import Evidence, Finding, Verdict
from traceml_lite.records.run import Environment, LoaderTrace, from_arrays

FETCH_COLUMNS = ("rank", "worker", "fetch_start_ns", "fetch_end_ns")
Diagnose = Callable[..., tuple[Verdict, dict[str, Evidence], tuple[Finding, ...]]]


def _loader_of(columns: Mapping[str, Any], options: Mapping[str, Any], fetches: bool = True) -> LoaderTrace:
    kept = {k: v for k, v in columns.items() if fetches or k not in FETCH_COLUMNS}
    known = {k: options[k] for k in ("num_workers", "prefetch_factor", "in_order")}
    return from_arrays(**kept, **known).loaders[0]


@pytest.fixture
def diagnose() -> Diagnose:
    def run(
        columns: Mapping[str, Any], options: Mapping[str, Any], fetches: bool = True, **more: Any
    ) -> tuple[Verdict, dict[str, Evidence], tuple[Finding, ...]]:
        verdict, evidence, findings = shape_verdict(
            _loader_of(columns, options, fetches), Environment(), **more
        )
        return verdict, {e.key: e for e in evidence}, findings

    return run


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


@pytest.fixture
def loader_of() -> Callable[..., LoaderTrace]:
    return _loader_of
