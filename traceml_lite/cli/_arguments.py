"""``-a NAME=VALUE``: arguments of a factory or a demo, the same for every command that takes a target."""

from __future__ import annotations

from collections.abc import Iterable

from traceml_lite._errors import UsageError


def named(arguments: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` words to a mapping; ``fetch-ms`` and ``fetch_ms`` are one name, the last one counts.

    Raises:
        UsageError: A word has no name or no ``=``.
    """
    pairs = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"-a {word}: expected NAME=VALUE, for example -a num_workers=4")
        pairs[name.replace("-", "_")] = value
    return pairs
