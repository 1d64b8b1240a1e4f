"""The whole story of the regression in LeRobot's dataset access, measured again, and where it goes on.

Sets up the versions, makes the data, runs every stage that the budget has room for, and writes ``RESULTS.md``
beside this file. The same command again goes on where it was cut off. Needs no GPU and no hub.

    python run.py --quick        96 x 96 images, about 5 minutes
    python run.py --quick --long the same images, and every stage, about 25 minutes
    python run.py                240 x 320, about 35 minutes
    python run.py --seed-scale   480 x 640 as in the seed, about 100 minutes
    python run.py --ci           the shortest form; asserts directions and ratios, writes no RESULTS.md
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import environment

HERE = Path(__file__).resolve().parent


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    size = parser.add_mutually_exclusive_group()
    for flag, scale in (("--quick", "quick"), ("--seed-scale", "seed"), ("--ci", "ci")):
        size.add_argument(flag, dest="scale", action="store_const", const=scale, help=f"scale {scale}")
    parser.set_defaults(scale="default")
    parser.add_argument("--home", type=Path, default=environment.HOME, help="environments, data and traces")
    parser.add_argument("--minutes", type=float, help="budget of the stages; the scale's own if not given")
    parser.add_argument(
        "--long", action="store_true", help="with --quick: also the stages that it leaves out"
    )
    parser.add_argument("--current", action="store_true", help="also today's LeRobot (5 GB, Python 3.12)")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run has found")
    parser.add_argument("--write", action="store_true", help="only write RESULTS.md from what was found")
    given = parser.parse_args()
    home = given.home.resolve()
    environment.prepare(home)
    python = environment.arm(home, "0.4.0", "4.1.1").python
    if Path(sys.executable) != python:
        # The rest needs numpy and this package, which the environment just made has.
        os.execv(python, [str(python), "-W", "ignore", *sys.argv])

    import session

    return session.run(given, home)


if __name__ == "__main__":
    sys.exit(main())
