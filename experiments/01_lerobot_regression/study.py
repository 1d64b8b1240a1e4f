"""Where the study keeps things, how long it may take, and how one command of ours is run in one arm.

A stage is a function from a `Study` to plain data. Its result stands in one file, so a study that was cut
off goes on with the stages that are missing.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import environment

# The seed's stall threshold was 5 s where a fetch took about 9.4 s. Half of a lone fetch says the same on any
# host: a wait that long can only be a fetch that had not been done in time.
STALL_SHARE_OF_FETCH = 0.5
# What its controls paced the consumer with is not known; short beside a fetch, and not nothing.
CONSUMER = "paced:20ms"


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    name: str
    height: int
    width: int
    minutes: float
    """Budget for all stages together; environments and data come before it."""
    workers: str = "4,2,1,0"
    """Numbers of workers of the broken stack, run down and up."""
    deliveries: int = 16
    """Per pass of the seed's tables, as it had them."""
    long_deliveries: int = 400
    """Per pass of the long in_order control, on 96 x 96 images; 0 leaves out every long stage."""
    long: bool = False
    """Whether the long stages were asked for beside a scale that has none."""
    matrix_deliveries: int = 8
    train_steps: int = 40
    investigate_minutes: float = 10.0
    """Of the chain, which runs on 96 x 96 images at every scale."""
    frames: int = 1000
    fetch_s: float = 2.0
    """CPU time of one slow fetch, for the expected time of a stage."""


SCALES = {
    "ci": Scale("ci", 96, 96, 6, workers="4,2,0", matrix_deliveries=6, long_deliveries=0, fetch_s=0.4),
    "quick": Scale("quick", 96, 96, 7, train_steps=60, long_deliveries=0, fetch_s=0.4),
    "default": Scale("default", 240, 320, 40),
    "seed": Scale("seed", 480, 640, 120, train_steps=12, fetch_s=7.0),
}


@dataclass
class Study:
    """One run of the study at one scale."""

    scale: Scale
    home: Path
    """Environments and data."""
    folder: Path
    """Results of the stages, and traces."""
    began: float = field(default_factory=time.monotonic)
    skipped: dict[str, str] = field(default_factory=dict)

    def began_again(self) -> None:
        """Start the budget now: environments and data are made once and are no part of it."""
        self.began = time.monotonic()

    @property
    def left_s(self) -> float:
        return self.scale.minutes * 60 - (time.monotonic() - self.began)

    def arm(self, lerobot: str = "0.4.0", datasets: str = "4.1.1") -> environment.Arm:
        return environment.arm(self.home, lerobot, datasets)

    def data(self, small: bool = False) -> Path:
        """The dataset of this scale, or the one of 96 x 96 images; made if it is not there."""
        height, width = (96, 96) if small else (self.scale.height, self.scale.width)
        root = self.home / "data" / f"{height}x{width}"
        if not root.exists():
            sizes = ["--frames", str(self.scale.frames), "--height", str(height), "--width", str(width)]
            self.call(self.arm(), ["-m", "traceml_lite.consumers.lerobot", "make", str(root), *sizes])
        return root

    def stage(self, name: str, make: Callable[[Study], dict[str, Any]], expected_s: float) -> None:
        """Run a stage unless its result stands or the budget has no room for it."""
        path = self.folder / f"{name}.json"
        if path.exists():
            print(f"{name}: stands in {path.name}")
            return
        if expected_s > self.left_s:
            self.skipped[name] = f"needs about {expected_s / 60:.0f} min, {max(0, self.left_s) / 60:.0f} left"
            print(f"{name}: skipped, {self.skipped[name]}")
            return
        print(f"{name}: about {expected_s / 60:.1f} min", flush=True)
        began = time.monotonic()
        result = make(self) | {"took_s": round(time.monotonic() - began, 1)}
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(result, indent=1))
        partial.rename(path)
        print(f"{name}: {result['took_s']:.0f} s", flush=True)

    def result(self, name: str) -> dict[str, Any] | None:
        """What a stage gave, or None when it has not run."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def without_paths(self, text: str) -> str:
        """A text for the repository: where things lay on this machine is nobody's business."""
        words = {str(root): "ROOT" for root in (self.home / "data").glob("*x*")}
        words |= {str(self.folder): "STUDY", str(self.arm().python): "python", str(self.home): "HOME"}
        words |= {str(environment.REPOSITORY) + os.sep: ""}
        for path in sorted(words, key=len, reverse=True):
            text = text.replace(path, words[path])
        return text

    def trace(self, name: str) -> Path:
        """Where a pass outside a sweep puts its trace; a former one that was cut off is moved away."""
        path = self.folder / "traces" / name
        if path.exists():
            path.rename(path.with_name(f"{path.name}.{time.time_ns()}"))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def probe(self, arm: environment.Arm, name: str, root: Path, deliveries: int, **options: Any) -> Path:
        """One pass of the loader alone; options are those of ``lerobot:ROOT``. Returns its trace."""
        done = self.folder / "traces" / f"{name}.done"
        if done.exists():
            # A stage that was cut off goes on behind the passes it had made.
            return done.with_name(name)
        trace, consumer = self.trace(name), options.pop("consumer", CONSUMER)
        arguments = [word for key, value in options.items() for word in ("-a", f"{key}={value}")]
        self.tool(arm, "probe", f"lerobot:{root}", *arguments, "-n", deliveries, "-c", consumer, "-o", trace)
        done.touch()
        return trace

    def tool(
        self,
        arm: environment.Arm,
        *words: Any,
        cwd: Path | None = None,
        log: Path | None = None,
        **environ: str,
    ) -> str:
        """Our command line in one arm; returns what it printed."""
        return self.call(arm, ["-m", "traceml_lite", *map(str, words)], cwd=cwd, log=log, **environ)

    def call(
        self,
        arm: environment.Arm,
        words: list[str],
        *,
        cwd: Path | None = None,
        log: Path | None = None,
        **environ: str,
    ) -> str:
        """Python of one arm, its stderr kept in ``log``; returns its stdout. A failure ends the study."""
        log = log or self.folder / "log.txt"
        with log.open("a") as kept:
            kept.write(f"\n$ [{arm.name}] {shlex.join(words)}\n")
            kept.flush()
            done = subprocess.run(
                [str(arm.python), "-W", "ignore", *words],
                env=arm.environ() | environ,
                cwd=cwd,
                stdout=subprocess.PIPE,
                stderr=kept,
                text=True,
                check=False,
            )
            kept.write(done.stdout)
        # A pass of a sweep that timed out is a result too, and the sweep says so.
        if done.returncode not in (0, 124):
            raise SystemExit(f"failed ({done.returncode}): {shlex.join(words)}\nSee {log}")
        return done.stdout


def host() -> dict[str, Any]:
    """The machine, as far as it bears on the figures."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": os.uname().release,
        "load": os.getloadavg()[0],
    }
