"""Call a function once a module is imported, without importing it.

A script under ``traceml-lite run`` may never use torch; importing it first would cost it seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_wanted: dict[str, Callable[[ModuleType], None]] = {}


class _Finder(MetaPathFinder):
    """Finds nothing itself: it wraps the loader that the other finders found for a wanted module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _wanted:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None and spec.loader is not None:
                _call_after(spec.loader, fullname)
                return spec
        return None


def _call_after(loader: Loader, fullname: str) -> None:
    execute: Any = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        wanted = _wanted.pop(fullname, None)
        _remove_if_idle()
        if wanted is not None:
            wanted(module)

    # On the instance: a loader belongs to one module, and its class is left as it is.
    loader.exec_module = exec_module  # type: ignore[method-assign]


_finder = _Finder()


def when_imported(name: str, call: Callable[[ModuleType], None]) -> None:
    """Call ``call(module)`` now if ``name`` is imported, else right after its import."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        call(module)
        return
    _wanted[name] = call
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def cancel(name: str) -> None:
    """Forget about ``name``."""
    _wanted.pop(name, None)
    _remove_if_idle()


def _remove_if_idle() -> None:
    if not _wanted and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
