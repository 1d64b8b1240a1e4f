"""The only code that runs inside the training process. It observes; it never changes what it observes.

Names are loaded when first used: a spawned worker imports ``probe.worker`` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceml_lite.probe.session import DEFAULT_LIMIT_BYTES, Session, record, start, stop

__all__ = ["DEFAULT_LIMIT_BYTES", "Session", "record", "start", "stop"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("traceml_lite.probe.session"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
