"""An investigation as text: the verdict, then the chain with every step's evidence and what it falsified.

Lines of at most 88 columns that can be pasted into a ticket. Computes nothing.
"""

from __future__ import annotations

from traceml_lite.records.investigation import Investigation, Step
from traceml_lite.records.results import Verdict
from traceml_lite.report import format as f
from traceml_lite.report.sweep import clock

_LABEL = 13


def render_investigation(result: Investigation) -> list[str]:
    """The whole chain.

    Args:
        result: The investigation, also one that its budget ended.

    Returns:
        Lines without a newline.
    """
    lines = [f"Investigation of {result.target}"]
    host = ", ".join(
        f"{name} {value}" for name, value in result.environment.items() if value and name != "host"
    )
    lines += f.labelled("on", host, indent=_LABEL)
    lines += f.labelled("took", _took(result), indent=_LABEL)
    lines.append("")
    lines += _verdict("shape", result.shape, "" if result.stands else "Not confirmed by an experiment. ")
    lines += _verdict("cost", result.cost, "")
    lines += _listed("falsified", result.falsified)
    for number, step in enumerate(result.steps, 1):
        lines += ["", *_step(number, step)]
    if result.skipped:
        lines.append("")
        for skipped in result.skipped:
            needs = "" if skipped.needs_s is None else f" (about {clock(skipped.needs_s)})"
            lines += f.labelled("not run", f"{skipped.experiment}{needs}: {skipped.reason}", indent=_LABEL)
    if result.next_command:
        lines += ["", "Try next:", f"  {result.next_command}"]
        lines += f.labelled("", result.next_reason, indent=2)
    return lines


def _took(result: Investigation) -> str:
    budget = "" if result.budget_s is None else f" of {clock(result.budget_s)}"
    return f"{clock(result.used_s)}{budget}; ended because {result.ended}"


def _verdict(label: str, verdict: Verdict | None, before: str) -> list[str]:
    if verdict is None:
        return f.labelled(label, "cannot tell", indent=_LABEL)
    if verdict.key == "inconclusive":
        candidates = f" ({' or '.join(verdict.candidates)})" if verdict.candidates else ""
        return f.labelled(label, f"cannot tell{candidates}. {verdict.statement}", indent=_LABEL)
    said = verdict.statement[:1].upper() + verdict.statement[1:]
    text = f"{verdict.key} ({100 * verdict.confidence:.0f} %). {before}{said}"
    return f.labelled(label, text, indent=_LABEL)


def _step(number: int, step: Step) -> list[str]:
    lines = f.labelled(f"{number}.", step.question, indent=4)
    lines += f.labelled("", f"-> {step.answer}", indent=4)
    took = f", {clock(step.took_s)}" if step.took_s else ""
    place = f" ({step.folder})" if step.folder else ""
    lines += f.labelled("", f"{step.experiment}{took}{place}", indent=4)
    if step.command:
        lines.append(f"    {step.command}")
    for text in step.evidence:
        lines += f.labelled("    -", text, indent=6)
    for text in step.falsified:
        lines += f.labelled("    x", f"ruled out: {text}", indent=6)
    return lines


def _listed(label: str, texts: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    for text in texts:
        lines += f.labelled("" if lines else label, text, indent=_LABEL)
    return lines
