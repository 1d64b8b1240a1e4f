"""One condition in one fresh process: ``python -m traceml_lite.experiment.child SPEC.json``.

Seeds everything, overrides the loader's options, records the trace, and ends after N deliveries. What it
leaves is the trace, the hash of the index stream and ``result.json``; it compares nothing.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from traceml_lite._errors import TracemlLiteError
from traceml_lite.experiment.atomic import write_json
from traceml_lite.experiment.control import CEILING_BATCHES
from traceml_lite.experiment.script import run_as_main

RESULT = "result.json"
TRACE = "trace"
INDICES = "indices.npy"
OPENED = "opened"
SPEC = "spec.json"


@dataclass(frozen=True, slots=True)
class Spec:
    """What one child is to do."""

    target: str
    module: bool
    script: bool
    folder: str
    """Absolute folder of the pass; everything is written into it."""
    script_arguments: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    loader: int | None = None
    deliveries: int = 1
    limit_s: float | None = None
    seed: int = 0
    consumer: str | None = None
    """Of a factory's loader; None takes the target's own default."""
    control: str | None = None
    shift_ns: int = 0
    endless: bool = False
    repeat_after: int | None = None
    note_files: bool = False


def spec_to_json(spec: Spec) -> dict[str, Any]:
    """The spec as it is written for the child."""
    return asdict(spec)


def spec_from_json(document: Mapping[str, Any]) -> Spec:
    """The inverse of :func:`spec_to_json`."""
    return Spec(**{**document, "script_arguments": tuple(document["script_arguments"])})


def run_pass(spec: Spec) -> dict[str, Any]:
    """Run one pass in this process.

    Returns:
        What goes into ``result.json``: ``ended`` (``"deliveries"``, ``"limit"``, ``"target"``, ``"error"``),
        the loaders seen, and for an error its kind and message.
    """
    from traceml_lite.consumers import targets
    from traceml_lite.probe import override, session
    from traceml_lite.probe.files import OpenedFiles

    folder = Path(spec.folder)
    opened = str(folder / OPENED) if spec.note_files else None
    if opened is not None:
        OpenedFiles.install(opened)
    targets.seed_everything(spec.seed)
    wanted = override.Overrides(
        options=spec.options,
        loader=spec.loader,
        deliveries=spec.deliveries if spec.script else None,
        limit_s=spec.limit_s,
        seed=spec.seed,
        control=spec.control,
        shift_ns=spec.shift_ns,
        meeting=str(folder / "stagger"),
        cached_batches=CEILING_BATCHES,
        endless=spec.endless,
        repeat_after=spec.repeat_after,
        opened=opened,
    )
    result: dict[str, Any] = {"ended": "target"}
    with session.record(str(folder / TRACE)), override.installed(wanted) as seen:
        try:
            if spec.script:
                run_as_main(spec.target, spec.script_arguments, module=spec.module)
            else:
                result["consumer"] = _drive(spec)
                result["ended"] = "deliveries"
        except override.PassEnd as end:
            result["ended"] = end.why
        except SystemExit as leave:
            result["exit_code"] = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
            if result["exit_code"] and isinstance(leave.code, str):
                result["message"] = leave.code
        except Exception as error:
            result |= {"ended": "error", "kind": type(error).__name__, "message": str(error)}
            result["ours"] = isinstance(error, TracemlLiteError)
            traceback.print_exc()
    result["loaders"] = [asdict(one) for one in seen.loaders]
    result["known_options"] = sorted(seen.known)
    result["accelerator"] = override.has_accelerator()
    result["indices"] = _save_indices(seen, folder, spec.loader)
    result["cpu_s"] = time.process_time()
    return result


def _drive(spec: Spec) -> str:
    """Drive a factory's loader; returns the consumer that was used."""
    from traceml_lite.consumers import drive, parse, targets

    target = targets.resolve(spec.target, arguments=spec.arguments, seed=spec.seed)
    consumer = spec.consumer or target.consumer_default or "none"
    drive.drive(target.loader, parse.parse_consumer(consumer), deliveries=spec.deliveries)
    return consumer


def _save_indices(seen: Any, folder: Path, loader: int | None) -> str | None:
    """Save the stream of the chosen loader; returns why it cannot be compared, or None."""
    number = loader if loader is not None else 0
    stream = seen.streams.get(number)
    if stream is None or not stream.rows:
        return "no index was dispatched"
    if number < len(seen.loaders) and seen.loaders[number].iterable:
        return "an iterable dataset orders its samples in the workers; there are no indices to compare"
    if stream.unreadable is not None:
        return str(stream.unreadable)
    np.save(folder / INDICES, np.array(stream.rows, dtype=np.uint64))
    return None


def typed_command(spec: Spec) -> list[str]:
    """The command that runs the same target by hand."""
    if spec.script:
        module = ["-m"] if spec.module else []
        return ["python", *module, spec.target, *spec.script_arguments]
    words = ["traceml-lite", "probe", spec.target]
    for name, value in spec.arguments.items():
        words += ["-a", f"{name}={value}"]
    return [*words, "--consumer", spec.consumer] if spec.consumer else words


def main(path: str) -> int:
    """Run the pass that the file describes; the exit code of the process."""
    # A pass that hangs is asked where it stands before it is ended.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    spec = spec_from_json(json.loads(Path(path).read_text(encoding="utf-8")))
    # The trace names what one would type to run the target again, not this file.
    sys.orig_argv = typed_command(spec)
    result = run_pass(spec)
    write_json(Path(spec.folder) / RESULT, result)
    sys.stdout.flush()
    sys.stderr.flush()
    return 1 if result["ended"] == "error" else 0


if __name__ == "__main__":
    # A worker started by spawn imports this module under another name and must not start a pass.
    code = main(os.path.abspath(sys.argv[1]))
    sys.exit(code)
