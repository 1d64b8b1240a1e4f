"""Made-up sweeps over num_workers with a known law, to judge the laws.

One cause, drawn once, is simulated at every number of workers; each pass draws its own jitter. The batches
are the same in every pass, as in a real sweep: slow samples and data periods stay at their ranks. The waits
are those of the simulation, without measuring noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from traceml_lite.records.run import LoaderConfig
from traceml_lite.simulate.labelled import MS, Float
from traceml_lite.simulate.model import Demands, Faults, Host, Simulated, simulate

# Both directions, as a sweep runs by default.
BOTH_DIRECTIONS = (4, 2, 1, 1, 2, 4)


def _spread(rng: np.random.Generator, n: int, cv: float) -> Float:
    sigma = math.sqrt(math.log1p(cv * cv))
    spread: Float = np.exp(sigma * rng.standard_normal(n) - sigma * sigma / 2)
    return spread


class _Cause:
    """What does not change between the passes: drawn once."""

    def __init__(self, mechanism: str, n: int, most: int, seed: int) -> None:
        self.rng = rng = np.random.default_rng([seed, n, list(LAWS).index(mechanism)])
        self.n, self.most = n, most
        self.step_ns = math.exp(rng.uniform(math.log(20), math.log(2000))) * MS
        self.step_cv = rng.uniform(0.01, 0.08)
        self.fetch_cv = rng.uniform(0.02, 0.12)
        self.prefetch = int(rng.choice([1, 2, 2, 4]))
        self.load = rng.uniform(0.15, 0.6)
        self.size = rng.uniform(1.3, 2.5)
        # Prefetch hides a heavy batch up to its queue's length; from there on the consumer sees it.
        self.hidden_ns = most * self.prefetch * self.step_ns

    def simulated(self, workers: int, fetch_ns: Float, host: Host, faults: Faults) -> Simulated:
        """One pass over the given mean fetch times, with jitter of its own."""
        fetch = fetch_ns * _spread(self.rng, self.n, self.fetch_cv)
        on_cores = math.isfinite(host.cores)
        demands = Demands(
            io_ns=np.zeros(self.n) if on_cores else fetch,
            cpu_ns=fetch if on_cores else np.zeros(self.n),
            step_ns=self.step_ns * _spread(self.rng, self.n, self.step_cv),
        )
        config = LoaderConfig(num_workers=workers, prefetch_factor=self.prefetch, in_order=True)
        return simulate(demands, config, host=host, faults=faults)


_Pass = Callable[[int], Simulated]


def _pool(c: _Cause) -> _Pass:
    cores = float(c.rng.choice([2.0, math.inf]))
    longest = max(1.0, c.most / cores)
    fetch = np.full(c.n, c.rng.uniform(1.4, 8) * c.most * c.step_ns / longest)
    return lambda workers: c.simulated(workers, fetch, Host(cores=cores), Faults())


def _straggler(c: _Cause) -> _Pass:
    fetch = np.full(c.n, c.load * 2 * c.step_ns)
    factor = c.size * c.most * c.step_ns / fetch[0]

    def one(workers: int) -> Simulated:
        scale = [factor] + [1.0] * (workers - 1)
        return c.simulated(workers, fetch, Host(), Faults(worker_scale=scale))

    return one


def _data_period(c: _Cause) -> _Pass:
    period = int(c.rng.choice([p for p in (3, 5, 6, 7, 9, 10, 11, 12, 14) if p <= c.n // 4]))
    fetch = np.full(c.n, c.load * c.step_ns)
    fetch[int(c.rng.integers(period)) :: period] = c.size * c.hidden_ns
    return lambda workers: c.simulated(workers, fetch, Host(), Faults())


def _worker_period(c: _Cause) -> _Pass:
    every = int(c.rng.choice([k for k in (3, 4, 5, 6) if k * c.most <= c.n // 2]))
    fetch = np.full(c.n, c.load * c.step_ns)
    extra = np.zeros(every)
    extra[-1] = c.size * c.hidden_ns
    return lambda workers: c.simulated(
        workers, fetch, Host(), Faults(task_extra_ns=np.tile(extra, (workers, 1)))
    )


def _clock(c: _Cause) -> _Pass:
    c.prefetch, c.step_cv = 1, c.rng.uniform(0.1, 0.28)
    fetch = np.full(c.n, c.load * c.step_ns)
    pause = c.rng.uniform(1.3, 2.2) * c.most * c.step_ns
    turn = max(8 * c.step_ns, c.rng.uniform(1.6, 2.5) * pause)

    def one(workers: int) -> Simulated:
        starts = np.arange(c.rng.uniform(0.3, 1.0) * turn, 4 * c.n * (c.step_ns + pause / 4), turn)
        return c.simulated(
            workers, fetch, Host(), Faults(pauses=[(float(s), float(s) + pause, None) for s in starts])
        )

    return one


def _random(c: _Cause) -> _Pass:
    fetch = np.full(c.n, c.load * c.step_ns)
    heavy = c.rng.random(c.n) < c.rng.uniform(0.06, 0.2)
    fetch[heavy] = c.size * c.hidden_ns * _spread(c.rng, int(heavy.sum()), 0.25)
    return lambda workers: c.simulated(workers, fetch, Host(), Faults())


def _lock(c: _Cause) -> _Pass:
    section = np.full(c.n, c.rng.uniform(1.4, 8) * c.step_ns)

    def one(workers: int) -> Simulated:
        demands = Demands(
            io_ns=0.02 * section,
            cpu_ns=0.02 * section,
            lock_ns=section * _spread(c.rng, c.n, c.fetch_cv),
            step_ns=c.step_ns * _spread(c.rng, c.n, c.step_cv),
        )
        return simulate(
            demands, LoaderConfig(num_workers=workers, prefetch_factor=c.prefetch), host=Host(cores=4)
        )

    return one


_CAUSES: Mapping[str, Callable[[_Cause], _Pass]] = {
    "pool": _pool,
    "straggler": _straggler,
    "data_period": _data_period,
    "worker_period": _worker_period,
    "clock": _clock,
    "random": _random,
    "lock": _lock,
}
# Mechanism to the law of the gap that a sweep of it follows.
LAWS: Mapping[str, str] = {
    "pool": "proportional",
    "straggler": "proportional",
    "data_period": "constant_batches",
    "worker_period": "multiple",
    "clock": "constant_seconds",
    "random": "none",
    "lock": "none",
}


def simulated_sweep(
    mechanism: str, seed: int, *, n: int = 64, workers: Sequence[int] = BOTH_DIRECTIONS
) -> list[Simulated]:
    """The passes of one made-up sweep, in the order given.

    Args:
        mechanism: A key of ``LAWS``.
        seed: Same seed, same sweep.
        n: Deliveries per pass, at least 24 for ``worker_period`` with 4 workers.
        workers: num_workers of each pass.

    Returns:
        One simulated pass per entry of ``workers``.

    Raises:
        ValueError: An unknown mechanism.
    """
    if mechanism not in LAWS:
        raise ValueError(f"unknown mechanism {mechanism!r}; known are {', '.join(LAWS)}")
    one = _CAUSES[mechanism](_Cause(mechanism, n, max(workers), seed))
    return [one(w) for w in workers]
