"""A word of the command line turned into a DataLoader: a factory in a file or module, a demo, a dataset.

Runs the user's code, so every failure in it becomes a `TargetError` that keeps the user's traceback.
Scripts that train by themselves are no targets here; `run` takes those.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from traceml_lite._errors import TargetError, TracemlLiteError, UsageError
from traceml_lite.consumers.arguments import bind_arguments

FORMS = "file.py:factory, package.module:factory, demo:NAME, lerobot:ROOT"

# Candidates shown when a name is not found: as many as fit on a screen line or two.
_MAX_CANDIDATES = 12


@dataclass(frozen=True, slots=True)
class Target:
    """A loader and where it came from."""

    text: str
    """As it was asked for."""
    loader: Any
    kind: str
    """``file``, ``module``, ``demo`` or ``lerobot``."""
    arguments: Mapping[str, str]
    consumer_default: str | None = None
    """The consumer that shows what a demo is about; None for a loader of the user's."""
    deliveries_default: int | None = None


def resolve(target: str, *, arguments: Mapping[str, str], seed: int) -> Target:
    """Make the loader that a target names.

    Args:
        target: ``file.py:factory``, ``package.module:factory``, ``demo:NAME`` or ``lerobot:ROOT``. A factory
            is a function or class that returns a DataLoader or an object with ``train_dataloader()``, or it
            is itself one of the two.
        arguments: For the factory, name to text; see `traceml_lite.consumers.arguments`.
        seed: For Python's, numpy's and torch's global random state, set before the factory is called.

    Raises:
        UsageError: The target or an argument is worded wrongly.
        TargetError: The target was not found, its code raised, or it made no loader.
    """
    left, colon, right = target.partition(":")
    if colon and left == "demo":
        return _demo(target, right, arguments, seed)
    if colon and left == "lerobot":
        return _lerobot(target, right, arguments, seed)
    # The last colon, so that a path may hold one.
    place, colon, name = target.rpartition(":")
    if not colon:
        place, name = target, ""
    if not place or (not place.endswith(".py") and not _is_module_name(place)):
        raise UsageError(f"target {target!r}: expected one of {FORMS}")
    kind = "file" if place.endswith(".py") else "module"
    if not name and kind == "module":
        raise UsageError(f"target {target!r} names no factory; expected one of {FORMS}")
    if not name:
        # The file is read and not run: a script without a factory would begin to train.
        known = _shown(_defined_in(_existing(Path(place))))
        raise UsageError(
            f"target {target!r}: which factory? Write {place}:NAME{known}. "
            f"To run the whole script: traceml-lite run {place}"
        )
    # Twice: what the module draws while it is imported must not depend on who drew before, nor the factory
    # on whether the module was imported just now.
    seed_everything(seed)
    module = load_file(Path(place)) if kind == "file" else _load_module(place)
    found = _attribute(module, name, place)
    seed_everything(seed)
    return Target(target, _loader_of(found, target, arguments), kind, dict(arguments))


def seed_everything(seed: int) -> None:
    """Set the global random state of Python, numpy and torch."""
    import numpy as np
    import torch

    random.seed(seed)
    # The user's code draws from the global state, so that is what must be set.
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def load_file(path: Path) -> ModuleType:
    """Import a file as a module that worker processes can import as well, whatever their start method.

    Its directory goes on ``sys.path`` and it stands in ``sys.modules`` under its stem, as a script's
    neighbours would: a spawned worker unpickles the dataset's class by that name.

    Raises:
        TargetError: There is no such file, its name is taken by another module, or its code raised.
    """
    path = _existing(path)
    stem = path.stem
    loaded = sys.modules.get(stem)
    if loaded is not None and _file_of(loaded) == path:
        return loaded
    if loaded is not None or stem in sys.builtin_module_names or stem in sys.stdlib_module_names:
        raise TargetError(f"{path}: a module named {stem!r} exists already, rename the file")
    if "." in stem:
        raise TargetError(f"{path}: a module name cannot hold a dot, rename the file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(stem, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path}: Python has no loader for this file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[stem]
        hint = ""
        if isinstance(error, ImportError) and "relative import" in str(error):
            hint = f". It belongs to a package: use package.{stem}:factory from the package's parent folder"
        raise TargetError(f"{path}: importing it raised {_named(error)}{hint}") from error
    return module


def _load_module(name: str) -> ModuleType:
    # A console script has its own folder on sys.path, not the one it was called in.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise TargetError(
                f"no module named {error.name!r} (searched from {os.getcwd()}); expected one of {FORMS}"
            ) from error
        raise TargetError(f"{name}: importing it raised {_named(error)}") from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"{name}: importing it raised {_named(error)}") from error


