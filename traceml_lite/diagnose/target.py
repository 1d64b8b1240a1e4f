"""The target of a run, from the command that was run: what a next command is printed with.

Reads words only. A command that is none of ours, nor a Python script, has no target, and then no command
that would need one is printed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

PROGRAM = "traceml-lite"
# Options of `probe` that a sweep of the same target needs again.
_ARGUMENT, _CONSUMER = ("-a", "--arg"), ("-c", "--consumer")
# Options of python itself that take the next word, before the script.
_PYTHON_TAKES_VALUE = {"-W", "-X"}


@dataclass(frozen=True, slots=True)
class RunTarget:
    """What was run, in the words of the command line."""

    target: str
    module: bool = False
    script_arguments: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Factory arguments that were given, as ``name=value``."""
    consumer: str | None = None

    @property
    def is_script(self) -> bool:
        """True for a training script, which `run` takes; False for a factory, which `probe` takes."""
        return self.module or ":" not in self.target

    def sweep(self, *options: str) -> str:
        """A sweep of this target with these options, as one would type it."""
        words = [PROGRAM, "sweep", *(["-m"] if self.module else []), self.target, *options]
        for setting in self.settings:
            words += ["-a", setting]
        if self.consumer is not None:
            words += ["--consumer", self.consumer]
        return _typed(words, self.script_arguments)

    def again(self, *options: str) -> str:
        """The run or probe itself once more, with these options."""
        if self.is_script:
            script = ["-m", self.target] if self.module else [self.target]
            return _typed([PROGRAM, "run", *options, *script, *self.script_arguments], ())
        words = [PROGRAM, "probe", self.target, *options]
        for setting in self.settings:
            words += ["-a", setting]
        if self.consumer is not None and not any(word in _CONSUMER for word in options):
            words += ["--consumer", self.consumer]
        return _typed(words, ())


def target_of(command: Sequence[str]) -> RunTarget | None:
    """The target of a run from its command line (``sys.orig_argv``), or None when it has none."""
    words = _after_python(list(command))
    if words is None or not words:
        return None
    name = PurePath(words[0]).name
    if name in (PROGRAM, "traceml_lite", "__main__.py") and len(words) > 1:
        return _of_ours(words[1], words[2:])
    if words[0] == "-m" and len(words) > 1:
        if words[1] == "traceml_lite" and len(words) > 2:
            return _of_ours(words[2], words[3:])
        return None if words[1] == "pytest" else RunTarget(words[1], True, tuple(words[2:]))
    if name.endswith(".py"):
        return RunTarget(words[0], False, tuple(words[1:]))
    return None


def _after_python(words: list[str]) -> list[str] | None:
    """The command without the interpreter and its options; None for ``python -c``."""
    if words and PurePath(words[0]).name.startswith("python"):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] != "-m":
            if words[0] == "-c":
                return None
            words = words[2:] if words[0] in _PYTHON_TAKES_VALUE else words[1:]
    return words


def _of_ours(command: str, words: list[str]) -> RunTarget | None:
    if command == "run":
        for place, word in enumerate(words):
            if word == "-m" and place + 1 < len(words):
                return RunTarget(words[place + 1], True, tuple(words[place + 2 :]))
            if word.endswith(".py"):
                return RunTarget(word, False, tuple(words[place + 1 :]))
        return None
    if command == "demo":
        return _of_probe(_with_prefix(words))
    return _of_probe(words) if command == "probe" else None


def _with_prefix(words: list[str]) -> list[str]:
    """The words of `demo NAME` as those of `probe demo:NAME`; NAME is the first word that is no option's."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 1 if "=" in words[place] or _glued(words[place]) else 2
    if place >= len(words):
        return words
    return [*words[:place], f"demo:{words[place].removeprefix('demo:')}", *words[place + 1 :]]


def _of_probe(words: list[str]) -> RunTarget | None:
    target: str | None = None
    settings: list[str] = []
    consumer: str | None = None
    place = 0
    while place < len(words):
        word, following = words[place], words[place + 1] if place + 1 < len(words) else None
        option, equals, value = word.partition("=")
        if word in _ARGUMENT and following is not None:
            settings.append(following)
        elif word in _CONSUMER and following is not None:
            consumer = following
        elif option == _ARGUMENT[1] and equals:
            settings.append(value)
        elif option == _CONSUMER[1] and equals:
            consumer = value
        elif word.startswith(_ARGUMENT[0]) and not word.startswith("--"):
            settings.append(word[2:])
        elif word.startswith(_CONSUMER[0]) and not word.startswith("--"):
            consumer = word[2:]
        elif not word.startswith("-") and target is None and ":" in word:
            target = word
        # A word after an option with no value of its own is that option's, unless it is a target.
        takes = word.startswith("-") and not equals and following is not None and not _glued(word)
        place += 2 if takes and not _is_target(following or "") else 1
    if target is None:
        return None
    return RunTarget(target, False, (), tuple(settings), consumer)


def _glued(word: str) -> bool:
    """Whether a short option has its value in the same word, as in ``-n64``."""
    return len(word) > 2 and not word.startswith("--")


def _is_target(word: str) -> bool:
    return word.startswith(("demo:", "lerobot:")) or ".py:" in word


def _typed(words: Sequence[str], script_arguments: Sequence[str]) -> str:
    tail = ["--", *script_arguments] if script_arguments else []
    return shlex.join([*words, *tail])
