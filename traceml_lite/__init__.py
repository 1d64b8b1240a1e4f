"""Why a training loop waits for its DataLoader, and the cheapest experiment that would prove it.

Importing this package loads neither torch nor scipy; each name is loaded when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceml_lite.api import diagnose, load, record, summarize
    from traceml_lite.records.run import from_arrays

__version__ = "0.1.0"
__all__ = ["__version__", "diagnose", "from_arrays", "load", "record", "summarize"]

_HOME = {
    "diagnose": "traceml_lite.api",
    "load": "traceml_lite.api",
    "record": "traceml_lite.api",
    "summarize": "traceml_lite.api",
    "from_arrays": "traceml_lite.records.run",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


class _Package(ModuleType):
    """Keeps ``traceml_lite.diagnose`` the function when the layer of the same name is imported.

    Python binds a submodule to its package's attribute; users call ``tl.diagnose(run)``, and the layer is
    reached by its own imports.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
