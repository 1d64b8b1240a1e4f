"""The facts of the host that `doctor` shows: read once, anywhere, and never during training.

Imports torch and cv2 where they are installed, as only they know their thread counts. Nothing raises:
what cannot be read is None, with its reason.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import multiprocessing
import os
import platform
import re
import resource
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TypeVar

from traceml_lite.probe import core
from traceml_lite.probe.host import (
    installed_versions,
    own_cgroups,
    read_cpu_bandwidth,
    read_memory_limit,
    read_text,
    reason_unreadable,
)
from traceml_lite.procfs.cgroups import CpuThrottling, parse_cpu_stat
from traceml_lite.procfs.mounts import mount_of, parse_mountinfo
from traceml_lite.procfs.process import parse_io, parse_schedstat
from traceml_lite.procfs.system import parse_meminfo, parse_pressure
from traceml_lite.records.host import HostFacts, PathFacts, ThreadCount, TorchFacts

# Variables that set how many threads a library starts in every process, workers included.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "ARROW_IO_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
)

# Variables by which OpenMP binds threads to CPUs when it is loaded; forked workers inherit the mask.
BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")

_T = TypeVar("_T")


def read_host_facts(
    path: Path | None = None, *, root: Path = Path("/"), environ: Mapping[str, str] | None = None
) -> HostFacts:
    """Everything `doctor` shows.

    Args:
        path: Also say which file system holds this one; it must exist.
        root: Where /proc, /sys and /dev are; another one than ``/`` is for tests.
        environ: Environment variables; None for those of this process.
    """
    environ = os.environ if environ is None else environ
    reader = _Reader()
    bandwidth = reader.get("cpu_quota", lambda: read_cpu_bandwidth(root))
    throttling = _throttling(bandwidth[1] if bandwidth else None, root)
    memory = parse_meminfo(read_text(root / "proc/meminfo") or "")
    if not memory:
        reader.unknown["memory_bytes"] = reason_unreadable(root / "proc/meminfo")
    shm = reader.get("shm_bytes", lambda: os.statvfs(root / "dev/shm"))
    limits = reader.get("open_files_soft", lambda: resource.getrlimit(resource.RLIMIT_NOFILE))
    torch = reader.load("torch")
    if torch is None:
        reader.unknown.setdefault("torch", "torch is not installed for this Python")
    return HostFacts(
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cpus_online=reader.get("cpus_online", lambda: os.sysconf("SC_NPROCESSORS_ONLN")),
        cpus_affinity=reader.get("cpus_affinity", lambda: tuple(sorted(os.sched_getaffinity(0)))),
        cpu_quota=bandwidth[0].cpus if bandwidth else None,
        cpu_quota_period_ns=bandwidth[0].period_ns if bandwidth else None,
        periods=throttling.periods if throttling else None,
        throttled_periods=throttling.throttled_periods if throttling else None,
        load_1min=reader.get("load_1min", lambda: os.getloadavg()[0]),
        memory_bytes=memory.get("MemTotal"),
        memory_available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=reader.get("memory_limit_bytes", lambda: read_memory_limit(root)),
        shm_bytes=shm.f_frsize * shm.f_blocks if shm else None,
        shm_used_bytes=shm.f_frsize * (shm.f_blocks - shm.f_bfree) if shm else None,
        open_files_soft=limits[0] if limits else None,
        open_files_hard=limits[1] if limits else None,
        open_files=reader.get("open_files", lambda: len(os.listdir(root / "proc/self/fd")) - 1),
        # The first is the platform's default; asking for the current one would fix it for this process.
        start_method=multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0],
        threads=_threads(torch, reader.load("cv2"), environ),
        binding={name: environ[name] for name in BINDING_VARIABLES if name in environ},
        torch=reader.get("torch", lambda: _torch(torch)) if torch else None,
        versions=installed_versions(),
        pressure=_pressure(root, reader.unknown),
        counters={
            "rchar": _counter(root / "proc/self/io", lambda text: parse_io(text) is not None),
            "run_queue": _counter(
                root / "proc/self/schedstat", lambda text: parse_schedstat(text) is not None
            ),
        },
        not_compiled=core.REASON,
        path=read_path_facts(path, root) if path is not None else None,
        unknown=dict(reader.unknown),
    )


def read_path_facts(path: Path, root: Path = Path("/")) -> PathFacts:
    """The file system that holds an existing path, symbolic links followed."""
    real = Path(os.path.realpath(path))
    mounts = parse_mountinfo(read_text(root / "proc/self/mountinfo") or "")
    mount = mount_of(PurePosixPath(real), mounts)
    try:
        status = os.statvfs(real)
    except OSError:
        return PathFacts(
            str(real), mount.kind if mount else None, mount.source if mount else "", False, None, None
        )
    return PathFacts(
        path=str(real),
        kind=mount.kind if mount else None,
        source=mount.source if mount else "",
        read_only=bool(status.f_flag & os.ST_RDONLY),
        size_bytes=status.f_frsize * status.f_blocks,
        free_bytes=status.f_frsize * status.f_bavail,
    )


class _Reader:
    """Reads facts one by one and keeps the reason of each that failed."""

    def __init__(self) -> None:
        self.unknown: dict[str, str] = {}

    def get(self, name: str, read: Callable[[], _T]) -> _T | None:
        """What ``read`` gives, or None with the reason kept under ``name``."""
        try:
            return read()
        except Exception as error:
            self.unknown[name] = f"{type(error).__name__}: {error}"
            return None

    def load(self, name: str) -> ModuleType | None:
        """A module if it is installed and can be imported."""
        try:
            if importlib.util.find_spec(name) is None:
                return None
            return importlib.import_module(name)
        except (Exception, SystemExit) as error:
            # A broken build of torch raises OSError for a library that is missing.
            self.unknown[name] = (
                f"{name} is installed but cannot be imported: {type(error).__name__}: {error}"
            )
            return None


def _throttling(group: Path | None, root: Path) -> CpuThrottling | None:
    groups = [group] if group else [directory for _, directory in own_cgroups("cpu", root)]
    for directory in groups:
        throttling = parse_cpu_stat(read_text(directory / "cpu.stat") or "")
        if throttling is not None:
            return throttling
    return None


def _torch(torch: ModuleType) -> TorchFacts:
    sharing = importlib.import_module("torch.multiprocessing")
    return TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        sharing_strategy=sharing.get_sharing_strategy(),
        sharing_strategies=tuple(sorted(sharing.get_all_sharing_strategies())),
    )


def _threads(
    torch: ModuleType | None, cv2: ModuleType | None, environ: Mapping[str, str]
) -> tuple[ThreadCount, ...]:
    found = []
    if torch is not None:
        intra = next((name for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name in environ), None)
        found.append(
            _followed("torch intra-op", torch.get_num_threads, intra, environ, "torch: one per core")
        )
        found.append(
            ThreadCount("torch inter-op", _count(torch.get_num_interop_threads), "torch: one per core")
        )
        found.append(_in_worker())
    if cv2 is not None:
        default = "OpenCV: one per CPU, in each worker as well"
        found.append(_followed("cv2", cv2.getNumThreads, "OPENCV_FOR_THREADS_NUM", environ, default))
    for name in THREAD_VARIABLES:
        who = _who(name, environ) if name in environ else "not set"
        found.append(ThreadCount(name, _number(environ.get(name)), who, name if name in environ else None))
    return tuple(found)


def _followed(
    name: str, ask: Callable[[], int], variable: str | None, environ: Mapping[str, str], default: str
) -> ThreadCount:
    """A library's own count, and whether it is the variable's."""
    threads = _count(ask)
    if variable is None or variable not in environ:
        return ThreadCount(name, threads, default)
    if threads == _number(environ[variable]):
        return ThreadCount(name, threads, _who(variable, environ), variable)
    return ThreadCount(name, threads, f"the library, in spite of {_who(variable, environ)}")


def _in_worker() -> ThreadCount:
    """Torch's threads in a DataLoader worker, as its own worker loop sets them."""
    try:
        source = inspect.getsource(importlib.import_module("torch.utils.data._utils.worker"))
    except (ImportError, OSError, TypeError):
        source = ""
    found = re.search(r"torch\.set_num_threads\((\d+)\)", source)
    threads = int(found[1]) if found else None
    return ThreadCount(
        "torch in a worker", threads, "torch: set at the start of each worker" if found else "not set"
    )


