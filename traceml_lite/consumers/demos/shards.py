"""The one iterable dataset of the demos, apart from the others because it needs torch to be defined."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from traceml_lite.consumers.demos.work import sample, sleep_ms


class Shards(IterableDataset[NDArray[np.float32]]):  # type: ignore[misc]  # mypy does not follow torch
    """Shards of unequal size, dealt out to the workers by number as webdataset and datasets do.

    Args:
        sizes: Samples in each shard.
        sample_ms: What each sample costs.
    """

    def __init__(self, sizes: tuple[int, ...], sample_ms: float) -> None:
        self.sizes = sizes
        self.sample_ms = sample_ms

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        info = get_worker_info()
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        for shard in range(first, len(self.sizes), stride):
            before = sum(self.sizes[:shard])
            for index in range(self.sizes[shard]):
                sleep_ms(self.sample_ms)
                yield sample(before + index)