def _attribute(module: ModuleType, dotted: str, place: str) -> Any:
    found: Any = module
    for part in dotted.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise TargetError(f"{place} has no {dotted!r}{_candidates(module, dotted)}") from None
    return found


def _candidates(module: ModuleType, name: str) -> str:
    """Names in the module that could be factories, the likeliest first, in words."""
    own = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (getattr(value, "__module__", None) == module.__name__ or _is_loader(value))
        and (callable(value) or _is_loader(value))
    ]
    near = difflib.get_close_matches(name, own, n=3)
    return _shown([*near, *(key for key in own if key not in near)])


def _shown(names: list[str]) -> str:
    if not names:
        return "; nothing in it can be called"
    return f"; candidates are {', '.join(names[:_MAX_CANDIDATES])}"


def _defined_in(path: Path) -> list[str]:
    """Public functions and classes at the top of a file, from its text."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]


def _existing(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_file():
        near = difflib.get_close_matches(path.name, _python_files(path.parent), n=3, cutoff=0.4)
        hint = f"; in that folder there is {', '.join(near)}" if near else ""
        raise TargetError(f"{path}: no such file{hint}")
    return path.resolve()


def _loader_of(found: Any, target: str, arguments: Mapping[str, str]) -> Any:
    if _is_loader(found) or _gives_loader(found):
        if arguments:
            raise UsageError(f"{target} is not a function, so it takes no -a {', -a '.join(arguments)}")
        made = found
    elif callable(found):
        values = bind_arguments(found, arguments, whose=target)
        made = _call(found, target, **values)
    else:
        raise TargetError(f"{target} is of type {type(found).__name__}; expected a factory or a DataLoader")
    if not _is_loader(made) and _gives_loader(made):
        made = _train_dataloader(made, target)
    if isinstance(made, (list, tuple, dict)):
        raise TargetError(
            f"{target} gave a {type(made).__name__} of {len(made)}; "
            "expected one DataLoader, so return one of them"
        )
    if not _is_loader(made):
        raise TargetError(
            f"{target} gave a value of type {type(made).__name__}, which cannot be iterated; "
            "expected a DataLoader"
        )
    return made


def _train_dataloader(module: Any, target: str) -> Any:
    # What Lightning's trainer calls before it asks for the loader; many data modules make the dataset there.
    for name, values in (("prepare_data", ()), ("setup", ("fit",))):
        step = getattr(module, name, None)
        if callable(step):
            _call(step, f"{target}: {name}()", *values)
    return _call(module.train_dataloader, f"{target}: train_dataloader()")


def _call(function: Any, called: str, *values: Any, **named: Any) -> Any:
    try:
        return function(*values, **named)
    except TracemlLiteError:
        raise
    except (Exception, SystemExit) as error:
        raise TargetError(f"{called} raised {_named(error)}") from error


def _demo(target: str, name: str, arguments: Mapping[str, str], seed: int) -> Target:
    from traceml_lite.consumers.demos import DEMOS

    if name not in DEMOS:
        near = difflib.get_close_matches(name, DEMOS, n=1)
        guess = f"; did you mean demo:{near[0]}?" if near else "."
        raise UsageError(f"there is no demo {name!r}{guess} Demos are: {', '.join(DEMOS)}")
    demo = DEMOS[name]
    values = demo.convert(arguments)
    seed_everything(seed)
    loader = demo.build(**values, seed=seed)
    return Target(target, loader, "demo", dict(arguments), demo.consumer_default, demo.deliveries_default)


def _lerobot(target: str, root: str, arguments: Mapping[str, str], seed: int) -> Target:
    if not root:
        raise UsageError("target 'lerobot:' lacks the dataset's folder: lerobot:ROOT")
    try:
        lerobot = importlib.import_module("traceml_lite.consumers.lerobot")
    except ImportError as error:
        raise TargetError(
            f"{target} needs the lerobot extra: pip install 'traceml-lite[lerobot]' ({error})"
        ) from error
    seed_everything(seed)
    loader = _call(lerobot.build, target, Path(root).expanduser(), dict(arguments), seed)
    return Target(target, loader, "lerobot", dict(arguments))


def _is_loader(value: Any) -> bool:
    return not inspect.isclass(value) and not isinstance(value, (str, bytes)) and hasattr(value, "__iter__")


def _gives_loader(value: Any) -> bool:
    return not inspect.isclass(value) and callable(getattr(value, "train_dataloader", None))


def _is_module_name(place: str) -> bool:
    return all(part.isidentifier() for part in place.split("."))


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def _python_files(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir() if entry.suffix == ".py"]
    except OSError:
        return []


def _named(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
