"""The model against real DataLoaders: means, gaps and stall sets; never single waits, which ties decide."""

import time

import numpy as np
import pytest

from traceml_lite.records.run import LoaderConfig
from traceml_lite.simulate.model import Demands, Host, simulate

data = pytest.importorskip("torch.utils.data")

# Sleeping workers need no CPU each, so torch's advice on their number does not apply here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

STEP_NS = 4_000_000


class Sleeper(data.Dataset):
    """Item r sleeps as long as it is told and says when it did, in whose process."""

    def __init__(self, fetch_ns):
        self.fetch_ns = fetch_ns

    def __len__(self):
        return len(self.fetch_ns)

    def __getitem__(self, rank):
        start = time.perf_counter_ns()
        time.sleep(self.fetch_ns[rank] / 1e9)
        info = data.get_worker_info()
        return rank, -1 if info is None else info.id, start, time.perf_counter_ns()


def first_item(items):
    return items[0]


def drive(fetch_ns, workers, in_order, prefetch):
    """Rows of (rank, worker, start, end, wait, step) of a real loader."""
    options = {"num_workers": workers, "collate_fn": first_item}
    if workers:
        options.update(prefetch_factor=prefetch, in_order=in_order, multiprocessing_context="fork")
    rows = []
    iterator = iter(data.DataLoader(Sleeper(fetch_ns), **options))
    got = time.perf_counter_ns()
    while True:
        ask = time.perf_counter_ns()
        item = next(iterator, None)
        if item is None:
            return np.array(rows)
        if rows:
            rows[-1].append(ask - got)
        got = time.perf_counter_ns()
        rows.append([*item, got - ask])
        time.sleep(STEP_NS / 1e9)
        if len(rows) == len(fetch_ns):
            rows[-1].append(time.perf_counter_ns() - got)


def fetches(kind, n=48):
    rng = np.random.default_rng(7)
    if kind == "pool":
        return np.full(n, 60e6) * (1 + 0.02 * rng.standard_normal(n))
    if kind == "jitter":
        return 40e6 * np.exp(0.6 * rng.standard_normal(n))
    # The heavy ones are over before the run ends, where nothing is left to overtake with.
    fetch = np.full(2 * n, 8e6)
    fetch[5:n:12] = 150e6
    return fetch


@pytest.mark.parametrize(
    ("kind", "workers", "in_order", "prefetch"),
    [
        ("pool", 0, True, 2),
        ("pool", 1, True, 2),
        ("pool", 4, True, 2),
        ("pool", 4, False, 2),
        ("jitter", 3, True, 1),
        ("jitter", 3, False, 4),
        ("heavy", 4, True, 2),
        ("heavy", 4, False, 2),
    ],
)
def test_the_model_sees_what_a_real_loader_does(kind, workers, in_order, prefetch):
    asked = fetches(kind)
    seen = drive(asked, workers, in_order, prefetch)
    rank, worker, start, end, wait, step = seen.T
    took = np.empty(len(seen))
    took[rank] = end - start
    work = Demands(io_ns=took, cpu_ns=np.zeros(len(seen)), step_ns=step)
    config = LoaderConfig(num_workers=workers, prefetch_factor=prefetch, in_order=in_order)
    # Forking took part of the first wait; the model is told when the workers began.
    boot = max(0.0, float(wait[0] - took[rank[0]]))
    run = simulate(work, config, host=Host(boot_ns=boot if workers else 0.0))
    period, modelled = (wait + step).mean(), (run.wait_ns + run.columns["step_ns"]).mean()
    assert modelled == pytest.approx(period, rel=0.15)
    if workers == 0 or in_order:
        assert run.columns["worker"].tolist() == worker.tolist()
        assert run.columns["rank"].tolist() == rank.tolist()
    else:
        shares = [np.bincount(w, minlength=workers) / len(seen) for w in (run.columns["worker"], worker)]
        assert np.abs(shares[0] - shares[1]).max() < 0.2
    if (kind == "pool" and workers == 4) or kind == "heavy":
        stalls, modelled_stalls = (set(np.flatnonzero(w[4:] > 25e6)) for w in (wait, run.wait_ns))
        together = stalls & modelled_stalls
        assert len(together) >= 0.5 * len(stalls | modelled_stalls)
        if kind == "heavy" and not in_order:
            assert len(stalls) == len(modelled_stalls) == 0


def test_the_gap_of_a_real_saturated_pool_and_of_its_model_is_the_number_of_workers():
    for workers in (2, 3):
        n = 12 * workers
        # Long against the time of a fork, which would otherwise stagger the workers from birth.
        asked = 2 * fetches("pool", n)
        real = drive(asked, workers, True, 2)[:, 4]
        work = Demands(io_ns=asked, cpu_ns=np.zeros(n), step_ns=np.full(n, STEP_NS))
        model = simulate(work, LoaderConfig(num_workers=workers, prefetch_factor=2)).wait_ns
        for wait in (real, model):
            gaps = np.diff(np.flatnonzero(wait[1:] > 0.5 * asked.mean()))
            assert np.median(gaps) == workers
