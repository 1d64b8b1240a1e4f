"""Records of a fixed size as columns: taken apart block by block while they are read.

A trace of a million deliveries is 256 MB of records. Reading them whole and then column by column would fill
as much memory again and pass it through the caches once for each column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.records.run import DELIVERY_COLUMNS, FETCH_COLUMNS, FETCH_KEY_COLUMNS, MISSING
from traceml_lite.store.layout import DELIVERY, FETCH

Columns = dict[str, NDArray[Any]]

# Records taken apart at a time: half a megabyte of them.
BLOCK = 4096


def _types(layout: np.dtype[Any], columns: Iterable[Any]) -> dict[str, np.dtype[Any]]:
    """Each field's dtype in a run, which may be wider than on disk."""
    in_run = {column.name: np.dtype(column.dtype) for column in columns}
    assert layout.names is not None
    return {name: in_run.get(name, layout[name]) for name in layout.names}


DELIVERY_TYPES: Mapping[str, np.dtype[Any]] = _types(DELIVERY, DELIVERY_COLUMNS)
FETCH_TYPES: Mapping[str, np.dtype[Any]] = _types(FETCH, (*FETCH_KEY_COLUMNS, *FETCH_COLUMNS))


def take_apart(
    blocks: Iterable[Any], layout: np.dtype[Any], types: Mapping[str, np.dtype[Any]], rows: int
) -> Columns:
    """Columns of the first ``rows`` records in some buffers.

    Args:
        blocks: Buffers of whole records; the last one may end in the middle of one, which is left out.
        layout: Of a record in them. Columns that it lacks are missing, those that ``types`` lacks left out.
        types: Name to dtype of the columns to make.
        rows: How many there should be; a file that turns out to be shorter gives fewer.
    """
    columns = {name: np.empty(rows, dtype) for name, dtype in types.items()}
    known = layout.names or ()
    at = 0
    for block in blocks:
        few = np.frombuffer(block, layout, count=min(len(block) // layout.itemsize, rows - at))
        here = slice(at, at + len(few))
        for name, column in columns.items():
            column[here] = few[name] if name in known else MISSING
        at += len(few)
        if at == rows:
            break
    return columns if at == rows else chosen(columns, slice(0, at))


def rows_of(columns: Columns) -> int:
    """How many records they are."""
    return len(next(iter(columns.values())))


def chosen(columns: Columns, which: Any) -> Columns:
    """The same of some records: a slice, a mask, or places."""
    return {name: column[which] for name, column in columns.items()}


def with_more(columns: Columns, more: Columns, key: tuple[str, ...]) -> Columns:
    """``columns`` and those records of ``more`` whose key is not among them.

    A ring keeps what was drained already. All of ``more`` belong to one iterator.
    """
    if not rows_of(more):
        return columns
    same = chosen(columns, columns["iterator"] == more["iterator"][0])
    seen = set(zip(*(same[name].tolist() for name in key), strict=True))
    fresh = [row not in seen for row in zip(*(more[name].tolist() for name in key), strict=True)]
    added = chosen(more, np.array(fresh, dtype=bool))
    return {name: np.concatenate([column, added[name]]) for name, column in columns.items()}
