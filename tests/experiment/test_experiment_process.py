"""A child process to its end or to its time limit, with real processes and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from traceml_lite.experiment import process
from traceml_lite.experiment.process import run_child, session_members

# As in a real child, the signal that asks for its stack does not end it.
FORKS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
"""


def run(folder: Path, code: str, **kwargs):
    return run_child(
        [sys.executable, "-c", code],
        folder=folder,
        done=folder / "done",
        environment={**os.environ, "PLACE": str(folder)},
        **{"timeout_s": 30.0, **kwargs},
    )


def test_a_child_ends_with_its_code_and_its_words_are_kept(tmp_path: Path):
    end = run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (end.exit_code, end.timed_out, end.killed) == (3, False, 0)
    assert (tmp_path / "stdout.txt").read_text() == "out\n"
    assert (tmp_path / "stderr.txt").read_text() == "err\n"


def test_a_child_that_hangs_is_ended_with_all_its_children(tmp_path: Path):
    sessions = []
    end = run(
        tmp_path,
        FORKS + "time.sleep(60)",
        timeout_s=1.5,
        tick=lambda session, now_s: sessions.append(session),
    )
    assert end.timed_out
    assert end.killed == 4
    assert 1.5 <= end.wall_s < 10
    assert session_members(sessions[0]) == []


def test_a_child_that_leaves_workers_behind_has_them_ended(tmp_path: Path):
    end = run(tmp_path, FORKS)
    assert (end.exit_code, end.killed) == (0, 3)


def test_a_hung_child_tells_where_it_stands(tmp_path: Path):
    code = (
        "import faulthandler, signal, time\n"
        "faulthandler.register(signal.SIGUSR2, all_threads=True)\n"
        "def wait_for_nothing():\n    time.sleep(60)\n"
        "wait_for_nothing()"
    )
    assert run(tmp_path, code, timeout_s=1.5).timed_out
    assert "wait_for_nothing" in (tmp_path / "stderr.txt").read_text()


def test_a_child_with_its_result_that_will_not_exit_is_no_timeout(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("traceml_lite.experiment.process.EXIT_GRACE_S", 0.5)
    code = "import os, time; open(os.environ['PLACE'] + '/done', 'w'); time.sleep(60)"
    end = run(tmp_path, code, timeout_s=5.0)
    assert (end.timed_out, end.exit_code, end.killed) == (False, None, 1)


def test_an_interrupt_ends_the_child_and_goes_on(tmp_path: Path):
    sessions = []

    def interrupt(session: int, now_s: float) -> None:
        sessions.append(session)
        if now_s > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FORKS + "time.sleep(60)", tick=interrupt)
    assert session_members(sessions[0]) == []


def test_control_c_while_the_child_is_being_started_leaves_no_child(tmp_path: Path, monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self.pid)
            signal.raise_signal(signal.SIGINT)  # the child is there, and its starter does not know it yet

    monkeypatch.setattr("traceml_lite.experiment.process.subprocess.Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "import time; time.sleep(60)")
    assert session_members(started[0]) == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_control_c_waits_until_nobody_is_left(tmp_path: Path, monkeypatch):
    sessions = []
    kill = process.kill_session

    def interrupted(session: int) -> int:
        signal.raise_signal(signal.SIGINT)
        return kill(session)

    def interrupt(session: int, now_s: float) -> None:
        sessions.append(session)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "kill_session", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FORKS + "time.sleep(60)", tick=interrupt)
    assert session_members(sessions[0]) == []


def test_a_child_can_be_run_beside_the_main_thread(tmp_path: Path):
    ends = []
    thread = threading.Thread(target=lambda: ends.append(run(tmp_path, "pass")))
    thread.start()
    thread.join()
    assert ends[0].exit_code == 0


def test_a_child_in_another_session_of_its_own_gets_no_interrupt_of_ours(tmp_path: Path):
    code = "import os; open(os.environ['PLACE'] + '/sid', 'w').write(str(os.getsid(0)))"
    run(tmp_path, code)
    assert int((tmp_path / "sid").read_text()) != os.getsid(0)


def test_the_clock_of_the_start_is_the_traces_clock(tmp_path: Path):
    before = time.perf_counter_ns()
    end = run(tmp_path, "pass")
    assert before <= end.started_ns <= time.perf_counter_ns()
