"""What one delivery costs more with each tool: in the consumer, in the worker, and without workers.

    python experiments/overhead/per_delivery.py [--rounds 7]

Prints three tables. Rows of TraceML need `pip install traceml-ai==0.5.0` in this environment.
"""

from __future__ import annotations

import _harness

# A fetch of 0.3 ms is long enough for every counter to be read. The probe reads more around long steps,
# where it costs the least, so both kinds are measured.
COST_NS, SHORT_STEP_NS, LONG_STEP_NS = 300_000, 500_000, 25_000_000
# "none" is the control: two loops without any tool, whose difference is what the method itself adds.
LONG = "traceml-lite, steps of 25 ms"
OURS = ["none", "traceml-lite", "traceml-lite without rchar"]
OTHERS = ["TraceML, its patch only", "TraceML", "torch.profiler"]
PLACES = {
    "consumer": ("Added consumer time per delivery, 1 worker", ["none", "traceml-lite", LONG, *OTHERS]),
    "worker": ("Added worker time per fetch, 1 worker", OURS),
    "no workers": ("Added time per delivery, num_workers=0", [*OURS, *OTHERS]),
}


def main() -> None:
    options = _harness.parser(__doc__, rounds=3)
    options.add_argument("--pairs", type=int, default=1000)
    options.add_argument("--place", choices=PLACES, action="append")
    args = options.parse_args()
    for place in args.place or PLACES:
        title, tools = PLACES[place]
        tools = [tool for tool in tools if _harness.have_traceml() or not tool.startswith("TraceML")]
        measure(place, title, tools, args.rounds, args.pairs)


def measure(place: str, title: str, tools: list[str], rounds: int, pairs: int) -> None:
    found: dict[str, list[dict[str, float]]] = {tool: [] for tool in tools}
    for turn in range(rounds):
        for tool in _harness.rotated(tools, turn):
            asked = {
                "tool": tool,
                "place": place,
                "pairs": pairs // 4 if tool == LONG else pairs,
                "step_ns": LONG_STEP_NS if tool == LONG else SHORT_STEP_NS if place == "consumer" else 0,
                "cost_ns": COST_NS,
            }
            # TraceML's samplers and its aggregator run only under its own launcher.
            launcher = _harness.traceml_launcher() if tool.startswith("TraceML") else ()
            found[tool].append(_harness.child("per_delivery_loop.py", asked, launcher=launcher))
    rows = []
    for tool, results in found.items():
        rows.append(
            [
                tool,
                _harness.spread([r["added_cpu_us"] for r in results]),
                _harness.spread([r["added_cpu_p99_us"] for r in results]),
                _harness.spread([r["added_cpu_mean_us"] for r in results]),
                _harness.spread([r["added_wall_us"] for r in results]),
                f"{_harness.median(1 + r['added_cpu_us'] / r['none_cpu_us'] for r in results):.2f}",
            ]
        )
    header = [
        "µs [smallest, largest round]",
        "median",
        "at p99",
        "mean",
        "median, wall clock",
        "ratio to none",
    ]
    _harness.table(title, header, rows, rounds)


if __name__ == "__main__":
    main()
