"""Options overridden at construction, on real loaders with forked workers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from traceml_lite import store
from traceml_lite.probe.controls import meet
from traceml_lite.probe.override import Overrides, PassEnd, installed
from traceml_lite.probe.session import record


class Numbers(Dataset):
    def __init__(self, n=40, slow_s=0.0):
        self.n, self.slow_s = n, slow_s

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if self.slow_s:
            time.sleep(self.slow_s)
        return torch.full((2,), float(index))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(20))


def drive(make, overrides, epochs=3):
    """What a script would see: the first number of every sample, batch by batch."""
    got = []
    with installed(overrides) as session:
        try:
            loader = make()
            for _ in range(epochs):
                for batch in loader:
                    got.append(batch[:, 0].tolist())
        except PassEnd:
            pass
    return session, got


def make():
    return DataLoader(Numbers(), 4, shuffle=True, num_workers=1, prefetch_factor=4)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_number_of_workers_sees_the_same_batches_in_the_same_order(workers):
    session, got = drive(make, Overrides(options={"num_workers": workers}, loader=0, deliveries=14))
    _, reference = drive(make, Overrides(loader=0, deliveries=14))
    assert got == reference
    assert session.loaders[0].options["num_workers"] == workers


class DrawsWhenIterated(torch.utils.data.Sampler):
    """As torchdata's: a generator of its own, drawn from by iter(), which workers make happen twice."""

    def __init__(self, n):
        self.n, self.generator = n, torch.Generator()

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter(torch.randperm(self.n, generator=self.generator).tolist())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_sampler_that_draws_when_iterated_gives_every_arm_the_same_order(workers, persistent):
    def loader():
        return DataLoader(Numbers(), 4, sampler=DrawsWhenIterated(40))

    options = {"num_workers": workers, "persistent_workers": persistent}
    _, got = drive(loader, Overrides(options=options, loader=0, deliveries=25))
    _, alone = drive(loader, Overrides(options={"num_workers": 0}, loader=0, deliveries=25))
    assert got == alone
    assert got[:10] != got[10:20]


def test_a_generator_of_the_scripts_own_gives_every_arm_the_same_order():
    def loader():
        generator = torch.Generator()
        generator.seed()
        return DataLoader(Numbers(), 4, shuffle=True, generator=generator)

    _, two = drive(loader, Overrides(options={"num_workers": 2}, loader=0, deliveries=15))
    _, none = drive(loader, Overrides(options={"num_workers": 0}, loader=0, deliveries=15))
    assert two == none


def test_another_seed_gives_another_order():
    _, one = drive(make, Overrides(loader=0, deliveries=5, seed=1))
    _, other = drive(make, Overrides(loader=0, deliveries=5, seed=2))
    assert one != other


def test_a_pass_ends_after_its_deliveries_without_touching_the_next_epoch():
    session, got = drive(make, Overrides(loader=0, deliveries=10), epochs=5)
    assert (len(got), session.loaders[0].deliveries, session.loaders[0].iterators) == (10, 10, 1)


def test_without_a_chosen_loader_nothing_is_changed_and_any_of_them_ends_the_pass():
    def two():
        DataLoader(Numbers(8), 4)
        return make()

    session, got = drive(two, Overrides(options={"num_workers": 0}, deliveries=12))
    assert len(got) == 12
    assert session.loaders[1].options["num_workers"] == 1


def test_a_loader_rebuilt_over_the_same_data_keeps_its_number_and_the_override():
    data = Numbers()

    def rebuilt():
        first = DataLoader(data, 4, num_workers=2)
        return DataLoader(first.dataset, batch_sampler=first.batch_sampler, num_workers=first.num_workers)

    session, _ = drive(
        rebuilt, Overrides(options={"num_workers": 0, "batch_size": 8}, loader=0, deliveries=3)
    )
    assert len(session.loaders) == 1
    assert session.loaders[0].refused == []
    assert session.loaders[0].options["num_workers"] == 0


def test_only_the_chosen_one_of_two_loaders_is_changed():
    def two():
        DataLoader(Numbers(), 2, num_workers=2)
        return DataLoader(Subset(Numbers(), range(8)), 2)

    session, _ = drive(two, Overrides(options={"batch_size": 1}, loader=1, deliveries=2))
    assert [one.options["batch_size"] for one in session.loaders] == [2, 1]


def test_torch_is_as_before_afterwards():
    init, base = DataLoader.__init__, torch.utils.data.dataloader._BaseDataLoaderIter
    methods = base.__init__, base._next_index, base.__next__
    drive(make, Overrides(loader=0, deliveries=2, control="ceiling", cached_batches=1))
    assert DataLoader.__init__ is init
    assert (base.__init__, base._next_index, base.__next__) == methods
    fetchers = torch.utils.data._utils.fetch
    assert fetchers._MapDatasetFetcher.fetch.__qualname__ == "_MapDatasetFetcher.fetch"


