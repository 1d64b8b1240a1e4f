"""The run measured by `fixed.py`: a short training loop, with the tool on from inside or not at all."""

from __future__ import annotations

import contextlib
import gc
import time
from typing import Any

import _harness
import numpy  # noqa: F401 (which torch would load: it must not count for the tool that has loaded it already)

# Loading torch takes seconds, and half a second more or less of them from one time to the next: it is taken
# out of every row.
_began = time.process_time()
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

TORCH_CPU_S = time.process_time() - _began


def tool(name: str, folder: str) -> contextlib.AbstractContextManager[Any]:
    if name == "traceml-lite record()":
        import traceml_lite

        return traceml_lite.record(f"{folder}/trace")
    if name == "torch.profiler":
        return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    return contextlib.nullcontext()


def main() -> None:
    asked = _harness.settings()
    step: Any = contextlib.nullcontext
    model = torch.nn.Linear(8, 1)
    if asked["tool"] == "TraceML":
        import traceml_ai

        traceml_ai.init(mode="auto")
        step = lambda: traceml_ai.trace_step(model)  # noqa: E731 - the same name in both cases
    loader = DataLoader(TensorDataset(torch.zeros(200, 8)), batch_size=1, num_workers=1)
    with tool(asked["tool"], asked["folder"]):
        for number, _ in enumerate(loader):
            with step():
                time.sleep(0.005)
            if number == len(loader) // 2:
                # A full collection writes into every object, after which the worker shares 37 MB less with
                # its parent. It comes sooner or later in any run; here in all, at the same place.
                gc.collect()
    _harness.answer({"torch_cpu_s": TORCH_CPU_S})


if __name__ == "__main__":
    main()
