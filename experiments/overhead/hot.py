"""The floor: what the probe costs when nothing else touches the caches.

    python experiments/overhead/hot.py

Consumer: `next()` on a real iterator in a tight loop, its queues replaced by stubs, chunks with the probe and
without in turn, CPU time of the thread. Worker: one fetch that does nothing between two readings of the
counters. Without workers: `next()` with both halves in it, where torch's own code empties the caches between
two readings. A real loop runs with cold caches and pays more; `per_delivery.py` measures that.
"""

from __future__ import annotations

import multiprocessing.queues
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _harness
import numpy as np
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from traceml_lite.probe import fetch, record
from traceml_lite.probe.core import fetch_method
from traceml_lite.store.ring import Ring

CHUNK = 200


class Numbers(Dataset):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        return index


def per_call_us(call: Callable[[], Any], calls: int = CHUNK) -> float:
    began = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - began) / calls / 1e3


def consumer(rounds: int, folder: Path) -> list[str]:
    put, get_data = multiprocessing.queues.Queue.put, _MultiProcessingDataLoaderIter._get_data
    multiprocessing.queues.Queue.put = lambda self, item, block=True, timeout=None: None
    _MultiProcessingDataLoaderIter._get_data = lambda self: (self._rcvd_idx, 0)

    def advance(iterator: Iterator[Any]) -> Callable[[], Any]:
        return lambda: next(iterator)

    try:
        plain = iter(DataLoader(Numbers(), num_workers=1))
        with record(folder / "trace"):
            traced = iter(DataLoader(Numbers(), num_workers=1))
            found = [(per_call_us(advance(plain)), per_call_us(advance(traced))) for _ in range(rounds)]
    finally:
        multiprocessing.queues.Queue.put, _MultiProcessingDataLoaderIter._get_data = put, get_data
    return row("consumer, per delivery", found)


def worker(rounds: int, folder: Path, rchar: bool) -> list[str]:
    ring = Ring(str(folder / f"ring-{rchar}"), 1024, iterator=0, worker=0)
    # Short fetches read rchar one time in sixteen only; here it is read each time.
    fetch.RCHAR_BELOW_NS = 0
    recorder = fetch.FetchRecorder(ring, iterator=0, worker=0, turn=0, rchar=rchar)

    class Fetcher:
        recorder: Any = None

        def fetch(self, index: Any) -> None:
            return None

    class Recording(Fetcher):
        fetch = fetch_method(Fetcher, key="recorder", iterable=False)

    index, plain, traced = [0], Fetcher(), Recording()
    traced.recorder = recorder
    found = [
        (per_call_us(lambda: plain.fetch(index)), per_call_us(lambda: traced.fetch(index)))
        for _ in range(rounds)
    ]
    if recorder.failed:
        raise SystemExit(f"the recorder gave up: {recorder.failed}")
    recorder.close()
    ring.unlink()
    return row(f"worker, per fetch, {'all counters' if rchar else 'without rchar'}", found)


def no_workers(rounds: int, folder: Path, rchar: bool) -> list[str]:
    fetch.RCHAR_BELOW_NS = 0

    def advance(iterator: Iterator[Any]) -> Callable[[], Any]:
        return lambda: next(iterator)

    plain = iter(DataLoader(Numbers()))
    with record(folder / f"trace-{rchar}", rchar=rchar):
        traced = iter(DataLoader(Numbers()))
        found = [(per_call_us(advance(plain)), per_call_us(advance(traced))) for _ in range(rounds)]
    return row(f"num_workers=0, per delivery, {'all counters' if rchar else 'without rchar'}", found)


def row(name: str, found: list[tuple[float, float]]) -> list[str]:
    plain, traced = np.array(found).T
    low, middle, high = np.quantile(traced - plain, [0.1, 0.5, 0.9])
    return [name, f"{np.median(plain):.1f}", f"{middle:.1f} [{low:.1f}, {high:.1f}]"]


def main() -> None:
    args = _harness.parser(__doc__, rounds=200).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [
            consumer(args.rounds, folder),
            worker(args.rounds, folder, True),
            worker(args.rounds, folder, False),
            no_workers(args.rounds, folder, True),
            no_workers(args.rounds, folder, False),
        ]
    header = ["µs", "without the probe", "added, median [10 %, 90 % of chunks]"]
    _harness.table("Floor with hot caches", header, rows, args.rounds)


if __name__ == "__main__":
    main()
