"""Run a script or a module in this process as Python itself would run it.

``runpy`` puts another module back under ``__main__`` afterwards, which breaks what spawned workers, pickled
classes and exit handlers look up there; this leaves the script's own module in its place.
"""

from __future__ import annotations

import builtins
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

from traceml_lite._errors import TargetError


def run_as_main(target: str, arguments: Sequence[str], *, module: bool = False) -> None:
    """Run ``target`` to its end; whatever it raises, SystemExit included, comes through.

    Args:
        target: Path of a script, or the name of a module.
        arguments: Its command line without its own name.
        module: ``target`` is a module, as with ``python -m``.

    Raises:
        TargetError: There is no such script or module.
    """
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if module:
        spec = find_module(target)
        code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
        main.__dict__.update(
            __spec__=spec,
            __loader__=spec.loader,
            __package__=spec.parent,
            __file__=spec.origin,
            __cached__=None,
        )
        sys.argv = [str(spec.origin), *arguments]
    else:
        # Absolute, as Python has it for __main__ since 3.9.
        path = find_script(target).absolute()
        # Inheriting this file's own __future__ imports would change what the script means.
        code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        loader = SourceFileLoader("__main__", str(path))
        main.__dict__.update(
            __spec__=None, __loader__=loader, __package__=None, __file__=str(path), __cached__=None
        )
        sys.argv = [target, *arguments]
        sys.path[0] = str(path.resolve().parent)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def find_script(target: str) -> Path:
    """The script at a path.

    Raises:
        TargetError: There is none.
    """
    path = Path(target)
    if path.is_dir() and (path / "__main__.py").is_file():
        path = path / "__main__.py"
    if not path.is_file():
        raise TargetError(
            f"{target}: no such script. Expected the path of a Python file; for a module write: "
            f"run -m {target}"
        )
    return path


def find_module(name: str) -> ModuleSpec:
    """The module that ``python -m NAME`` would run.

    Raises:
        TargetError: There is none, or it cannot be run.
    """
    # As with python -m: the current directory comes first.
    sys.path[0] = os.getcwd()
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        spec = None
    if spec is None or spec.loader is None or not hasattr(spec.loader, "get_code"):
        raise TargetError(f"{name}: no such module, or it cannot be run with python -m")
    return spec
