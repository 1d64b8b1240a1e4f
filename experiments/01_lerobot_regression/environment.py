"""Sets up the versions of LeRobot and datasets that the study compares, beside each other, on a CPU.

One locked environment (``lock.txt``) and thin overlays put ahead of it with PYTHONPATH, so that two arms
differ in the named package and in nothing else. Needs uv (or Python 3.11 with pip); standard library only.
Nothing comes from a model or data hub.

    python environment.py                 set up everything under build/lerobot
    python environment.py --home FOLDER   elsewhere
    python environment.py --tests         also what tests/lerobot is run with
    python environment.py --current       also today's LeRobot, 5 GB, if a Python 3.12 is found
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
HOME = REPOSITORY / "build" / "lerobot"
PYTHON = "3.11"
# Folder laid ahead of the base environment, to what is installed in it without dependencies.
OVERLAYS = {
    "lerobot-0.4.1": ("lerobot==0.4.1",),
    "lerobot-0.4.4": ("lerobot==0.4.4",),
    "datasets-4.8.5": (
        "datasets==4.8.5",
        "httpx==0.28.1",
        "httpcore==1.0.9",
        "h11==0.16.0",
        "anyio==4.16.0",
    ),
}
BASE_VERSIONS = {"lerobot": "0.4.0", "datasets": "4.1.1"}
CURRENT = "lerobot[dataset,training]==0.6.1"
CURRENT_PYTHON = "3.12"
# What is imported once at the end of a setup: it proves the arm and leaves its bytecode, without which
# every pass would compile for ten seconds.
WARM_UP = (
    "from traceml_lite.consumers._torchvision import declare_missing_operators as d; d(); "
    "import lerobot.datasets.lerobot_dataset, lerobot.policies.act.modeling_act, scipy.stats"
)


@dataclass(frozen=True)
class Arm:
    """One combination of versions: an interpreter and the overlays ahead of its packages."""

    lerobot: str
    datasets: str
    python: Path
    overlays: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        return f"lerobot {self.lerobot}, datasets {self.datasets}"

    @property
    def slug(self) -> str:
        return f"lerobot-{self.lerobot}-datasets-{self.datasets}"

    def environ(self) -> dict[str, str]:
        """The environment variables of a process of this arm."""
        own = {key: value for key, value in os.environ.items() if key not in {"PYTHONHOME", "VIRTUAL_ENV"}}
        own["PYTHONPATH"] = os.pathsep.join(map(str, self.overlays))
        return own


def arm(home: Path, lerobot: str, datasets: str) -> Arm:
    """The arm of these versions in an environment that `prepare` has set up under ``home``."""
    overlays = [
        home / "overlays" / f"{package}-{version}"
        for package, version in (("lerobot", lerobot), ("datasets", datasets))
        if version != BASE_VERSIONS[package]
    ]
    return Arm(lerobot, datasets, _python(home / "base"), tuple(overlays))


def prepare(home: Path = HOME, log=print, tests: bool = False) -> None:
    """Set up the base environment and every overlay under ``home``; what is there already is kept.

    Args:
        home: Folder of the environments.
        log: Gets a line for what is being set up.
        tests: Also install what ``tests/lerobot`` is run with.
    """
    home.mkdir(parents=True, exist_ok=True)
    base, install = home / "base", _Installer()
    lock, tools = (HERE / "lock.txt").read_text(), (HERE / "tools.txt").read_text()
    with _Step(base, lock + tools, log) as needed:
        if needed:
            install.environment(base, PYTHON)
            install.packages(_python(base), "-r", str(HERE / "lock.txt"), "-r", str(HERE / "tools.txt"))
            install.packages(_python(base), "-e", str(REPOSITORY))
            _warm_up(arm(home, **BASE_VERSIONS))
    for name, requirements in OVERLAYS.items():
        target = home / "overlays" / name
        with _Step(target, " ".join(requirements), log) as needed:
            if needed:
                install.packages(_python(base), "--target", str(target), *requirements)
                package, _, version = name.partition("-")
                _warm_up(arm(home, **(BASE_VERSIONS | {package: version})))
    if tests:
        install.packages(_python(base), "-r", str(HERE / "tests.txt"))


def prepare_current(home: Path = HOME, log=print) -> Arm | None:
    """Today's LeRobot in an environment of its own, or None (said through ``log``) without a Python 3.12."""
    interpreter = _find_python(CURRENT_PYTHON)
    if interpreter is None:
        log(f"skipped {CURRENT}: no Python {CURRENT_PYTHON} was found on PATH, with uv or under pyenv")
        return None
    folder, install = home / "current", _Installer()
    with _Step(folder, CURRENT, log) as needed:
        if needed:
            install.environment(folder, str(interpreter))
            install.packages(_python(folder), CURRENT, "click", "psutil", "scipy", dependencies=True)
            install.packages(_python(folder), "-e", str(REPOSITORY))
    versions = "import importlib.metadata as m; print(m.version('lerobot'), m.version('datasets'))"
    lerobot, datasets = _output([str(_python(folder)), "-c", versions]).split()
    made = Arm(lerobot, datasets, _python(folder))
    _warm_up(made)
    return made


