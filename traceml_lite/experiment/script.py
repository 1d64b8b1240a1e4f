"""Run a script or a module in this process as Python itself would run it.

``runpy.run_path`` leaves another module under ``__main__`` afterwards, which breaks what spawned workers and
pickled classes look up there; this keeps the script's own module in its place.
"""

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from traceml_lite._errors import TargetError


def run_as_main(target: str, arguments: Sequence[str], *, module: bool = False) -> None:
    """Run ``target`` to its end; whatever it raises, SystemExit included, comes through.

    Args:
        target: Path of a script, or the name of a module.
        arguments: Its command line without its own name.
        module: ``target`` is a module, as with ``python -m``.

    Raises:
        TargetError: There is no such script.
    """
    if module:
        sys.argv = [target, *arguments]
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    path = Path(target)
    if not path.is_file():
        raise TargetError(f"{target}: no such script; expected the path of a Python file")
    sys.argv = [target, *arguments]
    sys.path[0] = str(path.resolve().parent)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=str(path), __builtins__=__builtins__, __spec__=None, __package__=None)
    sys.modules["__main__"] = main
    code = compile(path.read_bytes(), str(path), "exec")
    exec(code, main.__dict__)
