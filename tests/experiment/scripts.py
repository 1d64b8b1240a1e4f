"""Training scripts that tests write to disk and sweep, unedited."""

from __future__ import annotations

TRAIN = """
import os
import random
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __init__(self, n, seconds):
        self.n, self.seconds = n, seconds

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((4,), float(index))


class Small(Slow):
    pass


def main():
    mode = os.environ.get("TRAIN_MODE", "plain")
    order = None
    if mode == "unseeded":
        order = list(range(64))
        random.SystemRandom().shuffle(order)
    check = DataLoader(Small(8, 0.0), 4)
    for batch in check:
        break
    train = DataLoader(
        Slow(64, 0.002), 4, shuffle=order is None, sampler=order, num_workers=2, prefetch_factor=3
    )
    step = 0
    for epoch in range(1000):
        for batch in train:
            step += 1
            if step == 18 and mode == "hang":
                time.sleep(1000)
            if step == 18 and mode == "fail":
                raise RuntimeError("the script's own error")
        for batch in check:
            pass


if __name__ == "__main__":
    assert sys.argv[1:] == ["--lr", "0.1"], sys.argv
    main()
"""

NO_LOADER = "print('nothing to load here')\n"
