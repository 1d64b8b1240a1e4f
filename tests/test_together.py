from __future__ import annotations

import threading

import pytest

from traceml_lite._together import in_turn, together


def test_what_is_called_together_returns_in_order_and_from_threads_of_its_own() -> None:
    names = together(lambda: 1, threading.get_ident, threading.get_ident)
    assert names[0] == 1
    assert threading.get_ident() not in names[1:]
    assert together(threading.get_ident) == [threading.get_ident()]
    assert in_turn(lambda: 1, threading.get_ident) == [1, threading.get_ident()]


def test_they_run_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=10)
    together(meeting.wait, meeting.wait)


def test_the_first_error_is_raised_when_all_have_ended() -> None:
    ended: list[int] = []

    def fail() -> None:
        raise KeyError("first")

    def fail_later() -> None:
        ended.append(1)
        raise ValueError("second")

    with pytest.raises(KeyError, match="first"):
        together(fail, fail_later, lambda: ended.append(2))
    assert sorted(ended) == [1, 2]
