"""Made-up summaries for the golden files. ``python made_up_summaries.py`` writes the files anew.

The numbers are invented and only have to be plausible together; what computes real ones is tested elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from traceml_lite.records.results import Diagnosis, Estimate, Evidence, Experiment, Outcome, State, Verdict
from traceml_lite.records.run import DatasetKind, Environment, LoaderConfig
from traceml_lite.records.summary import (
    Absence,
    ConsumerStep,
    Contrast,
    ContrastRow,
    Edge,
    Edges,
    Gaps,
    HostPressure,
    Measured,
    NotMeasured,
    Order,
    OtherLoader,
    PidChange,
    Place,
    ProbeCost,
    Stalls,
    Subject,
    Summary,
    Supply,
    Waits,
    WorkerLine,
    Workers,
)
from traceml_lite.report.jsondoc import summary_document
from traceml_lite.report.terminal import render_summary

GOLDEN = Path(__file__).parent / "golden"
MS = 1e6
S = 1e9


def number(value: float, n: int = 1200) -> Estimate:
    return Estimate(value, n=n, method="made up")


def between(value: float, low: float, high: float, n: int = 1192) -> Estimate:
    return Estimate(value, low, high, 0.95, n, "made up")


def waits(n: int, share: Measured, p50: float, p95: float, p99: float, longest: float) -> Waits:
    return Waits(
        deliveries=n,
        wait_share=share,
        total_wait_ns=number(n * 0.47 * S),
        p50_wait_ns=number(p50, n),
        p95_wait_ns=number(p95, n),
        p99_wait_ns=number(p99, n),
        max_wait_ns=number(longest, n),
        longest=Place(delivery=640, epoch=0, iterator=0, rank=640, worker=0),
        deliveries_per_s=between(2.118, 2.104, 2.131),
        deliveries_per_s_without_waiting=between(9.7031, 9.6, 9.81),
        samples_per_s=between(16.944, 16.8, 17.0),
    )


def line(worker: int | None, p50: float = 1.86 * S) -> WorkerLine:
    return WorkerLine(
        worker=worker,
        pids=() if worker is None else (4711 + worker,),
        n_pids=4 if worker is None else 1,
        fetches=300,
        deliveries=number(1200 if worker is None else 300),
        p50_fetch_ns=number(p50),
        p95_fetch_ns=number(p50 * 1.07),
        cpu_share=number(0.4512),
        run_queue_share=number(0.5369),
        read_bytes_per_fetch=number(0),
        rchar_per_fetch=number(123_456),
        minor_faults_per_fetch=number(33.2),
        major_faults_per_fetch=number(0),
        voluntary_switches_per_fetch=number(5.02),
        involuntary_switches_per_fetch=number(211.4),
        last_rss_bytes=number(3.1e8),
    )


def saturated() -> Summary:
    """Four workers on two cores: a stall every four deliveries."""
    places = tuple(Place(4 * i, 0, 0, 4 * i, 0) for i in range(12))
    return Summary(
        subject=Subject(
            source="runs/a",
            loader="DataLoader over AlohaDataset",
            config=LoaderConfig(
                num_workers=4,
                prefetch_factor=2,
                in_order=True,
                batch_size=8,
                persistent_workers=False,
                pin_memory=False,
                drop_last=False,
                timeout_s=0.0,
                start_method="fork",
                dataset_kind=DatasetKind.MAP,
                dataset="data.AlohaDataset",
            ),
            environment=Environment(
                host="box",
                platform="Linux 6.8 x86_64",
                python="3.11.7",
                torch="2.13.0",
                versions={"datasets": "4.1.1"},
                cpus_online=8,
                cpus_affinity=2,
                command=("python", "train.py", "--lr", "0.1"),
            ),
            deliveries=1200,
            kept=1200,
            fast_forwarded=0,
            iterators=1,
            epochs=1,
            sampled=None,
            warm_up_batches=Estimate(8.0, method="num_workers x prefetch_factor"),
            complete=True,
            ending="ended in order",
        ),
        steady=waits(1192, between(0.7814, 0.7761, 0.7866), 1.83 * MS, 1.87 * S, 1.92 * S, 2.01 * S),
        whole=waits(1200, between(0.7829, 0.7765, 0.7893), 1.85 * MS, 1.88 * S, 2.05 * S, 2.44 * S),
        stalls=Stalls(
            threshold_ns=int(0.94 * S),
            threshold_source="half of the waits that carry 90 %",
            n=298,
            deliveries=1200,
            n_warm_up=2,
            share_of_waiting=between(0.9964, 0.9951, 0.9974),
            places=places,
            gaps=Gaps(297, number(4), ((4, 290), (8, 5), (3, 1), (5, 1)), number(1.87 * S)),
        ),
        supply=Supply(
            capacity_batches=Estimate(8.0, method="num_workers x prefetch_factor"),
            ready_at_ask_batches=between(1.52, 1.48, 1.56),
            none_ready_share=between(0.2508, 0.247, 0.254),
            stalls_awaited_ready_share=number(0, 298),
            stalls_other_ready_share=number(0.0302, 298),
            queue_batches=number(1.49),
            queue_empty_share=number(0.2517),
            held_back_batches=number(0.03),
            p50_lag_ns=number(0.62 * MS),
            p95_lag_ns=number(1.95 * MS),
            max_lag_ns=number(12.4 * MS),
            lag_share_of_waiting=between(0.0021, 0.0018, 0.0025),
        ),
        order=Order(0, 0, 0, 0, 1200),
        workers=Workers(line(None), tuple(line(w) for w in range(4)), (0, 1, 2, 3), (), 0),
        contrast=Contrast(
            298,
            901,
            (
                ContrastRow("interval_ns", "ns", number(1.97 * S, 298), number(0.104 * S, 901)),
                ContrastRow("worker_cpu_ns", "ns", number(3.7 * S, 298), number(0.201 * S, 901)),
                ContrastRow("worker_cores", "cores", number(1.97, 298), number(1.93, 901)),
                ContrastRow("worker_run_queue_ns", "ns", number(3.66 * S, 298), number(0.205 * S, 901)),
                ContrastRow("worker_read_bytes", "bytes", number(0, 298), number(0, 901)),
                ContrastRow("worker_rchar", "bytes", number(491_000, 298), number(26_100, 901)),
                ContrastRow("worker_major_faults", "count", number(0, 298), number(0, 901)),
            ),
        ),
        edges=Edges(
            first=Edge(1, number(26 * MS), number(2.44 * S), number(4.4 * S), number(12 * MS)),
            later=NotMeasured("one epoch only"),
            broken_off=0,
            errors=(),
            share=number(0.0043),
        ),
        consumer=ConsumerStep(
            p50_step_ns=number(103 * MS),
            p95_step_ns=number(110 * MS),
            cpu_share=number(0.981, 62),
            process_cpu_share=number(1.42, 62),
            run_queue_share=number(0.0121, 62),
            wait_cpu_share=number(0.0013, 62),
            wait_run_queue_share=number(0.0007, 62),
        ),
        host=HostPressure(
            seconds=number(566.3, 566),
            own_cores=number(1.94, 565),
            other_cores=number(0.0412, 565),
            steal_cores=number(0, 565),
            iowait_cores=number(0.0021, 565),
            pressure_cpu_share=number(0.803, 565),
            pressure_io_share=number(0.0123, 565),
            pressure_memory_share=number(0, 565),
            throttled_share=number(0, 565),
            throttled_periods=number(0, 565),
            peak_shm_bytes=number(4.2e6, 566),
            open_files_growth=number(0, 566),
        ),
        probe=ProbeCost(
            consumer_ns_per_delivery=number(2_100),
            worker_ns_per_fetch=number(9_500),
            consumer_share=number(4.45e-6),
            worker_share=number(5.1e-6),
            fixed_cpu_ns=number(0.012 * S, 1),
            dropped_records=number(0),
            core="compiled",
        ),
    )


NOT_GIVEN = NotMeasured("not given")


def waits_only() -> Summary:
    """Another tool's export: nothing but waits."""
    base = saturated()
    n = NOT_GIVEN
    unknown = NotMeasured("num_workers is not known")
    whole = replace(
        waits(100, n, 7.96 * MS, 31.9 * MS, 44.7 * MS, 60.6 * MS),
        total_wait_ns=number(1.18 * S, 100),
        longest=Place(9, 0, 0, None, None),
        deliveries_per_s=n,
        deliveries_per_s_without_waiting=n,
        samples_per_s=n,
    )
    return replace(
        base,
        subject=replace(
            base.subject,
            source="arrays",
            loader="loader",
            config=LoaderConfig(),
            environment=Environment(),
            deliveries=100,
            kept=100,
            warm_up_batches=unknown,
            ending="",
        ),
        steady=whole,
        whole=whole,
        stalls=replace(
            base.stalls,
            threshold_ns=int(3 * MS),
            n=78,
            deliveries=100,
            n_warm_up=0,
            places=tuple(Place(i, 0, 0, None, None) for i in (0, 1, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15)),
            gaps=Gaps(77, number(1, 77), ((1, 59), (2, 15), (3, 3)), n),
        ),
        supply=Supply(unknown, *(n,) * 11),
        order=n,
        workers=n,
        contrast=NotMeasured("needs got_ns: not given"),
        edges=Edges(
            first=Edge(1, n, number(6.8 * MS, 1), n, n),
            later=NotMeasured("one epoch only"),
            broken_off=0,
            errors=(),
            share=NotMeasured("this trace holds no events of its iterators"),
        ),
        consumer=ConsumerStep(*(n,) * 7),
        host=HostPressure(*(NotMeasured("the host was not watched in this run"),) * 12),
        probe=ProbeCost(*(NotMeasured("this trace does not say what recording it cost"),) * 6),
        not_measured=(
            Absence(("fetches in the workers", "step time"), ("fetch_start_ns", "step_ns"), "not given"),
            Absence(("pressure of the host",), (), "the host was not watched in this run"),
        ),
    )


