from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import traceml_lite as tl
from traceml_lite._errors import MissingColumnError


def test_the_functions_stay_functions_when_the_layers_are_imported() -> None:
    import traceml_lite.diagnose.summary
    import traceml_lite.records.run

    assert callable(tl.diagnose)
    assert callable(traceml_lite.load)
    assert traceml_lite.records.run.from_arrays is tl.from_arrays


def test_importing_the_package_loads_neither_torch_nor_scipy_nor_numpy() -> None:
    code = "import sys, traceml_lite; print([m for m in ('torch', 'scipy', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_waits_alone_are_enough_for_a_summary_and_a_diagnosis() -> None:
    run = tl.from_arrays(wait_ns=np.full(64, 50_000_000), num_workers=1)
    assert tl.summarize(run).whole.deliveries == 64
    assert 0 <= tl.diagnose(run).shape.confidence <= 1
    assert run.capabilities["fetches"] == "fetch times were not given"


def test_a_column_that_was_not_given_is_an_error_with_its_reason_and_not_a_zero() -> None:
    run = tl.from_arrays(wait_ns=[1, 2, 3])
    with pytest.raises(MissingColumnError, match="'cpu_ns' was not measured: not given"):
        run.main.deliveries["cpu_ns"]
    assert run.main.deliveries.get("cpu_ns") is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"wait_ns": [1, -2]}, "1 values are negative"),
        ({"wait_ns": [1, 2], "step_ns": [1]}, r"expected shape \(2,\)"),
        ({"wait_ns": [1.5, 2.0]}, "whole numbers"),
        ({"wait_ns": [1, 2], "wiat_ns": [1, 2]}, "unknown columns"),
    ],
)
def test_arrays_that_cannot_be_right_are_refused(columns: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tl.from_arrays(**columns)  # type: ignore[arg-type]


def test_a_run_without_a_loader_says_so(trace_path: Path) -> None:
    with tl.record(trace_path):
        pass
    run = tl.load(trace_path)
    assert run.loaders == ()
    with pytest.raises(MissingColumnError, match="no DataLoader was iterated"):
        tl.summarize(run)
