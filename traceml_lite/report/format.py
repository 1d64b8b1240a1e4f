"""Numbers and tables as text: three significant digits, one unit per row or column, at most 88 columns.

Pure string functions without a terminal, a clock or a locale. What a number means is for the caller.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from traceml_lite.records.results import Estimate
from traceml_lite.records.summary import Measured, NotMeasured

WIDTH = 88
# A number is not torn from its unit, nor an interval from its number or in two.
_NO_BREAK = "\u00a0"
_KEPT_TOGETHER = re.compile(r"(?<=\d) (?=%|(?:s|ms|µs|ns|B|kB|MB|GB)\b)| (?=\[)|(?<=\d,) (?=[\d.-]+\])")
# Shown in a table where a number was not measured; the reason stands below the table.
MISSING = "n/m"


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit and its size in the base unit (nanoseconds, bytes or one)."""

    name: str
    size: float


TIMES = (Unit("s", 1e9), Unit("ms", 1e6), Unit("µs", 1e3), Unit("ns", 1.0))
SIZES = (Unit("GB", 1e9), Unit("MB", 1e6), Unit("kB", 1e3), Unit("B", 1.0))
PERCENT = Unit("%", 0.01)
ONE = Unit("", 1.0)


def digits(value: float) -> str:
    """Three significant digits without an exponent: ``0.0123``, ``4.60``, ``1670``; zero is ``0``."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    decimals = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    if rounded:
        # Rounding can carry into the next decade (9.999 to 10.0), which has one decimal less.
        decimals = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(decimals, 0)}f}"


def unit_for(values: Iterable[float], units: Sequence[Unit]) -> Unit:
    """One unit for several values: that of the largest, or a smaller one that spares the smallest its zeros.

    Args:
        values: In the base unit; zeros do not count, and of zeros alone it is seconds, bytes or ones.
        units: From large to small.

    Returns:
        The unit in which the largest is at least one; the next smaller one as long as the smallest is below
        0.01 and the largest stays below 100,000.
    """
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return TIMES[0] if units is TIMES else units[-1]
    # 0.9995 of a unit would print as 1000 of the next smaller one.
    at = next((i for i, unit in enumerate(units) if max(sizes) >= 0.9995 * unit.size), len(units) - 1)
    while (
        at + 1 < len(units)
        and min(sizes) < 0.01 * units[at].size
        and max(sizes) < 99_950 * units[at + 1].size
    ):
        at += 1
    return units[at]


def duration(ns: float) -> str:
    """A time with its unit, e.g. ``4.60 s``."""
    unit = unit_for([ns], TIMES)
    return f"{digits(ns / unit.size)} {unit.name}" if ns else "0 s"


def percent(share: float) -> str:
    """A share as percent, e.g. ``61.2 %``."""
    return f"{digits(100 * share)} %"


def count(number: float, noun: str) -> str:
    """A whole number and its noun, e.g. ``1 worker``, ``4 workers``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:.0f} {noun if number == 1 else plural}"


def interval(estimate: Estimate, unit: Unit) -> str:
    """The interval in brackets with a blank before it, in the value's unit; empty for none or a point."""
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return ""
    # As many decimals as the value has, and up to two more where the ends would else be equal to it.
    decimals = _decimals(digits(estimate.value / unit.size))
    most = decimals + 2
    low, high = estimate.low / unit.size, estimate.high / unit.size
    spread = high - low
    if 0 < spread < 2 * 10**-decimals:
        decimals = min(1 - math.floor(math.log10(spread)), most)
    if decimals == 0:
        return f" [{_whole(low)}, {_whole(high)}]"
    return f" [{low:.{decimals}f}, {high:.{decimals}f}]"


def _whole(value: float) -> str:
    return digits(value) if abs(value) >= 100 else f"{value:.0f}"


def _decimals(number: str) -> int:
    return len(number.partition(".")[2])


def share(measured: Measured) -> str:
    """A share with its interval, e.g. ``61.2 % [58.1, 64.0]``; or ``not measured: reason``."""
    if isinstance(measured, NotMeasured):
        return f"not measured: {measured.reason}"
    return f"{percent(measured.value)}{interval(measured, PERCENT)}"


def cell(measured: Measured, unit: Unit) -> str:
    """A number in a table's unit, without the unit."""
    return MISSING if isinstance(measured, NotMeasured) else digits(measured.value / unit.size)


def values(measured: Iterable[Measured]) -> list[float]:
    """The numbers among them."""
    return [m.value for m in measured if isinstance(m, Estimate)]


def labelled(label: str, text: str, *, width: int = WIDTH, indent: int = 10) -> list[str]:
    """A label and its text, wrapped with the text hanging at ``indent``; nothing for an empty text."""
    if not text:
        return []
    head = f"{label:<{indent}}" if len(label) < indent or not label else f"{label} "
    lines = textwrap.wrap(
        _KEPT_TOGETHER.sub(_NO_BREAK, text),
        width,
        initial_indent=head,
        subsequent_indent=" " * indent,
        break_long_words=True,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]


def shorten(text: str, width: int) -> str:
    """The text, its middle replaced by ``...`` where it is longer than ``width``."""
    if len(text) <= width:
        return text
    left = (width - 3) // 2
    return f"{text[:left]}...{text[len(text) - (width - 3 - left) :]}"


def table(rows: Sequence[Sequence[str]], *, left: int = 1, gap: int = 2) -> list[str]:
    """Rows of equal length in aligned columns: the first ``left`` to the left, the rest to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            text.ljust(size) if i < left else text.rjust(size)
            for i, (text, size) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def bold(color: bool) -> Callable[[str], str]:
    """How a heading is set off: bold on a terminal, as it is elsewhere."""
    return (lambda text: f"\033[1m{text}\033[0m") if color else (lambda text: text)


def duration_of(measured: Measured) -> str:
    """A measured time with its unit."""
    return MISSING if isinstance(measured, NotMeasured) else duration(measured.value)


def durations(names: Sequence[str], times: Sequence[Measured]) -> str:
    """Named times in one unit, e.g. ``p50 1.02, p95 14.0 ms``."""
    unit = unit_for(values(times), TIMES)
    return ", ".join(f"{n} {cell(t, unit)}" for n, t in zip(names, times, strict=True)) + f" {unit.name}"
