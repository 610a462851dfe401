"""Lightning and the Trainer of transformers on two ranks."""

import os
import subprocess
import sys
from pathlib import Path

from logdoctor.checkpoint import folders

ROOT = Path(__file__).parents[2]

TWO = """
import sys
from pathlib import Path
import torch
from tests.checkpoint import test_frameworks as of
torch.set_num_threads(1)
folder = Path(sys.argv[1])
expected = of.train(folder / "a", ddp_backend="gloo")
try:
    of.train(folder / "b", end_at=14, ddp_backend="gloo")
except of.Broken:
    print("equal" if of.values(of.train(folder / "b", ddp_backend="gloo")) == of.values(expected) else "different")
"""


def told_by_two(folder: Path, program: str) -> str:
    """Run a program on two ranks; what both printed."""
    (folder / "two.py").write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, str(folder / "two.py"), str(folder)], env=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


LIGHTNING_ON_TWO = """
import sys
from pathlib import Path
import torch
from tests.checkpoint import test_frameworks as of
torch.set_num_threads(1)
folder = Path(sys.argv[1])
saving = of.LightningCheckpoints(folder / "b/ours", keep=9)
for name, each in (("a", None), ("b", saving)):
    try:
        of.fit(folder / name, each, end_at=8, ranks=2)
    except of.Broken:
        pass
(theirs,) = (folder / "a/theirs").glob("*step=5.ckpt")
expected, _ = of.fit(folder / "a", None, ckpt_path=str(theirs), ranks=2)
assert saving.latest().endswith("step-5.attempt-1"), saving.latest()
found, trainer = of.fit(folder / "b", saving, ranks=2)
print(trainer.global_step, "equal" if of.values(found) == of.values(expected) else "different")
"""


def test_lightning_goes_on_under_ddp(tmp_path: Path) -> None:
    told = told_by_two(tmp_path, LIGHTNING_ON_TWO)
    assert told.count("12 equal") == 2 and "different" not in told


def test_the_trainer_goes_on_under_ddp(tmp_path: Path) -> None:
    told = told_by_two(tmp_path, TWO)
    assert told.count("equal") == 2 and "different" not in told
    newest = folders.complete(tmp_path / "b/ours")[0]
    assert (newest.step, newest.world_size, newest.data_position) == (18, 2, 18 * 4)
