"""Sweeps that came to nothing: known for a sweep, said how to go on, and nothing concluded from nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_sweep_passes import made, pool

from traceml_lite._errors import TraceFormatError
from traceml_lite.experiment.analyse import _check_streams, _Ended
from traceml_lite.experiment.folder import REQUEST, SweepFolder, is_sweep
from traceml_lite.experiment.plan import PlannedPass, Request
from traceml_lite.experiment.settings import Setting
from traceml_lite.experiment.sweep import load_sweep
from traceml_lite.report.sweep import render_sweep


def test_a_folder_with_only_the_request_is_an_unfinished_sweep_that_says_how_to_go_on(tmp_path: Path):
    SweepFolder(tmp_path).write_request(Request("train.py", settings=("num_workers=1,2",)))
    assert is_sweep(tmp_path)
    result = load_sweep(tmp_path)
    assert not result.complete
    text = " ".join(" ".join(render_sweep(result)).split())
    assert text.startswith("traceml-lite sweep train.py -s num_workers=1,2 unfinished")
    assert "the same command goes on from here" in text
    assert "0 of 0" not in text


def test_a_request_that_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / REQUEST).write_text("{")
    with pytest.raises(TraceFormatError, match=REQUEST):
        load_sweep(tmp_path)


def test_an_empty_folder_is_no_sweep(tmp_path: Path):
    assert not is_sweep(tmp_path)


def test_passes_that_delivered_nothing_are_not_said_to_have_seen_the_same():
    passes = [made("num_workers=2", pool(64, 2, stall=40.0, seed=n), workers=2, number=n) for n in (1, 2)]
    setting = Setting({"num_workers": 2})
    planned = [PlannedPass(n, "sweep", "num_workers=2", n, True, setting, 2, 64, 4) for n in (1, 2)]
    rows = np.array([[0, 4, 1], [0, 8, 2]], dtype=np.uint64)

    class Drawn(SweepFolder):
        def indices(self, one):
            return rows

    def check(deliveries: int):
        ended = [
            _Ended(plan, replace(one, result=replace(one.result, deliveries=deliveries)))
            for plan, one in zip(planned, passes, strict=True)
        ]
        return _check_streams(Drawn(Path("nowhere")), ended).same

    assert check(64) is True
    assert check(0) is None