def _number(text: str | None) -> int | None:
    # OpenMP allows one number per nesting level.
    first = (text or "").partition(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() and len(first) < 10 else None


def _who(variable: str, environ: Mapping[str, str]) -> str:
    """Who set a variable, as far as the environment tells."""
    text = f"{variable}={environ[variable]} in the environment"
    if variable == "OMP_NUM_THREADS" and environ[variable] == "1" and "TORCHELASTIC_RUN_ID" in environ:
        return f"{text}, as torchrun sets it"
    if variable == "OMP_NUM_THREADS" and environ[variable] == environ.get("SLURM_CPUS_PER_TASK"):
        return f"{text}, equal to SLURM_CPUS_PER_TASK"
    return text


def _count(ask: Callable[[], int]) -> int | None:
    try:
        return int(ask())
    except Exception:
        return None


def _pressure(root: Path, unknown: dict[str, str]) -> dict[str, float]:
    shares = {}
    for name in ("cpu", "io", "memory"):
        place = root / "proc/pressure" / name
        pressure = parse_pressure(read_text(place) or "")
        if pressure is None:
            unknown[f"pressure_{name}"] = reason_unreadable(place)
        else:
            shares[name] = pressure.some.avg10_share
    return shares


def _counter(place: Path, is_readable: Callable[[str], bool]) -> str | None:
    text = read_text(place)
    return None if text is not None and is_readable(text) else reason_unreadable(place)