def test_a_wrong_argument_of_the_script_keeps_torchs_own_error():
    with installed(Overrides(loader=0)), pytest.raises(TypeError, match="num_worker"):
        DataLoader(Numbers(), num_worker=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_sampler_crosses_the_epoch_within_one_iterator(workers):
    options = {"num_workers": workers}
    session, got = drive(make, Overrides(options=options, loader=0, deliveries=25, endless=True))
    assert (len(got), session.loaders[0].iterators) == (25, 1)
    first, second = ([one for batch in part for one in batch] for part in (got[:10], got[10:20]))
    assert sorted(first) == sorted(second) == list(range(40))


@pytest.mark.parametrize("workers", [0, 2])
def test_repeat_dispatches_the_same_indices_again(workers):
    options = {"num_workers": workers}
    _, got = drive(make, Overrides(options=options, loader=0, deliveries=12, repeat_after=6), epochs=1)
    assert got[:6] == got[6:]


def test_repeat_turns_back_where_a_short_epoch_ends():
    _, got = drive(make, Overrides(loader=0, deliveries=20, repeat_after=15), epochs=1)
    assert len(got) == 20
    assert got[:10] == got[10:]


def test_the_ceiling_replays_its_first_batches_and_fetches_no_more():
    def slow():
        return DataLoader(Numbers(slow_s=0.01), 4)

    overrides = Overrides(
        options={"num_workers": 0}, loader=0, deliveries=30, control="ceiling", cached_batches=3, endless=True
    )
    began_s = time.monotonic()
    _, got = drive(slow, overrides)
    assert len({tuple(batch) for batch in got}) == 3
    assert got[:3] == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    # 30 batches of 40 ms would be 1.2 s; three are 0.12 s.
    assert time.monotonic() - began_s < 1.0


def test_a_replayed_batch_has_containers_of_its_own():
    class Dicts(Numbers):
        def __getitem__(self, index):
            return {"x": torch.tensor(index)}

    overrides = Overrides(loader=0, deliveries=6, control="ceiling", cached_batches=2, endless=True)
    with installed(overrides):
        try:
            for batch in DataLoader(Dicts(), 2):
                assert "moved" not in batch
                batch["moved"] = True
        except PassEnd:
            return
    pytest.fail("the pass did not end")


@pytest.mark.parametrize("workers", [0, 2])
def test_trivial_gives_zeros_after_the_first_fetch_of_each_process(workers):
    overrides = Overrides(options={"num_workers": workers}, loader=0, deliveries=10, control="trivial")
    _, got = drive(lambda: DataLoader(Numbers(), 4), overrides)
    real = [batch for batch in got if any(batch)]
    assert len(real) == max(1, workers)
    assert all(len(batch) == 4 for batch in got)


def test_stagger_starts_workers_a_share_of_the_period_apart_however_slowly_they_are_forked(
    trace_path: Path,
):
    period_ns = 400_000_000
    overrides = Overrides(
        options={"num_workers": 2},
        loader=0,
        deliveries=4,
        control="stagger",
        shift_ns=period_ns,
        meeting=str(trace_path.parent / "meeting"),
    )
    with record(trace_path):
        drive(lambda: DataLoader(Numbers(slow_s=0.02), 1), overrides)
    table = store.load(trace_path).main.fetches
    # The wait is part of the first fetch, so its end is looked at.
    first = [int(table["fetch_end_ns"][table["worker"] == worker].min()) for worker in (0, 1)]
    # Half of the period, and what a busy host adds to it.
    assert 0.4 < (first[1] - first[0]) / period_ns < 0.9


def test_all_who_meet_agree_on_the_moment_of_the_first(tmp_path: Path):
    place = str(tmp_path / "meeting")
    assert [meet(place, now_ns) for now_ns in (700, 800, 900)] == [700, 700, 700]
    assert [path.name for path in tmp_path.iterdir()] == ["meeting"]


class Threads(Numbers):
    def __getitem__(self, index):
        return torch.full((2,), float(torch.get_num_threads()))


def use_three_threads(worker):
    torch.set_num_threads(3)


def test_threads_has_the_last_word_over_the_scripts_own_worker_init():
    def loader():
        return DataLoader(Threads(), 2, num_workers=1, worker_init_fn=use_three_threads)

    _, before = drive(loader, Overrides(loader=0, deliveries=1))
    _, after = drive(loader, Overrides(loader=0, deliveries=1, control="threads"))
    assert (before[0][0], after[0][0]) == (3.0, 1.0)


def test_an_iterable_dataset_leaves_no_indices_that_could_be_compared():
    with installed(Overrides(loader=0, options={"num_workers": 2})) as session:
        assert len(list(DataLoader(Stream(), 4))) == 10
    assert session.loaders[0].iterable


def test_an_index_without_a_stable_text_is_named():
    class Odd:
        def __len__(self):
            return 2

        def __iter__(self):
            return iter([object(), object()])

    class Any(Dataset):
        def __getitem__(self, index):
            return 0

    with installed(Overrides(loader=0)) as session:
        list(DataLoader(Any(), 1, sampler=Odd()))
    assert "object" in session.streams[0].unreadable


def test_the_end_of_a_pass_is_no_error_of_the_loader_in_its_trace(trace_path: Path):
    with record(trace_path):
        drive(make, Overrides(loader=0, options={"num_workers": 2}, deliveries=7))
    run = store.load(trace_path)
    assert run.main.delivered == 7
    assert not [event for event in run.main.events if event.kind in ("error", "worker_gone")]
    assert run.main.config.num_workers == 2


def test_the_probe_times_the_replayed_fetch_and_not_the_real_one(trace_path: Path):
    overrides = Overrides(
        options={"num_workers": 0}, loader=0, deliveries=12, control="ceiling", cached_batches=2
    )
    with record(trace_path):
        drive(lambda: DataLoader(Numbers(slow_s=0.01), 2), overrides)
    table = store.load(trace_path).main.deliveries
    fetch_ns = table["fetch_end_ns"] - table["fetch_start_ns"]
    assert (fetch_ns[:2] > 15_000_000).all()
    assert (fetch_ns[2:] < 15_000_000).all()
