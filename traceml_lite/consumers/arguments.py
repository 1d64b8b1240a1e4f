"""Words of the command line (``-a name=value``) turned into the values a factory expects.

The factory's own annotations and defaults say what it expects; only where they are silent is a value
guessed from its text.
"""

from __future__ import annotations

import ast
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traceml_lite._errors import UsageError

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def bind_arguments(
    function: Callable[..., Any], arguments: Mapping[str, str], *, whose: str
) -> dict[str, Any]:
    """Keyword arguments for a factory.

    Args:
        function: The factory.
        arguments: Name to text.
        whose: What the factory is called in messages.

    Raises:
        UsageError: An unknown or missing argument, or a text that is not of the expected kind.
    """
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        # Some built-in callables have no signature; Python itself then judges the call.
        return {name: guess(text) for name, text in arguments.items()}
    by_position = [
        p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY and p.default is p.empty
    ]
    if by_position:
        raise UsageError(f"{whose} takes {', '.join(by_position)} by position only; wrap it in a factory")
    return convert_arguments(arguments, parameters, _hints(function), whose=whose)


def convert_arguments(
    arguments: Mapping[str, str],
    parameters: Mapping[str, inspect.Parameter],
    hints: Mapping[str, Any],
    *,
    whose: str,
) -> dict[str, Any]:
    """The same for parameters and annotations that are at hand; see `bind_arguments`."""
    named = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [name for name in arguments if name not in named]
    if unknown and not takes_any:
        accepted = ", ".join(named) or "none at all"
        raise UsageError(f"{whose} has no argument {', '.join(map(repr, unknown))}; it accepts: {accepted}")
    missing = [
        name
        for name, parameter in named.items()
        if parameter.default is parameter.empty and name not in arguments
    ]
    if missing:
        needed = " ".join(f"-a {name}=..." for name in missing)
        raise UsageError(f"{whose} needs {', '.join(missing)}; add {needed}")
    values: dict[str, Any] = {}
    for name, text in arguments.items():
        parameter = named.get(name)
        default = parameter.default if parameter is not None else inspect.Parameter.empty
        kind = hints.get(name, inspect.Parameter.empty)
        if kind is inspect.Parameter.empty and default not in (inspect.Parameter.empty, None):
            kind = type(default)
        try:
            values[name] = convert(text, kind)
        except ValueError as error:
            raise UsageError(f"{whose}: argument {name}: {error}") from None
    return values


def convert(text: str, kind: Any) -> Any:
    """A text as a value of a type or annotation.

    Raises:
        ValueError: The text is not of that kind; the message says what was expected.
    """
    if kind is inspect.Parameter.empty or kind is Any or kind is object:
        return guess(text)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(text, parts)
    if origin is typing.Literal:
        for value in parts:
            if text == str(value):
                return value
        raise ValueError(f"expected one of {', '.join(map(str, parts))}, got {text!r}")
    if (origin or kind) in (list, tuple, set, frozenset):
        inner = parts[0] if parts else inspect.Parameter.empty
        return (origin or kind)(convert(word.strip(), inner) for word in text.split(",") if word.strip())
    if kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"expected true or false, got {text!r}")
        return text.lower() in _TRUE
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        for member in kind:
            if text in (member.name, str(member.value)):
                return member
        raise ValueError(f"expected one of {', '.join(member.name for member in kind)}, got {text!r}")
    if kind in (int, float, str, Path, complex):
        try:
            return kind(text)
        except ValueError:
            raise ValueError(f"expected {kind.__name__}, got {text!r}") from None
    return guess(text)


def guess(text: str) -> Any:
    """The value of a Python literal, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _convert_union(text: str, parts: tuple[Any, ...]) -> Any:
    if type(None) in parts and text.lower() in ("none", "null", ""):
        return None
    problems = []
    # str takes anything, so it must not hide the stricter kinds beside it.
    for part in sorted((p for p in parts if p is not type(None)), key=lambda p: p is str):
        try:
            return convert(text, part)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError("; ".join(problems) or f"expected none, got {text!r}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    described = function.__init__ if inspect.isclass(function) else function
    try:
        return typing.get_type_hints(described)
    except Exception:
        # Annotations may name what cannot be resolved here (TYPE_CHECKING imports); defaults then decide.
        return {}
