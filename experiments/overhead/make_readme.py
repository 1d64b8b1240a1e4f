"""Runs the overhead scripts and puts what they print into README.md.

    python experiments/overhead/make_readme.py [SCRIPT ...]

Each script's output replaces its section, between two comments; what is not named keeps its last run.
"""

from __future__ import annotations

import re
import subprocess
import sys

import _harness

SCRIPTS = ("per_delivery.py", "hot.py", "fixed.py", "growth.py", "start_up.py", "show_speed.py")
README = _harness.HERE / "README.md"


def put(text: str, name: str, output: str) -> str:
    section = f"<!-- {name} -->\n## `{name}`\n\n{output.strip()}\n<!-- /{name} -->\n"
    found = re.compile(rf"<!-- {re.escape(name)} -->\n.*?<!-- /{re.escape(name)} -->\n", re.S)
    if found.search(text):
        return found.sub(lambda _: section, text)
    return f"{text.rstrip()}\n\n{section}"


def main() -> None:
    for name in sys.argv[1:] or SCRIPTS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, str(_harness.HERE / name)], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{name} failed with {done.returncode}; its section is left as it was")
        # Written after each script, so that a later failure loses nothing.
        README.write_text(put(README.read_text(), name, done.stdout))


if __name__ == "__main__":
    main()
