"""Whether two arms may be compared: the same data in the same order, on the same machine and software.

What differs beyond the condition is named, never judged: a missing fact on one side is no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from traceml_lite._errors import ComparisonError
from traceml_lite.records.run import LoaderConfig
from traceml_lite.records.sweep import MeasuredPass

# What must agree before two runs are compared: their data, machine and software. The other options of the
# loader are what experiments vary, and are named.
_LIKE_CONFIG = ("dataset", "dataset_kind", "dataset_len", "batch_size", "drop_last", "sampler", "collate")
_LIKE_ENVIRONMENT = ("host", "platform", "python", "torch", "cpus_online", "cpus_affinity", "cpu_quota")


class UnlikeError(ComparisonError):
    """Two arms differ in more than their conditions; ``differences`` says in what, a sentence each."""

    def __init__(self, differences: Sequence[str]) -> None:
        self.differences = tuple(differences)
        super().__init__(
            f"these arms differ in more than the condition: {'; '.join(differences)}. "
            "Compare them all the same with allow_different=True."
        )


def unlike_arms(a: Sequence[MeasuredPass], b: Sequence[MeasuredPass]) -> list[str]:
    """What differs between two arms beyond their conditions; empty when they may be compared.

    Args:
        a: Passes of arm A, at least one.
        b: Passes of arm B. What an option of any pass's condition sets on purpose is no difference.
    """
    varied = {k for p in (*a, *b) for k in p.condition.options}
    first = a[0]
    found: dict[str, None] = {}
    for one in (*a[1:], *b):
        for sentence in _unlike(first, one, varied):
            found.setdefault(sentence)
    return list(found)


def _unlike(a: MeasuredPass, b: MeasuredPass, varied: set[str]) -> list[str]:
    found = []
    config_a, config_b = a.run.main.config, b.run.main.config
    for name in _LIKE_CONFIG:
        if name not in varied:
            found += _differs(name, getattr(config_a, name), getattr(config_b, name))
    for name in _LIKE_ENVIRONMENT:
        found += _differs(name, getattr(a.run.environment, name), getattr(b.run.environment, name))
    versions_a, versions_b = a.run.environment.versions, b.run.environment.versions
    for package in sorted({*versions_a, *versions_b} - {"torch"}):
        if versions_a and versions_b:
            found += _differs(
                package, versions_a.get(package, "not installed"), versions_b.get(package, "not installed")
            )
    if a.result.indices_hash and b.result.indices_hash and a.result.indices_hash != b.result.indices_hash:
        found.append("the sampler gave other batches or another order")
    return found


def _differs(name: str, a: object, b: object) -> list[str]:
    """What is not known on one side cannot be said to differ."""
    unknown = (None, "", "unknown")
    a, b = (getattr(v, "value", v) for v in (a, b))
    return [] if a in unknown or b in unknown or a == b else [f"{name} {a} and {b}"]


def named_differences(a: Sequence[MeasuredPass], b: Sequence[MeasuredPass]) -> tuple[str, ...]:
    """What differs without being named by the conditions, yet hinders no comparison; and thinned traces."""
    notes = []
    named = {k for p in (*a, *b) for k in p.condition.options}
    for option in fields(LoaderConfig):
        if option.name in _LIKE_CONFIG or option.name in named or option.name in ("batches", "loader"):
            continue
        notes += _differs(
            option.name,
            getattr(a[0].run.main.config, option.name),
            getattr(b[0].run.main.config, option.name),
        )
    caches = sorted({p.result.cache for p in (*a, *b)} - {"", "unknown"})
    if len(caches) > 1 and "cache" not in named:
        notes.append(f"the page cache was not in one state: {' and '.join(caches)}")
    for one in (*a, *b):
        if one.run.main.sampled is not None:
            notes.append(f"{one.run.source} left out: {one.run.main.sampled}")
    return tuple(notes)
