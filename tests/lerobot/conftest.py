"""What the tests of the real LeRobot share: a small dataset, and an environment left as it was."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lerobot_batches import FRAMES, HEIGHT, WIDTH


def lerobot_is_installed() -> bool:
    try:
        importlib.metadata.version("lerobot")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if lerobot_is_installed():
        return
    reason = "lerobot is not installed; experiments/01_lerobot_regression/environment.py sets it up"
    for item in items:
        if item.get_closest_marker("lerobot"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _the_environment_is_put_back() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of one short episode, made as a user makes it."""
    from traceml_lite.consumers.lerobot import make

    before = dict(os.environ)
    folder = tmp_path_factory.mktemp("lerobot") / "small"
    make(folder, frames=FRAMES, height=HEIGHT, width=WIDTH)
    os.environ.clear()
    os.environ.update(before)
    return folder
