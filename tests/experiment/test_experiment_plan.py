"""The plan of a sweep: order, blocks, lengths, budget."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace

import pytest

from traceml_lite._errors import UsageError
from traceml_lite.experiment.layout import delivery_seconds, plan_sweep
from traceml_lite.experiment.plan import Facts, Request, plan_from_json, plan_to_json, show_request
from traceml_lite.experiment.settings import parse_settings

FACTS = Facts(
    loader=0,
    loader_type="torch.utils.data.dataloader.DataLoader",
    dataset="train.Images",
    iterable=False,
    options={
        "num_workers": 4,
        "batch_size": 8,
        "prefetch_factor": 2,
        "persistent_workers": False,
        "pin_memory": False,
        "in_order": True,
        "batch_sampler": None,
    },
    batches=1000,
    deliveries=16,
    start_s=2.0,
    delivery_s=0.5,
    fetch_s=1.0,
    step_s=0.01,
    cpus=2.0,
    fetch_cv=None,
    accelerator=False,
    known_options=(
        "num_workers", "batch_size", "prefetch_factor", "persistent_workers", "in_order", "pin_memory",
    ),
)  # fmt: skip


def arms(plan):
    return [one.arm for one in plan.passes]


def workers(plan):
    return [one.workers for one in plan.passes]


def test_the_command_of_a_request_has_every_option_that_was_given_and_reads_back_as_typed():
    request = Request(
        "my data.py:make",
        settings=("num_workers=1,2",),
        controls=("in_order",),
        deliveries=32,
        warmup=0,
        repeats=2,
        one_direction=True,
        seed=7,
        arguments=(("root", "a b"),),
        consumer="paced:5ms",
        loader=1,
        cache="cold",
    )
    assert shlex.split(show_request(request)) == [
        "traceml-lite", "sweep", "my data.py:make", "-s", "num_workers=1,2", "--control", "in_order",
        "--deliveries", "32", "--warmup", "0", "--repeats", "2", "--seed", "7", "--consumer", "paced:5ms",
        "--loader", "1", "--cache", "cold", "--one-direction", "-a", "root=a b",
    ]  # fmt: skip
    assert (
        show_request(Request("train.py", script_arguments=("--lr", "1")))
        == "traceml-lite sweep train.py -- --lr 1"
    )


def test_a_sweep_goes_down_and_up_again():
    plan = plan_sweep(Request("t.py", settings=("num_workers=0,1,2,4",)), FACTS)
    assert workers(plan) == [4, 2, 1, 0, 0, 1, 2, 4]
    assert [one.forward for one in plan.passes] == [False] * 4 + [True] * 4


def test_two_arms_go_a_b_b_a():
    plan = plan_sweep(Request("t.py", settings=("num_workers=2,4",)), FACTS)
    assert workers(plan) == [2, 4, 4, 2]


def test_repeats_go_through_both_directions_again():
    plan = plan_sweep(Request("t.py", settings=("num_workers=2,4",), repeats=2), FACTS)
    assert workers(plan) == [2, 4, 4, 2, 2, 4, 4, 2]


def test_one_direction_is_the_order_given():
    plan = plan_sweep(Request("t.py", settings=("num_workers=4,0,1",), one_direction=True), FACTS)
    assert workers(plan) == [4, 0, 1]
    assert all(one.forward for one in plan.passes)


def test_the_warm_up_is_added_to_the_deliveries_and_follows_the_condition():
    plan = plan_sweep(Request("t.py", settings=("num_workers=0,4",), deliveries=20), FACTS)
    assert [(one.deliveries, one.warmup) for one in plan.passes[:2]] == [(20, 0), (28, 8)]


def test_conditions_that_torch_makes_equal_are_run_once_and_named():
    plan = plan_sweep(Request("t.py", settings=("num_workers=0", "prefetch_factor=2,4")), FACTS)
    assert len(set(arms(plan))) == 1
    assert any("is the same as" in note for note in plan.notes)
    assert any("prefetch_factor" in note and "left out" in note for note in plan.notes)


def test_in_order_without_workers_is_the_same_condition_in_both_orders():
    plan = plan_sweep(Request("t.py", settings=("num_workers=0,2", "in_order=true,false")), FACTS)
    assert len(set(arms(plan))) == 3


def test_an_option_that_torch_does_not_know_is_refused():
    with pytest.raises(UsageError, match="no option 'worker_method'"):
        plan_sweep(Request("t.py", settings=("worker_method=thread",)), FACTS)


def test_an_in_order_control_takes_enough_deliveries_by_itself():
    request = Request("t.py", settings=("num_workers=1,4",), controls=("in_order",), deliveries=20)
    plan = plan_sweep(request, FACTS)
    control = [one for one in plan.passes if one.block == "in_order"]
    assert [one.control for one in control] == [None, "in_order", "in_order", None]
    assert all(one.deliveries - one.warmup == 200 for one in control)
    assert [one.condition.options["in_order"] for one in control] == [True, False, False, True]
    assert all(one.endless for one in control)
    assert any("fewer cannot decide" in note for note in plan.notes)


def test_an_in_order_control_of_many_workers_takes_fifty_deliveries_each():
    plan = plan_sweep(Request("t.py", settings=("num_workers=8",), controls=("in_order",)), FACTS)
    assert {one.deliveries - one.warmup for one in plan.passes if one.block == "in_order"} == {400}


def test_even_fetches_make_an_in_order_control_longer_because_workers_stay_in_phase():
    request = Request("t.py", settings=("num_workers=4",), controls=("in_order",))
    lengths = []
    for cv in (0.5, 0.05, 0.02, 0.001):
        plan = plan_sweep(request, replace(FACTS, fetch_cv=cv))
        (length,) = {one.deliveries - one.warmup for one in plan.passes if one.block == "in_order"}
        lengths.append(length)
    # 50 a worker and (0.3 / (0.85 cv))^2 rounds of 4, at most 1200.
    assert lengths == [204, 400, 1200, 1200]


def test_a_stagger_is_not_made_longer_because_order_pulls_it_into_phase_again():
    plan = plan_sweep(Request("t.py", controls=("stagger", "in_order"), deliveries=900), FACTS)
    lengths = {one.block: one.deliveries - one.warmup for one in plan.passes}
    assert lengths == {"stagger": 64, "in_order": 900}


def test_a_control_stands_beside_the_condition_with_the_most_workers():
    request = Request("t.py", settings=("num_workers=1,2,4",), controls=("stagger",))
    assert {one.workers for one in plan_sweep(request, FACTS).passes if one.block == "stagger"} == {4}


def test_without_settings_a_control_is_all_that_runs():
    plan = plan_sweep(Request("t.py", controls=("ceiling",)), FACTS)
    assert [one.control for one in plan.passes] == [None, "ceiling", "ceiling", None]
    assert plan.passes[1].condition.options == {"num_workers": 0}


def test_short_controls_share_the_arm_beside_them():
    plan = plan_sweep(Request("t.py", controls=("ceiling", "trivial", "threads")), FACTS)
    assert [one.control for one in plan.passes] == [
        "threads", "trivial", "ceiling", None, None, "ceiling", "trivial", "threads",
    ]  # fmt: skip


def test_repeat_fetches_a_multiple_of_the_workers_twice_and_needs_no_arm_beside_it():
    plan = plan_sweep(Request("t.py", controls=("repeat",), deliveries=10), FACTS)
    assert [one.control for one in plan.passes] == ["repeat", "repeat"]
    assert (plan.passes[0].repeat_after, plan.passes[0].deliveries) == (12, 24)


def test_repeat_takes_what_a_short_epoch_has():
    plan = plan_sweep(Request("t.py", controls=("repeat",)), replace(FACTS, batches=10))
    assert (plan.passes[0].repeat_after, plan.passes[0].deliveries) == (10, 20)


def test_persistent_sees_two_epoch_boundaries():
    plan = plan_sweep(Request("t.py", controls=("persistent",), deliveries=16), replace(FACTS, batches=30))
    assert {one.deliveries - one.warmup for one in plan.passes if "persistent" in one.arm} == {61}


def test_pin_is_left_out_without_an_accelerator_and_said():
    plan = plan_sweep(Request("t.py", settings=("num_workers=2,4",), controls=("pin",)), FACTS)
    assert not any(one.control for one in plan.passes)
    assert any(note.startswith("pin is left out") for note in plan.notes)


def test_pin_is_turned_round_where_there_is_an_accelerator():
    plan = plan_sweep(Request("t.py", controls=("pin",)), replace(FACTS, accelerator=True))
    assert [one.condition.options.get("pin_memory") for one in plan.passes] == [None, True, True, None]


def test_a_control_that_needs_workers_is_refused_where_there_are_none():
    facts = replace(FACTS, options={**FACTS.options, "num_workers": 0})
    with pytest.raises(UsageError, match="add -s num_workers=4"):
        plan_sweep(Request("t.py", controls=("in_order",)), facts)


def test_an_iterable_dataset_has_nothing_to_repeat():
    plan = plan_sweep(Request("t.py", controls=("repeat",)), replace(FACTS, iterable=True))
    assert plan.passes == ()
    assert any("iterable" in note for note in plan.notes)


def test_an_unknown_control_lists_all_with_their_reasons():
    with pytest.raises(UsageError, match=r"stagger.*phase"):
        plan_sweep(Request("t.py", controls=("staggered",)), FACTS)


def test_a_budget_lowers_the_deliveries_to_sixteen_and_no_further():
    request = Request("t.py", settings=("num_workers=0,1,2,4",))
    free = plan_sweep(request, FACTS)
    tight = plan_sweep(request, FACTS, budget_s=free.expected_s / 2)
    assert tight.expected_s <= free.expected_s / 2
    none_left = plan_sweep(request, FACTS, budget_s=1.0)
    assert {one.deliveries - one.warmup for one in none_left.passes} == {16}


def test_a_budget_shortens_an_in_order_control_and_says_what_that_leaves_open():
    request = Request("t.py", controls=("in_order",))
    free = plan_sweep(request, FACTS)
    half = plan_sweep(request, FACTS, budget_s=free.expected_s / 2)
    assert half.expected_s <= free.expected_s / 2
    assert arms(half) == arms(free), "still in both directions"
    assert 64 <= half.passes[0].deliveries - half.passes[0].warmup < 200
    assert any("too few for whether the cadence lasts" in note for note in half.notes)
    assert not any("of 64, to keep" in note or "instead of 64" in note for note in half.notes)
    none_left = plan_sweep(request, FACTS, budget_s=1.0)
    assert none_left.passes[0].deliveries - none_left.passes[0].warmup == 64


def test_given_deliveries_are_kept_whatever_the_budget():
    request = Request("t.py", settings=("num_workers=2,4",), deliveries=50)
    plan = plan_sweep(request, FACTS, budget_s=1.0)
    assert {one.deliveries - one.warmup for one in plan.passes} == {50}


def test_the_expected_pace_is_limited_by_the_cpus():
    pace = [delivery_seconds(FACTS, one) for one in parse_settings(("num_workers=0,1,2,4",))]
    assert pace == pytest.approx([1.01, 1.0, 0.5, 0.5])


def test_a_plan_comes_back_from_json_as_it_was():
    request = Request(
        "t.py", settings=("num_workers=0,4",), controls=("in_order", "repeat"), arguments=(("a", "b"),)
    )
    plan = plan_sweep(request, FACTS)
    document = json.loads(json.dumps(plan_to_json(request, FACTS, plan)))
    assert plan_from_json(document) == (request, FACTS, plan)


def test_the_digest_tells_requests_apart_and_survives_a_copy():
    request = Request("t.py", settings=("num_workers=0,4",))
    assert replace(request, seed=1).digest != request.digest
    assert replace(request, content="x").digest != request.digest
    assert Request(**asdict(request)).digest == request.digest
