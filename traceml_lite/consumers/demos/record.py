"""What a demo is: a name, what it shows, and how its loader is made.

Imports torch only when a loader is built, so that demos can be listed without it.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from traceml_lite._errors import UsageError
from traceml_lite.consumers.arguments import convert_arguments

# Options of torch's DataLoader that any demo accepts, with their kinds; a sweep varies these.
LOADER_OPTIONS: Mapping[str, Any] = {
    "num_workers": int,
    "batch_size": int | None,
    "prefetch_factor": int | None,
    "persistent_workers": bool,
    "in_order": bool,
    "multiprocessing_context": Literal["fork", "spawn", "forkserver"],
    "pin_memory": bool,
    "shuffle": bool,
    "drop_last": bool,
    "timeout": float,
}

# Options that torch refuses without workers; left out there so that a sweep may include num_workers=0.
_NEEDS_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")

# Samples of an epoch that should not end while anybody looks, and still cheap to shuffle.
ENDLESS_SAMPLES = 400_000


@dataclass(frozen=True, slots=True)
class Parts:
    """What a demo hands to the DataLoader."""

    dataset: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the DataLoader that this demo sets, unless the caller does."""


@dataclass(frozen=True, slots=True)
class Demo:
    """A built-in workload and what it should show."""

    name: str
    text: str
    """One sentence for a list."""
    expects_shape: str | None
    """Key of the shape that a diagnosis of the default run should give; None where it is not about shape."""
    expects_cost: str | None
    """The same for the cost; None where the work is a sleep, which is no cost of the catalogue."""
    make: Callable[..., Parts]
    """Makes dataset and options from ``seed`` and the demo's own arguments."""
    num_workers_default: int = 4
    consumer_default: str = "paced:10ms"
    deliveries_default: int = 240

    def build(self, num_workers: int | None = None, seed: int = 0, **options: Any) -> Any:
        """The DataLoader.

        Args:
            num_workers: As torch has it; None for the demo's own number.
            seed: Decides where the irregular demos are slow.
            **options: Options of torch's DataLoader and the demo's own arguments (`accepts`).

        Raises:
            UsageError: An option that neither the DataLoader nor this demo has, or a value torch refuses.
        """
        from torch.utils.data import DataLoader

        own = {name: value for name, value in options.items() if name in self._own()}
        given = {name: value for name, value in options.items() if name not in own}
        unknown = [name for name in given if name not in LOADER_OPTIONS]
        if unknown:
            accepted = ", ".join(self.accepts())
            raise UsageError(f"demo {self.name} has no option {', '.join(unknown)}; it accepts: {accepted}")
        parts = self.make(seed=seed, **own)
        workers = self.num_workers_default if num_workers is None else num_workers
        merged: dict[str, Any] = {"batch_size": 4, **parts.options, **given, "num_workers": workers}
        if workers == 0:
            merged = {name: value for name, value in merged.items() if name not in _NEEDS_WORKERS}
        if merged["batch_size"] is None:
            merged.pop("drop_last", None)
        try:
            # Some demos are about too many workers. torch advises against them here and again at each
            # iter(), so the filter has to stay.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            return DataLoader(parts.dataset, **merged)
        except (ValueError, TypeError) as error:
            raise UsageError(f"demo {self.name}: the DataLoader refuses these options: {error}") from error

    def accepts(self) -> dict[str, inspect.Parameter]:
        """Arguments by name: the demo's own first, then those of the DataLoader."""
        keyword = inspect.Parameter.KEYWORD_ONLY
        loader = {name: inspect.Parameter(name, keyword, default=None) for name in LOADER_OPTIONS}
        return self._own() | loader

    def convert(self, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Options for `build` from texts of the command line.

        Raises:
            UsageError: An unknown argument or a text of the wrong kind.
        """
        hints = typing.get_type_hints(self.make) | dict(LOADER_OPTIONS)
        return convert_arguments(arguments, self.accepts(), hints, whose=f"demo {self.name}")

    def _own(self) -> dict[str, inspect.Parameter]:
        parameters = dict(inspect.signature(self.make).parameters)
        parameters.pop("seed", None)
        return parameters
