"""Numbers and tables as Markdown: three significant digits, one way to say that nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence


def plain(value: float | None) -> str:
    """Three significant digits; whole numbers as they are."""
    if value is None:
        return "not measured"
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A time in the unit that suits it."""
    if value is None:
        return "not measured"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def share(value: float | None) -> str:
    """A fraction as a percentage."""
    return "not measured" if value is None else f"{value * 100:.3g} %"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def fenced(text: str) -> str:
    """Text of the tool, as it printed it."""
    return f"```text\n{text.strip()}\n```"
