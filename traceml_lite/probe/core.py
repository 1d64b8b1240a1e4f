"""The hot paths of the probe: compiled where the installation could build them, in Python elsewhere.

Both write the same records. ``NAME`` says which one runs here and ``REASON`` why it is not the compiled one.
``TRACEML_LITE_CORE=python`` takes the one in Python; workers inherit it with the environment.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from traceml_lite.store.layout import DELIVERY_STRUCT, FETCH_STRUCT

__all__ = ["COMPILED", "NAME", "PYTHON", "REASON", "DeliveryCore", "FetchCore", "fetch_method", "next_method"]

COMPILED, PYTHON = "compiled", "python"
SWITCH = "TRACEML_LITE_CORE"


def _why_not_compiled() -> str | None:
    if os.environ.get(SWITCH) == PYTHON:
        return f"{SWITCH}={PYTHON}"
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        # Loading it would bring the lock back for the whole training process.
        return "this Python runs without the global lock"
    try:
        from traceml_lite.probe import _core  # type: ignore[attr-defined,unused-ignore]
    except ImportError:
        return "it was not built when traceml-lite was installed: no C compiler, or no Python headers"
    if (DELIVERY_STRUCT.format, FETCH_STRUCT.format) != (_core.DELIVERY_FORMAT, _core.FETCH_FORMAT):
        return "it was built from another version of traceml-lite; install again"
    return None


REASON = _why_not_compiled()
NAME = COMPILED if REASON is None else PYTHON

if TYPE_CHECKING or REASON is not None:
    from traceml_lite.probe.core_python import DeliveryCore, FetchCore, fetch_method, next_method
else:
    from traceml_lite.probe._core import DeliveryCore, FetchCore, fetch_method, next_method
