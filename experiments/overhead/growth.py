"""Does memory grow with the number of deliveries?

    python experiments/overhead/growth.py [--deliveries 1000000]

The resident set of the training process is read along the way; growth is counted from a tenth of the run,
after which buffers have their size. torch.profiler runs over a tenth of the deliveries.
"""

from __future__ import annotations

import _harness


def main() -> None:
    options = _harness.parser(__doc__, rounds=1)
    options.add_argument("--deliveries", type=int, default=1_000_000)
    args = options.parse_args()
    n = args.deliveries
    rows = []
    for tool, workers, deliveries in [
        ("none", 0, n),
        ("traceml-lite", 0, n),
        ("traceml-lite", 1, n // 5),
        ("torch.profiler", 0, n // 10),
    ]:
        asked = {
            "tool": tool,
            "workers": workers,
            "deliveries": deliveries,
            "every": max(deliveries // 20, 1),
        }
        resident = _harness.child("growth_loop.py", asked, limit_s=1800)["resident"]
        early, late = resident[2], resident[-1]
        growth = (late - early) / 1e6
        per = (late - early) / (deliveries * 0.9)
        rows.append(
            [tool, str(workers), f"{deliveries:,}", f"{early / 1e6:.1f}", f"{growth:+.2f}", f"{per:.1f}"]
        )
    header = ["tool", "workers", "deliveries", "resident MB", "growth MB", "bytes a delivery"]
    _harness.table("Growth of memory", header, rows, 1)


if __name__ == "__main__":
    main()
