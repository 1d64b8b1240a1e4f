"""The diagnosis as text: verdicts, what speaks for and against them, what is missing, what to try next.

Lines out, nothing printed and nothing computed: sentences and numbers come from the records.
"""

from __future__ import annotations

import re
import textwrap

from traceml_lite.records.results import Diagnosis, Evidence, Experiment, State, Verdict
from traceml_lite.report.catalogue import LOOK_ALIKES

WIDTH = 88
# An open key of less weight than this would not be the cause of anything noticed.
_OPEN_SCORE = 0.15
# From this run-queue delay of a fetch on, the table shows it, and its key is not ruled out without a reason.
_DELAY_SHARE = 0.1
# Room for the indent, the longest label ("not measured") and two spaces.
_LABEL = 16
# A number and its unit stay on one line.
_BEFORE_UNIT = re.compile(r"(\d) (%|ns|µs|ms|s|B|KiB|MiB|GiB|TiB|CPUs?)(?=\W|$)")


def render_diagnosis(diagnosis: Diagnosis) -> list[str]:
    """Verdicts and evidence. ``render_next`` gives the part that goes last.

    Returns:
        Lines of at most 88 columns, without a newline.
    """
    lines = ["Diagnosis"]
    lines += _verdict("shape", diagnosis.shape)
    lines += _verdict("cost", diagnosis.cost)
    named = _named(diagnosis)
    lines += _block("for", [f"{e.key}: {text}" for e in named for text in e.supports])
    lines += _block("against", [f"{e.key}: {text}" for e in named for text in e.contradicts])
    lines += _block("also possible", _also_possible(diagnosis, named))
    lines += _block("ruled out", _ruled_out(diagnosis, named))
    lines += _block("not measured", list(diagnosis.not_measured))
    lines += _block("also seen", [finding.statement for finding in diagnosis.findings])
    return lines


def render_next(diagnosis: Diagnosis) -> list[str]:
    """The next experiment; no lines when there is none to propose.

    The command stands on a line of its own and is never wrapped, so that it can be copied.
    """
    experiment = diagnosis.next_experiment
    if experiment is None:
        return []
    lines = [f"Try next: {_about(experiment)}".rstrip(), f"  {experiment.command}"]
    lines += _wrapped(experiment.reason, "  ")
    for outcome in experiment.outcomes:
        lines += _wrapped(f"- {outcome.result} -> {outcome.meaning}", "  ", "    ")
    return lines


def _verdict(question: str, verdict: Verdict) -> list[str]:
    sure = f"{verdict.key} ({100 * verdict.confidence:.0f} %)"
    if verdict.candidates and verdict.key != "inconclusive":
        # The key is the likelier one; in words none is named before the others are ruled out.
        sure = f"{' or '.join(verdict.candidates)}, which this run cannot tell apart"
    if verdict.key == "inconclusive":
        sure = "cannot tell"
        if verdict.candidates:
            sure += f" ({' or '.join(verdict.candidates)})"
    return _wrapped(f"{question:<{_LABEL - 2}}{sure}. {verdict.statement}", "  ", " " * _LABEL)


def _named(diagnosis: Diagnosis) -> list[Evidence]:
    """Evidence of the keys that the verdicts name, or hold to be possible."""
    shapes = {diagnosis.shape.key, *diagnosis.shape.candidates}
    costs = {diagnosis.cost.key, *diagnosis.cost.candidates}
    return [e for e in diagnosis.evidence if e.key in (shapes if e.kind == "shape" else costs)]


def _also_possible(diagnosis: Diagnosis, named: list[Evidence]) -> list[str]:
    """What speaks for keys that the verdicts do not name: supported ones, and open ones of some weight."""
    lines = []
    for item in diagnosis.evidence:
        if item in named:
            continue
        if item.state is State.SUPPORTED:
            lines += [f"{item.key}: {text}" for text in item.supports]
        elif item.state is State.UNDECIDED and item.score > _OPEN_SCORE:
            lines += [f"{item.key}, weakly: {text}" for text in item.supports]
            if not item.supports:
                # Part of its conditions hold; the sentence is the one that does not.
                lines += [f"{item.key}, but {text}" for text in item.contradicts[:1]] or [item.key]
    return lines


def _ruled_out(diagnosis: Diagnosis, named: list[Evidence]) -> list[str]:
    """Look-alikes of the verdicts with the sentence that rules them out, then the other keys by name."""
    alike = {key for item in named for key in LOOK_ALIKES.get(item.key, ())}
    keys: dict[str, list[str]] = {}
    others: list[str] = []
    for item in diagnosis.evidence:
        if item.state is not State.RULED_OUT or item in named:
            continue
        delayed = item.numbers.get("run_queue_share", 0.0) > _DELAY_SHARE
        if (item.key in alike or delayed) and item.contradicts:
            keys.setdefault(item.contradicts[0], []).append(item.key)
        else:
            others.append(item.key)
    lines = [f"{', '.join(names)}: {text}" for text, names in keys.items()]
    return [*lines, f"{'also ' if lines else ''}{', '.join(others)}"] if others else lines


def _block(label: str, entries: list[str]) -> list[str]:
    lines: list[str] = []
    for entry in entries:
        head = "" if lines else label
        lines += _wrapped(f"{head:<{_LABEL - 2}}{entry}", "  ", " " * (_LABEL + 2), keep=head == "")
    return lines


def _wrapped(text: str, first: str, later: str | None = None, keep: bool = False) -> list[str]:
    """``text`` within the width; ``keep`` says that its leading spaces are part of the layout."""
    if keep:
        first, text = first + " " * (len(text) - len(text.lstrip())), text.lstrip()
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub("\\1\u00a0\\2", text),
        WIDTH,
        initial_indent=first,
        subsequent_indent=first if later is None else later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]


def _about(experiment: Experiment) -> str:
    """The expected time, in the unit that a person plans with."""
    seconds = experiment.duration_s
    if seconds is None:
        return ""
    if seconds < 90:
        return f"(about {max(1, round(seconds))} s)"
    return f"(about {round(seconds / 60)} min)" if seconds < 5400 else f"(about {seconds / 3600:.1f} h)"
