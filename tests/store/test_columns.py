from __future__ import annotations

import io

import numpy as np

from traceml_lite.records.run import MISSING
from traceml_lite.store.columns import DELIVERY_TYPES, FETCH_TYPES, chosen, rows_of, take_apart, with_more
from traceml_lite.store.layout import DELIVERY, FETCH
from traceml_lite.store.read import _blocks

LAYOUT = np.dtype([("k", "<i4"), ("iterator", "<i4")])
TYPES = {"k": np.dtype("<i8"), "iterator": np.dtype("<i4")}


def records(*ks: int, iterator: int = 1) -> bytes:
    return np.array([(k, iterator) for k in ks], dtype=LAYOUT).tobytes()


def test_records_are_taken_apart_over_blocks_into_the_dtypes_of_a_run() -> None:
    columns = take_apart([records(1, 2), records(3)], LAYOUT, TYPES, 3)
    assert columns["k"].tolist() == [1, 2, 3]
    assert columns["k"].dtype == np.int64
    assert columns["iterator"].tolist() == [1, 1, 1]


def test_a_file_that_is_shorter_or_longer_than_its_size_said_gives_what_there_is() -> None:
    assert take_apart([records(1, 2)], LAYOUT, TYPES, 5)["k"].tolist() == [1, 2]
    assert take_apart([records(1, 2), records(3, 4)], LAYOUT, TYPES, 3)["k"].tolist() == [1, 2, 3]
    assert take_apart([records(1) + b"\0\0"], LAYOUT, TYPES, 2)["k"].tolist() == [1]
    assert take_apart([], LAYOUT, TYPES, 0)["k"].tolist() == []


def test_a_column_of_another_minor_version_is_missing_or_left_out() -> None:
    types = {"k": np.dtype("<i8"), "new": np.dtype("<i8")}
    columns = take_apart([records(7)], LAYOUT, types, 1)
    assert {name: column.tolist() for name, column in columns.items()} == {"k": [7], "new": [MISSING]}


def test_a_file_is_read_in_whole_blocks_to_its_end() -> None:
    data = bytes(range(250)) * 10
    assert b"".join(bytes(part) for part in _blocks(io.BytesIO(data), 999)) == data
    assert [len(part) for part in _blocks(io.BytesIO(data), 999)] == [999, 999, 502]


def test_what_a_ring_still_holds_is_added_once() -> None:
    old = take_apart([records(1, 2) + records(9, iterator=2)], LAYOUT, TYPES, 3)
    ring = take_apart([records(2, 9)], LAYOUT, TYPES, 2)
    both = with_more(old, ring, ("iterator", "k"))
    assert list(zip(both["iterator"].tolist(), both["k"].tolist(), strict=True)) == [
        (1, 1), (1, 2), (2, 9), (1, 9),
    ]  # fmt: skip
    assert with_more(old, chosen(ring, slice(0, 0)), ("k",)) is old
    assert rows_of(both) == 4


def test_every_field_on_disk_has_a_dtype_in_a_run_that_holds_it() -> None:
    for layout, types in ((DELIVERY, DELIVERY_TYPES), (FETCH, FETCH_TYPES)):
        assert layout.names is not None
        for name in layout.names:
            assert np.can_cast(layout[name], types[name], "safe"), name