def one_delivery() -> Summary:
    base = waits_only()
    whole = replace(
        waits(1, NOT_GIVEN, 5 * MS, 5 * MS, 5 * MS, 5 * MS),
        total_wait_ns=number(5 * MS, 1),
        longest=Place(0, 0, 0, None, None),
        samples_per_s=NOT_GIVEN,
    )
    return replace(
        base,
        subject=replace(base.subject, deliveries=1, kept=1),
        steady=whole,
        whole=whole,
        stalls=NotMeasured("one delivery: there is no other wait to tell a stall from"),
    )


def nothing_delivered() -> Summary:
    base = waits_only()
    none = NotMeasured("no delivery")
    subject = replace(
        saturated().subject, deliveries=0, kept=0, epochs=0, complete=False, ending="killed by SIGKILL"
    )
    return replace(
        base,
        subject=subject,
        steady=none,
        whole=none,
        stalls=none,
        edges=replace(base.edges, errors=("ValueError in epoch 0 after 0 deliveries, rank 0, worker 0",)),
        not_measured=(),
    )


def no_workers() -> Summary:
    base = saturated()
    alone = NotMeasured("num_workers=0: the consumer fetches each batch itself")
    whole = replace(
        waits(30, between(0.937, 0.923, 0.946, 30), 37.6 * MS, 44.4 * MS, 44.5 * MS, 44.5 * MS),
        longest=Place(12, 0, 0, 12, -1),
    )
    return replace(
        base,
        subject=replace(
            base.subject,
            config=replace(base.subject.config, num_workers=0, prefetch_factor=None, start_method=None),
            deliveries=30,
            kept=30,
            warm_up_batches=Estimate(0.0, method="no workers, nothing is prefetched"),
        ),
        steady=whole,
        whole=whole,
        stalls=replace(
            base.stalls,
            threshold_ns=5_000_000_000,
            threshold_source="given",
            n=0,
            deliveries=30,
            n_warm_up=0,
            places=(),
            share_of_waiting=number(0, 30),
            gaps=NotMeasured("a gap needs two stalls"),
        ),
        supply=Supply(number(0), *(alone,) * 11),
        workers=Workers(line(None, 36.8 * MS), (line(-1, 36.8 * MS),), (-1,), (), 0),
        contrast=NotMeasured("no interval is slow, so there is nothing to set side by side"),
        order=Order(0, 0, 0, 0, 30),
    )


