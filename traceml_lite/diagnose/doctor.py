"""Rules of `doctor`: facts of a host in, what is wrong with it out.

Pure, and about the host alone: whether one of these *is* the cause of a wait only a run can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from traceml_lite.diagnose.words import counted, data_size, digits, listed, percent
from traceml_lite.records.host import HostFacts, HostProblem

# torch needs the features the hooks were verified on; the probe falls back to outside timing below it.
OLDEST_TORCH = (2, 4)
# Docker gives 64 MiB; a batch of 8 camera images of 480 x 640 in float32 is 28 MiB, and W x F of them are
# in flight, so 1 GiB is about 36 such batches.
SMALL_SHM_BYTES = 1 << 30
FULL_SHARE = 0.8
# With file descriptors as sharing strategy each tensor in flight holds one in the consumer. 16 workers, 2
# batches each, 32 tensors a batch are 1024, the usual soft limit.
LOW_OPEN_FILES = 4096
VERY_LOW_OPEN_FILES = 1024
# A quota that stops the group in more than one period in twenty is felt as freezes.
THROTTLED_SHARE = 0.05
# Fewer periods are the start of the process itself.
MIN_PERIODS = 100
# Tasks per usable CPU; above it, whatever is measured now also measures the neighbours.
BUSY_LOAD = 1.5
BUSY_PRESSURE = 0.2
LOW_MEMORY_SHARE = 0.1

_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "afs"),
    *("9p", "virtiofs", "vboxsf", "prl_fs", "drvfs", "fuse", "wekafs", "pvfs2", "orangefs"),
)
_IN_MEMORY = ("tmpfs", "ramfs")


def find_problems(facts: HostFacts) -> tuple[HostProblem, ...]:
    """What is wrong with a host, warnings first; empty when nothing is."""
    found = [problem for rule in _RULES for problem in rule(facts)]
    return tuple(sorted(found, key=lambda problem: problem.severity != "warning"))


def _cpus(facts: HostFacts) -> Iterator[HostProblem]:
    online, mask, quota = facts.cpus_online, facts.cpus_affinity, facts.cpu_quota
    allowed = len(mask) if mask else online
    if online and mask and len(mask) < online:
        narrow = len(mask) == 1
        yield HostProblem(
            "affinity",
            "warning" if narrow else "note",
            f"this process may run on {counted(len(mask), 'CPU')} of {online} ({cpu_ranges(mask)}), and its "
            "workers inherit that",
            "widen the mask where the job is started: taskset, numactl, srun --cpus-per-task, the "
            "container's cpuset; or os.sched_setaffinity in worker_init_fn",
            {"affinity_cpus": float(len(mask)), "online_cpus": float(online)},
        )
    if quota and allowed and quota < allowed:
        yield HostProblem(
            "quota",
            "warning",
            f"a cgroup quota allows {digits(quota)} CPUs' worth of time of the {allowed} that are seen; "
            "os.cpu_count() and thread defaults do not know it",
            f"raise the container's CPU limit, or use at most {counted(max(1, int(quota)), 'worker')} and "
            f"OMP_NUM_THREADS={max(1, int(quota))}",
            {"quota_cpus": quota, "seen_cpus": float(allowed)},
        )
    if facts.periods and facts.periods >= MIN_PERIODS and facts.throttled_periods is not None:
        share = facts.throttled_periods / facts.periods
        if share > THROTTLED_SHARE:
            yield HostProblem(
                "throttled",
                "warning",
                f"the quota has stopped this group in {percent(share)} of its {facts.periods} periods",
                "fewer workers and threads, or a larger limit; watch nr_throttled in the group's cpu.stat",
                {"throttled_share": share, "periods": float(facts.periods)},
            )
    if facts.cpus_usable is not None and facts.cpus_usable < 2:
        yield HostProblem(
            "one_cpu",
            "warning",
            f"{counted(facts.cpus_usable, 'CPU')} for everything: workers take it from the training step",
            "give the job at least 2 CPUs, or make fetches cheaper; more workers cannot help CPU work",
            {"usable_cpus": facts.cpus_usable},
        )


def _shared_memory(facts: HostFacts) -> Iterator[HostProblem]:
    size, used = facts.shm_bytes, facts.shm_used_bytes
    if size is None:
        yield HostProblem(
            "shm_missing",
            "warning",
            f"/dev/shm cannot be read ({facts.unknown.get('shm_bytes', 'no reason known')}); workers hand "
            "batches over through it",
            "mount a tmpfs at /dev/shm",
        )
        return
    if size < SMALL_SHM_BYTES:
        yield HostProblem(
            "shm_small",
            "warning",
            f"/dev/shm holds {data_size(size)}; batches in flight that do not fit end a worker with a "
            "bus error",
            "docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir of medium Memory there",
            {"shm_bytes": float(size)},
        )
    if used is not None and size and used / size > FULL_SHARE:
        yield HostProblem(
            "shm_full",
            "warning",
            f"/dev/shm is {percent(used / size)} full ({data_size(used)} of {data_size(size)})",
            "look at what is left there: ls -l /dev/shm; torch_* files belong to processes that were killed",
            {"shm_used_share": used / size},
        )


def _open_files(facts: HostFacts) -> Iterator[HostProblem]:
    soft, hard, now = facts.open_files_soft, facts.open_files_hard, facts.open_files
    if facts.torch is not None and facts.torch.sharing_strategy != "file_descriptor":
        return
    raised = "ulimit -n 65536" if hard is None or hard < 0 or hard >= 65536 else f"ulimit -n {hard}"
    if soft is not None and 0 <= soft < LOW_OPEN_FILES:
        yield HostProblem(
            "open_files",
            "warning" if soft < VERY_LOW_OPEN_FILES else "note",
            f"at most {soft} open files, and each tensor on its way from a worker takes one",
            f"{raised} before the job, or torch.multiprocessing.set_sharing_strategy('file_system')",
            {"open_files_soft": float(soft)},
        )
    if soft and soft > 0 and now is not None and now / soft > FULL_SHARE:
        yield HostProblem(
            "open_files_used",
            "warning",
            f"{now} of {soft} descriptors are open already",
            raised,
            {"open_files": float(now)},
        )


def _threads(facts: HostFacts) -> Iterator[HostProblem]:
    usable = facts.cpus_usable
    by_name = {count.name: count for count in facts.threads}
    omp = by_name.get("OMP_NUM_THREADS")
    if usable is not None:
        above = [c for c in facts.threads if c.threads is not None and c.threads > math.ceil(usable)]
        for count in above:
            # A variable that torch follows has a line of its own; cv2 has one below; torch's pool between
            # operators is idle unless TorchScript forks.
            if count.name in ("cv2", "torch inter-op") or (count.name == "torch intra-op" and count.variable):
                continue
            yield HostProblem(
                "threads_above_cpus",
                "warning",
                f"{count.name} is {count.threads} ({count.set_by}); the process may use "
                f"{counted(usable, 'CPU')}",
                f"set it to {max(1, int(usable))} at most, before Python starts",
                {"threads": float(count.threads or 0), "usable_cpus": usable},
            )
    if omp is not None and omp.threads == 1 and usable is not None and usable >= 2:
        yield HostProblem(
            "one_thread",
            "note",
            f"OMP_NUM_THREADS is 1 ({omp.set_by}): CPU work of the training step uses one CPU",
            f"right if the step is on an accelerator; else OMP_NUM_THREADS={int(usable)}",
        )
    bound = {
        name: text
        for name, text in facts.binding.items()
        if text.lower() not in ("false", "disabled", "none")
    }
    if bound:
        yield HostProblem(
            "binding",
            "warning",
            f"{listed([f'{name}={text}' for name, text in bound.items()])} may bind the main thread to "
            "one CPU when torch is imported, and forked workers inherit that mask",
            "unset it, or widen the mask in worker_init_fn; the mask shown here is from after the import",
        )
    cv2 = by_name.get("cv2")
    if cv2 is not None and (cv2.threads or 0) > 1:
        yield HostProblem(
            "cv2_threads",
            "warning",
            f"cv2 uses {cv2.threads} threads in every worker ({cv2.set_by})",
            "cv2.setNumThreads(0) in worker_init_fn",
            {"threads": float(cv2.threads or 0)},
        )


def _starting(facts: HostFacts) -> Iterator[HostProblem]:
    if facts.start_method != "fork":
        yield HostProblem(
            "start_method",
            "note",
            f"workers start by {facts.start_method}: each imports torch and unpickles the dataset anew",
            "persistent_workers=True, and a dataset object that is small to pickle",
        )


def _software(facts: HostFacts) -> Iterator[HostProblem]:
    if facts.torch is None:
        yield HostProblem(
            "torch",
            "warning",
            facts.unknown.get("torch", "torch was not found"),
            "run doctor with the Python of the training job",
        )
        return
    version = _release(facts.torch.version)
    if version is not None and version < OLDEST_TORCH:
        yield HostProblem(
            "torch_old",
            "warning",
            f"torch {facts.torch.version} is older than the probe's hooks were verified on "
            f"({'.'.join(map(str, OLDEST_TORCH))})",
            "upgrade torch; with this one only waits are measured, not fetches",
        )
    if facts.torch.sharing_strategy == "file_system":
        yield HostProblem(
            "file_system_sharing",
            "note",
            "tensors pass between processes as named files in /dev/shm, which a killed job leaves behind",
            "file_descriptor, if the limit of open files allows it",
        )


def _measuring(facts: HostFacts) -> Iterator[HostProblem]:
    gone = [name for name in ("cpu", "io", "memory") if f"pressure_{name}" in facts.unknown]
    if gone:
        yield HostProblem(
            "pressure",
            "note",
            f"no pressure of {listed(gone)} ({facts.unknown[f'pressure_{gone[0]}']}): neighbours are "
            "harder to see",
            "boot with psi=1, or accept that a report says 'not measured'",
        )
    for name, reason in facts.counters.items():
        if reason is not None:
            yield HostProblem(
                f"counter_{name}",
                "note",
                f"the probe cannot read {name}: {reason}",
                "none needed: what it would have shown is reported as not measured",
            )
    if facts.not_compiled is not None:
        yield HostProblem(
            "probe_core",
            "note",
            f"the probe runs in Python and costs some three times as much a batch: {facts.not_compiled}",
            "none needed for batches of more than 1 ms; else install a C compiler and Python's headers "
            "(build-essential, python3-dev) and traceml-lite again",
        )


def _noise(facts: HostFacts) -> Iterator[HostProblem]:
    usable, load = facts.cpus_online, facts.load_1min
    if usable and load is not None and load / usable > BUSY_LOAD:
        yield HostProblem(
            "busy",
            "warning",
            f"the machine is busy: {digits(load)} tasks want its {counted(usable, 'CPU')} (mean of "
            "one minute)",
            "measure when it is idle, or compare arms interleaved (traceml-lite sweep does)",
            {"load_1min": load},
        )
    elif facts.pressure.get("cpu", 0.0) > BUSY_PRESSURE:
        yield HostProblem(
            "busy",
            "warning",
            f"in {percent(facts.pressure['cpu'])} of the last 10 s some task waited for a CPU",
            "measure when it is idle, or compare arms interleaved (traceml-lite sweep does)",
            {"pressure_cpu_share": facts.pressure["cpu"]},
        )
    for name, what, advice in (
        ("io", "I/O", "find out who reads: iotop, pidstat -d 1"),
        ("memory", "memory", "fewer workers, smaller caches"),
    ):
        share = facts.pressure.get(name, 0.0)
        if share > BUSY_PRESSURE:
            yield HostProblem(
                f"pressure_{name}",
                "warning",
                f"in {percent(share)} of the last 10 s some task waited for {what}",
                advice,
                {f"pressure_{name}_share": share},
            )


def _memory(facts: HostFacts) -> Iterator[HostProblem]:
    total, free = facts.memory_bytes, facts.memory_available_bytes
    if total and free is not None and free / total < LOW_MEMORY_SHARE:
        yield HostProblem(
            "memory_low",
            "warning",
            f"{data_size(free)} of {data_size(total)} of memory are available; what was read is soon "
            "dropped again",
            "fewer workers or prefetched batches; look for a dataset that is copied into each worker",
            {"available_share": free / total},
        )
    if total and facts.memory_limit_bytes is not None and facts.memory_limit_bytes < total:
        yield HostProblem(
            "memory_limit",
            "note",
            f"a cgroup allows {data_size(facts.memory_limit_bytes)} of the {data_size(total)} that are "
            "seen; the page cache of the data counts as well",
            "size caches by the limit; free shows the machine's memory",
            {"memory_limit_bytes": float(facts.memory_limit_bytes)},
        )


def _path(facts: HostFacts) -> Iterator[HostProblem]:
    path = facts.path
    if path is None:
        return
    if path.kind is None:
        yield HostProblem(
            "path", "note", f"the file system of {path.path} could not be told", "mount | grep ..."
        )
    elif path.kind in _NETWORK or path.kind.startswith("fuse."):
        yield HostProblem(
            "path_remote",
            "warning",
            f"{path.path} lies on {path.kind} ({path.source}): each read that misses the cache is a request "
            "to another process or machine",
            "copy a shard to a local disk and compare; fewer and larger files",
        )
    elif path.kind in _IN_MEMORY:
        yield HostProblem(
            "path_in_memory",
            "note",
            f"{path.path} lies in memory ({path.kind}): reads never touch a disk, and the files take memory",
            "nothing, if that is meant; a disk cannot be the cause of slow reads here",
        )
    elif path.kind in ("overlay", "aufs"):
        yield HostProblem(
            "path_layer",
            "note",
            f"{path.path} lies in a container's layer ({path.kind})",
            "keep data on a mounted volume",
        )


def cpu_ranges(cpus: tuple[int, ...]) -> str:
    """CPUs as the kernel writes them, e.g. ``0-3,8``."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], cpu]
        else:
            parts.append([cpu])
    return ",".join("-".join(map(str, part)) for part in parts)


def _release(version: str) -> tuple[int, int] | None:
    words = version.split(".")
    try:
        return int(words[0]), int(words[1])
    except (IndexError, ValueError):
        return None


_RULES: tuple[Callable[[HostFacts], Iterator[HostProblem]], ...] = (
    _cpus,
    _shared_memory,
    _open_files,
    _threads,
    _memory,
    _path,
    _noise,
    _starting,
    _software,
    _measuring,
)
