"""RESULTS.md out of the stages' results: the seed's tables beside ours, then what the seed could not say.

Every figure comes from a stage's file. A row of the seed says "agrees" by a rule that stands beside it, and
otherwise what differs and what was seen to go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

import tables_beyond
from cells import grid, plain, seconds, share
from measure import DISTURBED_CORES
from study import Study

Pass = Mapping[str, Any]

# One gap or fetch in ten may go astray before a row stops saying "agrees"; the seed's own runs had none.
MOST = 0.9
# Workers whose fetches vary by more than this are out of step within four rounds (16 deliveries of 4).
UNEVEN_CV = 0.15
PREFETCH = 2


def write(study: Study) -> tuple[str, str | None]:
    """RESULTS.md, and the text of the investigation where it ran."""
    found = {path.stem: study.result(path.stem) or {} for path in sorted(study.folder.glob("*.json"))}
    parts = [_head(study, found)]
    for make in (
        _seed_table,
        _passes_table,
        tables_beyond.run_queue,
        tables_beyond.long_order,
        tables_beyond.controls,
        tables_beyond.matrix,
        tables_beyond.train,
        tables_beyond.investigation,
    ):
        text = make(found)
        if text:
            parts.append(text)
    if study.skipped:
        lines = [f"- {name}: {why}" for name, why in study.skipped.items()]
        parts.append("## Not run\n\n" + "\n".join(lines))
    investigated = found.get("investigate", {}).get("text")
    text = study.without_paths("\n\n".join(parts) + "\n")
    return text, None if investigated is None else study.without_paths(investigated)


def _head(study: Study, found: Mapping[str, Any]) -> str:
    about, scale = found["describe"], study.scale
    host, took = about["host"], sum(stage.get("took_s", 0) for stage in found.values())
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    flag = {"quick": " --quick", "default": "", "seed": " --seed-scale"}[scale.name]
    flag += " --long" * scale.long + " --current" * ("current" in found)
    return (
        "# The LeRobot regression, measured again\n\n"
        f"`python experiments/01_lerobot_regression/run.py{flag}`, {about['date']}, {took / 60:.0f} min. "
        f"{scale.height} x {scale.width} images, batch 8, ACT's chunk of 100 actions, prefetch 2, consumer "
        f'paced with 20 ms; "small" is 96 x 96.\n\n'
        f"Host: {host['cpus']} CPUs ({host['cpu']}), {host['memory_gib']} GiB, Linux {host['kernel']}; "
        f"load average {plain(host['load'])} when it began. "
        f'{versions}. "Broken" is lerobot 0.4.0, "fixed" is 0.4.1, both with datasets 4.1.1.\n\n'
        f"The seed ran 480 x 640 on a Colab T4 host with 2 CPUs and called a wait above 5 s a stall, half of "
        f"its fetch. Here a stall is a wait above half of the CPU time of a lone broken fetch: "
        f"{seconds(found['alone']['stall_s'])}. A pass is marked `busy` where other processes kept more than "
        f"{DISTURBED_CORES} of a CPU from it."
    )


def _of(found: Mapping[str, Any], stage: str, workers: int, arm: str = "broken") -> list[Pass]:
    passes = found.get(stage, {}).get(arm, {}).get("passes", [])
    return [one for one in passes if one["workers"] == workers]


def _ordered(found: Mapping[str, Any], in_order: bool) -> list[Pass]:
    return [one for one in found.get("in_order", {}).get("passes", []) if one["in_order"] is in_order]


def stall_share(passes: Iterable[Pass]) -> float:
    """Stalls over deliveries, all passes together."""
    passes = list(passes)
    return sum(len(one["stalls"]) for one in passes) / sum(one["deliveries"] for one in passes)


def settled_stalls(one: Pass) -> list[int]:
    """Stalls that are not the start of the workers, which takes longer than a small fixed batch ever does."""
    start_up = max(1, one["workers"] * PREFETCH)
    return [place for place in one["stalls"] if place >= start_up]


def multiples(passes: Iterable[Pass], period: int) -> tuple[int, int]:
    """How many gaps are multiples of a period, and how many gaps there are."""
    gaps = [gap for one in passes for gap in one["gaps"]]
    return sum(gap % period == 0 for gap in gaps), len(gaps)


def because(passes: Sequence[Pass]) -> str:
    """What was seen to go with a difference, in words; no cause is claimed without a number."""
    seen = []
    others = [one["other_cores"] for one in passes if one["other_cores"] is not None]
    if others and max(others) > DISTURBED_CORES:
        seen.append(f"other processes used up to {plain(max(others))} CPUs")
    uneven = [one["fetch_cv"] for one in passes if one["fetch_cv"] is not None]
    if uneven and max(uneven) > UNEVEN_CV:
        seen.append(f"fetch times vary by up to {share(max(uneven))}, which puts the workers out of step")
    return " and ".join(seen) if seen else "not explained by the host's load or by uneven fetches"


def _row(what: str, seed: str, ours: str, agrees: bool, passes: Sequence[Pass]) -> list[str]:
    return [what, seed, ours, "agrees" if agrees else f"differs; {because(passes)}"]


def _seed_table(found: Mapping[str, Any]) -> str:
    rows: list[list[str]] = []
    for workers, seed in ((0, "essentially every fetch slow"), (1, "every step, median gap 1")):
        if passes := _of(found, "workers", workers):
            slow = stall_share(passes)
            ours = f"{share(slow)} of fetches are stalls"
            rows.append(_row(f"broken, {workers} workers", seed, ours, slow >= MOST, passes))
    for workers in (2, 4):
        if passes := _of(found, "workers", workers):
            rows.append(_gap_row(workers, passes))
    if passes := _of(found, "workers", 4, "fixed"):
        stalls = sum(len(settled_stalls(one)) for one in passes)
        ours = f"{stalls} stalls after the start-up"
        rows.append(_row("fixed, 4 workers", "no stall", ours, stalls == 0, passes))
    broken = found.get("workers", {}).get("broken", {}).get("passes", [])
    if broken:
        rows += _counter_rows(broken)
    rows += _order_rows(found)
    rows += _tail_rows(found)
    return "## The seed's tables, side by side\n\n" + grid(["", "seed", "here", ""], rows)


def _gap_row(workers: int, passes: Sequence[Pass]) -> list[str]:
    exact, gaps = multiples(passes, workers)
    every = [gap for one in passes for gap in one["gaps"]]
    middle = median(every) if every else None
    ours = f"median gap {plain(middle)}; {exact} of {gaps} gaps are multiples of {workers}"
    agrees = middle == workers and exact >= MOST * gaps
    seed = f"median gap {workers}, all multiples of {workers}"
    return _row(f"broken, {workers} workers, both directions", seed, ours, agrees, passes)


def _counter_rows(broken: Sequence[Pass]) -> list[list[str]]:
    with_workers = [one for one in broken if one["workers"]]
    changes = [one["pid_changes"] for one in with_workers]
    known = [change for change in changes if change is not None]
    ours = f"{sum(known)} changes in {len(known)} passes" if known else "not measured"
    rows = [_row("PID set within a pass", "no change", ours, bool(known) and sum(known) == 0, with_workers)]
    sets = [one["contrast"]["rows"] for one in with_workers if one["contrast"]]
    for key, what, seed, agrees, show in _COUNTERS:
        pairs = [rows_[key] for rows_ in sets if key in rows_ and None not in rows_[key]]
        if not pairs:
            rows.append([what, seed, "not measured", "cannot be compared"])
            continue
        # The seed gave medians within a pass; one odd pass is named and does not become all of them.
        slow, fast, most = median(p[0] for p in pairs), median(p[1] for p in pairs), max(p[0] for p in pairs)
        odd = f", one up to {show(most)}" if slow == 0 < most else ""
        ours = f"{show(slow)} against {show(fast)} ({len(pairs)} passes{odd})"
        rows.append(_row(what, seed, ours, agrees(slow, fast), with_workers))
    return rows


_COUNTERS: tuple[tuple[str, str, str, Callable[[float, float], bool], Callable[[float], str]], ...] = (
    (
        "worker_cpu_ns",
        "worker CPU, slow against fast intervals",
        "much more",
        lambda slow, fast: slow > 2 * fast,
        lambda ns: seconds(ns / 1e9),
    ),
    (
        "worker_read_bytes",
        "worker read_bytes, slow against fast",
        "median 0 when slow",
        lambda slow, fast: slow == 0,
        lambda value: f"{plain(value)} B" if value < 1e3 else f"{plain(value / 1e3)} kB",
    ),
    (
        "worker_major_faults",
        "worker major faults, slow against fast",
        "median 0 when slow",
        lambda slow, fast: slow == 0,
        plain,
    ),
)


def _order_rows(found: Mapping[str, Any]) -> list[list[str]]:
    ordered, unordered = _ordered(found, True), _ordered(found, False)
    if not ordered or not unordered:
        return []
    rows = []
    for name, passes in (("in order", ordered), ("in_order=False", unordered)):
        places = "; ".join(" ".join(map(str, one["stalls"])) for one in passes)
        exact, gaps = multiples(passes, 4)
        agrees = bool(gaps) and exact == gaps
        rows.append(_row(f"4 workers, {name}: stalls at", "0 4 8 12 (2 of 2)", places, agrees, passes))
    counts = [sum(one["overtakings"] or 0 for one in passes) for passes in (ordered, unordered)]
    ours = f"{counts[0]} in order, {counts[1]} without"
    seed = "0 in order, 14 without"
    rows.append(_row("overtakings", seed, ours, counts[0] == 0 < counts[1], unordered))
    for key, name, seed, agrees in (
        ("mean_s", "mean wait, unordered over ordered", "0.93", lambda ratio: 0.75 < ratio < 1.25),
        ("p95_s", "p95, unordered over ordered", "0.89", lambda ratio: ratio < 1),
    ):
        ratio = mean(one[key] for one in unordered) / mean(one[key] for one in ordered)
        rows.append(_row(name, seed, plain(ratio), agrees(ratio), [*ordered, *unordered]))
    return rows


def _tail_rows(found: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    paced, unpaced = _of(found, "workers", 4), found.get("pacing", {}).get("none")
    kinds: list[tuple[str, list[Pass]]] = [("paced", paced), ("not paced", [unpaced] if unpaced else [])]
    for name, passes in kinds:
        if passes:
            over = [
                mean(one[key] for one in passes) / mean(one["mean_s"] for one in passes)
                for key in ("median_s", "p95_s")
            ]
            ours = f"median {plain(over[0])} and p95 {plain(over[1])} of the mean"
            seed = "median 0.0004 to 0.001, p95 3.9 to 4.1 of the mean"
            agrees = over[0] < 0.25 and over[1] > 2
            rows.append(_row(f"heavy tail, 4 workers, {name}", seed, ours, agrees, passes))
    return rows


def _passes_table(found: Mapping[str, Any]) -> str:
    rows = []
    for stage, arm in (("workers", "broken"), ("workers", "fixed")):
        rows += [
            _pass_row(f"{arm}, {one['condition']}, {one['direction']}", one)
            for one in found.get(stage, {}).get(arm, {}).get("passes", [])
        ]
    rows += [
        _pass_row(f"broken, {one['condition']}, {one['direction']}", one)
        for one in found.get("in_order", {}).get("passes", [])
    ]
    if not rows:
        return ""
    head = ["pass", "mean", "median", "p95", "stalls at", "CPU a fetch", "verdict of the tool", ""]
    return "### Every pass, in the order it ran\n\n" + grid(head, rows)


def _pass_row(name: str, one: Pass) -> list[str]:
    places = " ".join(map(str, one["stalls"])) if len(one["stalls"]) < one["deliveries"] else "all"
    times = [seconds(one[key]) for key in ("mean_s", "median_s", "p95_s")]
    verdict = f"{tables_beyond.verdict(one, 'shape')}, {tables_beyond.verdict(one, 'cost')}"
    return [
        name,
        *times,
        places or "none",
        seconds(one["cpu_s"]),
        verdict,
        "busy" if one["disturbed"] else "",
    ]