class _Step:
    """Runs its body when ``folder`` was not completed from the same ``recipe``; marks it when it was."""

    def __init__(self, folder: Path, recipe: str, log) -> None:
        self._folder, self._log = folder, log
        self._mark = folder / ".ready"
        self._recipe = hashlib.sha256((recipe + str(REPOSITORY)).encode()).hexdigest()

    def __enter__(self) -> bool:
        needed = not self._mark.exists() or self._mark.read_text() != self._recipe
        if needed:
            self._log(f"setting up {self._folder.name}")
            shutil.rmtree(self._folder, ignore_errors=True)
        return needed

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self._mark.write_text(self._recipe)


class _Installer:
    """uv where it is found, else pip: the same packages from the same places."""

    def __init__(self) -> None:
        beside = Path(sys.executable).with_name("uv")
        self._uv = shutil.which("uv") or (str(beside) if beside.exists() else None)
        self._links, self._index = _pip_setting("find-links"), _pip_setting("index-url")

    def environment(self, folder: Path, python: str) -> None:
        if self._uv:
            _run([self._uv, "venv", "--quiet", "--python", python, str(folder)])
        elif python == PYTHON and sys.version_info[:2] != tuple(map(int, PYTHON.split("."))):
            raise SystemExit(f"expected uv, or Python {PYTHON} to run this script; found {sys.version}")
        else:
            _run([sys.executable if python == PYTHON else python, "-m", "venv", str(folder)])

    def packages(self, python: Path, *requirements: str, dependencies: bool = False) -> None:
        limits = [] if dependencies else ["--no-deps"]
        local_torch = any(list(Path(link).glob("torch-*+cpu-*.whl")) for link in self._links)
        if self._uv is None:
            if not local_torch and not dependencies:
                # pip alone would need to be told where torch's CPU build is published; uv knows.
                raise SystemExit(
                    "expected uv, or a wheel of torch's CPU build that pip finds; try: pip install uv"
                )
            _run([str(python), "-m", "pip", "install", "--quiet", *limits, *requirements])
            return
        # uv does not read pip's configuration, so what it says about places is passed on.
        places = [part for link in self._links for part in ("--find-links", link)]
        places += [part for index in self._index for part in ("--default-index", index)]
        if not local_torch and not dependencies:
            places += ["--torch-backend", "cpu"]
        _run(
            [self._uv, "pip", "install", "--quiet", "--python", str(python), *limits, *places, *requirements]
        )


def _pip_setting(name: str) -> list[str]:
    for command in ([sys.executable, "-m", "pip"], ["pip"], ["pip3"]):
        try:
            text = _output([*command, "config", "list"])
        except (OSError, subprocess.CalledProcessError):
            continue
        lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        values = [value.strip("'\"") for key, value in lines.items() if key.rpartition(".")[2] == name]
        return list(dict.fromkeys(part for value in values for part in value.replace("\\n", " ").split()))
    return []


def _find_python(version: str) -> Path | None:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = shutil.which(f"python{version}")
    candidates = [*([Path(found)] if found else []), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    # What PATH leads to may be a shim that refuses to start.
    return next((one for one in candidates if _runs(one)), None)


def _runs(python: Path) -> bool:
    return subprocess.run([str(python), "-c", ""], capture_output=True, check=False).returncode == 0


def _warm_up(made: Arm) -> None:
    environ = made.environ() | {"HF_HUB_OFFLINE": "1"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    _run([str(made.python), "-W", "ignore", "-c", WARM_UP], env=environ)


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"


def _run(command: Sequence[str], **keywords) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **keywords)
    if done.returncode:
        raise SystemExit(f"failed ({done.returncode}): {shlex.join(command)}\n{done.stdout}{done.stderr}")


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, default=HOME, help="folder of the environments")
    parser.add_argument("--current", action="store_true", help="also today's LeRobot (5 GB, Python 3.12)")
    parser.add_argument("--tests", action="store_true", help="also what tests/lerobot is run with")
    given = parser.parse_args()
    home = given.home.resolve()
    prepare(home, tests=given.tests)
    if given.current:
        prepare_current(home)
    print(_python(home / "base"))


if __name__ == "__main__":
    main()
