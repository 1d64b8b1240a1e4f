"""The conditions of an experiment, from the text of ``-s`` options. Pure: text in, conditions out."""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traceml_lite._errors import UsageError
from traceml_lite.probe.options import PLAIN_OPTIONS

_WORDS = {"true": True, "false": False, "none": None, "True": True, "False": False, "None": None}
# Parameters of DataLoader that are objects of the script: no text on a command line can stand for one.
_OBJECTS = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", "generator")
_START_METHODS = ("fork", "spawn", "forkserver")
# How alike an unknown option must be to a known one to be taken for a slip of the fingers at once; any other
# name is put before the torch at hand, which may know options that this table does not.
_SLIP = 0.75


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the target."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of its DataLoader."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments of its factory, as text; the factory's own annotations say what they become."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its settings in one line, ``"as it is"`` where there are none."""
        parts = [f"{name}={show(value)}" for name, value in self.options.items()]
        parts += [f"arg.{name}={value}" for name, value in self.arguments.items()]
        parts += [f"env.{name}={value}" for name, value in self.environment.items()]
        return " ".join(parts) or "as it is"

    def with_options(self, options: Mapping[str, Any]) -> Setting:
        """The same with these loader options set."""
        return Setting({**self.options, **options}, self.arguments, self.environment)


def show(value: Any) -> str:
    """A value as one would type it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def parse_value(text: str) -> Any:
    """A number, true, false, none, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_settings(settings: Sequence[str]) -> tuple[Setting, ...]:
    """All combinations of ``NAME=V1,V2``, ``arg.NAME=...`` and ``env.NAME=...``, the first varying slowest.

    Raises:
        UsageError: A setting without ``=``, a name given twice, no value, a value that the option cannot
            have, or a name that is a slip of a known option or stands for an object.
    """
    axes: list[list[tuple[str, Any]]] = []
    seen: set[str] = set()
    for text in settings:
        name, equals, values = text.partition("=")
        name = name.strip()
        if not equals or not name or not values:
            raise UsageError(f"-s {text}: expected NAME=VALUE[,VALUE...], e.g. -s num_workers=0,1,2,4")
        if name in seen:
            raise UsageError(f"-s {name} is given twice; put all its values in one: -s {name}=V1,V2")
        seen.add(name)
        _check_name(name)
        parse = str if name.startswith(("env.", "arg.")) else parse_value
        chosen = [(name, parse(value.strip())) for value in dict.fromkeys(values.split(","))]
        for _, value in chosen:
            _check_value(name, value)
        axes.append(chosen)
    return tuple(_setting(chosen) for chosen in itertools.product(*axes))


def _check_name(name: str) -> None:
    if name.partition(".")[0] in ("arg", "env") and "." in name:
        if not name.partition(".")[2]:
            raise UsageError(f"-s {name}=: a name is missing after the dot")
        return
    if name in PLAIN_OPTIONS or name == "multiprocessing_context":
        return
    if name in _OBJECTS:
        raise UsageError(
            f"-s {name}: takes an object of the script, which no text stands for. {_options(PLAIN_OPTIONS)}"
        )
    alike = difflib.get_close_matches(name, PLAIN_OPTIONS, n=1, cutoff=_SLIP)
    if alike or not name.isidentifier():
        hint = f" Did you mean {alike[0]}?" if alike else ""
        raise UsageError(f"-s {name}: not an option of DataLoader.{hint} {_options(PLAIN_OPTIONS)}")


def check_known(settings: Sequence[Setting], known: Collection[str]) -> None:
    """Refuse an option that the DataLoader at hand does not take.

    Args:
        settings: The conditions.
        known: Parameters of its ``__init__``.

    Raises:
        UsageError: Names the option, and the ones there are.
    """
    there = [name for name in known if name not in (*_OBJECTS, "self", "multiprocessing_context")]
    for name in dict.fromkeys(name for one in settings for name in one.options):
        if name not in PLAIN_OPTIONS and name not in known:
            listed = tuple(dict.fromkeys((*PLAIN_OPTIONS, *sorted(there))))
            raise UsageError(
                f"-s {name}: not an option of DataLoader in the torch that is installed. {_options(listed)}"
            )


def _options(names: Sequence[str]) -> str:
    return (
        f"Options: {', '.join(names)}; an argument of the factory is arg.NAME, an environment variable "
        "env.NAME"
    )


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


# What torch takes for each option, so that a value which no loader could have costs no pass.
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "num_workers": (_whole(0), "a whole number from 0"),
    "batch_size": (_or_none(_whole(1)), "a whole number from 1, or none"),
    "prefetch_factor": (_or_none(_whole(1)), "a whole number from 1, or none"),
    "timeout": (_seconds, "a number of seconds from 0"),
    "shuffle": (_or_none(_truth), "true, false or none"),
    **dict.fromkeys(("in_order", "persistent_workers", "pin_memory", "drop_last"), (_truth, "true or false")),
    **dict.fromkeys(
        ("start_method", "multiprocessing_context"),
        (lambda value: value in (None, *_START_METHODS), f"{', '.join(_START_METHODS)} or none"),
    ),
}


def _check_value(name: str, value: Any) -> None:
    if name not in _VALUES:
        return
    fits, expected = _VALUES[name]
    if not fits(value):
        raise UsageError(f"-s {name}={show(value)}: expected {expected}")


def _setting(chosen: Sequence[tuple[str, Any]]) -> Setting:
    options: dict[str, Any] = {}
    arguments: dict[str, str] = {}
    environment: dict[str, str] = {}
    for name, value in chosen:
        head, _, rest = name.partition(".")
        if head == "arg" and rest:
            arguments[rest] = value
        elif head == "env" and rest:
            environment[rest] = value
        else:
            options["start_method" if name == "multiprocessing_context" else name] = value
    return Setting(options, arguments, environment)
