from __future__ import annotations

import shlex
from typing import Any

import click
import pytest

from traceml_lite.diagnose.costs import COST_KEYS
from traceml_lite.diagnose.next_experiment import next_experiment
from traceml_lite.diagnose.shapes import SHAPES
from traceml_lite.diagnose.target import target_of
from traceml_lite.records.results import Experiment, Verdict
from traceml_lite.records.run import Environment, LoaderConfig

PYTHON = "/opt/env/bin/python3.11"
PROGRAM = "/opt/env/bin/traceml-lite"
PROBE = (PYTHON, PROGRAM, "probe", "demo:lock", "-n", "64", "--consumer", "paced:20ms", "-a", "held_ms=9")
SCRIPT = (PYTHON, PROGRAM, "run", "-o", "out", "train.py", "--lr", "0.1")


def proposed(
    shape: Verdict, cost: Verdict, command: tuple[str, ...] = PROBE, **more: Any
) -> Experiment | None:
    given = {"fetches_seen": True, "delivery_s": 0.02, "deliveries": 240} | more
    return next_experiment(
        shape,
        cost,
        config=LoaderConfig(num_workers=4),
        environment=Environment(command=command, cpus_online=2),
        **given,
    )


def sure(key: str, confidence: float = 0.95) -> Verdict:
    return Verdict(key, confidence, "")


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (PROBE, "traceml-lite sweep demo:lock X -a held_ms=9 --consumer paced:20ms"),
        (SCRIPT, "traceml-lite sweep train.py X -- --lr 0.1"),
        ((PYTHON, PROGRAM, "run", "-m", "p.train", "--lr", "1"), "traceml-lite sweep -m p.train X -- --lr 1"),
        ((PYTHON, "-u", "-W", "ignore", "train.py", "a b"), "traceml-lite sweep train.py X -- 'a b'"),
        ((PYTHON, "-m", "pkg.train"), "traceml-lite sweep -m pkg.train X"),
        ((PYTHON, "-m", "traceml_lite", "run", "train.py"), "traceml-lite sweep train.py X"),
        ((PYTHON, PROGRAM, "probe", "--seed", "3", "data.py:make"), "traceml-lite sweep data.py:make X"),
        ((PYTHON, PROGRAM, "probe", "p:make", "-c", "none"), "traceml-lite sweep p:make X --consumer none"),
        ((PYTHON, PROGRAM, "probe", "--arg=a=1", "-n9", "p:make"), "traceml-lite sweep p:make X -a a=1"),
        ((PYTHON, PROGRAM, "demo", "-cx", "-aa=1", "n"), "traceml-lite sweep demo:n X -a a=1 --consumer x"),
    ],
)  # fmt: skip
def test_a_sweep_has_the_target_and_the_arguments_of_the_run(command: tuple[str, ...], printed: str) -> None:
    target = target_of(command)
    assert target is not None
    assert target.sweep("X") == printed


@pytest.mark.parametrize(
    "command", [(), (PYTHON, "-c", "pass"), (PYTHON,), (PYTHON, "-m", "pytest", "tests")]
)
def test_a_run_that_can_not_be_repeated_has_no_target(command: tuple[str, ...]) -> None:
    assert target_of(command) is None


def test_the_demo_command_is_proposed_as_a_target_that_a_sweep_knows() -> None:
    target = target_of((PYTHON, PROGRAM, "demo", "saturated-pool", "-n", "100"))
    assert target is not None
    assert target.target == "demo:saturated-pool"


@pytest.mark.parametrize("key", [*SHAPES, *COST_KEYS])
def test_every_verdict_has_a_next_command_that_the_command_line_accepts(key: str) -> None:
    shape, cost = (sure(key, 0.6), sure("cpu")) if key in SHAPES else (sure("uniform"), sure(key, 0.6))
    for command in (PROBE, SCRIPT):
        found = proposed(shape, cost, command)
        assert found is not None
        assert_parses(found.command)
        assert found.reason


def assert_parses(command: str) -> None:
    """The command is one of ours and its options are known to it, without running it."""
    from importlib import import_module

    program, name, *words = shlex.split(command)
    assert program == "traceml-lite"
    function: click.Command = import_module(f"traceml_lite.cli.{name}").command
    function.make_context(name, list(words))


