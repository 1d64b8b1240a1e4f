"""Runs scenarios, each in a fresh process, with the probe or without, and writes what came out as JSON.

    python matrix_observe.py {plain,traced} OUT SCENARIO [SCENARIO ...]

torch is imported once and each scenario runs in a fork of that process made before anything was loaded;
scenarios that start workers by spawn or forkserver import this file as their main module again.
"""

# ruff: noqa: NPY002 - numpy's global generator is one of the things that are watched.

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import sys
import traceback
from pathlib import Path

import matrix_scenarios
import numpy as np
import torch

LIMIT_S = 180


def observe(mode: str, name: str, folder: Path) -> None:
    """One scenario in this process; leaves ``folder/NAME.json`` and, if traced, ``folder/NAME.trace``."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    around: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if mode == "traced":
        from traceml_lite.probe import record

        around = record(folder / f"{name}.trace")
    observer = matrix_scenarios.Observer()
    with around:
        matrix_scenarios.SCENARIOS[name](observer)
    (folder / f"{name}.json").write_text(json.dumps(observer.result()))


def main(mode: str, out: str, *names: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    if mode == "traced":
        import traceml_lite.probe  # noqa: F401  the import is not what is measured here
    for name in names:
        child = os.fork()
        if child == 0:
            code = 1
            with (folder / f"{name}.log").open("w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                try:
                    observe(mode, name, folder)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    log.flush()
                    os._exit(code)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
