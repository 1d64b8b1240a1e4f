"""Every number that any report shows, computed once from one run.

``summarize`` is the whole of it. It has no clock, no files and no random state beyond a fixed seed, so the
same run gives the same summary. It names no cause: that is the diagnosis.
"""

from __future__ import annotations

from traceml_lite._errors import UsageError
from traceml_lite._together import keep_memory_at_hand
from traceml_lite.diagnose.summary.absent import not_measured
from traceml_lite.diagnose.summary.context import consumer_step, host_pressure, other_loader, probe_cost
from traceml_lite.diagnose.summary.edges import edges
from traceml_lite.diagnose.summary.intervals import contrast
from traceml_lite.diagnose.summary.supply import order, supply
from traceml_lite.diagnose.summary.view import View, look
from traceml_lite.diagnose.summary.waiting import all_waits, stalls, steady_waits
from traceml_lite.diagnose.summary.workers import workers
from traceml_lite.records.run import LoaderTrace, Run
from traceml_lite.records.summary import NotMeasured, Subject, Summary

__all__ = ["select_loader", "summarize"]


def summarize(run: Run, *, loader: str | int | None = None, stall_ns: int | None = None) -> Summary:
    """Compute what a report shows of one loader of a run.

    Args:
        run: The run; a loader that delivered nothing is summarised as such.
        loader: Which one: its number in ``run.loaders``, its name or a part of it that no other has; None
            is the one with the most time around it.
        stall_ns: The wait above which a delivery is a stall; None finds one.

    Returns:
        The summary.

    Raises:
        MissingColumnError: No DataLoader was iterated.
        UsageError: ``loader`` names none or several.
    """
    keep_memory_at_hand()
    trace = select_loader(run, loader)
    view = look(trace)
    found = stalls(view, stall_ns)
    the_stalls, stalled = (found, None) if isinstance(found, NotMeasured) else found
    return Summary(
        subject=_subject(run, view),
        steady=steady_waits(view),
        whole=all_waits(view),
        stalls=the_stalls,
        supply=supply(view, stalled),
        order=order(view),
        workers=workers(view),
        contrast=contrast(view, stalled),
        edges=edges(view),
        consumer=consumer_step(view),
        host=host_pressure(run.host),
        probe=probe_cost(run, view),
        others=tuple(other_loader(other) for other in run.loaders if other is not trace),
        not_measured=not_measured(run, trace),
    )


def select_loader(run: Run, loader: str | int | None) -> LoaderTrace:
    """The loader that was asked for; see ``summarize``."""
    if loader is None:
        return run.main
    if isinstance(loader, int) or loader.isdecimal():
        number = int(loader)
        if 0 <= number < len(run.loaders):
            return run.loaders[number]
        raise UsageError(f"loader {number}: {_choices(run)}")
    exact = [trace for trace in run.loaders if trace.name == loader]
    partial = [trace for trace in run.loaders if loader in trace.name]
    for matches in (exact, partial):
        if len(matches) == 1:
            return matches[0]
    several = "several loaders match" if partial else "no loader matches"
    raise UsageError(f"{several} {loader!r}: {_choices(run)}")


def _choices(run: Run) -> str:
    names = "; ".join(f"{i}: {trace.name}" for i, trace in enumerate(run.loaders))
    return f"this run has {names or 'no loader'}. Choose one by its number."


def _subject(run: Run, view: View) -> Subject:
    trace = view.trace
    iterator, epoch = view.table.get("iterator"), view.table.get("epoch")
    return Subject(
        source=run.source,
        loader=trace.name,
        config=trace.config,
        environment=run.environment,
        deliveries=max(trace.delivered - view.fast_forwarded, view.n),
        kept=view.n,
        fast_forwarded=view.fast_forwarded,
        iterators=0 if iterator is None or not view.n else int((iterator[1:] != iterator[:-1]).sum()) + 1,
        epochs=0 if epoch is None else view.groups,
        sampled=trace.sampled,
        warm_up_batches=view.warm_up,
        complete=run.complete,
        ending=run.ending,
    )
