"""Consumers by name, and the loop that drives a loader with one."""

import time

import pytest

from traceml_lite._errors import TargetError, UsageError
from traceml_lite.consumers import parse
from traceml_lite.consumers.drive import drive
from traceml_lite.consumers.parse import parse_consumer, parse_duration_ns


@pytest.fixture
def slept(monkeypatch):
    durations = []
    monkeypatch.setattr(parse.time, "sleep", durations.append)
    return durations


class Epochs:
    """A loader whose epochs have the given batches."""

    def __init__(self, *epochs):
        self.epochs = list(epochs)
        self.begun = 0
        self.closed = 0

    def __iter__(self):
        batches = self.epochs[min(self.begun, len(self.epochs) - 1)]
        self.begun += 1
        try:
            yield from batches
        finally:
            self.closed += 1


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("20ms", 20_000_000),
        ("1.5s", 1_500_000_000),
        ("300us", 300_000),
        (" .5 s ", 500_000_000),
        ("2.ms", 2_000_000),
    ],
)
def test_a_duration_is_a_number_with_a_unit(text, ns):
    assert parse_duration_ns(text, where="x") == ns


@pytest.mark.parametrize("text", ["", "20", "ms", "-1ms", "0ms", "1e3ms", "20 k", "20msx", "1ms2", "inf s"])
def test_another_text_is_no_duration_and_the_message_names_the_units(text):
    with pytest.raises(UsageError, match=r"paced.*us, ms, s"):
        parse_duration_ns(text, where="consumer 'paced'")


def test_a_paced_consumer_sleeps_after_each_batch(slept):
    result = drive([1, 2, 3], parse_consumer("paced:20ms"))
    assert slept == [0.02] * 3
    assert (result.deliveries, result.epochs) == (3, 1)


def test_a_range_of_paces_is_the_same_in_every_run_and_stays_in_the_range(slept):
    drive(range(20), parse_consumer("paced:5ms-15ms"))
    drive(range(20), parse_consumer("paced:5ms-15ms"))
    assert slept[:20] == slept[20:]
    assert all(0.005 <= duration <= 0.015 for duration in slept)
    assert len(set(slept)) > 10


def test_a_busy_consumer_uses_cpu_time_and_does_not_sleep(slept):
    before_ns = time.thread_time_ns()
    parse_consumer("busy:20ms").step(None)
    assert time.thread_time_ns() - before_ns >= 20_000_000
    assert slept == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "none:1ms",
        "paced",
        "paced:",
        "paced:1ms-",
        "paced:2ms-1ms",
        "paced:1ms-2ms-3ms",
        "busy",
    ],
)
def test_a_consumer_that_does_not_exist_is_a_usage_error(text):
    with pytest.raises(UsageError):
        parse_consumer(text)


@pytest.mark.parametrize("text", ["act", "act-compiled"])
def test_a_consumer_of_a_later_version_says_so(text):
    with pytest.raises(UsageError, match="not available in this version"):
        parse_consumer(text)


def test_replay_of_replay_is_refused():
    with pytest.raises(UsageError, match="cannot be replayed"):
        parse_consumer("replay:replay")


def test_deliveries_run_over_as_many_epochs_as_they_need_and_the_last_iterator_is_let_go():
    loader = Epochs([1, 2, 3])
    seen = []
    result = drive(loader, parse_consumer("none"), deliveries=8, on_delivery=seen.append)
    assert (result.deliveries, result.epochs, loader.begun, loader.closed) == (8, 3, 3, 3)
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]


def test_deliveries_that_end_with_an_epoch_begin_no_other_one():
    loader = Epochs([1, 2, 3])
    assert drive(loader, parse_consumer("none"), deliveries=6).epochs == 2
    assert loader.begun == 2


def test_a_loader_without_any_batch_is_an_error_and_not_an_endless_loop():
    with pytest.raises(TargetError, match="delivered no batch"):
        drive([], parse_consumer("none"), deliveries=3)
    with pytest.raises(TargetError, match="delivered no batch"):
        drive([], parse_consumer("replay"), deliveries=3)


def test_an_empty_epoch_later_on_ends_the_drive_with_what_there_was():
    result = drive(Epochs([1, 2], []), parse_consumer("none"), deliveries=10)
    assert (result.deliveries, result.epochs) == (2, 2)


def test_fewer_than_one_delivery_cannot_be_asked_for():
    with pytest.raises(ValueError, match="at least 1"):
        drive([1], parse_consumer("none"), deliveries=0)


def test_an_error_of_the_loader_passes_through_unchanged():
    class Broken:
        def __iter__(self):
            yield 1
            raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        drive(Broken(), parse_consumer("none"))


def test_a_ceiling_run_fetches_a_few_batches_lets_the_loader_go_and_steps_on_them_again():
    loader = Epochs(range(100))
    stepped = []
    consumer = parse.Consumer("replay", stepped.append, cached_batches=3)
    closed_at_first_step = []
    result = drive(
        loader, consumer, deliveries=7, on_delivery=lambda done: closed_at_first_step.append(loader.closed)
    )
    assert stepped == [0, 1, 2, 0, 1, 2, 0]
    assert closed_at_first_step == [1] * 7
    assert (result.deliveries, result.epochs, len(result.replayed_step_ns)) == (3, 1, 7)


def test_the_ceiling_is_the_pace_of_the_steps_alone():
    result = drive(range(2), parse_consumer("replay:paced:5ms"), deliveries=10)
    assert result.ceiling_steps_per_s is not None
    assert 0 < result.ceiling_steps_per_s <= 200
    assert all(duration >= 5_000_000 for duration in result.replayed_step_ns)


def test_a_run_with_the_loader_has_no_ceiling():
    assert drive([1], parse_consumer("none")).ceiling_steps_per_s is None
