"""Facts about the host, read from inside the training process: once (environment) and as it goes (sampler).

Nothing here raises, starts a process or imports torch; what cannot be read is unknown, with a reason.
The doctor's longer list of facts is in `facts`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TypeVar

from traceml_lite.procfs.cgroups import (
    CpuBandwidth,
    cgroup_directories,
    parse_cpu_max,
    parse_cpu_quota,
    parse_cpu_stat,
    parse_memory_limit,
    parse_self_cgroup,
)
from traceml_lite.procfs.mounts import parse_mountinfo
from traceml_lite.procfs.system import parse_cpu_times, parse_meminfo, parse_pressure
from traceml_lite.records.run import HOST_COLUMNS, MISSING, Environment

# Packages whose version has changed how fast a DataLoader is, or that decode, store or wrap its data.
PACKAGES = (
    *("torch", "torchvision", "torchaudio", "torchdata", "torchcodec", "numpy", "pyarrow", "datasets"),
    *("lerobot", "accelerate", "lightning", "pytorch-lightning", "transformers", "webdataset"),
    *("mosaicml-streaming", "pillow", "pillow-simd", "opencv-python", "opencv-python-headless", "av"),
    *("decord", "h5py", "zarr", "fsspec", "s3fs", "traceml-lite"),
)

_T = TypeVar("_T")
# Names of options and settings whose values are nobody else's business.
_SECRET = re.compile(r"(?i)(^|[-_.])(api[-_]?key|key|token|secret|password|passwd|credentials?)$")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# Only the first line, the total, is needed; the parser leaves out the line that this cuts off.
_STAT_BYTES = 512


def read_text(path: Path) -> str | None:
    """The text of a small file, or None when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def reason_unreadable(path: Path) -> str:
    """Why a file cannot be read, in words for a report."""
    try:
        with path.open("rb") as stream:
            stream.read(1)
    except FileNotFoundError:
        return f"{path} does not exist on this kernel"
    except PermissionError:
        return f"no permission to read {path}"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return f"{path} has a form that is not known"


def own_cgroups(controller: str, root: Path = Path("/")) -> tuple[tuple[int, Path], ...]:
    """Pairs of the cgroup version and a directory that binds this process, own group first.

    Args:
        controller: ``"cpu"`` or ``"memory"``.
        root: Where /proc and /sys are; another one than ``/`` is for tests.
    """
    memberships = parse_self_cgroup(read_text(root / "proc/self/cgroup") or "")
    mounts = parse_mountinfo(read_text(root / "proc/self/mountinfo") or "")
    found = cgroup_directories(controller, memberships, mounts)
    return tuple((version, _under(root, directory)) for version, directory in found)


def read_cpu_bandwidth(root: Path = Path("/")) -> tuple[CpuBandwidth, Path] | None:
    """The tightest CPU quota that binds this process and the group that sets it; None without one."""
    found: list[tuple[float, CpuBandwidth, Path]] = []
    for version, directory in own_cgroups("cpu", root):
        if version == 2:
            bandwidth = parse_cpu_max(read_text(directory / "cpu.max") or "")
        else:
            quota, period = (
                read_text(directory / f"cpu.cfs_{kind}_us") or "" for kind in ("quota", "period")
            )
            bandwidth = parse_cpu_quota(quota, period)
        if bandwidth is not None and bandwidth.cpus is not None:
            found.append((bandwidth.cpus, bandwidth, directory))
    if not found:
        return None
    _, bandwidth, directory = min(found, key=lambda entry: entry[0])
    return bandwidth, directory


