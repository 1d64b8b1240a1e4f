"""The order in which batches were dispatched, as running hashes that two runs can compare.

Kept in the child process of an experiment. Comparing streams is ``experiment.streams``'s business.
"""

from __future__ import annotations

import hashlib
from typing import Any


class IndexStream:
    """The order of batches as dispatched: a running hash over the samples, noted after every batch.

    Two arms saw the same data when their hashes agree at the largest number of samples that both noted.
    """

    def __init__(self) -> None:
        self.epoch = -1
        self.rows: list[tuple[int, int, int]] = []
        """(epoch, samples so far in it, first 8 bytes of the hash), one per dispatched batch."""
        self.unreadable: str | None = None
        """Why the indices could not be compared, e.g. the type of an index that has no stable text."""
        self._hash = hashlib.blake2b(digest_size=8)
        self._samples = 0

    @property
    def samples(self) -> int:
        """Samples of the epoch so far."""
        return self._samples

    def begin(self) -> None:
        """Another epoch begins."""
        self.epoch += 1
        self._hash = hashlib.blake2b(digest_size=8)
        self._samples = 0

    def add(self, index: Any) -> None:
        """Note one batch's index."""
        if self.unreadable is not None:
            return
        samples = index if isinstance(index, (list, tuple)) else [index]
        try:
            text = ";".join(map(_stable_text, samples))
        except TypeError as error:
            self.unreadable = str(error)
            return
        self._samples += len(samples)
        self._hash.update(text.encode() + b";")
        digest = int.from_bytes(self._hash.digest(), "little")
        self.rows.append((self.epoch, self._samples, digest))


def _stable_text(sample: Any) -> str:
    if sample is None or isinstance(sample, (bool, int, float, str, bytes)):
        return repr(sample)
    if isinstance(sample, (list, tuple)):
        return "(" + ",".join(map(_stable_text, sample)) + ")"
    if hasattr(sample, "tolist"):
        return _stable_text(sample.tolist())
    raise TypeError(f"an index of type {type(sample).__name__} has no text that two runs could compare")
