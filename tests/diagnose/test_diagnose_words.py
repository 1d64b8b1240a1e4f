from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_lite.diagnose.words import counted, data_size, digits, duration, listed, percent


@given(st.floats(1e-6, 1e12))
def test_three_digits_are_within_half_a_percent_and_never_an_exponent(value: float) -> None:
    text = digits(value)
    assert "e" not in text
    assert math.isclose(float(text), value, rel_tol=0.0051)


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 s"),
        (999.6e3, "1.00 ms"),
        (206_400_000, "206 ms"),
        (9.4e9, "9.40 s"),
        (50_000, "50.0 µs"),
        (12, "12.0 ns"),
    ],
)
def test_a_time_is_given_in_the_largest_unit_that_fits(ns: float, text: str) -> None:
    assert duration(ns) == text


def test_a_carry_in_rounding_does_not_add_a_digit() -> None:
    assert (digits(9.999), digits(99.96), digits(0.09999)) == ("10.0", "100", "0.100")


def test_shares_at_the_ends_are_not_rounded_into_certainty() -> None:
    assert percent(0.0002) == "under 0.1 %"
    assert percent(0.9999) == "over 99.9 %"
    assert (percent(0), percent(1), percent(0.031), percent(0.62)) == ("0.0 %", "100 %", "3.1 %", "62 %")


def test_sizes_counts_and_lists_read_as_in_a_sentence() -> None:
    assert (data_size(512), data_size(8 << 20)) == ("512 B", "8.00 MiB")
    assert (counted(1, "worker"), counted(4, "worker")) == ("1 worker", "4 workers")
    assert (listed(["a"]), listed(["a", "b", "c"])) == ("a", "a, b and c")
