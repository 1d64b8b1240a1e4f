"""Made-up runs with a known cause, to build and judge a diagnosis.

Each case draws a loader and demands at random, simulates them and adds measuring noise. A draw in which the
cause leaves no trace in the waits (prefetch hid it) is drawn again: its label would be wrong. The ranges are
those of real reports; nothing here imitates a real loader's counters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml_lite.records.run import IN_CONSUMER, LoaderConfig
from traceml_lite.simulate.model import Demands, Faults, Host, simulate

MS = 1e6
# A cause that costs less than this share of the steady wall time cannot be seen by anyone.
VISIBLE_WAIT_SHARE = 0.05
# Draws until the cause shows; the worst case shows in one of three.
MAX_DRAWS = 60
# Reading the clock around next() and the interpreter between: at least, and on average on top.
NOISE_FLOOR_NS, NOISE_MEAN_NS = 10e3, 25e3

Float = NDArray[np.float64]


class _Draws:
    """Random parameters, each of which the caller may fix by name."""

    def __init__(self, rng: np.random.Generator, fixed: Mapping[str, Any]) -> None:
        self.rng = rng
        self._fixed = fixed
        self.used: set[str] = set()

    def _value(self, name: str, draw: Callable[[], Any]) -> Any:
        self.used.add(name)
        # Drawn even if fixed, so that fixing one parameter leaves the others of a seed as they were.
        drawn = draw()
        return self._fixed.get(name, drawn)

    def uniform(self, name: str, low: float, high: float) -> float:
        return float(self._value(name, lambda: self.rng.uniform(low, high)))

    def log_uniform(self, name: str, low: float, high: float) -> float:
        return float(self._value(name, lambda: math.exp(self.rng.uniform(math.log(low), math.log(high)))))

    def choice(self, name: str, values: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
        p = None if weights is None else np.asarray(weights, dtype=float) / sum(weights)
        return self._value(name, lambda: values[int(self.rng.choice(len(values), p=p))])

    def spread(self, n: int, cv: float) -> Float:
        """Factors of mean 1 and coefficient of variation ``cv``, lognormal."""
        sigma = math.sqrt(math.log1p(cv * cv))
        return np.exp(sigma * self.rng.standard_normal(n) - sigma * sigma / 2)


@dataclass(frozen=True, slots=True)
class _Setup:
    """One draw: what to simulate, and how to see that the label is true."""

    config: LoaderConfig
    fetch_ns: Float
    step_ns: Float
    cpu_share: float = 0.0
    host: Host = field(default_factory=Host)
    faults: Faults = field(default_factory=Faults)
    truth: Mapping[str, Any] | None = None
    visible: Callable[[Float], bool] | None = None
    """Whether the cause shows in the waits; None: the steady wait share is enough."""


_WORKERS = (2, 3, 4, 6, 8, 12, 16)
_WORKER_WEIGHTS = (9, 9, 9, 5, 6, 3, 2)


def _config(
    draws: _Draws,
    *,
    low: int = 2,
    high: int = 16,
    unordered: float = 0.0,
    prefetch: Sequence[int] = (1, 2, 4),
) -> tuple[LoaderConfig, int, int]:
    known = {0: 4.0, 1: 6.0, **dict(zip(_WORKERS, _WORKER_WEIGHTS, strict=True))}
    values = [w for w in known if low <= w <= high]
    workers = int(draws.choice("num_workers", values, [known[w] for w in values]))
    weights = [{1: 2.0, 2: 6.0, 4: 1.5}.get(f, 1.0) for f in prefetch]
    factor = int(draws.choice("prefetch_factor", list(prefetch), weights))
    in_order = bool(draws.choice("in_order", [True, False], [1 - unordered, unordered]))
    if workers == 0:
        in_order = True
    config = LoaderConfig(num_workers=workers, prefetch_factor=factor if workers else None, in_order=in_order)
    return config, workers, factor


def _steps(draws: _Draws, n: int, low_ms: float = 20, high_ms: float = 5000, cv: float = 0.1) -> Float:
    step = draws.log_uniform("step_ms", low_ms, high_ms) * MS
    return step * draws.spread(n, draws.uniform("step_cv", 0.0, cv))


def _healthy(draws: _Draws, n: int) -> _Setup:
    config, workers, _ = _config(draws, low=1, unordered=0.2, prefetch=(2, 4))
    step = _steps(draws, n)
    load = draws.uniform("load", 0.1, 0.65)
    fetch = load * workers * step.mean() * draws.spread(n, draws.uniform("fetch_cv", 0.03, 0.28))
    steady = workers * (config.prefetch_factor or 0)

    def visible(wait: Float) -> bool:
        # The first wait is the first fetch; a short run with a long one is no healthy run to anyone.
        return _share(wait, step, steady) < VISIBLE_WAIT_SHARE and _share(wait, step, 0) < 0.15

    return _Setup(config, fetch, step, visible=visible)


def _warmup(draws: _Draws, n: int) -> _Setup:
    config, workers, factor = _config(draws, low=1, high=8 if n > 32 else 4, prefetch=(2, 4))
    if workers * factor > n // 2:
        factor = 2
        config = replace(config, prefetch_factor=2)
    step = _steps(draws, n)
    load = draws.uniform("load", 0.15, 0.65)
    fetch = load * workers * step.mean() * draws.spread(n, draws.uniform("fetch_cv", 0.05, 0.15))
    first = workers * factor
    fetch[:first] *= draws.log_uniform("cold_factor", 8, 42)

    def visible(wait: Float) -> bool:
        return _share(wait, step, first) < VISIBLE_WAIT_SHARE and wait[:first].sum() > 5 * step.mean()

    return _Setup(config, fetch, step, visible=visible)


def _uniform(draws: _Draws, n: int) -> _Setup:
    config, workers, _ = _config(draws, low=0, high=12)
    fetch_ns = draws.log_uniform("fetch_ms", 20, 5000) * MS
    load = draws.log_uniform("load", 1.8, 25)
    shared = max(1, workers)
    step = fetch_ns / (load * shared) * draws.spread(n, draws.uniform("step_cv", 0.0, 0.1))
    # Workers shifted by a fetch / workers stay so only while their fetch times have not walked out of step.
    most = 0.35 if workers <= 1 else min(0.02, 0.15 / (workers * math.sqrt(max(1.0, n / workers))))
    fetch = fetch_ns * draws.spread(n, draws.uniform("fetch_cv", 0.0, most))
    boot = [k * fetch_ns / shared for k in range(shared)]

    def visible(wait: Float) -> bool:
        steady = wait[shared:]
        low, high = np.quantile(steady, [0.1, 0.9])
        return bool(low > 0.05 * step.mean() and high < 3 * low)

    return _Setup(config, fetch, step, host=Host(boot_ns=boot), visible=visible)


def _saturated(draws: _Draws, n: int, low_cv: float, high_cv: float) -> _Setup:
    config, workers, _ = _config(draws, unordered=0.28)
    cv = draws.uniform("fetch_cv", low_cv, high_cv)
    cores = draws.choice("cores", [math.inf, 2, 3, 4], [5, 3, 1, 1])
    fetch_ns = draws.log_uniform("fetch_ms", 20, 6000) * MS
    longest = fetch_ns * max(1.0, workers / cores)
    load = draws.log_uniform("load", 1.9, 20)
    step = longest / (load * workers) * draws.spread(n, draws.uniform("step_cv", 0.0, 0.06))
    return _Setup(
        config,
        fetch_ns * draws.spread(n, cv),
        step,
        cpu_share=1.0 if math.isfinite(cores) else 0.0,
        host=Host(cores=cores),
        truth={"cv": cv, "cores": None if math.isinf(cores) else cores, "period": workers},
    )


def _pool(draws: _Draws, n: int) -> _Setup:
    return _saturated(draws, n, 0.0, 0.15)


def _pool_desync(draws: _Draws, n: int) -> _Setup:
    return _saturated(draws, n, 0.25, 0.85)


def _straggler(draws: _Draws, n: int) -> _Setup:
    config, workers, _ = _config(draws, high=16 if n > 32 else 8)
    step = _steps(draws, n, cv=0.05)
    factor = draws.uniform("factor", 4, 11)
    load = draws.uniform("load", max(0.12, 1.3 / factor), 0.7)
    fetch = load * workers * step.mean() * draws.spread(n, draws.uniform("fetch_cv", 0.02, 0.2))
    slow = int(draws.choice("slow_worker", range(workers)))
    scale = [factor if k == slow else 1.0 for k in range(workers)]
    truth = {"factor": factor, "slow_worker": slow, "period": workers}
    return _Setup(config, fetch, step, faults=Faults(worker_scale=scale), truth=truth)


def _heavy_random(draws: _Draws, n: int) -> _Setup:
    config, workers, factor = _config(draws, low=0, unordered=0.2)
    if workers == 1:
        config, workers = replace(config, num_workers=2), 2
    step = _steps(draws, n)
    shared = max(1, workers)
    if draws.choice("tail", ["rare", "lognormal"], [2, 1]) == "lognormal":
        sigma = draws.uniform("sigma", 1.2, 2.4)
        fetch = (
            draws.uniform("load", 0.1, 0.5)
            * shared
            * step.mean()
            * np.exp(sigma * draws.rng.standard_normal(n))
        )
        return _Setup(config, fetch, step)
    fetch = (
        draws.uniform("load", 0.15, 0.65)
        * shared
        * step.mean()
        * draws.spread(n, draws.uniform("fetch_cv", 0.05, 0.2))
    )
    heavy = draws.rng.random(n) < draws.uniform("heavy_share", 0.02, 0.1)
    heavy[draws.rng.choice(np.arange(n // 8, n), size=2, replace=False)] = True
    size = draws.uniform("heavy_size", 1.5, 4) * max(3.0, workers * factor) * step.mean()
    fetch[heavy] = size * draws.spread(int(heavy.sum()), 0.25)
    return _Setup(config, fetch, step, visible=lambda wait: _carried(wait, heavy, config) > 0.5)


def _periodic(draws: _Draws, n: int, config: LoaderConfig, period: int, mixed: float = 0.0) -> _Setup:
    workers, factor = config.num_workers or 0, config.prefetch_factor or 1
    step = _steps(draws, n)
    load = draws.uniform("load", 0.1, 0.5)
    fetch = load * max(1, workers) * step.mean() * draws.spread(n, draws.uniform("fetch_cv", 0.03, 0.15))
    offset = int(draws.choice("offset", range(period)))
    heavy = np.arange(n) % period == offset
    # What prefetch can hide is the queue's length; from there on it shows.
    size = draws.uniform("heavy_size", 1.3, 3.0) * max(3.0, min(workers * factor, 2 * period)) * step.mean()
    fetch[heavy] = size * draws.spread(int(heavy.sum()), 0.05)
    random = (draws.rng.random(n) < mixed) & ~heavy
    fetch[random] = size * draws.spread(int(random.sum()), 0.4)

    def visible(wait: Float) -> bool:
        return _carried(wait, heavy | random, config) > 0.5 and _share(wait, step, 0) > VISIBLE_WAIT_SHARE

    return _Setup(config, fetch, step, truth={"period": period, "offset": offset}, visible=visible)


def _data_period(draws: _Draws, n: int) -> _Setup:
    config, workers, _ = _config(draws, low=0)
    # A multiple of the worker count is another case; a period needs four turns to be one.
    periods = [
        p for p in (3, 4, 5, 7, 8, 9, 10, 12, 16, 20, 24) if p <= n // 4 and (workers < 2 or p % workers)
    ]
    return _periodic(draws, n, config, int(draws.choice("period", periods or [5])))


def _data_mult_w(draws: _Draws, n: int) -> _Setup:
    config, workers, _ = _config(draws, high=16 if n > 32 else 4)
    times = [k for k in (1, 2, 3) if k * workers <= n // 4] or [1]
    return _periodic(draws, n, config, workers * int(draws.choice("times", times)))


def _mixed_data_heavy(draws: _Draws, n: int) -> _Setup:
    config, workers, _ = _config(draws, low=0)
    periods = [p for p in (4, 5, 6, 7, 8, 9, 10, 12) if p <= n // 4 and (workers < 2 or p % workers)]
    return _periodic(
        draws, n, config, int(draws.choice("period", periods or [5])), draws.uniform("mixed", 0.02, 0.05)
    )


def _worker_local(draws: _Draws, n: int) -> _Setup:
    most = max(2, n // 9)
    config, workers, factor = _config(draws, high=min(16, most))
    every = int(draws.choice("every", [k for k in (3, 4, 5, 6, 8) if k * workers * 3 <= n] or [3]))
    step = _steps(draws, n, cv=0.05)
    load = draws.uniform("load", 0.15, 0.6)
    fetch = load * workers * step.mean() * draws.spread(n, draws.uniform("fetch_cv", 0.05, 0.15))
    extra = np.zeros((workers, every))
    extra[:, every - 1] = draws.uniform("heavy_size", 1.3, 3.0) * workers * factor * step.mean()
    truth = {"every": every, "period": every * workers}
    return _Setup(config, fetch, step, faults=Faults(task_extra_ns=extra), truth=truth)


def _clock(draws: _Draws, n: int) -> _Setup:
    config, workers, factor = _config(draws, low=1, high=8 if n > 100 else 4, unordered=0.2, prefetch=(1, 2))
    step = _steps(draws, n, cv=0.28)
    load = draws.uniform("load", 0.2, 0.6)
    fetch = load * workers * step.mean() * draws.spread(n, draws.uniform("fetch_cv", 0.05, 0.15))
    pause = draws.uniform("heavy_size", 1.3, 2.2) * workers * factor * step.mean()
    least = max(8.0, 1.6 * pause / step.mean())
    turn = draws.uniform("turn_steps", least, max(least * 1.1, n / 5)) * step.mean()
    begin = draws.uniform("first_turn", 0.5, 1.0) * turn
    starts = np.arange(begin, n * (step.mean() + fetch.mean()) + pause * n, turn)
    faults = Faults(pauses=[(float(s), float(s) + pause, None) for s in starts])
    return _Setup(config, fetch, step, faults=faults, truth={"T": turn / 1e9})


def _epoch(draws: _Draws, n: int) -> _Setup:
    config, workers, _ = _config(draws, low=1, unordered=0.2)
    epochs = int(draws.choice("epochs", [4, 5, 6, 7, 8] if n > 32 else [3, 4]))
    config = replace(config, batches=max(3, math.ceil(n / epochs)))
    step = _steps(draws, n, cv=0.06)
    load = draws.uniform("load", 0.1, 0.5)
    fetch = load * workers * step.mean() * draws.spread(n, draws.uniform("fetch_cv", 0.03, 0.12))
    boot = draws.log_uniform("boot_steps", 1.5, 10) * step.mean()

    def visible(wait: Float) -> bool:
        first = np.arange(n) % (config.batches or n) == 0
        return bool(wait[first].min() > 0.5 * boot and wait[first].sum() > 0.6 * wait.sum())

    return _Setup(
        config, fetch, step, host=Host(boot_ns=boot), truth={"period": config.batches}, visible=visible
    )


def _drift(draws: _Draws, n: int) -> _Setup:
    config, workers, _ = _config(draws, low=1, high=16 if n > 32 else 4, unordered=0.25)
    step = _steps(draws, n, cv=0.07)
    first, growth = draws.uniform("load", 0.5, 1.1), draws.uniform("growth", 3, 7)
    at = np.linspace(0, 1, n)
    form = draws.choice("form", ["linear", "exponential", "step"], [3, 1, 1])
    if form == "linear":
        curve = 1 + (growth - 1) * at
    elif form == "exponential":
        curve = growth**at
    else:
        curve = np.where(at < draws.uniform("change_at", 0.35, 0.65), 1.0, growth)
    fetch = first * workers * step.mean() * curve * draws.spread(n, draws.uniform("fetch_cv", 0.03, 0.15))
    return _Setup(config, fetch, step, truth={"form": form, "growth": growth})


def _share(wait: Float, step: Float, first: int) -> float:
    waited = float(wait[first:].sum())
    return waited / (waited + float(step[first:].sum())) if first < len(wait) else 0.0


def _carried(wait: Float, heavy: NDArray[np.bool_], config: LoaderConfig) -> float:
    """Share of the waited time, the start left out, at the batches that were made heavy."""
    first = max(1, config.num_workers or 0)
    late = wait[first:]
    # Unordered, the wait stands at whichever batch comes next; all that can be asked is that there is one.
    return 1.0 if config.in_order is False else float(late[heavy[first:]].sum() / max(1.0, late.sum()))


_CASES: Mapping[str, tuple[str, Callable[[_Draws, int], _Setup]]] = {
    "healthy": ("none", _healthy),
    "warmup": ("start_up", _warmup),
    "uniform": ("uniform", _uniform),
    "pool": ("saturated_pool", _pool),
    "pool_desync": ("saturated_pool", _pool_desync),
    "straggler": ("slow_worker", _straggler),
    "heavy_random": ("slow_sample", _heavy_random),
    "data_period": ("data_period", _data_period),
    "data_multW": ("data_period", _data_mult_w),
    "mixed_data_heavy": ("data_period", _mixed_data_heavy),
    "worker_local": ("worker_period", _worker_local),
    "clock": ("clock_period", _clock),
    "epoch": ("epoch_boundary", _epoch),
    "drift": ("drift", _drift),
}
# Case to the shape that a diagnosis should name. `poisson_hard` is not simulated: its memoryless stalls are
# put at random, so that nothing but chance makes them regular.
CASES: Mapping[str, str] = {
    **{case: shape for case, (shape, _) in _CASES.items()},
    "poisson_hard": "slow_sample",
}


def labelled_run(
    case: str, n: int, seed: int, **over: Any
) -> tuple[dict[str, NDArray[Any]], dict[str, Any], str]:
    """One made-up run with a known cause.

    Args:
        case: A key of ``CASES``.
        n: Deliveries, at least 16; ``worker_local``, ``clock`` and ``mixed_data_heavy`` need 64.
        seed: Same seed, same run.
        **over: Fixes a drawn parameter by name (``num_workers=4``, ``fetch_cv=0.05``, ``cores=2`` ...).

    Returns:
        Columns in delivery order (int64 ns, as ``records.run.from_arrays`` takes them; ``rank`` counts over
        all epochs), the loader's options with the drawn ``truth``, and the shape's key.

    Raises:
        ValueError: An unknown case or parameter, too few deliveries, or parameters under which the cause
            never shows.
    """
    if case not in CASES:
        raise ValueError(f"unknown case {case!r}; known are {', '.join(CASES)}")
    least = 64 if case in ("worker_local", "clock", "mixed_data_heavy") else 16
    if n < least:
        raise ValueError(f"{case}: expected at least {least} deliveries, got {n}")
    rng = np.random.default_rng([seed, n, list(CASES).index(case)])
    for _ in range(MAX_DRAWS):
        draws = _Draws(rng, over)
        if case == "poisson_hard":
            columns, config, truth = _poisson_hard(draws, n)
        else:
            setup = _CASES[case][1](draws, n)
            columns, config, truth = *_simulated(setup), dict(setup.truth or {})
        unknown = sorted(set(over) - draws.used)
        if unknown:
            raise ValueError(f"{case}: no parameter {unknown}; known are {', '.join(sorted(draws.used))}")
        if case == "poisson_hard" or _shows(setup, columns["wait_ns"].astype(np.float64)):
            break
    else:
        raise ValueError(f"{case}: with {over} the cause did not show in any of {MAX_DRAWS} draws")
    options = {
        "num_workers": config.num_workers,
        "prefetch_factor": config.prefetch_factor,
        "in_order": config.in_order,
        "truth": truth,
    }
    return _with_noise(columns, rng), options, CASES[case]


def _shows(setup: _Setup, wait: Float) -> bool:
    if setup.visible is not None:
        return setup.visible(wait)
    steady = (setup.config.num_workers or 0) * (setup.config.prefetch_factor or 0)
    return _share(wait, setup.step_ns, min(steady, len(wait) // 2)) > VISIBLE_WAIT_SHARE


def _simulated(setup: _Setup) -> tuple[dict[str, NDArray[np.int64]], LoaderConfig]:
    demands = Demands(
        io_ns=setup.fetch_ns * (1 - setup.cpu_share),
        cpu_ns=setup.fetch_ns * setup.cpu_share,
        step_ns=setup.step_ns,
    )
    run = simulate(demands, setup.config, host=setup.host, faults=setup.faults)
    names = (
        "wait_ns",
        "step_ns",
        "rank",
        "worker",
        "epoch",
        "ask_ns",
        "got_ns",
        "fetch_start_ns",
        "fetch_end_ns",
    )
    columns = {name: run.columns[name].copy() for name in names}
    columns["rank"] += columns["epoch"] * (setup.config.batches or 0)
    return columns, run.config


def _poisson_hard(draws: _Draws, n: int) -> tuple[dict[str, NDArray[np.int64]], LoaderConfig, dict[str, Any]]:
    config, workers, _ = _config(draws, low=0, high=8)
    step = _steps(draws, n)
    rate = draws.uniform("rate", 0.12, 0.35)
    stalled = draws.rng.random(n) < rate
    stalled[draws.rng.choice(n, size=3, replace=False)] = True
    base = draws.uniform("load", 0.3, 0.6) * (1 if workers else 0.02) * step.mean() * draws.spread(n, 0.15)
    size = draws.uniform("heavy_size", 3, 7) * step.mean()
    wait = np.where(stalled, size * draws.spread(n, draws.uniform("fetch_cv", 0.1, 0.25)), 0.0)
    if not workers:
        wait, base = wait + base, np.zeros(n)
    got = np.cumsum(wait) + np.concatenate([[0.0], np.cumsum(step)[:-1]])
    # A batch that was waited for came when it was ready; the others lay ready since some part of a step.
    end = got - np.where(stalled, 0.0, draws.rng.uniform(0.05, 0.95, n) * step if workers else 0.0)
    rank = np.arange(n, dtype=np.int64)
    worker = rank % workers if workers else np.full(n, IN_CONSUMER, dtype=np.int64)
    times = {
        "wait_ns": wait,
        "step_ns": step,
        "ask_ns": got - wait,
        "got_ns": got,
        "fetch_start_ns": end - base - wait,
        "fetch_end_ns": end,
    }
    columns = {name: np.rint(values).astype(np.int64) for name, values in times.items()}
    columns.update(rank=rank, worker=worker, epoch=np.zeros(n, dtype=np.int64))
    return columns, config, {"rate": rate}


def _with_noise(columns: dict[str, NDArray[np.int64]], rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    n = len(columns["wait_ns"])
    late = np.rint(NOISE_FLOOR_NS + rng.exponential(NOISE_MEAN_NS, n)).astype(np.int64)
    # The clock is read a little before the loader is really asked, at the cost of the step before.
    ask = columns["ask_ns"] - late
    ask[1:] = np.maximum(ask[1:], columns["got_ns"][:-1])
    step = columns["step_ns"].copy()
    step[:-1] = ask[1:] - columns["got_ns"][:-1]
    return {**columns, "ask_ns": ask, "wait_ns": columns["got_ns"] - ask, "step_ns": step}
