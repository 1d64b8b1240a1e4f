"""Files that are whole or absent: written beside their place and renamed into it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Replace the file at once; a reader or a crash sees the old text or the new one, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def write_json(path: Path, document: Any) -> None:
    """The same with a JSON document."""
    write_text(path, json.dumps(document, indent=1, default=str) + "\n")
