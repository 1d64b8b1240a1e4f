"""/proc/self/mountinfo: which file system, of which type, holds a path.

Works on paths as text; whoever asks resolves symbolic links first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

# The kernel writes blank, tab, newline and backslash as octal in paths.
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount as this process sees it."""

    root: str
    """The directory of the file system that is mounted here, ``/`` for all of it."""
    point: str
    """Where it is mounted."""
    kind: str
    """File system type, e.g. ``ext4``, ``nfs4``, ``fuse.s3fs``, ``tmpfs``."""
    source: str
    """The device or server, e.g. ``/dev/vda`` or ``server:/export``."""
    options: tuple[str, ...]
    """Options of the mount and of the file system together, e.g. ``ro``, ``size=64k``, ``cpu``."""


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Mounts in the order of the file; lines of another form are left out."""
    mounts = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if not separator or len(left) < 6 or len(right) < 2:
            continue
        options = left[5].split(",") + (right[2].split(",") if len(right) > 2 else [])
        mounts.append(
            Mount(_unescape(left[3]), _unescape(left[4]), right[0], _unescape(right[1]), tuple(options))
        )
    return tuple(mounts)


def mount_of(path: PurePosixPath, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that holds an absolute, resolved path; of two on one point the later hides the earlier."""
    best: Mount | None = None
    for mount in mounts:
        if path.is_relative_to(mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _unescape(word: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), word)
