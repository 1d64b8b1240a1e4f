"""Makes the databases in ``fixtures/`` by running TraceML itself on small loops of known shape.

    python -m venv traceml-env && traceml-env/bin/pip install torch==2.13.0 traceml-ai==0.5.0
    python tests/integrations/make_fixtures.py traceml-env/bin/python

Each loop differs only in what its dataset costs. What is kept of a database is the table that is read
and one row of host facts, so that a fixture stays at a few kilobytes; the rows are untouched.
"""

from __future__ import annotations

import argparse
import gzip
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

KINDS = ("healthy", "uniform", "every_fourth", "random", "drift")
BATCHES, EPOCHS = 48, 2
FIXTURES = Path(__file__).parent / "fixtures"

LOOP = """
import random, time
import torch
import traceml_ai as traceml
from torch.utils.data import DataLoader, Dataset

kind, n, epochs = {settings}
stalled = set(random.Random(5).sample(range(n), n // 8))
cost_s = {
    "healthy": lambda i: 0.001,
    "uniform": lambda i: 0.012,
    "every_fourth": lambda i: 0.060,
    "random": lambda i: 0.060 if i in stalled else 0.001,
    "drift": lambda i: 0.012 + 0.030 * i / n,
}[kind]


class Data(Dataset):
    def __len__(self):
        return n

    def __getitem__(self, i):
        time.sleep(cost_s(i))
        return torch.full((8,), float(i))


class Model(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.010)
        return super().forward(x)


workers = {"healthy": 2, "uniform": 0, "every_fourth": 4, "random": 1, "drift": 1}[kind]
loader = DataLoader(Data(), batch_size=1, num_workers=workers)
traceml.init(mode="auto")
model = Model(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(epochs):
    for batch in loader:
        with traceml.trace_step(model):
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
"""


def shrink(database: Path, target: Path) -> None:
    """Copy the rows that are read into a new database and compress it."""
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small"
        new = sqlite3.connect(small)
        new.execute("ATTACH DATABASE ? AS old", (str(database),))
        for table, limit in (("step_time_samples", -1), ("process_samples", 1)):
            (ddl,) = new.execute("SELECT sql FROM old.sqlite_master WHERE name = ?", (table,)).fetchone()
            new.execute(ddl)
            new.execute(f"INSERT INTO main.{table} SELECT * FROM old.{table} LIMIT {limit}")
        new.commit()
        new.execute("DETACH DATABASE old")
        new.execute("PRAGMA journal_mode = WAL")
        new.close()
        target.write_bytes(gzip.compress(small.read_bytes(), 9, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="interpreter of an environment with traceml-ai and torch")
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    args = parser.parse_args()
    ask = "import importlib.metadata as m; print(m.version('traceml-ai'))"
    version = subprocess.run(
        [args.python, "-c", ask], check=True, capture_output=True, text=True
    ).stdout.strip()
    FIXTURES.mkdir(exist_ok=True)
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "loop.py"
            # Written into the script, as the releases differ in how they pass arguments on to it.
            script.write_text(LOOP.replace("{settings}", repr((kind, BATCHES, EPOCHS))))
            # Not `-m`: the launcher of 0.3 does nothing when it is the main module.
            start = "from traceml_ai.launcher.cli import main; main()"
            command = [args.python, "-c", start, "run", str(script), "--run-name", "run"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
            said = [
                line.strip("| ") for line in done.stdout.splitlines() if "Verdict:" in line or "Why:" in line
            ]
            target = FIXTURES / f"traceml-{version}-{kind}.sqlite.gz"
            shrink(Path(folder) / "logs" / "run" / "aggregator" / "telemetry", target)
            print(f"{target.name}: {target.stat().st_size} bytes; TraceML says: {' '.join(said)}")


if __name__ == "__main__":
    sys.exit(main())
