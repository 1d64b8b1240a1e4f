"""A host with nothing wrong, to change one fact of."""

from dataclasses import replace

from traceml_lite.records.host import HostFacts, PathFacts, ThreadCount, TorchFacts

GOOD = HostFacts(
    platform="Linux 6.8.0 x86_64",
    python="3.11.7",
    cpus_online=8,
    cpus_affinity=tuple(range(8)),
    cpu_quota=None,
    cpu_quota_period_ns=None,
    periods=0,
    throttled_periods=0,
    load_1min=0.5,
    memory_bytes=32 << 30,
    memory_available_bytes=20 << 30,
    memory_limit_bytes=None,
    shm_bytes=16 << 30,
    shm_used_bytes=3 << 20,
    open_files_soft=65536,
    open_files_hard=524288,
    open_files=12,
    start_method="fork",
    threads=(
        ThreadCount("torch intra-op", 8, "torch: one per core"),
        ThreadCount("torch inter-op", 8, "torch: one per core"),
        ThreadCount("torch in a worker", 1, "torch: set at the start of each worker"),
        ThreadCount("OMP_NUM_THREADS", None, "not set"),
        ThreadCount("MKL_NUM_THREADS", None, "not set"),
    ),
    binding={},
    torch=TorchFacts("2.13.0+cu130", "13.0", "file_descriptor", ("file_descriptor", "file_system")),
    versions={"torch": "2.13.0+cu130", "numpy": "2.4.6", "pillow": "12.0.0"},
    pressure={"cpu": 0.0, "io": 0.001, "memory": 0.0},
    counters={"rchar": None, "run_queue": None},
    path=PathFacts("/data/set", "ext4", "/dev/nvme0n1", False, 1 << 40, 1 << 39),
)

BAD = replace(
    GOOD,
    cpus_affinity=(0, 1, 2, 5),
    cpu_quota=1.5,
    cpu_quota_period_ns=100_000_000,
    periods=1000,
    throttled_periods=120,
    load_1min=None,
    memory_limit_bytes=4 << 30,
    shm_bytes=64 << 20,
    open_files_soft=1024,
    start_method="spawn",
    threads=(
        ThreadCount("cv2", 8, "OpenCV: one per CPU, in each worker as well"),
        ThreadCount("OMP_NUM_THREADS", 8, "OMP_NUM_THREADS=8 in the environment", "OMP_NUM_THREADS"),
        ThreadCount("MKL_NUM_THREADS", None, "not set"),
    ),
    binding={"OMP_PROC_BIND": "close"},
    torch=None,
    versions={"numpy": "2.4.6"},
    pressure={"cpu": 0.4},
    counters={"rchar": "no permission to read /proc/self/io", "run_queue": None},
    not_compiled="it was not built when traceml-lite was installed: no C compiler, or no Python headers",
    path=PathFacts("/mnt/data", "nfs4", "server:/export", True, None, None),
    unknown={
        "torch": "torch is not installed for this Python",
        "load_1min": "OSError: not here",
        "pressure_io": "/proc/pressure/io does not exist on this kernel",
        "pressure_memory": "/proc/pressure/memory does not exist on this kernel",
    },
)
