"""Makes torchvision importable beside a build of torch that its compiled part does not fit.

The CPU build of torch and the torchvision of the main package index do not import together: torchvision's
extension cannot load, so the operators ``nms`` and ``qnms`` are never declared, but its Python part
decorates both at import. Declaring the two schemas first is enough for everything that does not call
them, which is all that loading data needs. Nothing is changed where the extension loads.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

# The declarations live as long as this object does.
_declared: list[Any] = []

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def declare_missing_operators() -> bool:
    """Declare torchvision's operators if its extension cannot. Call it before torchvision is imported.

    Returns:
        Whether they had to be declared; False where torchvision is absent, imported already or sound.
    """
    if _declared or "torchvision" in sys.modules:
        return False
    extension = _extension()
    if extension is None:
        return False
    import torch

    if torch.version.cuda is not None:
        # A CUDA build that does not fit is a broken installation; hiding that would cost the user more.
        return False
    try:
        torch.ops.load_library(str(extension))
    except (ImportError, OSError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            library.define(schema)
        _declared.append(library)
        return True
    return False


def _extension() -> Path | None:
    """Path of torchvision's compiled part, found without importing torchvision."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        if (candidate := folder / f"_C{suffix}").exists():
            return candidate
    return None


class Declared:
    """A value that, when unpickled, has called ``declare_missing_operators`` in that process.

    Placed ahead of an object whose class imports torchvision, it lets a spawned worker unpickle it.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return (_declared_here, ())


def _declared_here() -> Declared:
    declare_missing_operators()
    return Declared()
