"""Overridden options and what torch would refuse to combine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from traceml_lite.probe.options import resolve_options


def test_prefetch_factor_is_left_out_without_workers_and_said():
    resolved = resolve_options({"num_workers": 4, "prefetch_factor": 3}, {"num_workers": 0})
    assert resolved.arguments["prefetch_factor"] is None
    assert resolved.notes == ("prefetch_factor=3 left out: it needs workers, and num_workers is 0",)


def test_persistent_workers_and_start_method_are_left_out_without_workers():
    resolved = resolve_options(
        {"persistent_workers": True, "multiprocessing_context": "spawn", "num_workers": 2}, {"num_workers": 0}
    )
    assert resolved.arguments["persistent_workers"] is False
    assert resolved.arguments["multiprocessing_context"] is None
    assert len(resolved.notes) == 2


def test_a_batch_size_is_refused_where_the_loader_has_a_batch_sampler():
    resolved = resolve_options({"batch_sampler": [[0], [1]]}, {"batch_size": 4})
    assert resolved.refused == ("batch_size",)
    assert "batch_size" not in resolved.arguments


def test_shuffle_wins_over_the_scripts_sampler_and_says_so():
    resolved = resolve_options({"sampler": [0, 1, 2]}, {"shuffle": True})
    assert resolved.arguments["sampler"] is None
    assert "sampler is left out" in resolved.notes[0]


def test_an_iterable_dataset_refuses_shuffle():
    assert resolve_options({}, {"shuffle": True}, iterable=True).refused == ("shuffle",)


def test_an_option_that_this_torch_lacks_is_refused_by_name():
    resolved = resolve_options({}, {"in_order": False}, known=frozenset({"num_workers"}))
    assert resolved.refused == ("in_order",)
    assert "no option 'in_order'" in resolved.notes[0]


def test_in_order_without_workers_is_said_to_have_no_effect():
    notes = resolve_options({"num_workers": 2}, {"num_workers": 0, "in_order": False}).notes
    assert any("no effect" in note for note in notes)


def test_start_method_stands_for_the_multiprocessing_context():
    resolved = resolve_options({"num_workers": 2}, {"start_method": "spawn"})
    assert resolved.arguments["multiprocessing_context"] == "spawn"


_OPTIONS = {
    "num_workers": st.integers(0, 2),
    "batch_size": st.sampled_from([1, 2, None]),
    "shuffle": st.booleans(),
    "prefetch_factor": st.sampled_from([None, 1, 4]),
    "persistent_workers": st.booleans(),
    "drop_last": st.booleans(),
    "timeout": st.sampled_from([0, 5]),
    "in_order": st.booleans(),
    "start_method": st.sampled_from(["fork", "spawn"]),
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@given(
    own=st.fixed_dictionaries(
        {}, optional={"num_workers": st.integers(1, 3), "prefetch_factor": st.integers(1, 4)}
    ),
    asked=st.fixed_dictionaries({}, optional=_OPTIONS),
    sampler=st.sampled_from([None, "sampler", "batch_sampler"]),
)
def test_torch_takes_whatever_the_resolution_gives(own, asked, sampler):
    arguments = dict(own)
    if "prefetch_factor" in arguments and "num_workers" not in arguments:
        del arguments["prefetch_factor"]
    if sampler == "sampler":
        arguments["sampler"] = list(range(4))
    elif sampler == "batch_sampler":
        arguments["batch_sampler"] = [[0, 1], [2, 3]]
    resolved = resolve_options(arguments, asked)
    loader = DataLoader(list(range(4)), **dict(resolved.arguments))
    for name, value in asked.items():
        if name in resolved.refused or name in ("shuffle", "start_method"):
            continue
        shown = dict(resolved.arguments).get(name)
        if shown == value and value is not None:
            assert getattr(loader, name) == value


def test_a_refused_option_leaves_the_loaders_own_alone():
    with pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader([0, 1], batch_sampler=[[0]], batch_size=4)
    DataLoader([0, 1], **dict(resolve_options({"batch_sampler": [[0]]}, {"batch_size": 4}).arguments))
