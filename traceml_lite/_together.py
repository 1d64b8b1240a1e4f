"""Two or three pieces of work at once: numpy gives up the interpreter's lock while it computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

# The C library gives memory back to the system each time an array of 800 KB is dropped, and filling the next
# one with fresh pages takes a third of an analysis. Once an array of this size has been made and dropped, it
# keeps up to twice as much at hand (mallopt(3), M_MMAP_THRESHOLD, at most 32 MiB). It is never touched.
_KEPT_BYTES = 31 << 20


def keep_memory_at_hand() -> None:
    """Have the C library reuse the memory of large arrays; for what makes many of them."""
    np.empty(_KEPT_BYTES, np.uint8)


def in_turn(*calls: Callable[[], Any]) -> list[Any]:
    """The same as ``together`` without threads; for what is short."""
    return [call() for call in calls]


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Call all of them, each in a thread of its own but the first, and wait.

    They must not import anything that is not loaded yet: the caller may be a signal handler that holds the
    lock of a module which is half loaded.

    Returns:
        What they returned, in order.

    Raises:
        BaseException: What the first of them that failed raised.
    """
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException | None] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            results[place] = calls[place]()
        except BaseException as error:
            errors[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(1, len(calls))]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results
