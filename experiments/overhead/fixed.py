"""What a run costs once with each tool: CPU seconds, extra processes, memory, wall time.

    python experiments/overhead/fixed.py [--rounds 5]

Counts everything the command starts: CPU time of all its processes to the end, less what loading torch took
in the training process; the most processes alive at once; and the largest sum of their proportional set sizes
(shared pages counted once).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _harness
import psutil

SCRIPT = str(_harness.HERE / "fixed_loop.py")
POLL_S = 0.1
TOOLS = [
    "none",
    "traceml-lite record()",
    "traceml-lite run --no-summary",
    "traceml-lite run",
    "TraceML",
    "torch.profiler",
]


def launcher(tool: str, folder: str) -> list[str]:
    if tool.startswith("traceml-lite run"):
        options = tool.split()[2:]
        return [sys.executable, "-m", "traceml_lite", "run", *options, "--out", f"{folder}/trace", SCRIPT]
    if tool == "TraceML":
        return [*_harness.traceml_launcher(), SCRIPT]
    return [sys.executable, SCRIPT]


def measure(tool: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        asked, result = Path(folder) / "settings.json", Path(folder) / "result.json"
        asked.write_text(json.dumps({"tool": tool, "folder": folder}))
        environment = {**os.environ, "OVERHEAD_SETTINGS": str(asked), "OVERHEAD_RESULT": str(result)}
        began = time.monotonic()
        with (Path(folder) / "log").open("w") as log:
            process = subprocess.Popen(
                launcher(tool, folder), env=environment, cwd=folder, stdout=log, stderr=log
            )
            most, memory = 0, 0
            while True:
                # wait4 gives the CPU time of the process and of every descendant that was waited for.
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                alive, bytes_used = count(process.pid)
                most, memory = max(most, alive), max(memory, bytes_used)
                time.sleep(POLL_S)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or not result.exists():
            raise SystemExit(f"{tool} failed:\n{(Path(folder) / 'log').read_text()[-3000:]}")
        return {
            "cpu_s": usage.ru_utime + usage.ru_stime - json.loads(result.read_text())["torch_cpu_s"],
            "processes": most,
            "memory_mb": memory / 1e6,
            "wall_s": time.monotonic() - began,
        }


def count(pid: int) -> tuple[int, int]:
    alive, total = 0, 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            total += process.memory_full_info().pss
            alive += 1
    except psutil.Error:
        pass
    return alive, total


def main() -> None:
    args = _harness.parser(__doc__, rounds=5).parse_args()
    tools = [t for t in TOOLS if t != "TraceML" or _harness.have_traceml()]
    found: dict[str, list[dict[str, float]]] = {tool: [] for tool in tools}
    for turn in range(args.rounds):
        for tool in _harness.rotated(tools, turn):
            found[tool].append(measure(tool))
    base = found["none"]
    rows = []
    for tool, results in found.items():

        def more(key: str, results: list[dict[str, float]] = results) -> float:
            return _harness.median(r[key] - b[key] for r, b in zip(results, base, strict=True))

        if tool == "none":
            one = {key: _harness.median(r[key] for r in base) for key in base[0]}
            rows.append(
                [tool, f"{one['cpu_s']:.2f}", f"{one['processes']:.0f}", f"{one['memory_mb']:.0f}",
                 f"{one['wall_s']:.1f}"]
            )  # fmt: skip
        else:
            rows.append(
                [tool, f"{more('cpu_s'):+.2f}", f"{more('processes'):+.0f}", f"{more('memory_mb'):+.0f}",
                 f"{more('wall_s'):+.1f}"]
            )  # fmt: skip
    header = ["tool (difference to none)", "CPU s without torch", "processes", "memory MB", "wall s"]
    _harness.table("Fixed cost of a run of 200 deliveries", header, rows, args.rounds)


if __name__ == "__main__":
    main()
