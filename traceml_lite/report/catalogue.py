"""The pages of the catalogue: one per shape and cost, shipped as Markdown beside this module.

Reads package data; a page is printed as it is written. What the keys mean for a run is judged elsewhere.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

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

# What each key is most easily mistaken for: the pages say why, a report says what rules it out.
LOOK_ALIKES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "none": ("uniform", "saturated_pool", "start_up"),
        "start_up": ("epoch_boundary", "drift", "none"),
        "uniform": ("saturated_pool", "shard_starvation"),
        "saturated_pool": ("slow_worker", "data_period", "uniform"),
        "slow_worker": ("saturated_pool", "data_period"),
        "slow_sample": ("data_period", "worker_period", "clock_period"),
        "data_period": ("slow_worker", "saturated_pool", "worker_period", "slow_sample"),
        "worker_period": ("data_period", "clock_period", "slow_sample"),
        "clock_period": ("worker_period", "data_period", "saturated_pool"),
        "epoch_boundary": ("data_period", "start_up"),
        "shard_starvation": ("uniform", "slow_worker"),
        "drift": ("start_up", "uniform"),
        "cpu": ("run_queue", "storage", "lock"),
        "run_queue": ("cpu", "neighbours", "quota", "affinity"),
        "threads": ("cpu", "run_queue", "neighbours"),
        "affinity": ("run_queue", "lock", "quota"),
        "quota": ("run_queue", "neighbours"),
        "storage": ("remote", "lock", "cpu"),
        "remote": ("storage", "lock", "cpu"),
        "lock": ("storage", "cpu", "run_queue"),
        "memory": ("cpu", "storage"),
        "delivery": ("pin", "cpu", "lock"),
        "pin": ("delivery",),
        "shm": ("delivery",),
        "start": ("storage", "cpu"),
        "consumer": ("step_starved", "neighbours"),
        "step_starved": ("consumer", "neighbours"),
        "neighbours": ("run_queue", "quota", "step_starved"),
    }
)


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
    return resources.files("traceml_lite.report").joinpath("pages").joinpath(f"{name}.md").read_text("utf-8")


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
