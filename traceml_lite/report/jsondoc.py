"""The summary and the diagnosis as one JSON document of plain types.

Keys are the field names of the records, so a number has one name everywhere, its unit at the end of it. A
missing value is ``null`` with a ``reason`` beside it. Nothing is computed or rounded here.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from traceml_lite.records.results import Diagnosis
from traceml_lite.records.run import Environment, LoaderConfig
from traceml_lite.records.summary import NotMeasured, Summary

# Raised when a key changes its meaning or goes; a new key does not raise it.
DOCUMENT_VERSION = 1


def summary_document(summary: Summary, diagnosis: Diagnosis | None = None) -> dict[str, Any]:
    """One document; the verdicts stand at ``diagnosis.shape.key``, ``.confidence``, ``diagnosis.cost.key``.

    Args:
        summary: The summary.
        diagnosis: The diagnosis of the same loader, if there is one.

    Returns:
        A dict that ``json.dumps(..., allow_nan=False)`` takes.
    """
    return {
        "format": "traceml-lite summary",
        "version": DOCUMENT_VERSION,
        **_fields(summary),
        "diagnosis": plain(diagnosis if diagnosis is not None else NotMeasured("no diagnosis was made")),
    }


def document(kind: str, result: Any) -> str:
    """The result of an experiment (a sweep, a comparison, an investigation) as JSON text.

    Args:
        kind: What it is, as in ``"sweep"``: the format is ``"traceml-lite sweep"``.
        result: A record, or one as a mapping; its fields are the keys, so the law of a sweep stands at
            ``laws.gap.key``.
    """
    head = {"format": f"traceml-lite {kind}", "version": DOCUMENT_VERSION}
    return json.dumps({**head, **plain(result)}, indent=1, allow_nan=False)


def plain(value: Any) -> Any:
    """A record, or anything inside one, as plain JSON types.

    Raises:
        TypeError: A type that no record of ours has.
    """
    if isinstance(value, NotMeasured):
        return {"value": None, "reason": value.reason}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Environment | LoaderConfig):
        return _facts(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"no JSON for {type(value).__name__}: {value!r}")


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: plain(getattr(record, field.name)) for field in fields(record)}


def _facts(record: Environment | LoaderConfig) -> dict[str, Any]:
    """Facts that may not be known: which ones are null, and why, stands beside them."""
    document = _fields(record)
    document["null_reasons"] = {name: _why_null(record, name) for name, v in document.items() if v is None}
    return document


def _why_null(record: Environment | LoaderConfig, name: str) -> str:
    if (
        isinstance(record, LoaderConfig)
        and record.num_workers == 0
        and name in ("prefetch_factor", "start_method")
    ):
        return "none with num_workers=0"
    if name == "cpu_quota":
        return "no quota, or it could not be read"
    if name == "batch_size":
        return "not known: a batch sampler of the user's, or batch_size=None"
    return "not known"
