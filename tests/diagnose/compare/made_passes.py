"""Passes of made-up experiments, simulated."""

from dataclasses import replace

import numpy as np

from traceml_lite.records.run import Environment, LoaderConfig, Table
from traceml_lite.records.sweep import Condition, MeasuredPass, PassResult
from traceml_lite.simulate.model import Demands, Faults, Host, simulate

MS = 1_000_000
MACHINE = Environment(host="box", torch="2.13.0", python="3.11", cpus_online=4, versions={"numpy": "2.0"})


def one_pass(
    number=0,
    *,
    n=400,
    workers=4,
    in_order=True,
    fetch_ms=400.0,
    step_ms=10.0,
    cv=0.1,
    scale=(),
    name=None,
    options=None,
    control=None,
    cores=float("inf"),
    environment=MACHINE,
    seed=0,
    **result,
):
    """One pass of a loader whose fetches are CPU time of one length with jitter."""
    rng = np.random.default_rng([seed, number])
    demands = Demands(
        io_ns=np.zeros(n),
        cpu_ns=fetch_ms * MS * np.exp(cv * rng.standard_normal(n)),
        step_ns=np.full(n, step_ms * MS),
    )
    config = LoaderConfig(
        num_workers=workers, prefetch_factor=2, in_order=in_order, dataset="made.Up", batch_size=8
    )
    simulated = simulate(demands, config, host=Host(cores=cores), faults=Faults(worker_scale=scale))
    name = name or f"num_workers={workers} in_order={in_order}"
    chosen = {"num_workers": workers, "in_order": in_order} if options is None else options
    return MeasuredPass(
        Condition(name, chosen, control),
        PassResult(name, number, "down", deliveries=n, **result),
        replace(simulated.run(f"pass {number}"), environment=environment),
    )


def with_host(one, **columns):
    """The pass with two rows of host facts, 10 s apart; totals grow by the given nanoseconds."""
    table = {"time_ns": np.array([0, 10_000_000_000])}
    table |= {name: np.array([0, grown]) for name, grown in columns.items()}
    return replace(one, run=replace(one.run, host=Table(table)))


def with_config(one, **changes):
    main = one.run.main
    return replace(
        one, run=replace(one.run, loaders=(replace(main, config=replace(main.config, **changes)),))
    )


def with_columns(one, drop=(), **columns):
    main = one.run.main
    kept = {name: column for name, column in main.deliveries.columns.items() if name not in drop}
    table = Table({**kept, **columns}, main.deliveries.absent)
    return replace(one, run=replace(one.run, loaders=(replace(main, deliveries=table),)))
