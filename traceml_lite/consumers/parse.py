"""Consumers by name: what happens to a batch once it is delivered.

A consumer is a step and no more; the loop around it is in `drive`.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from traceml_lite._errors import UsageError

# Batches that a ceiling run fetches before it serves them from memory. Enough that the step does not see
# one and the same batch (and its cached memory) all the time, few enough to fit anywhere.
REPLAY_BATCHES = 8

FORMS = "none, paced:20ms, paced:5ms-15ms, busy:20ms, replay, replay:paced:20ms"

_MINUTE_NS = 60_000_000_000
_UNITS_NS = {
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": _MINUTE_NS,
    "min": _MINUTE_NS,
    "h": 60 * _MINUTE_NS,
}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(us|ms|s|m|min|h)")
_LATER = ("act", "act-compiled")


@dataclass(frozen=True, slots=True)
class Consumer:
    """What is done with each batch."""

    text: str
    """As it was asked for, e.g. ``paced:20ms``."""
    step: Callable[[Any], None]
    """Called with every batch; its duration is the step."""
    cached_batches: int | None = None
    """Batches to fetch first and then serve from memory (a ceiling run); None for a run with the loader."""


def parse_consumer(text: str) -> Consumer:
    """The consumer that a word of the command line names.

    Args:
        text: ``none`` asks for the next batch at once. ``paced:20ms`` sleeps after each batch, which is what
            a step on an accelerator means to the loader; ``paced:5ms-15ms`` sleeps a random time in that
            range, the same in every run. ``busy:20ms`` takes that much CPU time, as a
            step on the CPU does. ``replay`` or ``replay:OTHER`` takes batches
            from memory instead of the loader.

    Raises:
        UsageError: No consumer has this name, or its duration is not one.
    """
    name, colon, rest = text.strip().partition(":")
    if name in _LATER:
        raise UsageError(f"consumer {name!r} is not available in this version; there are: {FORMS}")
    if name == "replay":
        inner = parse_consumer(rest) if colon else parse_consumer("none")
        if inner.cached_batches is not None:
            raise UsageError(f"consumer {text!r}: replay cannot be replayed; write replay:paced:20ms")
        return Consumer(text, inner.step, REPLAY_BATCHES)
    if name == "none" and not colon:
        return Consumer(text, _nothing)
    if name == "paced":
        return Consumer(text, _paced(text, rest))
    if name == "busy":
        return Consumer(text, _busy(parse_duration_ns(rest, where=f"consumer {text!r}")))
    raise UsageError(f"unknown consumer {text!r}; there are: {FORMS}")


def parse_duration_ns(text: str, *, where: str) -> int:
    """A duration such as ``20ms``, ``1.5s``, ``300us`` or ``10m`` in nanoseconds.

    Args:
        text: A number and a unit.
        where: What the duration belongs to, for the message.

    Raises:
        UsageError: It is not one, or it is zero.
    """
    found = _DURATION.fullmatch(text.strip())
    duration_ns = round(float(found[1]) * _UNITS_NS[found[2]]) if found else 0
    if duration_ns <= 0:
        raise UsageError(
            f"{where}: expected a duration above zero with a unit (us, ms, s, m, h), got {text!r}"
        )
    return duration_ns


def _nothing(batch: Any) -> None:
    """Drop the batch."""


def _paced(text: str, rest: str) -> Callable[[Any], None]:
    words = rest.split("-")
    durations_ns = [parse_duration_ns(word, where=f"consumer {text!r}") for word in words]
    if len(words) == 1:
        seconds = durations_ns[0] / 1e9
        return lambda batch: time.sleep(seconds)
    if len(words) != 2 or durations_ns[0] > durations_ns[1]:
        raise UsageError(f"consumer {text!r}: expected a range from short to long, such as paced:5ms-15ms")
    low, high = (duration / 1e9 for duration in durations_ns)
    # A generator of its own: the user's random state stays untouched, and two passes have equal steps.
    pace = random.Random(0)
    return lambda batch: time.sleep(pace.uniform(low, high))


def _busy(cpu_ns: int) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        end_ns = time.thread_time_ns() + cpu_ns
        while time.thread_time_ns() < end_ns:
            # Some 20 us of work between two looks at the clock, which is a system call.
            sum(range(1000))

    return step