def many_workers() -> Summary:
    """Thirty-two workers, three epochs, a second loader, and a counter that could not be read."""
    base = saturated()
    denied = NotMeasured("no permission to read /proc/self/io")
    lines = tuple(
        replace(line(w, (1.8 + 0.01 * w) * S), rchar_per_fetch=denied, pids=(500 + w,), n_pids=3)
        for w in range(32)
    )
    assert isinstance(base.contrast, Contrast)
    rows = tuple(replace(r, slow=denied, fast=denied) if "rchar" in r.key else r for r in base.contrast.rows)
    return replace(
        base,
        subject=replace(
            base.subject,
            config=replace(base.subject.config, num_workers=32, pin_memory=True),
            epochs=3,
            iterators=3,
            warm_up_batches=Estimate(64.0, method="num_workers x prefetch_factor"),
        ),
        workers=Workers(
            replace(line(None), rchar_per_fetch=denied, n_pids=96), lines, (31, 30, 29, 0, 1), (), 0
        ),
        contrast=replace(base.contrast, rows=rows),
        edges=replace(
            base.edges,
            later=Edge(2, number(24 * MS), number(1.7 * S), number(3.3 * S), number(11 * MS)),
            broken_off=1,
        ),
        others=(
            OtherLoader(
                "DataLoader over Val",
                2,
                40,
                between(0.031, 0.02, 0.045),
                number(S),
                number(0.3 * MS),
                number(90 * MS),
            ),
        ),
        not_measured=(
            Absence(
                ("bytes asked for by read calls (rchar)",), ("rchar",), "no permission to read /proc/self/io"
            ),
        ),
    )


