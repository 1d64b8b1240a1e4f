"""The part of RESULTS.md that the seed has no counterpart of; see ``tables``."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

from cells import fenced, grid, plain, seconds, share

from traceml_lite.experiment.readings import HELPED

# A cell of the matrix is slow when a batch costs this much more than the cheapest cell's: the two ways of
# access are 19 to 75 times apart, and nothing else differs by more than half.
SLOW_RATIO = 5.0


def verdict(one: Mapping[str, Any], kind: str) -> str:
    """A verdict's key, or what this run could not choose between."""
    key, candidates = one[kind], one[f"{kind}_candidates"]
    return key if key != "inconclusive" or not candidates else f"cannot tell ({' or '.join(candidates)})"


def run_queue(found: Mapping[str, Any]) -> str:
    """CPU time of a fetch against its run-queue delay, by number of workers."""
    passes = found.get("workers", {}).get("broken", {}).get("passes", [])
    rows, cpu, whole, threads = [], {}, {}, ""
    for workers in sorted({one["workers"] for one in passes}):
        these = [one for one in passes if one["workers"] == workers and one["cpu_s"] is not None]
        if not these:
            continue
        fetch_s, cpu_s = mean(one["fetch_s"] for one in these), mean(one["cpu_s"] for one in these)
        if workers:
            cpu[workers], whole[workers] = cpu_s, fetch_s
        elif cpu_s > HELPED * fetch_s:
            threads = " Without workers a fetch has more CPU time than it takes: torch's threads help it."
        delays = [one["run_queue_s"] for one in these]
        delay_s = None if None in delays else mean(delays)
        rest = None if delay_s is None else max(0.0, fetch_s - cpu_s - delay_s)
        rows.append([str(workers), seconds(fetch_s), seconds(cpu_s), seconds(delay_s), seconds(rest)])
    if not whole:
        return ""
    few, many = min(whole), max(whole)
    return (
        "## What the seed could not say\n\n### The scheduler, isolated\n\n"
        '"I did not independently isolate the OS scheduler." Each fetch splits into its own CPU time, the '
        "time it was ready to run and had no CPU, and the rest.\n\n"
        + grid(["workers", "fetch", "CPU", "run-queue delay", "rest"], rows)
        + f"\n\nFrom {few} to {many} workers a fetch takes {plain(whole[many] / whole[few])} times as long "
        f"and {plain(cpu[many] / cpu[few])} times the CPU: what grows is the waiting for a CPU.{threads}"
    )


def long_order(found: Mapping[str, Any]) -> str:
    """The in_order control at a length that can decide."""
    stage = found.get("in_order_long")
    if not stage:
        return ""
    rows = []
    for comparison in stage["comparisons"]:
        for arm in (comparison["a"], comparison["b"]):
            cadence = arm["cadence"] or {}
            for window in cadence.get("windows", []):
                rows.append(
                    [
                        arm["name"],
                        f"{window['start']} to {window['stop']}",
                        str(window["gaps"]),
                        share(window["gap_share"]),
                        share(window.get("again_share")),
                        f"{window['p_value']:.2g}",
                    ]
                )
    cvs = [one["fetch_cv"] for one in stage["passes"] if one["fetch_cv"] is not None]
    statements = [one["cadence"]["statement"] for one in stage["comparisons"] if one["cadence"]]
    statements += [one["difference"]["statement"] for one in stage["comparisons"]]
    length = max((one["deliveries"] for one in stage["passes"]), default=0)
    varied = f" Fetches vary by {share(min(cvs))} to {share(max(cvs))}." if cvs else ""
    return (
        f"### in_order at {length} deliveries a pass (small images)\n\n"
        "The seed's control ran 16. Workers start in phase, so a cadence of 4 shows in both orders for a "
        f"while, whatever the order does.{varied}\n\n"
        + grid(
            [
                "arm",
                "deliveries",
                "gaps",
                "gaps equal to 4",
                "stalls with another 4 later",
                "p against chance",
            ],
            rows,
        )
        + "\n\nThe tool's words: "
        + " ".join(statements)
    )


def controls(found: Mapping[str, Any]) -> str:
    """Stagger, ceiling, and the cadence against its null."""
    lines = []
    laws = found.get("workers", {}).get("broken", {}).get("laws")
    if laws:
        lines.append(f"- Law of the gap: {laws['gap']['statement']}")
        lines.append(f"- Throughput: {laws['throughput']['statement']}")
    for answer in found.get("controls", {}).get("controls", []):
        lines.append(f"- `{answer['control']}` (small images): {answer['statement']}")
    if not lines:
        return ""
    return "### Law, phase and ceiling, in the tool's words\n\n" + "\n".join(lines)


