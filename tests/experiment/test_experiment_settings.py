"""Conditions from the texts of -s."""

from __future__ import annotations

import pytest

from traceml_lite._errors import UsageError
from traceml_lite.experiment.settings import Setting, check_known, parse_settings, parse_value


def test_values_become_numbers_words_and_texts():
    assert [parse_value(text) for text in ("4", "0.5", "true", "none", "spawn")] == [
        4,
        0.5,
        True,
        None,
        "spawn",
    ]


def test_two_settings_are_combined_with_the_first_varying_slowest():
    labels = [one.label for one in parse_settings(("num_workers=2,4", "in_order=true,false"))]
    assert labels == [
        "num_workers=2 in_order=true",
        "num_workers=2 in_order=false",
        "num_workers=4 in_order=true",
        "num_workers=4 in_order=false",
    ]


def test_arguments_and_environment_go_to_their_own_places_as_text():
    (one,) = parse_settings(("arg.root=3", "env.OMP_NUM_THREADS=1", "start_method=spawn"))
    assert one == Setting({"start_method": "spawn"}, {"root": "3"}, {"OMP_NUM_THREADS": "1"})


def test_no_setting_is_one_condition_that_changes_nothing():
    assert [one.label for one in parse_settings(())] == ["as it is"]


def test_a_value_given_twice_counts_once():
    assert len(parse_settings(("num_workers=2,2,4",))) == 2


@pytest.mark.parametrize("text", ["num_workers", "num_workers=", "=4", "arg.=4"])
def test_a_setting_without_name_or_value_is_refused(text):
    with pytest.raises(UsageError):
        parse_settings((text,))


def test_a_slip_of_the_fingers_names_the_option_that_was_meant():
    with pytest.raises(UsageError, match="Did you mean num_workers"):
        parse_settings(("num_worker=4",))


def test_an_option_that_is_not_in_the_table_is_left_for_torch_to_judge():
    (one,) = parse_settings(("worker_method=thread",))
    assert one.options == {"worker_method": "thread"}


def test_an_option_that_the_installed_torch_does_not_take_is_refused_with_the_ones_there_are():
    with pytest.raises(UsageError, match=r"-s foo: not an option.*num_workers.*pin_memory_device"):
        check_known(parse_settings(("foo=1,2",)), {"dataset", "num_workers", "pin_memory_device"})


def test_an_option_that_only_the_installed_torch_knows_is_let_through():
    check_known(parse_settings(("worker_method=thread", "num_workers=2", "arg.foo=1")), {"worker_method"})


@pytest.mark.parametrize(
    "text",
    [
        "num_workers=a,b",
        "num_workers=-1,2",
        "num_workers=1.5",
        "num_workers=true",
        "prefetch_factor=0",
        "batch_size=0",
        "batch_size=big",
        "in_order=2",
        "persistent_workers=yes",
        "pin_memory=1",
        "drop_last=none",
        "timeout=-1",
        "timeout=soon",
        "timeout=nan",
        "start_method=thread",
    ],
)
def test_a_value_that_no_loader_could_have_is_refused_with_what_is_expected(text):
    with pytest.raises(UsageError, match=r"-s \w+=\S+: expected "):
        parse_settings((text,))


def test_values_that_torch_takes_are_accepted():
    parse_settings(
        (
            "batch_size=none,8",
            "prefetch_factor=none,1",
            "timeout=0,1.5",
            "in_order=true,False",
            "shuffle=none",
        )
    )


def test_an_option_that_is_an_object_is_refused():
    with pytest.raises(UsageError, match="object of the script"):
        parse_settings(("sampler=random",))


def test_the_same_name_twice_is_refused():
    with pytest.raises(UsageError, match="given twice"):
        parse_settings(("num_workers=1", "num_workers=2"))
