"""Is the law of the gap right on real loaders? Sweeps of demos with a known law, counted.

Each sweep is 1, 2 and 4 workers in both directions at 64 deliveries, in fresh processes. A verdict
"undecided" is neither right nor wrong. It resumes in the same folder.
Run: ``python experiments/laws_on_real_loaders.py [ROUNDS] [FOLDER]``.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path

from traceml_lite.experiment.plan import Request
from traceml_lite.experiment.sweep import run_sweep

# Demo to the laws that are right for it. Stalls of a lock recur every W, as those of any pool in phase do.
EXPECTED = {
    "saturated-pool": ("proportional",),
    "slow-worker": ("proportional",),
    "data-period": ("constant_batches",),
    "worker-period": ("multiple",),
    "slow-sample": ("none",),
    "shard-starvation": ("none",),
    "lock": ("proportional", "none"),
}


def main(rounds: int, folder: Path) -> None:
    """Print a row per demo and the totals."""
    print(f"{datetime.date.today()}, {platform.platform()}, {os.cpu_count()} CPUs, {rounds} rounds\n")
    print("| demo | right | undecided | wrong | verdicts | pace |")
    print("|---|---|---|---|---|---|")
    totals = [0, 0, 0]
    for demo, expected in EXPECTED.items():
        verdicts, paces = [], []
        for seed in range(rounds):
            request = Request(f"demo:{demo}", settings=("num_workers=1,2,4",), seed=seed, deliveries=64)
            laws = run_sweep(request, folder / f"{demo}-{seed}").laws
            verdicts.append("no law" if laws is None else laws.gap.key)
            paces.append("-" if laws is None else laws.throughput.key)
        counts = [
            sum(key in expected for key in verdicts),
            sum(key == "undecided" for key in verdicts),
            sum(key not in (*expected, "undecided") for key in verdicts),
        ]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        row = " | ".join(map(str, counts))
        print(f"| {demo} | {row} | {', '.join(verdicts)} | {', '.join(paces)} |", flush=True)
    print(f"\nright {totals[0]} of {sum(totals)}, undecided {totals[1]}, wrong {totals[2]} (to reach: 90 %)")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 3,
        Path(sys.argv[2] if len(sys.argv) > 2 else "sweeps/laws"),
    )