def matrix(found: Mapping[str, Any]) -> str:
    """Versions of lerobot against versions of datasets."""
    stage = found.get("matrix")
    if not stage:
        return ""
    cells = dict(stage["cells"])
    now = found.get("current", {})
    for access, cell in now.get("cells", {}).items():
        cells[f"{now['name']}{'' if access == 'as_installed' else ' select_columns'}"] = cell
    fastest = min(cell["cpu_s"] for cell in cells.values())
    rows = []
    for name, cell in cells.items():
        ratio = cell["cpu_s"] / fastest
        rows.append(
            [
                name.replace("-datasets-", ", datasets ")
                .replace("lerobot-", "lerobot ")
                .replace("-select", " select"),
                seconds(cell["cpu_s"]),
                plain(ratio),
                "slow" if ratio > SLOW_RATIO else "fast",
                f"{verdict(cell, 'shape')}, {verdict(cell, 'cost')}",
                "busy" if cell["disturbed"] else "",
            ]
        )
    head = ["versions, without workers", "CPU a batch", "times the cheapest", "", "verdict of the tool", ""]
    text = (
        "## The other half of the history\n\n"
        "From datasets 4.4 a custom transform makes column access decode whole rows again, so the same code "
        "that was fixed in 0.4.1 is slow with today's datasets. `select_columns` is a view per key (the idea "
        "of lerobot#4314), with equal tensors (`tests/lerobot`).\n\n" + grid(head, rows)
    )
    if skipped := now.get("skipped"):
        text += f"\n\nToday's LeRobot: {skipped}."
    for name, words in stage["compared"].items():
        text += f"\n\n`traceml-lite compare`, {name}:\n\n{fenced(words)}"
    return text


def train(found: Mapping[str, Any]) -> str:
    """Real lerobot-train, where the regression hides in the step."""
    stage = found.get("train")
    if not stage:
        return ""
    rows = []
    for name in ("broken", "fixed"):
        one = stage[name]
        words = one["own_words"]
        # The first step loads and warms up; it is no step like the others.
        update, data = (words[key][1:] for key in ("updt_s", "data_s"))
        rows.append(
            [
                name,
                seconds(mean(update)) if update else "not logged",
                seconds(mean(data)) if data else "not logged",
                share(one["steady_wait_share"]),
                plain(one["cpu_s"]) + " s",
                share(one["step_run_queue_share"]),
                verdict(one, "cost"),
            ]
        )
    head = [
        "",
        "its own update",
        "its own data",
        "wait share",
        "worker CPU a fetch",
        "step waits for a CPU",
        "cost",
    ]
    losses = [stage[name]["own_words"]["loss"] for name in ("broken", "fixed")]
    same = "The losses are identical" if losses[0] and losses[0] == losses[1] else "The losses differ"
    statements = "\n".join(f"- {name}: {stage[name]['cost_statement']}" for name in ("broken", "fixed"))
    control = found.get("train_control", {"controls": [], "passes": []})
    answers = "\n".join(f"- `{one['control']}`: {one['statement']}" for one in control["controls"])
    load = [one["other_cores"] for one in control["passes"] if one["disturbed"]]
    if load:
        answers += (
            f"\n- Other processes used up to {plain(max(load))} CPUs during these passes, which takes the "
            "CPU from the step as well: this run of the control settles nothing."
        )
    return (
        "## The regression that hides in the step\n\n"
        "`lerobot-train` as installed, small ACT on the CPU, 4 workers, under `traceml-lite run`.\n\n"
        + grid(head, rows)
        + f"\n\n{same}: the data is the same, only its price differs.\n\n{statements}\n\n"
        f"The control that settles it, on the broken stack:\n\n{answers or '- not run'}"
    )


def investigation(found: Mapping[str, Any]) -> str:
    """Where the whole chain's text is, and its steps."""
    stage = found.get("investigate")
    if not stage:
        return ""
    rows = [[step["question"], step["answer"]] for step in stage["result"]["steps"]]
    return (
        "## The chain\n\n`traceml-lite investigate lerobot:ROOT` on the broken stack (small images), by "
        f"itself, in {stage['took_s'] / 60:.0f} min; its full text is in "
        "[investigate.txt](investigate.txt).\n\n" + grid(["question", "answer"], rows)
    )
