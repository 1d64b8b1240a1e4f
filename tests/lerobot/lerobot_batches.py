"""What the tests of the real LeRobot share and other interpreters import: needs no pytest."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

# One short episode of small images.
FRAMES, HEIGHT, WIDTH = 60, 32, 48


def digest(loader: Any, batches: int) -> str:
    """A hash of everything in the first batches, names and types included."""
    seen = hashlib.sha256()
    for batch in itertools.islice(loader, batches):
        for name in sorted(batch):
            value = batch[name]
            content = value.numpy().tobytes() if hasattr(value, "numpy") else repr(value).encode()
            seen.update(repr((name, getattr(value, "dtype", None), getattr(value, "shape", None))).encode())
            seen.update(content)
    return seen.hexdigest()
