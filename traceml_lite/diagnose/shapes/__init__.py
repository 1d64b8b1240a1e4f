"""The shape of the waiting: evidence for and against each shape of the catalogue, and one verdict.

What a fetch costs is another question (``diagnose.costs``). A shape is named with the probability that
made-up runs of known cause give it; where two shapes look alike in this run, both are named as candidates.
"""

from traceml_lite.diagnose.shapes.verdict import SHAPES, shape_verdict

__all__ = ["SHAPES", "shape_verdict"]
