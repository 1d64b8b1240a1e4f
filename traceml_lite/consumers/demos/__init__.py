"""Built-in workloads, one per mechanism: real DataLoaders that need no data and show one thing each.

The shapes are made with sleeps, so they hold on any host; the costs do real work, measured in CPU time and
not in wall time. What a demo *should* show stands in its record, so that a diagnosis can be held to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from traceml_lite.consumers.demos.costs import COST_DEMOS
from traceml_lite.consumers.demos.record import Demo
from traceml_lite.consumers.demos.shapes import SHAPE_DEMOS

DEMOS: Mapping[str, Demo] = MappingProxyType({demo.name: demo for demo in (*SHAPE_DEMOS, *COST_DEMOS)})

__all__ = ["DEMOS", "Demo"]
