"""Index streams against each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceml_lite.experiment.streams import check_streams
from traceml_lite.probe.index_stream import IndexStream


def stream(*epochs):
    """Rows of a stream of batches per iterator."""
    made = IndexStream()
    for batches in epochs:
        made.begin()
        for batch in batches:
            made.add(batch)
    return np.array(made.rows, dtype=np.uint64)


def test_a_longer_stream_that_begins_alike_is_the_same():
    check = check_streams({1: stream([[0, 1], [2, 3]]), 2: stream([[0, 1], [2, 3], [4, 5]])})
    assert (check.same, check.samples) == (True, 4)
    assert check.hashes[1] == check.hashes[2]


def test_one_index_that_differs_is_found_however_early():
    check = check_streams({1: stream([[0, 1], [2, 3]]), 2: stream([[0, 9], [2, 3]]), 3: stream([[0, 1]])})
    assert check.same is False
    assert check.differing == (2,)


def test_other_batch_sizes_of_the_same_order_are_the_same_samples():
    check = check_streams({1: stream([[0, 1, 2], [3, 4, 5]]), 2: stream([[0, 1], [2, 3], [4, 5]])})
    assert (check.same, check.samples) == (True, 6)


def test_a_different_order_within_a_batch_is_different():
    assert check_streams({1: stream([[0, 1]]), 2: stream([[1, 0]])}).same is False


def test_iterators_are_compared_each_on_its_own():
    short = stream([[0], [1]], [[2], [3]])
    longer = stream([[0], [1], [9]], [[2], [3]])
    assert check_streams({1: short, 2: longer}).same is True


def test_one_stream_alone_says_nothing():
    assert check_streams({1: stream([[0]])}).same is None


def test_streams_without_a_point_in_common_were_not_compared():
    check = check_streams({1: stream([[0, 1]]), 2: stream([[0, 1, 2]])})
    assert (check.same, check.samples) == (None, 0)


def test_a_repetition_is_compared_up_to_where_it_repeats():
    plain, again = stream([[0], [1], [2], [3]]), stream([[0], [1], [0], [1]])
    assert check_streams({1: plain, 2: again}).same is False
    assert check_streams({1: plain, 2: again}, until={2: 2}).same is True


def test_tensors_and_tuples_have_a_text_that_two_runs_share():
    import torch

    assert check_streams({1: stream([torch.tensor([1, 2])]), 2: stream([torch.tensor([1, 2])])}).same is True
    assert check_streams({1: stream([[(0, "a")]]), 2: stream([[(0, "b")]])}).same is False


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=8), st.data())
def test_changing_any_sample_changes_the_check(batches, data):
    place = data.draw(st.integers(0, len(batches) - 1))
    changed = [list(batch) for batch in batches]
    changed[place][-1] += 10
    assert check_streams({1: stream(batches), 2: stream(changed)}).same is False
    assert check_streams({1: stream(batches), 2: stream(batches)}).same is True
