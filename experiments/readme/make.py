"""Records the run that the README shows, and writes its summary into the README.

    python experiments/readme/make.py

Run it on a machine with two cores and nothing else to do. `tests/test_readme.py` holds the README against the
recording, so that the text shown is what the present code says about that run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from traceml_lite.api import load
from traceml_lite.cli._out import text_of
from traceml_lite.store import write_bundle

HERE = Path(__file__).resolve().parent
README = HERE.parents[1] / "README.md"
BUNDLE = HERE / "saturated-pool.zip"
BEGIN, END = "<!-- summary -->\n", "<!-- /summary -->"


def block() -> str:
    """The summary of the recording as it stands in the README."""
    # Where the trace lies is the reader's affair.
    lines = [line.replace(str(BUNDLE), "saturated-pool.zip") for line in text_of(load(BUNDLE))]
    return "```text\n" + "\n".join(lines) + "\n```\n"


def shown() -> str:
    """What the README shows now."""
    text = README.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


def main() -> None:
    if "--text-only" not in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace"
            # Fetches long enough that the workers, forked one after the other, run in step from the start.
            demo = ["demo", "saturated-pool", "-a", "fetch_ms=240", "-n", "100"]
            command = [sys.executable, "-m", "traceml_lite", *demo, "-o", "trace"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
            write_bundle(trace, BUNDLE)
    text = README.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    README.write_text(before + block() + after)
    print(block())


if __name__ == "__main__":
    main()
