from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_lite.records.results import Estimate
from traceml_lite.records.summary import NotMeasured
from traceml_lite.report import format as f

finite = st.floats(min_value=1e-6, max_value=1e12, allow_nan=False)


@given(finite)
def test_a_number_keeps_three_significant_digits_and_has_no_exponent(value: float) -> None:
    text = f.digits(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=0.0051)
    decimals = text.partition(".")[2]
    assert len(text.replace(".", "").lstrip("0")) == 3 or (not decimals and value >= 999)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.012345, "0.0123"),
        (4.6, "4.60"),
        (9.999, "10.0"),
        (99.97, "100"),
        (1674.2, "1670"),
        (-2, "-2.00"),
    ],
)
def test_numbers_read_as_a_person_would_write_them(value: float, text: str) -> None:
    assert f.digits(value) == text


@given(finite)
def test_a_duration_is_between_one_and_a_thousand_of_its_unit_or_in_seconds(ns: float) -> None:
    number, unit = f.duration(ns).split()
    size = {u.name: u.size for u in f.TIMES}[unit]
    assert float(number) * size == pytest.approx(ns, rel=0.0051)
    assert unit == "s" or float(number) < 1000


def test_zero_times_are_seconds_and_zero_sizes_are_bytes() -> None:
    assert f.unit_for([0, 0], f.TIMES).name == "s"
    assert f.unit_for([0], f.SIZES).name == "B"


def test_one_unit_serves_a_small_and_a_large_time() -> None:
    assert f.unit_for([1.83e6, 2.01e9], f.TIMES).name == "ms"
    assert f.unit_for([1.83e9, 2.01e9], f.TIMES).name == "s"
    assert f.unit_for([20e3, 300e9], f.TIMES).name == "s"


def test_an_interval_has_the_decimals_of_its_number() -> None:
    assert f.share(Estimate(0.6123, 0.5811, 0.6404, 0.95, 100, "")) == "61.2 % [58.1, 64.0]"


def test_a_narrow_interval_gets_the_decimals_that_show_it() -> None:
    assert f.interval(Estimate(1.479, 1.4711, 1.4873), f.ONE) == " [1.471, 1.487]"


def test_the_ends_of_a_large_interval_have_three_digits_too() -> None:
    assert f.interval(Estimate(10_712.0, 7_913.0, 14_420.0), f.ONE) == " [7910, 14400]"
    assert f.interval(Estimate(101.2, 96.8, 106.4), f.ONE) == " [97, 106]"


def test_without_an_interval_there_are_no_brackets() -> None:
    assert f.share(Estimate(0.5)) == "50.0 %"
    assert f.share(Estimate(1.0, 1.0, 1.0, 0.95)) == "100 %"


def test_a_missing_share_says_why_and_is_no_zero() -> None:
    assert f.share(NotMeasured("no permission")) == "not measured: no permission"
    assert f.cell(NotMeasured("no permission"), f.ONE) == "n/m"


@given(st.text(alphabet="ab c%[]1,.", min_size=1, max_size=400), st.integers(30, 88))
def test_no_wrapped_line_is_wider_than_asked(text: str, width: int) -> None:
    assert all(len(line) <= width for line in f.labelled("label", text, width=width))


def test_a_number_is_not_torn_from_its_unit_nor_an_interval_in_two() -> None:
    text = "carry 97.7 % [95.7, 99.1] of all waiting"
    for width in range(28, 60):
        lines = f.labelled("", text, width=width, indent=0)
        assert any("97.7 % [95.7, 99.1]" in line for line in lines)
        assert " ".join(lines) == text


def test_columns_are_aligned_and_carry_no_trailing_blanks() -> None:
    assert f.table([["a", "b"], ["ccc", "22"], ["d", "333"]]) == ["a      b", "ccc   22", "d    333"]


def test_a_long_text_loses_its_middle() -> None:
    assert f.shorten("abcdefghij", 7) == "ab...ij"
    assert f.shorten("abc", 7) == "abc"


def test_infinity_is_shown_as_such() -> None:
    assert f.digits(math.inf) == "inf"


def test_nouns_get_their_plural() -> None:
    assert f.count(1, "delivery") == "1 delivery"
    assert f.count(2, "delivery") == "2 deliveries"
    assert f.count(0, "worker") == "0 workers"