def read_memory_limit(root: Path = Path("/")) -> int | None:
    """The tightest memory limit of the process's cgroups in bytes; None without one."""
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    limits = [
        parse_memory_limit(read_text(directory / names[version]) or "")
        for version, directory in own_cgroups("memory", root)
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def read_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory this process may use: the machine's, or the cgroup's limit where that is lower."""
    total = parse_meminfo(read_text(root / "proc/meminfo") or "").get("MemTotal")
    known = [size for size in (total, read_memory_limit(root)) if size]
    return min(known) if known else None


def read_environment(torch_module: ModuleType | None = None) -> Environment:
    """Host and software as far as they decide loading; ``None`` (or an empty text) is "not known".

    Args:
        torch_module: torch, if the caller has it. Otherwise it is looked up among the modules that are
            loaded already; it is never imported here.
    """
    torch = torch_module if torch_module is not None else sys.modules.get("torch")
    versions = installed_versions()
    system = _or_none(os.uname)
    bandwidth = _or_none(read_cpu_bandwidth)
    return Environment(
        host=system.nodename if system else "",
        boot_id=(read_text(Path("/proc/sys/kernel/random/boot_id")) or "").strip(),
        platform=f"{system.sysname} {system.release} {system.machine}" if system else "",
        python=platform.python_version(),
        torch=str(getattr(torch, "__version__", versions.get("torch", ""))),
        versions=versions,
        cpus_online=_or_none(lambda: os.sysconf("SC_NPROCESSORS_ONLN")),
        cpus_affinity=_or_none(lambda: len(os.sched_getaffinity(0))),
        cpu_quota=bandwidth[0].cpus if bandwidth else None,
        memory_bytes=_or_none(read_memory_bytes),
        shm_bytes=_or_none(lambda: _capacity(os.statvfs("/dev/shm"))),
        open_files_limit=_or_none(lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        torch_threads=_or_none(torch.get_num_threads) if torch is not None else None,
        command=without_secrets(sys.orig_argv),
        pid=os.getpid(),
        started_unix_ns=time.time_ns(),
        started_ns=time.perf_counter_ns(),
    )


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """A command line whose values of keys, tokens and passwords are starred: traces go into tickets."""
    shown: list[str] = []
    hide = False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = _SECRET.search(name) is not None
        if secret and equals:
            word = f"{name}=***"
        shown.append("***" if hide and not word.startswith("-") else word)
        hide = secret and not equals and word.startswith("-")
    return tuple(shown)


@functools.cache
def installed_versions() -> dict[str, str]:
    """Versions of those of ``PACKAGES`` that are installed, without importing any; taken once."""
    versions: dict[str, str] = {}
    for package in PACKAGES:
        # A broken installation can raise nearly anything here, and a version is never worth that.
        with contextlib.suppress(Exception):
            versions[package] = metadata.version(package)
    return versions


class HostSampler:
    """Reads one row of ``HOST_COLUMNS`` at a time from descriptors that it keeps open.

    Never raises: what cannot be read is ``MISSING`` in the row. ``absent`` holds the columns that cannot be
    read at all, each with its reason; those are known after construction.

    Args:
        root: Where /proc, /sys and /dev are; another one than ``/`` is for tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self.absent: dict[str, str] = {}
        self._root = root
        self._stat = self._open(root / "proc/stat", "cpu_busy_ns", "cpu_steal_ns", "cpu_iowait_ns")
        self._pressure = {
            name: self._open(root / "proc/pressure" / name, f"pressure_{name}_ns")
            for name in ("cpu", "io", "memory")
        }
        self._throttling = self._open_throttling()
        self._shm = root / "dev/shm"
        self._files = root / "proc/self/fd"
        self._live_ns: dict[int, int] = {}
        self._children_ns = 0
        self._lost_ns = 0
        row = dict(zip((column.name for column in HOST_COLUMNS), self.sample(), strict=True))
        why = {
            "throttled_periods": "no CPU quota controller binds this process's cgroup",
            "shm_used_bytes": reason_unreadable(self._shm),
            "open_files": reason_unreadable(self._files),
        }
        why["throttled_ns"] = why["throttled_periods"]
        for name, value in row.items():
            if value == MISSING:
                self.absent.setdefault(name, why.get(name, "this kernel does not report it"))

    def sample(self, pids: Sequence[int] = ()) -> tuple[int, ...]:
        """One row, values in the order of ``HOST_COLUMNS``.

        Args:
            pids: The traced process's live descendants whose CPU time counts as its own (the workers).
        """
        total = parse_cpu_times(_pread(self._stat, _STAT_BYTES), _TICKS_PER_SECOND).get("cpu")
        steal = total.steal_ns if total else None
        throttling = parse_cpu_stat(_pread(self._throttling))
        return (
            time.perf_counter_ns(),
            total.busy_ns if total else MISSING,
            MISSING if steal is None else steal,
            total.iowait_ns if total else MISSING,
            *(self._pressure_ns(name) for name in ("cpu", "io", "memory")),
            throttling.throttled_periods if throttling else MISSING,
            throttling.throttled_ns if throttling else MISSING,
            self._own_cpu_ns(pids),
            _or_missing(lambda: _used(os.statvfs(self._shm))),
            _or_missing(lambda: _open_files(self._files)),
        )

    def close(self) -> None:
        """Give the descriptors back; later samples are ``MISSING`` where they were needed."""
        kept = [self._stat, self._throttling, *self._pressure.values()]
        self._stat = self._throttling = None
        self._pressure = dict.fromkeys(self._pressure)
        for descriptor in kept:
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

    def __enter__(self) -> HostSampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, path: Path, *columns: str) -> int | None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.absent.update(dict.fromkeys(columns, reason_unreadable(path)))
            return None
        # A kernel booted with psi=0 lets the files be opened and fails at the read.
        if not _pread(descriptor):
            os.close(descriptor)
            self.absent.update(dict.fromkeys(columns, reason_unreadable(path)))
            return None
        return descriptor

    def _open_throttling(self) -> int | None:
        """cpu.stat of the group whose quota is the tightest, as only that one counts its throttling."""
        quota = read_cpu_bandwidth(self._root)
        groups = [directory for _, directory in own_cgroups("cpu", self._root)]
        for directory in [quota[1]] if quota else groups:
            descriptor = self._open(directory / "cpu.stat")
            if descriptor is not None and parse_cpu_stat(_pread(descriptor)) is not None:
                return descriptor
            if descriptor is not None:
                os.close(descriptor)
        return None

    def _pressure_ns(self, name: str) -> int:
        pressure = parse_pressure(_pread(self._pressure[name]))
        return pressure.some.total_ns if pressure else MISSING

    def _own_cpu_ns(self, pids: Sequence[int]) -> int:
        """CPU time of this process, of the given descendants, and of those that have ended.

        It never falls: a worker that is gone is in the kernel's total of reaped children, and where it is
        not (a child of a fork server, SIGCHLD ignored) its last reading is kept.
        """
        try:
            reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
            children_ns = int((reaped.ru_utime + reaped.ru_stime) * 1e9)
            live = {pid: cpu_ns for pid in pids if (cpu_ns := process_cpu_ns(pid)) is not None}
            gone_ns = sum(cpu_ns for pid, cpu_ns in self._live_ns.items() if pid not in live)
            self._lost_ns += max(0, gone_ns - (children_ns - self._children_ns))
            self._live_ns, self._children_ns = live, children_ns
            return time.process_time_ns() + children_ns + self._lost_ns + sum(live.values())
        except (OSError, ValueError):
            return MISSING


