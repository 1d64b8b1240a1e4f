"""How often the laws of a sweep are named right, on simulated sweeps with a known cause.

Each sweep runs 1, 2 and 4 workers in both directions. Prints one row per mechanism: how many sweeps were
named right, wrongly, or left undecided, with fetch times and with waits alone. Run:

    python experiments/laws/run.py --sweeps 60 --deliveries 64
"""

from __future__ import annotations

import argparse
import collections
from dataclasses import replace

from traceml_lite.diagnose.laws import sweep_laws
from traceml_lite.records.run import Table
from traceml_lite.records.sweep import Condition, MeasuredPass, PassResult
from traceml_lite.simulate.model import Simulated
from traceml_lite.simulate.sweeps import LAWS, simulated_sweep

FETCH_TIMES = ("fetch_start_ns", "fetch_end_ns", "cpu_ns", "thread_cpu_ns", "run_queue_ns")


def measured(sweep: list[Simulated], with_fetches: bool) -> list[MeasuredPass]:
    """The simulated passes as the runner of a sweep would hand them over."""
    passes = []
    for number, simulated in enumerate(sweep):
        workers = simulated.config.num_workers
        name = f"num_workers={workers}"
        run = simulated.run()
        if not with_fetches:
            table = run.main.deliveries
            kept = {c: table[c] for c in table if c not in FETCH_TIMES}
            run = replace(run, loaders=(replace(run.main, deliveries=Table(kept, table.absent)),))
        direction = "down" if number < len(sweep) // 2 else "up"
        passes.append(
            MeasuredPass(Condition(name, {"num_workers": workers}), PassResult(name, number, direction), run)
        )
    return passes


def counts(
    mechanism: str, sweeps: int, deliveries: int, with_fetches: bool, first_seed: int
) -> tuple[int, int, int]:
    """Sweeps named right, wrongly and undecided."""
    keys = collections.Counter(
        sweep_laws(measured(simulated_sweep(mechanism, seed, n=deliveries), with_fetches)).gap.key
        for seed in range(first_seed, first_seed + sweeps)
    )
    right, undecided = keys[LAWS[mechanism]], keys["undecided"]
    return right, sweeps - right - undecided, undecided


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", type=int, default=60)
    parser.add_argument("--deliveries", type=int, default=64)
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args()
    print(f"{args.sweeps} sweeps per mechanism, {args.deliveries} deliveries a pass, workers 1 2 4 both ways")
    print(f"{'':14} {'':17} {'with fetch times':>24}   {'waits alone':>24}")
    head = "".join(f"{word:>8}" for word in ("right", "wrong", "undec."))
    print(f"{'mechanism':14} {'law':17} {head}   {head}")
    for mechanism, law in LAWS.items():
        row = [
            counts(mechanism, args.sweeps, args.deliveries, fetches, args.first_seed)
            for fetches in (True, False)
        ]
        cells = ["".join(f"{number:>8}" for number in numbers) for numbers in row]
        print(f"{mechanism:14} {law:17} {cells[0]}   {cells[1]}", flush=True)


if __name__ == "__main__":
    main()
