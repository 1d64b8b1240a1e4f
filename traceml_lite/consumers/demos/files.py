"""What demos read from: a file without a name, and a server that answers late. Both vanish with their owner.

Workers reach the file through ``/proc/OWNER/fd``, which works whatever their start method and leaves
nothing behind even when everything is killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
import weakref
from pathlib import Path, PurePosixPath
from typing import Any

from traceml_lite._errors import TargetError
from traceml_lite.procfs.mounts import mount_of, parse_mountinfo

# File systems in memory: reading them never touches a device.
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_REQUEST = b"next sample"


class UnnamedFile:
    """A temporary file that has no name and can be opened in any worker.

    Args:
        directory: Where its blocks are; None for the first of the usual places that is not in memory.
        size_bytes: Filled with random bytes, written through to the device.

    Raises:
        TargetError: No place on a device was found, or it cannot be written.
    """

    def __init__(self, directory: str | None, size_bytes: int) -> None:
        place = directory or _on_device()
        try:
            self._file = tempfile.TemporaryFile(dir=place, buffering=0)  # noqa: SIM115
            written = 0
            while written < size_bytes:
                written += self._file.write(os.urandom(min(1 << 20, size_bytes - written)))
            os.fsync(self._file.fileno())
        except OSError as error:
            raise TargetError(
                f"cannot write a file of {size_bytes} bytes in {place}: {error.strerror}"
            ) from error
        self.size_bytes = size_bytes
        self._end = weakref.finalize(self, self._file.close)
        self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def __getstate__(self) -> dict[str, Any]:
        # A worker has only the path; the file lives as long as the owner's object.
        return {"path": self.path, "size_bytes": self.size_bytes}


def file_system_kind(directory: str) -> str | None:
    """Type of the file system that holds a directory, e.g. ``ext4``; None when it cannot be told."""
    try:
        text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        path = PurePosixPath(os.path.realpath(directory))
    except OSError:
        return None
    mount = mount_of(path, parse_mountinfo(text))
    return mount.kind if mount else None


def _on_device() -> str:
    places = [tempfile.gettempdir(), "/var/tmp", os.getcwd()]
    for place in places:
        if os.access(place, os.W_OK) and file_system_kind(place) not in _IN_MEMORY:
            return place
    raise TargetError(
        f"this demo reads from a device, and {', '.join(places)} are in memory or read-only; "
        "name a writable directory on a disk with -a directory=DIR"
    )


class SlowServer:
    """A server on this machine that answers each request after a delay, as a file server far away does.

    Its threads live in the process that made it, and end with it or with this object.

    Args:
        latency_ms: From the request to the first byte.
        answer_bytes: Size of each answer.
    """

    def __init__(self, latency_ms: float, answer_bytes: int) -> None:
        self.answer_bytes = answer_bytes
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # An empty name lets the kernel choose one outside of the file system, so nothing has to be removed.
        listener.bind("")
        listener.listen(64)
        self.address: bytes = listener.getsockname()
        thread = threading.Thread(
            target=_accept,
            args=(listener, latency_ms / 1000, bytes(answer_bytes)),
            name="demo-server",
            daemon=True,
        )
        thread.start()
        self._end = weakref.finalize(self, _stop, listener, thread, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "answer_bytes": self.answer_bytes}

    def close(self) -> None:
        """End the server; connections that are open end with their clients."""
        self._end()


def request(connection: socket.socket, answer_bytes: int) -> int:
    """Ask the server once and read its answer with read(2), as a mounted file system is read.

    Returns:
        Bytes read.
    """
    connection.sendall(_REQUEST)
    received = 0
    while received < answer_bytes:
        # recv(2) would not be counted in rchar, which is right for sockets and wrong for a mount.
        part = len(os.read(connection.fileno(), answer_bytes - received))
        if part == 0:
            raise ConnectionError("the demo's server has ended")
        received += part
    return received


def _accept(listener: socket.socket, latency_s: float, answer: bytes) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(
            target=_serve, args=(connection, latency_s, answer), name="demo-server", daemon=True
        ).start()


def _serve(connection: socket.socket, latency_s: float, answer: bytes) -> None:
    with connection, contextlib.suppress(OSError):
        while connection.recv(len(_REQUEST), socket.MSG_WAITALL):
            time.sleep(latency_s)
            connection.sendall(answer)


def _stop(listener: socket.socket, thread: threading.Thread, owner: int) -> None:
    # A forked worker inherits the object; shutting down there would stop the owner's server.
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        # Closing alone does not wake a thread that is blocked in accept().
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(timeout=1.0)
