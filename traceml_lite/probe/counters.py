"""Counters of the calling process and thread, cheap enough to read around every fetch.

The descriptors are opened in the process that is measured: an inherited one shows its parent's counters.
What cannot be read is left out for good and remembered in ``absent`` and ``errno``.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time

from traceml_lite.store.layout import RCHAR_SWITCHED_OFF

_PAGE = os.sysconf("SC_PAGE_SIZE")
# ru_inblock counts blocks of 512 bytes whatever the device's own size (getrusage(2)).
BLOCK_BYTES = 512
# Longer than what the files hold, and of ``io`` than its first line, which is rchar.
SCHED_BYTES, IO_BYTES, _STAT_BYTES = 80, 32, 1024
# To tell a live exec time from one of the last tick (1 to 10 ms apart): work for longer than the readings may
# take, and see whether it is in there.
_WORK_NS, _LIVE_WITHIN_NS = 60_000, 30_000


class Counters:
    """Open descriptors of /proc for one thread.

    Attributes:
        absent: Bits of ``layout.ABSENT_BITS``: what cannot be read here.
        errno: Of the last failure.
        sched: Descriptor of this thread's ``schedstat``; -1 where it cannot be read.
        io: Descriptor of this process's ``io``; -1 where it cannot or shall not be read.
    """

    __slots__ = ("_stat", "absent", "errno", "io", "sched")

    def __init__(self, *, rchar: bool = True) -> None:
        self.absent = 0
        self.errno = 0
        self.sched = self._open("/proc/thread-self/schedstat", 1)
        self.io = self._open("/proc/self/io", 2) if rchar else -1
        self._stat = self._open("/proc/self/stat", 4)
        if not rchar:
            self.absent |= 2
            self.errno = self.errno or RCHAR_SWITCHED_OFF
        # A file that opens may still refuse to be read (a non-dumpable process): tried once, here.
        for bit, read in ((1, self.run_queue), (2, self.rchar), (4, self.resident)):
            if not self.absent & bit:
                try:
                    read()
                except (OSError, ValueError, IndexError) as error:
                    self.absent |= bit
                    self.errno = getattr(error, "errno", 0) or 0
        if self.absent & 1:
            self.sched = _closed(self.sched)
        if self.absent & 2:
            self.io = _closed(self.io)

    def _open(self, path: str, bit: int) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.absent |= bit
            self.errno = error.errno or 0
            return -1

    def run_queue(self) -> tuple[int, int]:
        """Time this thread was runnable without a CPU so far (second field of schedstat), in ns.

        Returns:
            The time, and the bytes that this very reading adds to ``rchar``.
        """
        text = os.pread(self.sched, SCHED_BYTES, 0)
        return int(text.split()[1]), len(text)

    def exec_live(self) -> bool:
        """Whether the first field of schedstat is this thread's CPU time once ``getrusage`` has been called.

        The kernel brings the caller's run time up to date when it sums up the process's for ``getrusage``
        (``thread_group_cputime`` in kernel/sched/cputime.c); the field alone is as old as the last tick.
        Where it holds, no second clock has to be read. It is tried here, as no document promises it.
        """
        if self.absent & 1:
            return False
        for _ in range(2):  # a tick may come in between once
            until = time.perf_counter_ns() + _WORK_NS
            while time.perf_counter_ns() < until:
                pass
            resource.getrusage(resource.RUSAGE_SELF)
            exec_ns = int(os.pread(self.sched, SCHED_BYTES, 0).split()[0])
            if abs(time.thread_time_ns() - exec_ns) > _LIVE_WITHIN_NS:
                return False
        return True

    def rchar(self) -> tuple[int, int]:
        """Bytes this process asked read calls for so far, and how many this very reading adds to them."""
        text = os.pread(self.io, IO_BYTES, 0)
        return int(text[7 : text.index(b"\n")]), len(text)

    def resident(self) -> tuple[int, int]:
        """Resident set in bytes and number of threads of this process."""
        after_name = os.pread(self._stat, _STAT_BYTES, 0).rpartition(b")")[2].split()
        return int(after_name[21]) * _PAGE, int(after_name[17])

    def close(self) -> None:
        """Close the descriptors."""
        self.sched, self.io, self._stat = _closed(self.sched), _closed(self.io), _closed(self._stat)


def _closed(descriptor: int) -> int:
    if descriptor >= 0:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    return -1
