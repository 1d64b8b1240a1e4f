"""The pages of the catalogue: one per shape and cost, shipped as Markdown beside this module.

Reads package data; a page is printed as it is written. What the keys mean for a run is judged elsewhere.
"""

from __future__ import annotations

import difflib
from importlib import resources

from traceml_lite._errors import UsageError

SHAPE_PAGES = (
    "none",
    "start_up",
    "uniform",
    "saturated_pool",
    "slow_worker",
    "slow_sample",
    "data_period",
    "worker_period",
    "clock_period",
    "epoch_boundary",
    "shard_starvation",
    "drift",
)
COST_PAGES = (
    "cpu",
    "run_queue",
    "threads",
    "affinity",
    "quota",
    "storage",
    "remote",
    "lock",
    "memory",
    "delivery",
    "pin",
    "shm",
    "start",
    "consumer",
    "step_starved",
    "launch_bound",
    "neighbours",
)
# The answer of either question when a run cannot tell.
KEYS = (*SHAPE_PAGES, *COST_PAGES, "inconclusive")


def page(key: str) -> str:
    """The page of a key, as Markdown.

    Args:
        key: A key of the catalogue; case does not matter, nor a hyphen in place of an underscore.

    Raises:
        UsageError: There is no such key; the message lists them and names the nearest.
    """
    name = key.strip().lower().replace("-", "_")
    if name not in KEYS:
        near = difflib.get_close_matches(name, KEYS, n=2, cutoff=0.5)
        guess = f"; did you mean {' or '.join(near)}?" if near else "."
        raise UsageError(
            f"no page for {key!r}{guess}\nShapes: {', '.join(SHAPE_PAGES)}\nCosts: {', '.join(COST_PAGES)}\n"
            "Either: inconclusive"
        )
    return resources.files("traceml_lite.report").joinpath("pages", f"{name}.md").read_text("utf-8")


def title(key: str) -> str:
    """The words after the key in its page's heading."""
    heading = page(key).split("\n", 1)[0]
    return heading.split(": ", 1)[1]


def contents() -> list[str]:
    """All keys with their titles, as lines of at most 88 columns."""
    lines: list[str] = []
    for heading, keys in (
        ("Shapes: how the cost reaches the training loop in time", SHAPE_PAGES),
        ("Costs: what the lost time is made of", COST_PAGES),
        ("Either", ("inconclusive",)),
    ):
        lines += ["", heading] if lines else [heading]
        lines += [f"  {key:<18}{title(key)}" for key in keys]
    return lines
