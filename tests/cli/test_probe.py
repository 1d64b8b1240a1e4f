from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import traceml_lite as tl

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
Script = Callable[..., Path]

FACTORY = """
    import time
    from torch.utils.data import DataLoader
    class Slow(list):
        def __getitem__(self, i):
            time.sleep(0.002)
            return super().__getitem__(i)
    def loader(num_workers: int = 1, items: int = 20):
        return DataLoader(Slow(range(items)), batch_size=2, num_workers=num_workers)
    def broken():
        raise RuntimeError("inside the factory")
    def nothing():
        return 3
"""


def test_probe_drives_a_factory_of_a_file_over_as_many_epochs_as_it_takes(
    cli: Cli, script: Script, tmp_path: Path
) -> None:
    script(FACTORY, "data.py")
    done = cli("probe", "data.py:loader", "-n", "25", "-a", "num_workers=2", "-c", "paced:1ms", "-o", "t")
    assert "25 deliveries" in done.stdout
    assert "the trace is in t" in done.stderr
    loader = tl.load(tmp_path / "t").main
    assert len(loader.deliveries) == 25
    assert loader.config.num_workers == 2
    assert loader.deliveries["epoch"].max() == 2


def test_probe_as_json_holds_the_numbers_of_the_text_and_the_diagnosis(cli: Cli, script: Script) -> None:
    script(FACTORY, "data.py")
    document = json.loads(cli("probe", "data.py:loader", "--json", "-n", "12").stdout)
    assert document["diagnosis"]["shape"]["key"]
    assert 0 <= document["diagnosis"]["shape"]["confidence"] <= 1
    assert document["diagnosis"]["cost"]["key"]


def test_each_wrong_target_is_an_error_that_says_what_to_do(cli: Cli, script: Script) -> None:
    script(FACTORY, "data.py")
    for target, words in (
        ("missing.py:loader", "missing.py"),
        ("data.py:lodaer", "loader"),
        ("data.py:broken", "inside the factory"),
        ("data.py:nothing", "int"),
        ("demo:no-such", "saturated-pool"),
        ("data.py", "data.py:NAME"),
    ):
        done = cli("probe", target, code=None)
        assert done.returncode in (1, 2), (target, done.stderr)
        assert words in done.stderr, target
        assert "Traceback" not in done.stderr, target
    assert "items" in cli("probe", "data.py:loader", "-a", "itmes=3", code=2).stderr


def test_the_list_of_demos_names_at_least_twelve_and_runs_one(cli: Cli) -> None:
    listed = [line for line in cli("demo").stdout.splitlines() if "  " in line]
    assert len(listed) >= 12
    done = cli("demo", "healthy", "-n", "30")
    assert "30 deliveries" in done.stdout
