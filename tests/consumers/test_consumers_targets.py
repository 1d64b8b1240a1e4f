"""A word of the command line as a loader, and what is said when it is none."""

import importlib
import os
import random
import subprocess
import sys
import traceback

import numpy as np
import pytest
import torch

from traceml_lite._errors import TargetError, UsageError
from traceml_lite.consumers.targets import load_file, resolve

FACTORIES = '''
import torch
from torch.utils.data import DataLoader

class Numbers:
    def __init__(self, size=8):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        return torch.tensor([index])

def make(size: int = 8, num_workers: int = 0, start_method: str | None = None):
    return DataLoader(Numbers(size), batch_size=2, num_workers=num_workers,
                      multiprocessing_context=start_method)

def breaks():
    return 1 / 0

def number():
    return 7

def several():
    return [make(), make()]

class Data:
    """As a Lightning data module: the dataset is made in setup."""
    def prepare_data(self):
        self.prepared = True
    def setup(self, stage):
        assert self.prepared and stage == "fit"
        self.data = Numbers(4)
    def train_dataloader(self):
        return DataLoader(self.data, batch_size=2)

class Holder:
    nested = staticmethod(make)

LOADER = make()
MODULE = Data()
NUMBER = 7
'''


@pytest.fixture
def clean(monkeypatch):
    """Modules and search path as they were."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if name.startswith("my_"):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def factories(tmp_path, clean):
    path = tmp_path / "my_factories.py"
    path.write_text(FACTORIES)
    return path


def get(target, seed=0, **arguments):
    return resolve(str(target), arguments=arguments, seed=seed)


def values(loader):
    return [batch.flatten().tolist() for batch in loader]


@pytest.mark.parametrize("name", ["make", "LOADER", "Holder.nested"])
def test_a_factory_or_a_loader_in_a_file_is_a_target(factories, name):
    target = get(f"{factories}:{name}")
    assert values(target.loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert target.kind == "file"


@pytest.mark.parametrize("name", ["Data", "MODULE"])
def test_a_data_module_is_prepared_as_a_trainer_does_it(factories, name):
    assert values(get(f"{factories}:{name}").loader) == [[0, 1], [2, 3]]


def test_arguments_reach_the_factory_in_its_own_types(factories):
    assert values(get(f"{factories}:make", size="2").loader) == [[0, 1]]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_can_import_what_a_file_defines(factories, start_method):
    target = get(f"{factories}:make", num_workers="1", start_method=start_method, size="2")
    assert values(target.loader) == [[0, 1]]


def test_a_module_in_the_current_directory_is_a_target(factories, monkeypatch):
    monkeypatch.chdir(factories.parent)
    target = get("my_factories:make")
    assert (target.kind, len(target.loader)) == ("module", 4)


def test_the_random_state_is_set_before_the_factory_runs(tmp_path, clean):
    (tmp_path / "my_random.py").write_text(
        "import random, numpy as np, torch\n"
        "def make():\n    return iter([random.random(), np.random.rand(), torch.rand(1).item()])\n"
    )
    first, second, other = (
        list(get(f"{tmp_path}/my_random.py:make", seed=seed).loader) for seed in (3, 3, 2**40)
    )
    assert first == second
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_a_file_that_does_not_exist_shows_its_neighbours(factories):
    with pytest.raises(TargetError, match=r"no such file; in that folder there is my_factories\.py"):
        get(factories.parent / "my_factory.py:make")


def test_a_name_that_does_not_exist_shows_the_likeliest_first(factories):
    with pytest.raises(TargetError, match=r"has no 'mak'; candidates are make, .*Data.*LOADER"):
        get(f"{factories}:mak")


def test_a_file_without_a_factory_named_shows_candidates_and_the_other_command(factories):
    with pytest.raises(UsageError, match=r"which factory\?.*candidates are .*make.*traceml-lite run"):
        get(factories)


def test_a_script_is_not_run_to_say_that_it_names_no_factory(tmp_path, clean):
    script = tmp_path / "my_script.py"
    script.write_text("def build(): ...\ndef _hidden(): ...\nraise SystemExit('training')\n")
    with pytest.raises(UsageError, match=r"candidates are build\. To run"):
        get(script)
    script.write_text("def f(:")
    with pytest.raises(UsageError, match="nothing in it can be called"):
        get(script)


def test_a_factory_that_raises_keeps_the_users_traceback(factories):
    with pytest.raises(TargetError, match=r"breaks raised ZeroDivisionError") as caught:
        get(f"{factories}:breaks")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert frames[-1].filename == str(factories)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "gave a value of type int, which cannot be iterated"),
        ("several", "gave a list of 2; expected one DataLoader"),
        ("NUMBER", "expected a factory or a DataLoader"),
    ],
)
def test_what_is_no_loader_is_named(factories, name, message):
    with pytest.raises(TargetError, match=message):
        get(f"{factories}:{name}")


def test_a_loader_that_is_no_function_takes_no_arguments(factories):
    with pytest.raises(UsageError, match="takes no -a size"):
        get(f"{factories}:LOADER", size="3")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise SystemExit(2)", "SystemExit: 2"),
        ("import no_such_package_at_all", "ModuleNotFoundError"),
        ("from .sibling import x", r"use package\.my_broken:factory"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_imported_says_why_and_is_not_half_loaded(tmp_path, clean, body, message):
    (tmp_path / "my_broken.py").write_text(body)
    with pytest.raises(TargetError, match=message):
        get(f"{tmp_path}/my_broken.py:make")
    assert "my_broken" not in sys.modules


def test_a_file_named_like_another_module_is_refused(tmp_path, clean):
    (tmp_path / "random.py").write_text("def make(): ...")
    with pytest.raises(TargetError, match="'random' exists already, rename the file"):
        get(f"{tmp_path}/random.py:make")
    assert random.random is not None


def test_a_file_is_loaded_once_so_that_its_classes_stay_the_same(factories):
    assert load_file(factories) is load_file(factories)


@pytest.mark.parametrize("target", ["my_no_such_module:make", "traceml_lite.no_such:make"])
def test_a_module_that_does_not_exist_shows_the_forms(clean, target):
    with pytest.raises(TargetError, match=r"no module named.*file\.py:factory"):
        get(target)


@pytest.mark.parametrize("target", ["", ":", "a b:make", "train", "/tmp/x", "x.txt:make"])
def test_a_target_of_no_known_form_shows_the_forms(clean, target):
    with pytest.raises((UsageError, TargetError), match=r"file\.py:factory"):
        get(target)


def test_an_unknown_demo_shows_the_nearest_and_all_others():
    with pytest.raises(UsageError, match=r"did you mean demo:slow-worker\?.*healthy"):
        get("demo:slow-wroker")


def test_a_demo_takes_loader_options_and_its_own_and_refuses_others():
    target = get("demo:uniform", num_workers="0", batch_size="2", fetch_ms="0.1")
    assert (target.loader.num_workers, target.loader.batch_size) == (0, 2)
    assert (target.consumer_default, target.deliveries_default) == ("paced:5ms", 240)
    with pytest.raises(UsageError, match="demo uniform has no argument 'fetch'; it accepts: fetch_ms"):
        get("demo:uniform", fetch="1")


def test_lerobot_without_a_folder_is_a_usage_error():
    with pytest.raises(UsageError, match="lerobot:ROOT"):
        get("lerobot:")


def test_the_demos_can_be_listed_without_torch():
    modules = "traceml_lite.consumers.demos, traceml_lite.consumers.targets"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_seeds_reach_numpy_and_torch(tmp_path, clean):
    get("demo:uniform", seed=5, num_workers="0")
    first = np.random.rand(), torch.rand(1).item()  # noqa: NPY002
    get("demo:uniform", seed=5, num_workers="0")
    assert first == (np.random.rand(), torch.rand(1).item())  # noqa: NPY002
