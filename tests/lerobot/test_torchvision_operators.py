"""Declaring what torchvision's extension would declare: only where it cannot, and only when it is in time."""

from __future__ import annotations

import importlib.machinery
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from traceml_lite.consumers import _torchvision
from traceml_lite.consumers._torchvision import declare_missing_operators

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[-1]


def said(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def a_torchvision(folder: Path, extension: bool) -> Path:
    """A package that decorates the operator when it is imported, as torchvision does."""
    package = folder / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import torch\n@torch.library.register_fake('torchvision::nms')\ndef nms(*_): pass\n"
    )
    if extension:
        (package / f"_C{SUFFIX}").write_bytes(b"no library")
    return folder


DECLARE = "from traceml_lite.consumers._torchvision import declare_missing_operators as declare\n"


def test_a_torchvision_whose_extension_does_not_load_becomes_importable(tmp_path: Path) -> None:
    folder = a_torchvision(tmp_path, extension=True)
    assert said(DECLARE + "print(declare(), declare())\nimport torchvision", folder) == "True False"


def test_it_could_not_be_imported_without(tmp_path: Path) -> None:
    folder = a_torchvision(tmp_path, extension=True)
    code = "try:\n    import torchvision\nexcept RuntimeError as error:\n    print(error)"
    assert "torchvision::nms does not exist" in said(code, folder)


def test_a_cuda_build_is_left_alone(tmp_path: Path) -> None:
    folder = a_torchvision(tmp_path, extension=True)
    assert said(DECLARE + "import torch\ntorch.version.cuda = '12.8'\nprint(declare())", folder) == "False"


def test_an_extension_that_loads_is_left_alone(tmp_path: Path) -> None:
    folder = a_torchvision(tmp_path, extension=True)
    code = "import torch\ntorch.ops.load_library = lambda path: None\nprint(declare())"
    assert said(DECLARE + code, folder) == "False"


def test_without_torchvision_or_after_its_import_nothing_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torchvision, "_extension", lambda: None)
    assert declare_missing_operators() is False
    monkeypatch.setitem(sys.modules, "torchvision", _torchvision)
    assert declare_missing_operators() is False


def test_unpickling_the_mark_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    packed = pickle.dumps(_torchvision.Declared())
    monkeypatch.setattr(_torchvision, "declare_missing_operators", lambda: calls.append("here"))
    assert isinstance(pickle.loads(packed), _torchvision.Declared)
    assert calls == ["here"]