def test_an_undecided_shape_comes_first() -> None:
    open_shape = Verdict("inconclusive", 0.5, "", ("slow_worker", "saturated_pool"))
    found = proposed(open_shape, sure("cpu"))
    assert found is not None
    assert "--control in_order" in found.command
    # Fewer deliveries than this would show the cadence in both orders, whatever its cause.
    assert "--deliveries 200" in found.command


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        (("slow_worker", "data_period"), "num_workers=4,5"),
        (("saturated_pool", "slow_worker", "data_period"), "--control in_order"),
    ],
)
def test_shapes_that_look_alike_are_separated_before_what_a_fetch_is_made_of(
    candidates: tuple[str, ...], words: str
) -> None:
    shape = Verdict(candidates[0], 0.7, "", candidates)
    found = proposed(shape, Verdict("inconclusive", 0.5, "", ("remote", "lock")))
    assert found is not None
    assert words in found.command


def test_a_shape_without_candidates_asks_for_a_longer_run_only_where_the_run_was_short() -> None:
    nameless = Verdict("inconclusive", 0.0, "")
    short = proposed(nameless, sure("cpu"), deliveries=20)
    assert short is not None
    assert "--deliveries 200" in short.command
    long = proposed(nameless, sure("cpu"), deliveries=2000)
    assert long is not None
    assert "num_workers=0,4" in long.command


def test_a_slow_consumer_is_settled_by_the_ceiling_whatever_the_shape() -> None:
    found = proposed(Verdict("inconclusive", 0.1, ""), sure("consumer"))
    assert found is not None
    assert "--control ceiling" in found.command


def test_remote_or_lock_is_settled_by_the_number_of_workers() -> None:
    found = proposed(sure("uniform"), Verdict("inconclusive", 0.5, "", ("remote", "lock")))
    assert found is not None
    assert "num_workers=1,4" in found.command
    assert len(found.outcomes) == 2


def test_a_disturbed_host_is_looked_at_before_any_pattern() -> None:
    found = proposed(Verdict("inconclusive", 0.1, ""), sure("neighbours"))
    assert found is not None
    assert "--control trivial" in found.command


def test_a_trace_of_waits_only_asks_for_the_probe() -> None:
    found = proposed(sure("uniform"), Verdict("inconclusive", 0, ""), SCRIPT, fetches_seen=False)
    assert found is not None
    assert found.command == "traceml-lite run train.py --lr 0.1"


def test_without_a_target_the_page_is_named_as_it_runs_anywhere() -> None:
    found = proposed(sure("uniform"), sure("lock", 0.8), ())
    assert found is not None
    assert found.command == "traceml-lite explain lock"
    assert proposed(Verdict("inconclusive", 0, ""), sure("cpu"), (), deliveries=20) is None


def test_the_duration_follows_the_pace_of_the_run() -> None:
    slow, fast = (proposed(sure("uniform"), sure("lock", 0.8), delivery_s=s) for s in (1.0, 0.01))
    assert slow is not None
    assert fast is not None
    assert slow.duration_s is not None
    assert fast.duration_s is not None
    assert slow.duration_s > fast.duration_s > 0
    unknown = proposed(sure("uniform"), sure("lock", 0.8), delivery_s=None)
    assert unknown is not None
    assert unknown.duration_s is None


def test_the_duration_counts_every_arm_twice_and_fewer_workers_as_slower() -> None:
    workers = proposed(sure("lock"), sure("lock", 0.8), delivery_s=0.1)
    control = proposed(sure("none"), sure("consumer"), delivery_s=0.1)
    assert workers is not None
    assert control is not None
    assert "num_workers=1,4" in workers.command
    # A first pass of 16, then 64 deliveries twice at 4 workers and twice at 1, up to 4 times as long.
    assert workers.duration_s == pytest.approx(5 * 4.0 + 1.6 + 2 * 6.4 + 2 * 4 * 6.4)
    assert "--control ceiling" in control.command
    assert control.duration_s == pytest.approx(5 * 4.0 + 1.6 + 4 * 6.4)
