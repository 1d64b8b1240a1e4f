"""Makes a LeRobotDataset offline, shaped like ALOHA-sim: images in parquet, a state and an action of 14.

The frames are drawn, not recorded: a smooth scene, a moving arm and sensor noise, so that a PNG of them
costs about what a PNG of a camera costs to decode. Nothing can be learned from them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceml_lite._errors import TargetError, UsageError

IMAGE_KEY = "observation.images.top"
# Joints of the two arms of ALOHA, grippers included.
JOINTS = 14
# ALOHA-sim's rate and the length of its episodes.
FPS = 50
EPISODE_FRAMES = 500
# Noise of a camera in bright light, in grey levels: without it a PNG is 10 times smaller and faster.
NOISE_LEVELS = 3


def make_dataset(
    root: Path, *, frames: int = 1000, height: int = 240, width: int = 320, fps: int = FPS, seed: int = 0
) -> Path:
    """Write a dataset to ``root``; the folder appears complete or not at all.

    Args:
        root: Folder to make; it must not exist.
        frames: Frames in all, in episodes of at most 500.
        height: Height of an image, pixels.
        width: Width of an image, pixels.
        fps: Frames per second, which ACT's action chunk is derived from.
        seed: Seed of the drawing; the same arguments give the same frames.

    Returns:
        ``root``.

    Raises:
        TargetError: ``root`` exists.
        UsageError: A size that is not positive, or an image too small to draw on.
    """
    if min(frames, fps) < 1 or min(height, width) < 16:
        raise UsageError(
            f"expected at least 1 frame, 1 frame per second and 16 x 16 pixels, "
            f"got {frames} frames, {fps} per second, {height} x {width}"
        )
    if root.exists():
        raise TargetError(f"{root}: exists already. Give another folder, or remove this one first.")
    # Imported here: it needs the environment that the caller has prepared.
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    partial = root.with_name(root.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    joints = [f"joint_{i}" for i in range(JOINTS)]
    dataset = LeRobotDataset.create(
        repo_id=f"local/{root.resolve().name}",
        fps=fps,
        root=partial,
        use_videos=False,
        features={
            IMAGE_KEY: {
                "dtype": "image",
                "shape": (height, width, 3),
                "names": ["height", "width", "channels"],
            },
            "observation.state": {"dtype": "float32", "shape": (JOINTS,), "names": joints},
            "action": {"dtype": "float32", "shape": (JOINTS,), "names": joints},
        },
    )
    random = np.random.default_rng(seed)
    scene = _scene(height, width, random)
    try:
        for frame in range(frames):
            state = np.sin(np.arange(JOINTS) + frame / fps).astype(np.float32)
            dataset.add_frame(
                {
                    IMAGE_KEY: _image(scene, state, random),
                    "observation.state": state,
                    "action": np.roll(state, 1) + np.float32(frame / 1e4),
                    "task": "insert the peg",
                }
            )
            if (frame + 1) % EPISODE_FRAMES == 0 or frame + 1 == frames:
                dataset.save_episode()
        dataset.finalize()
        # LeRobot leaves the folder it staged single images in.
        shutil.rmtree(partial / "images", ignore_errors=True)
        partial.rename(root)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return root


def _scene(height: int, width: int, random: np.random.Generator) -> NDArray[np.int16]:
    rows = np.linspace(0, 1, height)[:, None, None]
    columns = np.linspace(0, 1, width)[None, :, None]
    colours = random.uniform(60, 190, (2, 3))
    scene = colours[0] * rows + colours[1] * (1 - rows) + 30 * np.sin(6 * columns + np.arange(3))
    pixels: NDArray[np.int16] = np.clip(scene, 0, 255).astype(np.int16)
    return pixels


def _image(
    scene: NDArray[np.int16], state: NDArray[np.float32], random: np.random.Generator
) -> NDArray[np.uint8]:
    height, width, _ = scene.shape
    image = scene + random.integers(-NOISE_LEVELS, NOISE_LEVELS + 1, scene.shape, dtype=np.int16)
    for arm in (0, 1):
        top = int((state[7 * arm] + 1) / 2 * (height - height // 8))
        left = int((state[7 * arm + 1] + 1) / 2 * (width - width // 8))
        image[top : top + height // 8, left : left + width // 8] = 220 - 120 * arm
    return image.clip(0, 255).astype(np.uint8)
