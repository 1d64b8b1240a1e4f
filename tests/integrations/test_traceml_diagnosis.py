"""Five inputs that TraceML words alike get the diagnosis that their waits allow, and no wrong one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from traceml_lite.api import diagnose, load

FIXTURES = Path(__file__).parent / "fixtures"
# What the loop was, and so what may be said of it from waits alone with num_workers unknown. TraceML 0.5.0
# words all five "INPUT-BOUND ... Increase workers, prefetch, or storage throughput."
ALLOWED = {
    "uniform": {"uniform"},
    "every_fourth": {"saturated_pool", "slow_worker", "inconclusive"},
    "random": {"slow_sample", "inconclusive"},
    "drift": {"drift", "inconclusive"},
    "healthy": {"none", "start_up", "epoch_boundary", "inconclusive"},
}


@pytest.mark.parametrize("fixture", sorted(FIXTURES.glob("*.gz")), ids=lambda p: p.name)
def test_a_traceml_run_is_never_given_a_shape_that_it_did_not_have(fixture, tmp_path):
    database = tmp_path / "telemetry"
    database.write_bytes(gzip.decompress(fixture.read_bytes()))
    kind = fixture.name.removesuffix(".sqlite.gz").split("-")[-1]
    shape = diagnose(load(database)).shape
    assert shape.key in ALLOWED[kind], f"{shape.key} {shape.confidence:.2f}: {shape.statement}"
