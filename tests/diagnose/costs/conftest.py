"""The fixture ``judge``; what makes the runs stands in ``conftest_costs``, which tests import."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conftest_costs import judge

__all__ = ["judge"]
