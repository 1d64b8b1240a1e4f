"""The Python API: record, load, summarize, diagnose. Each is a thin door to the layer that does the work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from traceml_lite.probe import record
from traceml_lite.records.run import Run

if TYPE_CHECKING:
    from traceml_lite.records.results import Diagnosis
    from traceml_lite.records.summary import Summary

__all__ = ["diagnose", "load", "record", "summarize"]


def load(path: str | os.PathLike[str]) -> Run:
    """Read a trace directory, a bundle of one, or a TraceML database.

    Raises:
        TraceFormatError: It is none of these, is damaged beyond reading, or is newer than this version.
    """
    from traceml_lite.integrations import traceml
    from traceml_lite.store import read

    place = Path(path)
    if traceml.is_traceml(place):
        return traceml.load(place)
    return read.load(place)


def summarize(run: Run, *, loader: str | int | None = None, stall_ns: int | None = None) -> Summary:
    """Every number that a report shows.

    Args:
        run: What ``load`` or ``from_arrays`` gave.
        loader: Name or index in ``run.loaders``; the main one by default.
        stall_ns: Threshold of a stall; automatic by default.
    """
    from traceml_lite.diagnose.summary import summarize as compute

    return compute(run, loader=loader, stall_ns=stall_ns)


def diagnose(run: Run, *, loader: str | int | None = None, stall_ns: int | None = None) -> Diagnosis:
    """Shape, cost, evidence for and against, and the next experiment; arguments as for ``summarize``."""
    from traceml_lite.diagnose.diagnosis import diagnose as conclude
    from traceml_lite.diagnose.summary import select_loader

    return conclude(run, loader=select_loader(run, loader), stall_ns=stall_ns)
