"""The two readings that every parser here shares: a whole number, and lines of ``key value``.

Not a general text library; only what the kernel's formats need.
"""

from __future__ import annotations

# The kernel's counters are 64 bits wide: 20 digits. Python refuses to convert thousands of them.
_MAX_DIGITS = 20


def whole(word: str) -> int | None:
    """A non-negative decimal number, or None for anything else (signs, blanks and underscores included)."""
    return int(word) if len(word) <= _MAX_DIGITS and word.isascii() and word.isdigit() else None


def numbers_by_key(text: str, separator: str | None = None) -> dict[str, int]:
    """Lines ``key<separator>number [unit]`` as a dict; lines of another form are left out.

    Args:
        text: The file.
        separator: What stands between key and number; None for white space.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        key, _, rest = line.partition(separator) if separator else line.strip().partition(" ")
        words = rest.split()
        value = whole(words[0]) if words else None
        if key.strip() and value is not None:
            found[key.strip()] = value
    return found
