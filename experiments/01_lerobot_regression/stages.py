"""The passes of the study, stage by stage. Each returns plain data; what it means is in ``tables``."""

from __future__ import annotations

import importlib.metadata
import json
import re
import time
from pathlib import Path
from typing import Any

import environment
from measure import measure
from study import CONSUMER, STALL_SHARE_OF_FETCH, Study, host

# Time from the start of a pass's process to its first ask, mostly imports, on an idle machine.
START_S = 6.0
# The row-first access of 0.4.0 and the column-first one of 0.4.1 cost, by image size, 19 to 75 times apart.
FIXED = "0.4.1"
MATRIX = tuple(
    (lerobot, datasets) for lerobot in ("0.4.0", "0.4.1", "0.4.4") for datasets in ("4.1.1", "4.8.5")
)
TRAIN_SCRIPT = Path(__file__).with_name("train.py")
# A small ACT: on a CPU the default one would hide any loader behind seconds of computing.
TRAIN_FLAGS = [
    *("--policy.type=act", "--policy.device=cpu", "--policy.push_to_hub=false"),
    *("--policy.pretrained_backbone_weights=null", "--policy.dim_model=64", "--policy.n_heads=4"),
    *("--policy.dim_feedforward=128", "--policy.n_encoder_layers=1", "--policy.n_decoder_layers=1"),
    *("--policy.n_vae_encoder_layers=1", "--policy.latent_dim=8", "--dataset.repo_id=local/study"),
    *("--batch_size=8", "--num_workers=4", "--log_freq=1", "--save_checkpoint=false"),
    *("--wandb.enable=false", "--eval_freq=0"),
]


def describe(study: Study) -> dict[str, Any]:
    """Host, versions and date of the run."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy", "pyarrow", "pillow")}
    return {"host": host(), "versions": versions, "date": time.strftime("%Y-%m-%d")}


def alone(study: Study) -> dict[str, Any]:
    """Broken and fixed without workers: what a batch costs, and from it the threshold of a stall."""
    passes = {}
    for name, lerobot in (("broken", "0.4.0"), ("fixed", FIXED)):
        trace = study.probe(
            study.arm(lerobot), f"alone-{name}", study.data(), study.scale.matrix_deliveries, num_workers=0
        )
        passes[name] = measure(trace)
    stall_s = STALL_SHARE_OF_FETCH * passes["broken"]["median_cpu_s"]
    return {"passes": passes, "stall_s": stall_s}


def workers(study: Study) -> dict[str, Any]:
    """The seed's first control: workers down and up again on the broken stack, 4 on the fixed one."""
    found = {}
    for name, lerobot, values in (("broken", "0.4.0", study.scale.workers), ("fixed", FIXED, "4")):
        found[name] = _sweep(
            study,
            study.arm(lerobot),
            f"workers-{name}",
            ["-s", f"num_workers={values}", "-n", study.scale.deliveries, "--warmup", 0],
        )
    return found


def in_order(study: Study) -> dict[str, Any]:
    """The seed's second control: in_order true, false, false, true, as long as it ran it."""
    asked = ["-s", "in_order=true,false", "-n", study.scale.deliveries, "--warmup", 0]
    return _sweep(study, study.arm(), "in-order", asked)


def in_order_long(study: Study) -> dict[str, Any]:
    """The same at a length that can decide, on small images."""
    length = study.scale.long_deliveries
    asked = ["-a", f"batches={length + 64}", "-s", "in_order=true,false", "-n", length, "--one-direction"]
    return _sweep(study, study.arm(), "in-order-long", asked, small=True)


def controls(study: Study) -> dict[str, Any]:
    """What the seed had no way to ask: is it a matter of phase, and what is the most there is to win."""
    asked = ["-a", "batches=600", "-s", "num_workers=4", "--control", "stagger", "--control", "ceiling"]
    return _sweep(study, study.arm(), "controls", [*asked, "-n", 64], small=True)


def pacing(study: Study) -> dict[str, Any]:
    """The tail with a consumer that does nothing; the paced one stands in ``workers``."""
    name = "pacing-none"
    trace = study.probe(study.arm(), name, study.data(), study.scale.deliveries, consumer="none")
    return {"none": measure(trace, _stall_s(study))}


def matrix(study: Study) -> dict[str, Any]:
    """One short pass of every pair of versions without workers, and of the cure where it is slow."""
    cells: dict[str, Any] = {}
    traces: dict[str, Path] = {}
    for lerobot, datasets in MATRIX:
        arm = study.arm(lerobot, datasets)
        traces[arm.slug] = _cell(study, arm, arm.slug)
        cells[arm.slug] = measure(traces[arm.slug])
    for lerobot, datasets in (("0.4.0", "4.1.1"), ("0.4.4", "4.8.5")):
        arm = study.arm(lerobot, datasets)
        slug = f"{arm.slug}-select_columns"
        traces[slug] = _cell(study, arm, slug, access="select_columns")
        cells[slug] = measure(traces[slug])
    compared = {}
    for name, a, b in (
        ("lerobot 0.4.0 to 0.4.1", ("0.4.0", "4.1.1"), ("0.4.1", "4.1.1")),
        ("datasets 4.1.1 to 4.8.5 under lerobot 0.4.4", ("0.4.4", "4.1.1"), ("0.4.4", "4.8.5")),
    ):
        one, other = (traces[study.arm(*versions).slug] for versions in (a, b))
        compared[name] = study.tool(study.arm(), "compare", "--allow-different", one, other)
    return {"cells": cells, "compared": compared}


