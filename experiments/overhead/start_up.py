"""How long `import traceml_lite` and `traceml-lite --help` take, and what they load.

python experiments/overhead/start_up.py [--rounds 15]
"""

from __future__ import annotations

import subprocess
import sys
import time

import _harness

HEAVY = ("torch", "scipy", "numpy", "click")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import traceml_lite": [sys.executable, "-c", "import traceml_lite"],
    "traceml-lite --help": [sys.executable, "-m", "traceml_lite", "--help"],
}
LOADED = {
    "import traceml_lite": "import traceml_lite, sys; print(*sys.modules)",
    "traceml-lite --help": (
        "import sys, contextlib\nfrom traceml_lite.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None): main(['--help'])\n"
        "print(*sys.modules)"
    ),
}


def main() -> None:
    args = _harness.parser(__doc__, rounds=15).parse_args()
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(args.rounds):
        for name in _harness.rotated(list(COMMANDS), turn):
            began = time.perf_counter()
            subprocess.run(COMMANDS[name], check=True, stdout=subprocess.DEVNULL)
            took[name].append(time.perf_counter() - began)
    rows = []
    for name, seconds in took.items():
        modules: set[str] = set()
        if name in LOADED:
            done = subprocess.run(
                [sys.executable, "-c", LOADED[name]], check=True, capture_output=True, text=True
            )
            modules = set(done.stdout.split())
        heavy = ", ".join(module for module in HEAVY if module in modules) or "none of them"
        rows.append([name, f"{_harness.median(seconds):.3f}", f"{min(seconds):.3f}", heavy])
    loads = f"loads of {', '.join(HEAVY)}"
    _harness.table("Start-up", ["command", "median s", "smallest s", loads], rows, args.rounds)


if __name__ == "__main__":
    main()
