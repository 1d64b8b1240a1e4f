"""A ring of fixed-size records in a small file, written by one process and readable by any.

The owner maps it; a record is in the file the moment it is packed, so SIGKILL loses nothing. The file is
allocated in full before it is mapped: on a full disk the owner gets an error instead of a SIGBUS later.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os

from traceml_lite.store.layout import (
    RECORD_SIZE,
    RING_COUNTS,
    RING_COUNTS_OFFSET,
    RING_CPUS,
    RING_CPUS_OFFSET,
    RING_HEADER,
    RING_HEADER_SIZE,
    RING_MAGIC,
    RingHeader,
    parse_ring_header,
    ring_slots,
)

# Bookkeeping takes some 10 us. Where it took longer than this its thread had lost the CPU on the way, which
# would have happened without it too; it is counted as long as the time before, the first one as this.
PREEMPTED_NS = 100_000


class Ring:
    """The owner's side of a ring.

    Attributes:
        memory: The mapping; pack a record at ``offset(n)``, then ``publish`` how many there are.
        capacity: Records it holds.
    """

    __slots__ = ("_path", "capacity", "memory")

    def __init__(self, path: str, capacity: int, *, iterator: int, worker: int) -> None:
        """Create the file.

        Raises:
            OSError: It exists already, or the disk is full or not writable.
        """
        self._path = path
        self.capacity = capacity
        size = RING_HEADER_SIZE + capacity * RECORD_SIZE
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            _allocate(descriptor, size)
            self.memory = mmap.mmap(descriptor, size)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        RING_HEADER.pack_into(
            self.memory, 0, RING_MAGIC, RECORD_SIZE, capacity, os.getpid(), iterator, worker, 0, 0
        )

    def offset(self, number: int) -> int:
        """Byte offset of record ``number``."""
        return RING_HEADER_SIZE + (number % self.capacity) * RECORD_SIZE

    def publish(self, committed: int, own_ns: int) -> None:
        """Tell readers of the file that so many records are whole, and what bookkeeping has taken so far."""
        RING_COUNTS.pack_into(self.memory, RING_COUNTS_OFFSET, committed, own_ns)

    def say_absent(self, bits: int, error: int) -> None:
        """Note in the header which counters could not be read, and the errno of the last failure."""
        RING_HEADER.pack_into(self.memory, 0, *RING_HEADER.unpack_from(self.memory)[:6], bits, error)

    def say_cpus(self, cpus: int) -> None:
        """Note in the header how many CPUs the owner may run on."""
        RING_CPUS.pack_into(self.memory, RING_CPUS_OFFSET, cpus)

    def unlink(self) -> None:
        """Remove the file; the mapping of this and other processes stays usable."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class RingReader:
    """Another process's ring, read with pread as it grows.

    The file is opened for each reading: a descriptor kept open per worker would count against the
    training job's ``ulimit -n``, which the loader itself is often short of.

    Attributes:
        header: The header at the last reading; None before the owner has made its file.
        lost: Records overwritten before they were taken.
    """

    __slots__ = ("_path", "_read", "header", "lost")

    def __init__(self, path: str) -> None:
        self._path = path
        self._read = 0
        self.header: RingHeader | None = None
        self.lost = 0

    def take(self) -> tuple[bytes, bytes]:
        """Records committed since the last call, and the one in flight.

        Returns:
            ``(records, mark)``: whole records in order; the slot after the last of them, which is a start
            mark when its owner is in the middle of a fetch. Both empty when there is no file.

        Raises:
            OSError: The file is there but cannot be read.
        """
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b"", b""
        try:
            header = parse_ring_header(os.pread(descriptor, RING_HEADER_SIZE, 0))
            if header is None:
                return b"", b""
            self.header = header
            spans, lost = ring_slots(header.committed, self._read, header.capacity)
            self.lost += lost
            self._read = header.committed
            records = b"".join(os.pread(descriptor, length, offset) for offset, length in spans)
            following = RING_HEADER_SIZE + (header.committed % header.capacity) * RECORD_SIZE
            return records, os.pread(descriptor, RECORD_SIZE, following)
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Remove the file if it is there."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def _allocate(descriptor: int, size: int) -> None:
    try:
        if not hasattr(os, "posix_fallocate"):
            raise OSError(errno.ENOSYS, "no posix_fallocate")
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        # Some network file systems cannot allocate; zeros written out have the same effect.
        os.pwrite(descriptor, bytes(size), 0)
