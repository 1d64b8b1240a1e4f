"""One zip of a trace: the file for a ticket."""

from __future__ import annotations

import zipfile
from pathlib import Path

from traceml_lite.store.layout import LIVE


def write_bundle(trace: Path, to: Path) -> Path:
    """Zip the trace directory ``trace`` into the file ``to``; a running trace may be bundled too.

    Returns:
        ``to``.

    Raises:
        OSError: ``trace`` cannot be read or ``to`` cannot be written.
    """
    partial = to.with_name(to.name + ".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        # The rings first, as in reading: what a running trace moves on to its files is never missed.
        for file in sorted(trace.rglob("*"), key=lambda file: (file.parent.name != LIVE, file)):
            if file.is_file() and not file.name.startswith("."):
                archive.write(file, file.relative_to(trace).as_posix())
    partial.replace(to)
    return to
