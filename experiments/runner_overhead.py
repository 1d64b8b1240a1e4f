"""What the runner adds to a pass beyond the script's own time: imports, probe, overrides, bookkeeping.

A script that loads 32 batches and ends is run plainly and as a pass of a sweep, interleaved; the difference
of the medians is the overhead of one pass. Run: ``python experiments/runner_overhead.py [ROUNDS]``.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from traceml_lite.experiment.folder import SweepFolder
from traceml_lite.experiment.plan import Request
from traceml_lite.experiment.runner import Limits, ensure_plan, run_plan

DELIVERIES = 32
SCRIPT = f"""
import torch
from torch.utils.data import DataLoader, TensorDataset

def main():
    loader = DataLoader(TensorDataset(torch.zeros(4096, 8)), 8, num_workers=2)
    for number, batch in enumerate(loader, 1):
        if number == {DELIVERIES}:
            break

if __name__ == "__main__":
    main()
"""


def main(rounds: int) -> None:
    """Print both medians and their difference."""
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "train.py"
        script.write_text(SCRIPT)
        request = Request(
            str(script), deliveries=DELIVERIES, warmup=0, repeats=rounds, one_direction=True, cache="as-is"
        )
        folder = SweepFolder(Path(name) / "sweep")
        facts, plan = ensure_plan(request, folder, Limits())
        plain_s, pass_s = [], []
        for one in plan.passes:
            began_s = time.monotonic()
            subprocess.run([sys.executable, str(script)], check=True)
            plain_s.append(time.monotonic() - began_s)
            began_s = time.monotonic()
            single = type(plan)((one,))
            outcome = run_plan(request, facts, single, folder, Limits())
            pass_s.append(time.monotonic() - began_s)
            assert outcome.complete, outcome.why_not
    plain, measured = statistics.median(plain_s), statistics.median(pass_s)
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}")
    print(f"plain script  {plain:.2f} s  (median of {rounds}; {min(plain_s):.2f} to {max(plain_s):.2f})")
    print(f"as a pass     {measured:.2f} s  (median of {rounds}; {min(pass_s):.2f} to {max(pass_s):.2f})")
    print(f"overhead      {measured - plain:.2f} s a pass (to reach: at most 2 s)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