def current(study: Study) -> dict[str, Any]:
    """Today's LeRobot, where a Python for it is found; as it installs and with the cure."""
    said: list[str] = []
    arm = environment.prepare_current(study.home, log=said.append)
    if arm is None:
        return {"skipped": said[-1]}
    cells = {
        access: measure(_cell(study, arm, f"{arm.slug}-{access}", access=access))
        for access in ("as_installed", "select_columns")
    }
    return {"name": arm.name, "cells": cells}


def train(study: Study) -> dict[str, Any]:
    """Real lerobot-train, unchanged, under ``traceml-lite run``, on the broken stack and on the fixed one."""
    found = {}
    for name, lerobot in (("broken", "0.4.0"), ("fixed", FIXED)):
        arm, trace, log = study.arm(lerobot), study.trace(f"train-{name}"), study.folder / f"train-{name}.log"
        words = ["-o", trace, TRAIN_SCRIPT, *_train_flags(study), f"--steps={study.scale.train_steps}"]
        study.tool(arm, "run", *words, cwd=_scratch(study), log=log, **_train_environ(study))
        said = log.read_text()
        found[name] = measure(trace) | {
            "own_words": {key: values_in_log(said, key) for key in ("updt_s", "data_s", "loss")},
            "text": study.tool(study.arm(), "show", trace),
        }
    return found


def train_control(study: Study) -> dict[str, Any]:
    """What settles whether the workers take the step's CPU: the step alone, on the broken stack."""
    folder = study.folder / "sweeps" / "train-control"
    asked = ["-n", 12, "--warmup", 8, "--control", "ceiling", "--one-direction", "--out", folder]
    words = [*asked, TRAIN_SCRIPT, "--", *_train_flags(study), "--steps=100"]
    text = study.tool(study.arm(), "sweep", *words, cwd=_scratch(study), **_train_environ(study))
    return {"text": text, **_read_sweep(folder, None)}


def investigate(study: Study) -> dict[str, Any]:
    """The whole chain by itself; its text is what one would have pasted into the ticket.

    On the small images: its in_order control takes 400 deliveries a pass, an hour with large ones.
    """
    folder = study.folder / "investigate"
    text = study.tool(
        study.arm(),
        "investigate",
        f"lerobot:{study.data(small=True)}",
        *("--budget", f"{study.scale.investigate_minutes:g}m", "--consumer", CONSUMER, "--out", folder),
    )
    return {"text": text, **json.loads((folder / "investigation.json").read_text())}


def _cell(study: Study, arm: environment.Arm, slug: str, **options: Any) -> Path:
    return study.probe(
        arm,
        f"cell-{slug}",
        study.data(),
        study.scale.matrix_deliveries,
        num_workers=0,
        consumer="none",
        **options,
    )


def _stall_s(study: Study) -> float | None:
    found = study.result("alone")
    return found["stall_s"] if found else None


def _sweep(
    study: Study, arm: environment.Arm, name: str, asked: list[Any], small: bool = False
) -> dict[str, Any]:
    folder, root = study.folder / "sweeps" / name, study.data(small)
    text = study.tool(arm, "sweep", f"lerobot:{root}", *asked, "-c", CONSUMER, "--out", folder)
    # Images of another size take another time, so the threshold of this scale does not fit them.
    return {"text": text, **_read_sweep(folder, None if small else _stall_s(study))}


def _read_sweep(folder: Path, stall_s: float | None) -> dict[str, Any]:
    """The sweep's own conclusions, and the numbers of each of its passes."""
    result = json.loads((folder / "sweep.json").read_text())["result"]
    passes = [
        {"condition": one["condition"], "number": one["number"], "direction": one["direction"]}
        | measure(folder / one["trace"], stall_s)
        for one in result["passes"]
        if one["status"] == "done" and one["trace"] and one["number"] > 0
    ]
    kept = ("laws", "comparisons", "controls", "complete", "why_incomplete", "refused", "notes", "command")
    return {"passes": passes} | {key: result[key] for key in kept}


def _train_flags(study: Study) -> list[str]:
    return [*TRAIN_FLAGS, f"--dataset.root={study.data()}"]


def _train_environ(study: Study) -> dict[str, str]:
    # lerobot-train runs as a user's would, so it is told here what the target lerobot:ROOT sets by itself.
    return {"HF_HUB_OFFLINE": "1", "HF_HOME": str(study.home / "data" / ".hf-train")}


def _scratch(study: Study) -> Path:
    """A folder for what lerobot-train writes; it refuses to write twice into one."""
    folder = study.folder / "train-output" / str(time.time_ns())
    folder.mkdir(parents=True)
    return folder


def values_in_log(text: str, name: str) -> list[float]:
    """Values that lerobot-train logged under a name, e.g. ``updt_s`` or ``data_s``."""
    return [float(value) for value in re.findall(rf"\b{name}:(\d+\.\d+)", text)]