def process_cpu_ns(pid: int) -> int | None:
    """CPU time of another process, at most one tick (4 ms) old; None when there is no such process."""
    try:
        # The kernel's name for the CPU clock of a process, as clock_getcpuclockid(3) makes it; 0.5 us,
        # where reading /proc/PID/stat takes 3 and has 10 ms steps.
        return time.clock_gettime_ns((~pid << 3) | 2)
    except (OSError, OverflowError):
        return None


def _pread(descriptor: int | None, size: int = 1024) -> str:
    if descriptor is None:
        return ""
    try:
        return os.pread(descriptor, size, 0).decode("ascii", "replace")
    except OSError:
        return ""


def _under(root: Path, directory: PurePosixPath) -> Path:
    return root / directory.relative_to("/") if directory.is_absolute() else root / directory


def _capacity(status: os.statvfs_result) -> int:
    return status.f_frsize * status.f_blocks


def _used(status: os.statvfs_result) -> int:
    return status.f_frsize * (status.f_blocks - status.f_bfree)


def _open_files(directory: Path) -> int:
    # Since Linux 6.2 the size of the directory is the number of entries; before it was 0.
    size = os.stat(directory).st_size
    if size > 0 and directory.parts[:2] == ("/", "proc"):
        return size
    # Listing needs a descriptor of its own, which is then in the list.
    return len(os.listdir(directory)) - 1


def _or_none(read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except Exception:
        return None


def _or_missing(read: Callable[[], int]) -> int:
    try:
        return read()
    except OSError:
        return MISSING
