"""Where the probe meets torch: one patched function, chosen classes, one file per shape.

``_BaseDataLoaderIter.__init__`` is the first thing every iterator of every wrapper runs. After the original
has run, the iterator's class becomes a cached subclass of its own class. Nothing else is patched, and
``disarm`` puts the original back.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from traceml_lite.probe import on_import

if TYPE_CHECKING:
    from traceml_lite.probe.session import Session

_MODULE = "torch.utils.data.dataloader"
_session: Session | None = None
_restore: Callable[[], None] | None = None


def arm(session: Session) -> None:
    """Hook in now, or as soon as torch's DataLoader is imported."""
    # What the first iterator needs, and none of it torch: with torch's objects in memory the loading of a few
    # modules often sets off a full garbage collection, which takes a tenth of a second.
    from traceml_lite.probe.hooks import describe, process_workers  # noqa: F401

    global _session
    _session = session
    on_import.when_imported(_MODULE, _patch)


def disarm() -> None:
    """Take the hook out; iterators made so far pass through from now on."""
    global _session, _restore
    _session = None
    on_import.cancel(_MODULE)
    if _restore is not None:
        _restore()
        _restore = None


def _in_child() -> None:
    # A fork of the traced process (a worker, a user's pool) inherits the hook but must not record.
    global _session
    if _session is not None:
        _session.abandon()
    _session = None


os.register_at_fork(after_in_child=_in_child)


def _patch(module: Any) -> None:
    global _restore
    base = module._BaseDataLoaderIter
    original = base.__init__

    @functools.wraps(original)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        session = _session
        made_ns = time.perf_counter_ns()
        original(self, loader, *args, **kwargs)
        if session is not None and session.here:
            with session.guarded("watch an iterator"):
                _watch(session, self, loader, made_ns)

    def restore() -> None:
        # Left in place when somebody patched over it: theirs calls ours, and ours passes through.
        if base.__init__ is __init__:
            base.__init__ = original

    base.__init__ = __init__
    _restore = restore


def _watch(session: Session, iterator: Any, loader: Any, made_ns: int) -> None:
    from traceml_lite.probe.hooks import describe, process_workers

    traced = process_workers.traced_class(
        type(iterator),
        unordered=getattr(loader, "in_order", True) is False,
        iterable=getattr(loader, "_dataset_kind", None) != 0,
    )
    if isinstance(traced, str):
        session.lacks("fetches", traced)
        traced = process_workers.outside_class(type(iterator))
    recorder = session.watch(lambda: describe.describe(loader), made_ns)
    process_workers.attach(iterator, recorder, traced, rchar=session.rchar)
