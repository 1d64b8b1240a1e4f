"""Training scripts that tests write to disk and sweep, unedited."""

from __future__ import annotations

TRAIN = """
import argparse
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang-at", type=int, default=-1)
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--unseeded", action="store_true")
    asked = parser.parse_args()
    if asked.unseeded:
        generator = torch.Generator()
        generator.seed()
    else:
        generator = None
    train = DataLoader(Slow(64, 0.002), 4, shuffle=True, num_workers=2, generator=generator)
    check = DataLoader(Small(8, 0.0), 4)
    for batch in check:
        break
    step = 0
    for epoch in range(1000):
        for batch in train:
            step += 1
            if step == asked.hang_at:
                time.sleep(1000)
            if step == asked.fail_at:
                raise RuntimeError("the script's own error")
        for batch in check:
            pass

if __name__ == "__main__":
    main()
"""

NO_LOADER = "print('nothing to load here')\n"
