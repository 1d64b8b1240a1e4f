"""``lerobot-train`` as it is installed, on a stack whose torchvision lacks its compiled operators.

Declares those operators, then hands over to LeRobot's own module with this command line; run it like the
real one: ``traceml-lite run train.py --policy.type=act ...``.
"""

from __future__ import annotations

import runpy

from traceml_lite.consumers._torchvision import declare_missing_operators

if __name__ == "__main__":
    declare_missing_operators()
    runpy.run_module("lerobot.scripts.lerobot_train", run_name="__main__", alter_sys=True)
