from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import traceml_lite as tl

LOADER = """
    import os, sys, time
    from torch.utils.data import DataLoader, Dataset
    class Slow(Dataset):
        def __init__(self, length=40): self.length = length
        def __len__(self): return self.length
        def __getitem__(self, i):
            time.sleep(0.002)
            return i
    def train(workers=1, length=40, ready=False, **options):
        for _ in DataLoader(Slow(length), batch_size=2, num_workers=workers, **options):
            if ready:
                print("ready", flush=True)
                ready = False
"""
# One epoch that does not end: Python itself loses an exception of a signal handler that runs while a worker
# is being forked or an iterator is being torn down, so a script that makes workers all the time may go on.
ENDLESS = "    train(length=1_000_000, ready=True)\n"

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
Script = Callable[[str], Path]


def trace_of(folder: Path) -> tl.records.run.Run:  # type: ignore[name-defined]
    (path,) = (folder / "runs").iterdir()
    return tl.load(path)


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Leave no process behind when what the test waits for does not come."""
    try:
        yield
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_run_keeps_stdout_arguments_and_exit_code_and_puts_the_summary_on_stderr(
    cli: Cli, script: Script, tmp_path: Path
) -> None:
    script(LOADER + "    train(); print(sys.argv, __name__, __file__); sys.exit(7)\n")
    done = cli("run", "train.py", "--lr", "0.1", "--out", "x", code=7)
    assert done.stdout == f"['train.py', '--lr', '0.1', '--out', 'x'] __main__ {tmp_path}/train.py\n"
    assert "20 deliveries" in done.stderr
    assert "traceml-lite show runs/train-" in done.stderr
    run = trace_of(tmp_path)
    assert run.ending == "exited with code 7"
    assert len(run.main.deliveries) == 20


def test_a_traceback_is_the_scripts_own_and_the_exit_code_is_one(
    cli: Cli, script: Script, tmp_path: Path
) -> None:
    path = script(LOADER + "    train()\n    raise ValueError('mine')\n")
    done = cli("run", "train.py", code=1)
    plain = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert plain.stderr in done.stderr
    assert "20 deliveries" in done.stderr
    assert trace_of(tmp_path).ending == "ended by ValueError"
    assert path.exists()


def test_exit_handlers_run_and_spawned_workers_find_the_script(
    cli: Cli, script: Script, tmp_path: Path
) -> None:
    script(
        LOADER
        + """
    import atexit
    if __name__ == "__main__":
        atexit.register(lambda: print("at exit", Slow.__name__))
        train(2, multiprocessing_context="spawn")
    """
    )
    done = cli("run", "train.py")
    assert done.stdout == "at exit Slow\n"
    deliveries = trace_of(tmp_path).main.deliveries
    assert len(deliveries) == 20
    assert (deliveries["fetch_end_ns"] > 0).all()


def test_a_module_runs_as_with_python_m(cli: Cli, tmp_path: Path) -> None:
    package = tmp_path / "job"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys\nfrom . import __name__ as n\nprint(n, sys.argv[1:], __package__)\n"
    )
    done = cli("run", "-m", "job", "a", "-b")
    assert done.stdout == "job ['a', '-b'] job\n"
    assert "no DataLoader was iterated" in done.stderr
    assert "torch was not imported" in done.stderr


def test_a_script_without_a_loader_is_told_so_and_torch_is_not_imported_for_it(
    cli: Cli, script: Script
) -> None:
    script("import sys\nprint('torch' in sys.modules)\n")
    done = cli("run", "train.py")
    assert done.stdout == "False\n"
    assert "no DataLoader was iterated" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_script_as_it_would_have_and_the_summary_still_comes(
    script: Script, tmp_path: Path, number: signal.Signals
) -> None:
    script(LOADER + ENDLESS)

    def end(*command: str) -> tuple[int, str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A job in the background of a shell, as CI may be, starts with SIGINT ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )
        with ended(process):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(1.0)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
            return process.returncode, stderr

    plain, _ = end("train.py")
    traced, stderr = end("-m", "traceml_lite", "run", "train.py")
    assert traced == plain == -number
    assert "deliveries" in stderr
    assert "traceml-lite show" in stderr
    assert number.name in trace_of(tmp_path).ending or number == signal.SIGINT
    time.sleep(0.5)


def test_a_handler_of_the_scripts_own_for_sigterm_is_left_alone(script: Script, tmp_path: Path) -> None:
    script(
        LOADER
        + """
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
"""
        + ENDLESS
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "traceml_lite", "run", "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with ended(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 5
    assert trace_of(tmp_path).ending == "exited with code 5"


def test_os_exit_skips_the_summary_but_not_the_trace(cli: Cli, script: Script, tmp_path: Path) -> None:
    script(LOADER + "    train(); os._exit(4)\n")
    done = cli("run", "train.py", code=4)
    assert "deliveries" not in done.stderr
    run = trace_of(tmp_path)
    assert not run.complete
    assert len(run.main.deliveries) == 20


def test_a_script_that_is_not_there_is_an_error_before_anything_is_made(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", "nothing.py", code=1)
    assert "nothing.py: no such script" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_directory_that_cannot_be_written_lets_the_script_run_and_says_so(
    cli: Cli, script: Script, tmp_path: Path
) -> None:
    script(LOADER + "    train(); print('done')\n")
    (tmp_path / "file").write_text("")
    done = cli("run", "-o", "file/trace", "train.py")
    assert done.stdout == "done\n"
    assert "cannot write a trace to file/trace" in done.stderr
    assert done.stderr.rstrip().endswith("no trace was written, see above")


def test_a_trace_directory_in_use_is_refused_with_what_to_do(
    cli: Cli, script: Script, tmp_path: Path
) -> None:
    script(LOADER)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_text("")
    done = cli("run", "-o", "old", "train.py", code=2)
    assert "old exists and is not empty" in done.stderr


def test_a_fork_that_comes_to_the_scripts_end_prints_no_second_summary(cli: Cli, script: Script) -> None:
    script(
        LOADER
        + """
    train()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    """
    )
    done = cli("run", "train.py")
    assert done.stderr.count("traceml-lite: the trace is in") == 1


def test_help_loads_neither_torch_nor_scipy_nor_a_command() -> None:
    code = (
        "import sys; sys.argv = ['traceml-lite', '--help']\n"
        "from traceml_lite.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'scipy', 'numpy', 'traceml_lite.cli.run') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    for name in ("run", "probe", "show", "doctor", "demo"):
        assert f"\n  {name} " in done.stdout


def test_an_unknown_command_names_the_known_ones(cli: Cli) -> None:
    done = cli("shwo", code=2)
    assert "show" in done.stderr


def test_show_says_what_is_not_a_trace_with_exit_code_four(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    assert "not a trace" in cli("show", "text", code=4).stderr
    assert "no such file" in cli("show", "nothing", code=4).stderr


def test_output_into_a_closed_pipe_is_no_traceback(cli: Cli, script: Script, tmp_path: Path) -> None:
    script(LOADER + "    train()\n")
    cli("run", "-o", "t", "train.py")
    done = subprocess.run(
        f"{sys.executable} -m traceml_lite show t | head -1",
        shell=True, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
