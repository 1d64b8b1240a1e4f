"""The loop measured by `growth.py`: many deliveries, the resident set read along the way."""

from __future__ import annotations

import contextlib
from typing import Any

import _harness
import psutil
import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def main() -> None:
    asked = _harness.settings()
    around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if asked["tool"] == "traceml-lite":
        from traceml_lite.probe import record

        around = record(f"{asked['folder']}/trace")
    elif asked["tool"] == "torch.profiler":
        around = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    process = psutil.Process()
    resident = []
    # batch_size=None: one number per delivery, so that the loop is nothing but deliveries.
    loader = DataLoader(Numbers(asked["deliveries"]), batch_size=None, num_workers=asked["workers"])
    with around:
        for number, _ in enumerate(loader):
            if number % asked["every"] == 0:
                resident.append(process.memory_info().rss)
        resident.append(process.memory_info().rss)
        _harness.answer({"resident": resident})
        if asked["tool"] == "torch.profiler":
            # Its tables take minutes to build at the end and are not the question here.
            import os

            os._exit(0)


if __name__ == "__main__":
    main()
