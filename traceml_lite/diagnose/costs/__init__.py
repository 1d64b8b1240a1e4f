"""What a fetch is made of, and whether the loop's time goes there at all: one function per cost key.

``cost_verdict`` is the door. Shapes, the pattern of the waits in time, are judged elsewhere.
"""

from __future__ import annotations

from traceml_lite.diagnose.costs.verdict import COSTS, cost_verdict

COST_KEYS = tuple(COSTS)

__all__ = ["COSTS", "COST_KEYS", "cost_verdict"]
