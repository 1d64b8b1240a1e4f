"""The options of the DataLoader that is installed, read from its source without importing torch.

The command line starts in a tenth of the time without torch, and a wrong option should cost no pass. Where
the source cannot be read the answer is None, and the first pass tells.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

_LOADER = Path("utils", "data", "dataloader.py")


def installed_options() -> frozenset[str] | None:
    """Parameters of ``DataLoader.__init__`` of the torch that a pass would import; None where unknown."""
    try:
        spec = importlib.util.find_spec("torch")
        places = () if spec is None else tuple(spec.submodule_search_locations or ())
        for place in places:
            source = Path(place) / _LOADER
            if source.is_file():
                return options_in(source.read_text(encoding="utf-8"))
    except (ImportError, ValueError, OSError, SyntaxError):
        return None
    return None


def options_in(source: str) -> frozenset[str] | None:
    """The same from the text of a module; None where it has no such class or takes any keyword."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef) or node.name != "DataLoader":
            continue
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                taken = member.args
                if taken.kwarg is not None:
                    return None
                return frozenset(one.arg for one in (*taken.args[1:], *taken.kwonlyargs))
    return None
