"""The names of the launchers of node tests, for everything that offers a choice of them."""

from typing import Literal

LauncherName = Literal["slurm", "ssh", "kubernetes", "local"]
"""Each has a module in `nodes/launch/`, is constructed in `wiring/nodes.py` and described in `web/nodes/words.py`."""
