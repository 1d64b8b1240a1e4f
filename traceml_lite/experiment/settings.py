"""The conditions of an experiment, from the text of ``-s`` options. Pure: text in, conditions out."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traceml_lite._errors import UsageError
from traceml_lite.probe.options import PLAIN_OPTIONS

_WORDS = {"true": True, "false": False, "none": None, "True": True, "False": False, "None": None}
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
        UsageError: A setting without ``=``, a name given twice, no value, or a name that is a slip of a
            known option.
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
        axes.append([(name, parse(value.strip())) for value in dict.fromkeys(values.split(","))])
    return tuple(_setting(chosen) for chosen in itertools.product(*axes))


def _check_name(name: str) -> None:
    if name.partition(".")[0] in ("arg", "env") and "." in name:
        if not name.partition(".")[2]:
            raise UsageError(f"-s {name}=: a name is missing after the dot")
        return
    if name in PLAIN_OPTIONS or name == "multiprocessing_context":
        return
    alike = difflib.get_close_matches(name, PLAIN_OPTIONS, n=1, cutoff=_SLIP)
    if alike or not name.isidentifier():
        hint = f" Did you mean {alike[0]}?" if alike else ""
        raise UsageError(
            f"-s {name}: not an option of DataLoader.{hint} Options: {', '.join(PLAIN_OPTIONS)}; an argument "
            "of the factory is arg.NAME, an environment variable env.NAME"
        )


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