def unordered() -> Summary:
    """in_order=False, and a worker whose process changed within an epoch."""
    base = saturated()
    assert isinstance(base.workers, Workers)
    return replace(
        base,
        subject=replace(base.subject, config=replace(base.subject.config, in_order=False)),
        order=Order(58, 29, 29, 6, 1200),
        workers=replace(base.workers, pid_changes=(PidChange(2, 0, 0, 4713, 4790),), n_pid_changes=1),
    )


def sampled_and_killed() -> Summary:
    base = saturated()
    return replace(
        base,
        subject=replace(
            base.subject,
            deliveries=9_000_000,
            kept=1200,
            fast_forwarded=14,
            sampled="the trace outgrew its limit: 1 delivery in 8192 and every wait above 900 ms were kept",
            complete=False,
            ending="killed by SIGKILL",
        ),
        steady=NotMeasured("no epoch has more than W·F = 8 deliveries, so there is no steady state"),
        contrast=NotMeasured("the trace is sampled: work for deliveries that were not kept is missing"),
        edges=replace(base.edges, errors=("worker 1 (PID 4712) died 3.2 s into rank 1203",)),
    )


SUMMARIES: dict[str, Callable[[], Summary]] = {
    "saturated": saturated,
    "waits_only": waits_only,
    "one_delivery": one_delivery,
    "nothing_delivered": nothing_delivered,
    "no_workers": no_workers,
    "many_workers": many_workers,
    "unordered": unordered,
    "sampled_and_killed": sampled_and_killed,
}


def diagnosis() -> Diagnosis:
    return Diagnosis(
        shape=Verdict("saturated_pool", 0.97, "The pool cannot keep up."),
        cost=Verdict("inconclusive", 0.4, "Not told apart.", candidates=("run_queue", "cpu")),
        evidence=(Evidence("saturated_pool", "shape", State.SUPPORTED, 0.9, numbers={"rho": 2.4}),),
        next_experiment=Experiment(
            "traceml-lite sweep t.py", None, "W moves it", (Outcome("gap 2", "pool"),)
        ),
        deliveries=1192,
    )


def text(name: str) -> str:
    return "\n".join(render_summary(SUMMARIES[name]())) + "\n"


def document(name: str) -> str:
    return json.dumps(summary_document(SUMMARIES[name](), diagnosis()), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name in SUMMARIES:
        (GOLDEN / f"{name}.txt").write_text(text(name), encoding="utf-8")
    (GOLDEN / "many_workers.json").write_text(document("many_workers"), encoding="utf-8")


if __name__ == "__main__":
    main()
