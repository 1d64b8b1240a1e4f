"""Real loaders with injected faults: how often the diagnosis is right, wrong, or says that it cannot tell.

Each fault runs in a fresh process under the probe, several seeds each. A run during which other processes
used the CPUs is repeated, as its right answer is another one; what stays disturbed is counted apart.

    python experiments/faults/run.py --seeds 3 --out results
    python experiments/faults/run.py --only lock storage --show
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from faults import FAULTS, Fault

from traceml_lite.diagnose.costs.host import host_facts
from traceml_lite.diagnose.diagnosis import diagnose
from traceml_lite.records.results import Verdict
from traceml_lite.records.run import Run
from traceml_lite.report.diagnosis import render_diagnosis, render_next
from traceml_lite.store import load

# Others that used this much of one CPU during a run have changed its cause.
DISTURBED_CORES = 0.35
# From this niceness on others only use what the run leaves over, and no longer disturb it.
FAVOURED = -10
# Costs outside the loader: the only right family when the consumer is the slow part.
NOT_THE_LOADER = {"consumer", "step_starved", "neighbours", "launch_bound", "inconclusive"}


def judged(right: tuple[str, ...], verdict: Verdict) -> str | None:
    """``right``, ``wrong``, ``cannot tell``, or None where this question is not the fault's point."""
    if not right:
        return None
    if verdict.key == "inconclusive":
        return "cannot tell"
    return "right" if verdict.key in right else "wrong"


def others(run: Run) -> float | None:
    """CPUs that other processes used during the run; None when that was not measured."""
    table = run.main.deliveries
    if not len(table):
        raise SystemExit(f"{run.source}: nothing was recorded")
    return host_facts(run.host, int(table["ask_ns"][0]), int(table["got_ns"][-1]), 0.0).other_cores


def run_once(fault: Fault, seed: int, out: Path, nice: int, timeout_s: float) -> Run:
    """The trace of one run in a fresh process."""
    script = Path(__file__).with_name("faults.py")
    command = [sys.executable, str(script), fault.name, str(seed), str(out)]
    subprocess.run(
        command, check=True, timeout=timeout_s, stdout=subprocess.DEVNULL, preexec_fn=lambda: favour(nice)
    )
    return load(out)


def favour(nice: int) -> None:
    """Change the niceness of this process; where sessions are scheduled as groups, that of its own one."""
    if nice == 0:
        return
    os.nice(nice)
    os.setsid()
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


def measure(fault: Fault, seed: int, folder: Path, args: argparse.Namespace) -> dict[str, object]:
    """One seed of one fault, repeated while the host disturbs it."""
    for attempt in range(args.attempts):
        out = folder / f"{fault.name}.{seed}.{attempt}"
        if args.again and (folder / f"{fault.name}.{seed}.{attempt + 1}").exists():
            continue  # the run that counted is the last one
        run = load(out) if args.again else run_once(fault, seed, out, args.nice, args.timeout)
        busy = others(run)
        disturbed = (
            fault.name != "neighbours"
            and args.nice > FAVOURED
            and busy is not None
            and busy > DISTURBED_CORES
        )
        if not disturbed:
            break
        time.sleep(args.pause)
    found = diagnose(run)
    if args.show:
        print("\n".join(render_diagnosis(found) + render_next(found)))
    cost = judged(fault.costs, found.cost)
    if fault.never_the_loader and found.cost.key not in NOT_THE_LOADER:
        cost = "wrong"
    return {
        "fault": fault.name,
        "seed": seed,
        "shape": found.shape.key,
        "shape_confidence": found.shape.confidence,
        "shape_judged": judged(fault.shapes, found.shape),
        "cost": found.cost.key,
        "cost_candidates": list(found.cost.candidates),
        "cost_confidence": found.cost.confidence,
        "cost_judged": cost,
        "other_cores": None if busy is None else round(busy, 2),
        "disturbed": disturbed,
        "attempts": attempt + 1,
    }


def totals(rows: list[dict[str, object]], question: str) -> str:
    """Right, wrong and undecided of one question, over some rows."""
    counts = Counter(row[f"{question}_judged"] for row in rows if row[f"{question}_judged"] is not None)
    n = sum(counts.values())
    if not n:
        return "none"
    return ", ".join(
        f"{kind} {counts[kind]} of {n} ({counts[kind] / n:.0%})" for kind in ("right", "wrong", "cannot tell")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--out", type=Path, help="keep traces and results.json here")
    parser.add_argument("--attempts", type=int, default=3, help="runs of a seed while the host is busy")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds before a repetition")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one run")
    parser.add_argument("--nice", type=int, default=0, help="added to the niceness; below 0 needs root")
    parser.add_argument("--again", action="store_true", help="judge the traces kept in --out, run nothing")
    parser.add_argument("--show", action="store_true", help="print each diagnosis")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for fault in FAULTS:
            if args.only and fault.name not in args.only:
                continue
            why_not = fault.possible()
            if why_not is not None:
                print(f"{fault.name:18}left out: {why_not}")
                continue
            for seed in range(args.first_seed, args.first_seed + args.seeds):
                row = measure(fault, seed, folder, args)
                rows.append(row)
                print(
                    f"{fault.name:18}{seed:3} shape {row['shape_judged'] or '-':12}{row['shape']:17}"
                    f"{row['shape_confidence']:5.2f}  cost {row['cost_judged'] or '-':12}{row['cost']:13}"
                    f"{row['cost_confidence']:5.2f} {','.join(row['cost_candidates']):24}"
                    f"others {row['other_cores']}{' DISTURBED' if row['disturbed'] else ''}",
                    flush=True,
                )
        quiet = [row for row in rows if not row["disturbed"]]
        print(f"\n{len(rows)} runs of {len({row['fault'] for row in rows})} faults; {len(quiet)} undisturbed")
        print(f"{platform.platform()}, {os.cpu_count()} CPUs, torch {torch.__version__}")
        for name, some in (("undisturbed", quiet), ("all", rows)):
            print(f"{name}: shape {totals(some, 'shape')}\n{name}: cost  {totals(some, 'cost')}")
        if args.out:
            (folder / "results.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
