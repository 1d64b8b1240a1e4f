"""What a host is like as far as it decides loading, and what is wrong with it.

Facts of the host itself, apart from any run; what a run sees of its host is `records.run.Environment`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ThreadCount:
    """How many threads one library uses, or is told to use."""

    name: str
    """E.g. ``torch intra-op``, ``OMP_NUM_THREADS``, ``cv2``."""
    threads: int | None
    """None where nothing sets it."""
    set_by: str
    """Who set it, in words, e.g. ``OMP_NUM_THREADS=4 in the environment``, ``torch: one per CPU``."""
    variable: str | None = None
    """The environment variable that the number comes from; None when it comes from none."""


@dataclass(frozen=True, slots=True)
class PathFacts:
    """The file system that holds a path."""

    path: str
    kind: str | None
    """Type, e.g. ``ext4``, ``nfs4``, ``fuse.s3fs``; None when it could not be told."""
    source: str
    """Device or server; empty when unknown."""
    read_only: bool
    size_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """torch as it is installed here."""

    version: str
    cuda: str | None
    """CUDA version of the build, None for a CPU build."""
    sharing_strategy: str
    """How tensors pass between processes: ``file_descriptor`` or ``file_system``."""
    sharing_strategies: tuple[str, ...]
    """Those that can be chosen here."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Everything `doctor` shows. A field that is None is unknown or does not apply; ``unknown`` says why."""

    platform: str
    python: str
    cpus_online: int | None
    cpus_affinity: tuple[int, ...] | None
    """CPUs this process may run on, by number."""
    cpu_quota: float | None
    """CPUs that the tightest cgroup quota allows; None without one."""
    cpu_quota_period_ns: int | None
    periods: int | None
    """Quota periods in which the group ran since it was made."""
    throttled_periods: int | None
    """Those in which the quota stopped it."""
    load_1min: float | None
    """Tasks running or waiting for a CPU or a device, mean of the last minute, the whole machine."""
    memory_bytes: int | None
    memory_available_bytes: int | None
    memory_limit_bytes: int | None
    """The tightest cgroup limit; None without one."""
    shm_bytes: int | None
    shm_used_bytes: int | None
    open_files_soft: int | None
    open_files_hard: int | None
    open_files: int | None
    """Descriptors open in this process."""
    start_method: str
    """How worker processes start unless the loader says otherwise."""
    threads: tuple[ThreadCount, ...]
    binding: Mapping[str, str]
    """Environment variables by which OpenMP binds threads to CPUs, as far as they are set."""
    torch: TorchFacts | None
    versions: Mapping[str, str]
    """Installed packages that bear on loading."""
    pressure: Mapping[str, float]
    """Share of the last 10 s in which some task waited, by resource (``cpu``, ``io``, ``memory``)."""
    counters: Mapping[str, str | None]
    """Counters the probe would read, by name, to None when it may or to the reason why not."""
    not_compiled: str | None = None
    """Why the core of the probe runs in Python; None where the compiled one does."""
    path: PathFacts | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Field name to the reason, for what could not be read."""

    @property
    def cpus_usable(self) -> float | None:
        """CPUs the process may really use: the least of online, affinity and quota; None if none is known."""
        affinity = len(self.cpus_affinity) if self.cpus_affinity else None
        known = [float(c) for c in (self.cpus_online, affinity, self.cpu_quota) if c]
        return min(known) if known else None


@dataclass(frozen=True, slots=True)
class HostProblem:
    """One thing that is wrong with a host, and what to do."""

    key: str
    severity: str
    """``"warning"``: it can slow or stop loading here; ``"note"``: worth knowing."""
    statement: str
    """What it is, with the numbers."""
    advice: str
    """What to do, as a command where there is one."""
    numbers: Mapping[str, float] = field(default_factory=dict)
