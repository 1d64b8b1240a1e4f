"""Two traces or two sweeps side by side as text, arm by arm. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from traceml_lite.records.sweep import ArmComparison
from traceml_lite.report import format as f
from traceml_lite.report.sweep import render_comparison

_LABEL = 13


def render_comparisons(
    arms: Sequence[ArmComparison],
    *,
    cpu_per_batch_ns: Sequence[tuple[float | None, float | None]] = (),
    only_a: Sequence[str] = (),
    only_b: Sequence[str] = (),
) -> list[str]:
    """One block per pair of arms.

    Args:
        arms: The pairs.
        cpu_per_batch_ns: Median CPU time of a fetch in A and in B, by pair; None where it was not measured.
        only_a: Conditions that only A has.
        only_b: Conditions that only B has.

    Returns:
        Lines without a newline.
    """
    lines: list[str] = []
    for number, arm in enumerate(arms):
        lines += ([""] if lines else []) + render_comparison(arm)
        if number < len(cpu_per_batch_ns):
            lines += f.labelled("CPU a batch", _cpu(*cpu_per_batch_ns[number]), indent=_LABEL)
    for label, names in (("only in A", only_a), ("only in B", only_b)):
        if names:
            lines += ["", *f.labelled(label, ", ".join(names), indent=_LABEL)]
    return lines


def _cpu(a: float | None, b: float | None) -> str:
    if a is None or b is None:
        return "not measured in " + ("either" if a is None and b is None else "A" if a is None else "B")
    times = f" ({f.digits(b / a)} of A)" if a > 0 else ""
    return f"{f.duration(a)} in A, {f.duration(b)} in B{times}"
