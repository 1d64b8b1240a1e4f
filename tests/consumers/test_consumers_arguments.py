"""Words of the command line as the values that a factory expects."""

import enum
import inspect
from pathlib import Path
from typing import Any, Literal, Optional, Union

import pytest

from traceml_lite._errors import UsageError
from traceml_lite.consumers.arguments import bind_arguments, convert


class Colour(enum.Enum):
    RED = "r"
    GREEN = "g"


def bind(function, **arguments):
    return bind_arguments(function, arguments, whose="f.py:make")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("4", int, 4),
        ("4", float, 4.0),
        ("4", str, "4"),
        ("true", bool, True),
        ("0", bool, False),
        ("a/b", Path, Path("a/b")),
        ("none", int | None, None),
        ("3", Optional[int], 3),  # noqa: UP045
        ("3", Union[str, int], 3),  # noqa: UP007
        ("x", str | int, "x"),
        ("1,2, 3", list[int], [1, 2, 3]),
        ("1.5,2", tuple[float, ...], (1.5, 2.0)),
        ("a,b", list, ["a", "b"]),
        ("spawn", Literal["fork", "spawn"], "spawn"),
        ("2", Literal[1, 2], 2),
        ("RED", Colour, Colour.RED),
        ("g", Colour, Colour.GREEN),
        ("[1, 2]", Any, [1, 2]),
        ("text", inspect.Parameter.empty, "text"),
        ("True", inspect.Parameter.empty, True),
    ],
)
def test_a_text_becomes_what_the_annotation_says(text, kind, value):
    converted = convert(text, kind)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("four", int, "int"),
        ("1.5", int, "int"),
        ("maybe", bool, "true or false"),
        ("thread", Literal["fork", "spawn"], "fork, spawn"),
        ("BLUE", Colour, "RED, GREEN"),
        ("x", int | None, "int"),
        ("1,x", list[int], "int"),
    ],
)
def test_a_text_of_another_kind_says_what_was_expected(text, kind, expected):
    with pytest.raises(ValueError, match=expected):
        convert(text, kind)


def test_a_default_says_the_kind_where_there_is_no_annotation():
    def make(a=1, b=0.5, c="x", d=True, e=None):
        return a, b, c, d, e

    assert bind(make, a="2", b="2", c="2", d="off", e="2") == {"a": 2, "b": 2.0, "c": "2", "d": False, "e": 2}


def test_an_unknown_argument_names_the_accepted_ones():
    def make(num_workers: int = 0, *, root: str = ""): ...

    with pytest.raises(
        UsageError, match=r"f\.py:make has no argument 'workers'; it accepts: num_workers, root"
    ):
        bind(make, workers="2")


def test_a_factory_without_arguments_says_that():
    with pytest.raises(UsageError, match="none at all"):
        bind(lambda: None, a="1")


def test_a_missing_argument_is_shown_as_it_would_be_typed():
    def make(root: str, split: str): ...

    with pytest.raises(UsageError, match=r"needs root; add -a root="):
        bind(make, split="train")


def test_any_name_is_accepted_where_the_factory_takes_keywords():
    def make(size: int, **rest): ...

    assert bind(make, size="1", other="2.5", word="x") == {"size": 1, "other": 2.5, "word": "x"}


def test_a_factory_that_takes_arguments_by_position_only_is_refused():
    def make(root, /): ...

    with pytest.raises(UsageError, match="by position only"):
        bind(make, root="x")


def test_a_class_is_a_factory_by_its_constructor():
    class Module:
        def __init__(self, root: Path, size: int = 3) -> None: ...

    assert bind(Module, root="/x", size="4") == {"root": Path("/x"), "size": 4}


def test_annotations_that_cannot_be_resolved_leave_it_to_the_defaults():
    def make(size: "NotImported" = 3): ...  # type: ignore[name-defined]  # noqa: F821

    assert bind(make, size="4") == {"size": 4}


def test_a_bad_value_names_the_argument():
    def make(size: int): ...

    with pytest.raises(UsageError, match=r"f\.py:make: argument size: expected int, got 'x'"):
        bind(make, size="x")
