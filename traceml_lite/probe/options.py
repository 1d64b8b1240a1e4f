"""What happens to the arguments of a DataLoader when some of its options are overridden.

Pure: names and values in, names and values and sentences out. It knows which options torch refuses to
combine and resolves them as torch's own defaults would; it constructs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Options that an experiment may set from the command line: those whose value is plain text or a number.
PLAIN_OPTIONS = (
    "num_workers",
    "batch_size",
    "shuffle",
    "in_order",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "drop_last",
    "timeout",
    "start_method",
)

# What torch refuses without workers, and the value at which it stays silent.
_NEEDS_WORKERS = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
}
# What a batch sampler of the script's own decides itself.
_SET_BY_BATCH_SAMPLER = ("batch_size", "shuffle", "drop_last")


@dataclass(frozen=True, slots=True)
class Resolved:
    """Arguments that torch accepts, and what was done to get there."""

    arguments: Mapping[str, Any]
    """Keyword arguments for ``DataLoader.__init__``."""
    notes: tuple[str, ...] = ()
    """What was changed beyond the request, or could not be applied, and why; one sentence each."""
    refused: tuple[str, ...] = ()
    """Options of the request that this loader cannot take at all."""


def resolve_options(
    arguments: Mapping[str, Any],
    overrides: Mapping[str, Any],
    *,
    iterable: bool = False,
    known: frozenset[str] | None = None,
) -> Resolved:
    """Put the overrides over a loader's own arguments, and settle what torch would refuse to combine.

    Args:
        arguments: What the script passed to ``DataLoader.__init__``, by name.
        overrides: Options to set; ``start_method`` stands for ``multiprocessing_context``.
        iterable: The dataset is an ``IterableDataset``, which has no sampler to shuffle.
        known: Names that this torch's ``DataLoader.__init__`` takes; None where it is not known yet.

    Returns:
        Arguments that can be combined, with a note for each one that was changed on the way.
    """
    merged = dict(arguments)
    notes: list[str] = []
    refused: list[str] = []
    asked = {("multiprocessing_context" if k == "start_method" else k): v for k, v in overrides.items()}
    for name, value in asked.items():
        shown = "start_method" if name == "multiprocessing_context" else name
        reason = _why_not(name, value, merged, iterable, known)
        if reason:
            notes.append(f"{shown}={value} not applied: {reason}")
            refused.append(shown)
        else:
            merged[name] = value
    if "shuffle" in asked and "shuffle" not in refused and merged.get("sampler") is not None:
        notes.append("the script's sampler is left out: torch does not combine it with shuffle")
        merged["sampler"] = None
    if "batch_size" in asked and merged.get("batch_size") is None and merged.get("drop_last"):
        notes.append("drop_last is off: torch does not combine it with batch_size=None")
        merged["drop_last"] = False
    notes.extend(_without_workers(merged, asked))
    return Resolved(merged, tuple(notes), tuple(refused))


def _why_not(
    name: str, value: Any, arguments: Mapping[str, Any], iterable: bool, known: frozenset[str] | None
) -> str | None:
    if known is not None and name not in known:
        return f"DataLoader of this torch has no option {name!r}"
    if arguments.get("batch_sampler") is not None and name in _SET_BY_BATCH_SAMPLER:
        return "the loader has a batch sampler of its own, which decides it"
    if iterable and name == "shuffle" and value:
        return "an iterable dataset has no sampler to shuffle"
    return None


def _without_workers(merged: dict[str, Any], asked: Mapping[str, Any]) -> list[str]:
    if merged.get("num_workers", 0) != 0:
        return []
    notes = []
    for name, silent in _NEEDS_WORKERS.items():
        value = merged.get(name, silent)
        if value not in (silent, None):
            shown = "start_method" if name == "multiprocessing_context" else name
            notes.append(f"{shown}={_text(value)} left out: it needs workers, and num_workers is 0")
        if name in merged:
            merged[name] = silent
    if asked.get("in_order") is False:
        notes.append("in_order=False has no effect: without workers every batch is in order")
    return notes


def _text(value: Any) -> str:
    method = getattr(value, "_name", None) or getattr(value, "get_start_method", lambda: None)()
    return str(method or value)
