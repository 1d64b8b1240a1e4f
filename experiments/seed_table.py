"""The seed's tables on built-in data sets of about its proportions, and what a longer run adds.

The seed: a fetch of 9.4 CPU seconds against a short step, 2 CPUs, 16 deliveries a pass, stalls above 5 s.
Here a fetch is fifty times shorter (190 ms of CPU) and a stall is a wait above half of it (100 ms). The long
part uses sleeping fetches with a variation of 5 %, so that a busy host cannot decide it.

Run: ``python experiments/seed_table.py [FOLDER]``; an interrupted run goes on in the same folder.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path

import numpy as np

from traceml_lite.experiment.analyse import measured_passes
from traceml_lite.experiment.folder import SweepFolder
from traceml_lite.experiment.plan import Request
from traceml_lite.experiment.sweep import run_sweep
from traceml_lite.records.sweep import MeasuredPass
from traceml_lite.report.sweep import render_sweep

STALL_NS = 100_000_000
CPU_MS, FIXED_CPU_MS = "190", "2"
# A uniform spread of s to either side has a variation of s / sqrt(3); 5 % for 0.0866.
SPREAD = "0.0866"
LONG_DELIVERIES = 1200


def main(folder: Path) -> None:
    """Print both tables and the long comparison as Markdown."""
    print("# The seed's tables on built-in data sets\n")
    print(
        f"{datetime.date.today()}, {platform.platform()}, {os.cpu_count()} CPUs, Python "
        f"{platform.python_version()}, load at the start {os.getloadavg()[0]:.2f}\n"
    )
    print("## Workers varied in both directions, 16 deliveries a pass\n")
    print("| arm | num_workers | pass | mean wait ms | median ms | p95 ms | stalls at | gap |")
    print("|---|---|---|---|---|---|---|---|")
    for arm, cpu_ms in (("broken", CPU_MS), ("fixed", FIXED_CPU_MS)):
        counts = "0,1,2,4" if arm == "broken" else "0,4"
        request = _request("demo:cpu", (("cpu_ms", cpu_ms), ("num_workers", "4")), f"num_workers={counts}")
        run_sweep(request, folder / f"workers-{arm}")
        for one in measured_passes(SweepFolder(folder / f"workers-{arm}"), block="sweep"):
            print(_row(arm, one))
    print("\n## in_order, A B B A, 16 deliveries a pass\n")
    print("| arm | num_workers | pass | mean wait ms | median ms | p95 ms | stalls at | gap | overtakings |")
    print("|---|---|---|---|---|---|---|---|---|")
    request = _request("demo:cpu", (("cpu_ms", CPU_MS), ("num_workers", "4")), "in_order=true,false")
    short = run_sweep(request, folder / "in_order-short")
    for one in measured_passes(SweepFolder(folder / "in_order-short"), block="sweep"):
        rank = one.run.main.deliveries["rank"]
        passed = int((rank[1:] < np.maximum.accumulate(rank)[:-1]).sum())
        print(f"{_row(one.condition.name, one)} {passed} |")
    for comparison in short.comparisons:
        if comparison.cadence is not None:
            print(f"\n{comparison.cadence.statement} Short claim: {comparison.cadence.short_claim}")
    print(f"\n## in_order at {LONG_DELIVERIES} deliveries, fetch variation 5 %\n")
    _control(folder / "in_order-long", "in_order", LONG_DELIVERIES, "60", "paced:5ms")
    print("\n## stagger, fetch variation 5 %\n")
    # Fetches that are long beside the time between two forks, or the pool is not in phase to begin with.
    _control(folder / "stagger", "stagger", 64, "240", "paced:20ms")


def _control(folder: Path, control: str, deliveries: int, fetch_ms: str, consumer: str) -> None:
    request = Request(
        "demo:saturated-pool",
        arguments=(("fetch_ms", fetch_ms), ("spread", SPREAD)),
        controls=(control,),
        deliveries=deliveries,
        consumer=consumer,
    )
    print("```text")
    print("\n".join(render_sweep(run_sweep(request, folder))))
    print("```")


def _request(target: str, arguments: tuple[tuple[str, str], ...], setting: str) -> Request:
    return Request(
        target, arguments=arguments, settings=(setting,), deliveries=16, warmup=0, consumer="paced:5ms"
    )


def _row(arm: str, one: MeasuredPass) -> str:
    wait = one.run.main.deliveries["wait_ns"]
    at = np.flatnonzero(wait > STALL_NS)
    gaps = np.diff(at)
    gap = f"{np.median(gaps):.0f}" if len(gaps) else "-"
    stalls = " ".join(map(str, at)) if len(at) < len(wait) else "every one"
    ms = wait / 1e6
    return (
        f"| {arm} | {one.run.main.config.num_workers} | {one.result.number} | {ms.mean():.1f} | "
        f"{np.median(ms):.2f} | {np.quantile(ms, 0.95):.0f} | {stalls or 'none'} | {gap} |"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "sweeps/seed-table"))
