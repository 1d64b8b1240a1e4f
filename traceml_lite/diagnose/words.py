"""Numbers in sentences: three significant digits, one unit.

For the statements and evidence that a diagnosis carries. Tables and pages are laid out by ``report``.
"""

from __future__ import annotations

import math

_UNITS_NS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_UNITS_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def digits(value: float) -> str:
    """``value`` with three significant digits and no exponent, e.g. ``0.0123``, ``4.60``, ``1670``."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    # Rounding can carry into the next decade (9.999 to 10.0), which then has one decimal less.
    decimals = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(decimals, 0)}f}"


def duration(ns: float) -> str:
    """A time of ``ns`` nanoseconds in the largest unit that keeps it at or above one."""
    if ns == 0:
        return "0 s"
    for size, unit in _UNITS_NS:
        # 0.9995 of a unit would print as 1000 of the next smaller one.
        if abs(ns) >= 0.9995 * size:
            return f"{digits(ns / size)} {unit}"
    return f"{digits(ns)} ns"


def data_size(count: float) -> str:
    """``count`` bytes in binary units."""
    for size, unit in _UNITS_BYTES:
        if abs(count) >= 0.9995 * size:
            return f"{digits(count / size)} {unit}"
    return f"{count:.0f} B"


def percent(share: float) -> str:
    """A share in [0, 1] as percent; a positive share that rounds to nothing says so."""
    value = 100 * share
    if 0 < value < 0.1:
        return "under 0.1 %"
    if 99.95 <= value < 100:
        return "over 99.9 %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.1f} %"


def counted(count: float, noun: str, plural: str = "") -> str:
    """``count`` and its noun, e.g. ``1 worker``, ``4 workers``."""
    number = f"{count:.0f}" if float(count).is_integer() else digits(count)
    return f"{number} {noun if count == 1 else plural or noun + 's'}"


def listed(words: list[str] | tuple[str, ...], last: str = "and") -> str:
    """Words joined as in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    if len(words) <= 1:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
