"""Real loaders with injected faults, a few of them once each; ``experiments/faults`` has all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from traceml_lite.diagnose.costs.host import host_facts
from traceml_lite.diagnose.diagnosis import diagnose
from traceml_lite.store import load

FOLDER = Path(__file__).parents[2] / "experiments" / "faults"
sys.path.insert(0, str(FOLDER))

from faults import FAULTS, Fault  # noqa: E402
from run import DISTURBED_CORES, NOT_THE_LOADER, judged  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Faults whose cause cannot be a busy host's doing, so that they hold wherever the tests run.
HELD_TO = (
    "lock",
    "remote",
    "saturated-pool",
    "slow-worker",
    "epoch-boundary",
    "start",
    "long-step",
    "memory",
)


def once(fault: Fault, out: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(FOLDER / "faults.py"), fault.name, "7", str(out)]
    subprocess.run(command, check=True, timeout=240)


@pytest.mark.parametrize("name", HELD_TO)
def test_the_cost_of_a_real_fault_is_named_or_left_open_but_never_mistaken(name: str, tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    once(fault, tmp_path / "trace")
    run = load(tmp_path / "trace")
    found = diagnose(run)
    others = host_facts(run.host, None, None, 0.0).other_cores
    if fault.never_the_loader:
        assert found.cost.key in NOT_THE_LOADER
    elif not fault.costs:
        # Work that is a sleep has no name among the costs; on a busy host the delay of others has one.
        assert found.cost.key in {"inconclusive", "neighbours", "consumer"}
    elif others is not None and others > DISTURBED_CORES:
        assert found.cost.key in {*fault.costs, "inconclusive", "neighbours"}
    else:
        assert judged(fault.costs, found.cost) != "wrong", found.cost


def test_there_are_at_least_sixteen_faults_and_every_cost_that_can_be_made_here_has_one() -> None:
    assert len(FAULTS) >= 16
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    made = {key for fault in FAULTS for key in fault.costs}
    # Pinning needs an accelerator, a launch-bound step a GPU; a leak is a finding and has a test of its own.
    from traceml_lite.diagnose.costs import COST_KEYS

    assert made >= set(COST_KEYS) - {"pin", "launch_bound", "shm"}
