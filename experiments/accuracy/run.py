"""Prints confusion matrices, calibration, false periods, power and speed of the shape diagnosis."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil
from known import PERIODIC, RANDOM_CASES, Known, from_file, is_right, made_up

from traceml_lite.diagnose.diagnosis import diagnose
from traceml_lite.diagnose.shapes import shape_verdict
from traceml_lite.records.run import Environment, Run, from_arrays
from traceml_lite.simulate.labelled import labelled_run
from traceml_lite.stats.cadence import deliveries_needed, scan_periods

ZERO_COUNTERS = ("minor_faults", "major_faults", "voluntary_switches", "involuntary_switches", "read_bytes")
BINS = ((0.0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 0.95), (0.95, 1.01))


def judge(runs: Iterable[Known], fetches: bool) -> None:
    right: dict[int, Counter[str]] = defaultdict(Counter)
    confusion: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    false: dict[tuple[int, str], list[bool]] = defaultdict(list)
    sure: dict[tuple[float, float], list[bool]] = defaultdict(list)
    for known in runs:
        verdict, evidence, _ = shape_verdict(known.loader(fetches), Environment())
        good = is_right(known, verdict, evidence, fetches)
        outcome = "right" if good else "cannot tell" if verdict.key == "inconclusive" else "wrong"
        right[known.n][outcome] += 1
        confusion[known.n][known.case, verdict.key] += 1
        if known.case in RANDOM_CASES:
            false[known.n, "random stalls"].append(verdict.key in PERIODIC)
        if known.case == "drift":
            false[known.n, "drift"].append(verdict.key in PERIODIC)
        if verdict.key != "inconclusive":
            # The confidence is that of the key itself, not of its family.
            exact = verdict.key == known.shape or (fetches and good)
            sure[next(b for b in BINS if b[0] <= verdict.confidence < b[1])].append(exact)
    print(f"\n=== {'with fetch times' if fetches else 'waits only, families of shapes'}")
    print(f"{'deliveries':>10} {'right':>8} {'cannot tell':>12} {'wrong':>8} {'runs':>6}")
    for n, count in sorted(right.items()):
        total = sum(count.values())
        shares = [100 * count[k] / total for k in ("right", "cannot tell", "wrong")]
        print(f"{n:>10} {shares[0]:>7.1f}% {shares[1]:>11.1f}% {shares[2]:>7.1f}% {total:>6}")
    for n, count in sorted(confusion.items()):
        print(f"\n{n} deliveries: case, and what was said")
        for case in sorted({case for case, _ in count}):
            said = sorted(((k, c) for (of, k), c in count.items() if of == case), key=lambda x: -x[1])
            print(f"  {case:<17} " + ", ".join(f"{key} {c}" for key, c in said))
    print("\nfalse periodic (a named key that recurs)")
    for (n, what), called in sorted(false.items()):
        print(f"  {what:<14} {n:>5} deliveries: {sum(called)} of {len(called)}")
    print("\nconfidence: share of verdicts that were right")
    for low, high in BINS:
        called = sure.get((low, high), [])
        if called:
            print(f"  {low:.2f} to {min(high, 1.0):.2f}: {np.mean(called):.3f} of {len(called)}")


def power(seeds: range) -> None:
    """Deliveries until a period is found in nine of ten made-up runs, with slow ones at random on top."""
    print("\n=== power: deliveries needed against period")
    heads = ("perfect, planned", "perfect, scanned", "2 % random on top", "5 %")
    print(f"{'period':>6} {heads[0]:>17} {heads[1]:>17} {heads[2]:>18} {heads[3]:>6}")
    for period in (2, 3, 4, 6, 8, 12, 16, 24, 32, 64):
        noisy = [needed(period, rate, seeds) for rate in (0.02, 0.05)]
        print(
            f"{period:>6} {deliveries_needed(period, planned=True):>17} {deliveries_needed(period):>17}"
            f" {noisy[0]:>18} {noisy[1]:>6}"
        )


def needed(period: int, rate: float, seeds: range) -> int:
    cycles = 3
    while True:
        n, found = cycles * period, 0
        for seed in seeds:
            rng = np.random.default_rng([seed, period])
            slow = (np.arange(n) % period == rng.integers(period)) | (rng.random(n) < rate)
            fit = scan_periods(np.flatnonzero(slow), n)
            found += fit is not None and fit.period == period and fit.p_corrected < 0.01
        if found >= 0.9 * len(seeds):
            return n
        cycles += 1 if cycles < 10 else cycles // 4


def long_run(n: int) -> Run:
    """A made-up run of any length; its fetches have every counter, so that no part of a diagnosis is idle."""
    columns, options, _ = labelled_run("data_period", 4096, 1, num_workers=4, period=10)
    times = -(-n // 4096)
    span = int(columns["got_ns"][-1] + columns["step_ns"][-1] - columns["ask_ns"][0])
    long = {}
    for name, values in columns.items():
        add = {"rank": 4096}.get(
            name, span if name in ("ask_ns", "got_ns", "fetch_start_ns", "fetch_end_ns") else 0
        )
        long[name] = (np.tile(values, times) + np.repeat(np.arange(times) * add, 4096))[:n]
    fetch_ns = long["fetch_end_ns"] - long["fetch_start_ns"]
    long |= dict.fromkeys(("cpu_ns", "thread_cpu_ns"), fetch_ns * 9 // 10)
    long |= {"run_queue_ns": fetch_ns // 20, "rchar": np.full(n, 4096, dtype=np.int64)}
    long |= {name: np.zeros(n, dtype=np.int64) for name in ZERO_COUNTERS}
    return from_arrays(**long, **{k: options[k] for k in ("num_workers", "prefetch_factor", "in_order")})


def analysed(n: int, whole: bool) -> tuple[float, float]:
    """CPU seconds of the first analysis in this process, and the memory it added over that of the trace."""
    run = long_run(n)
    trace = sum(column.nbytes for column in run.loaders[0].deliveries.columns.values())
    before, began = psutil.Process().memory_info().rss, time.process_time()
    if whole:
        diagnose(run)
    else:
        shape_verdict(run.loaders[0], Environment())
    used = time.process_time() - began
    return used, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before) / trace


def speed(lengths: list[int], rounds: int) -> None:
    """CPU time of one analysis, and the memory it adds; each in a process of its own, as `show` is."""
    print(f"\n=== speed: the shape alone, then shape, cost and the next experiment; {rounds} processes each")
    for n in lengths:
        for whole in (False, True):
            found = []
            for _ in range(rounds):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    found.append(pool.apply(analysed, (n, whole)))
            seconds = sorted(used for used, _ in found)
            print(
                f"{n:>10} {'all' if whole else 'shape':>6}: {statistics.median(seconds):.3f} s CPU "
                f"[{seconds[0]:.3f}, {seconds[-1]:.3f}], memory added "
                f"{max(more for _, more in found):.1f} times the trace"
            )


def false_alarms(seeds: range) -> None:
    """How often runs without a period are said to have one, on more runs than the tables above hold."""
    print("\n=== false 'periodic', a named key that recurs")
    for n in (16, 64, 256):
        for fetches in (True, False):
            for kind, cases in (("random stalls", RANDOM_CASES), ("drift", ("drift",))):
                named: Counter[str] = Counter()
                for seed in seeds:
                    for case in cases:
                        columns, options, shape = labelled_run(case, n, seed)
                        run = Known(case, shape, columns, options).loader(fetches)
                        named[shape_verdict(run, Environment())[0].key] += 1
                wrong = {key: named[key] for key in PERIODIC if named[key]}
                from_what = "fetch times" if fetches else "waits only"
                total = f"{sum(wrong.values()):>3} of {sum(named.values())}"
                print(f"{n:>6} {from_what:12} {kind:14} {total} {wrong or ''}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="90000:90016", help="first:last of made-up runs")
    parser.add_argument("--lengths", default="16,64,256,4096")
    parser.add_argument("--labelled", type=Path, default=os.environ.get("TRACEML_LITE_LABELLED"))
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--false-alarms", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each length of --speed")
    given = parser.parse_args()
    first, last = (int(x) for x in given.seeds.split(":"))
    if given.power:
        return power(range(first, min(last, first + 40)))
    if given.false_alarms:
        return false_alarms(range(first, last))
    if given.speed:
        return speed([100_000, 1_000_000, 10_000_000], given.rounds)
    lengths = [int(x) for x in given.lengths.split(",")]
    runs = list(from_file(given.labelled) if given.labelled else made_up(range(first, last), lengths))
    for fetches in (True, False):
        judge(runs, fetches)
    return None


if __name__ == "__main__":
    sys.exit(main())
