"""Several ranks: FSDP2, other numbers of ranks, and troubles of one of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoint.ranks import STORIES

ROOT = Path(__file__).parents[2]
Ended = dict[str, list[list[str]]]
SHORT = (
    "failed: rank 1: the memory of the host is short of 128 MiB for a copy of the state, which 2 ranks of this machine "
    "make. Give the job more, or save "
)
CHANGED = "checkpoint step-1.attempt-1 was changed: __1_0.distcp has not the bytes that were written."
MIXED = "failed: a save of 2 steps at once would mix their values (7 on rank 0, 8 on rank 1). Call save on "
TUPLE = "failed: rank 0: state['optimizer'][0] is a DTensor in a tuple, which is saved as one value: "
ENDED = "failed: rank 0: torch.distributed was ended "
EXPECTED = {
    "sharded": ["verified"],
    "sharded to two": ["equal"],
    "sharded to one": ["equal"],
    "plain": ["verified"],
    "plain to two": ["equal"],
    "short memory": [f"{SHORT}a smaller state.", "verified"],
    "two steps at once": [f"{MIXED}every rank at the same steps.", "verified"],
    "in a tuple": [f"{TUPLE}that of one rank. Save it outside of tuples (TrainingState does)."],
    "ended before": [f"{ENDED}before the save was written. Close the Checkpointer before.", "[]"],
    "one never ends": ["None"],
    "hanging storage": ["verified", "left out", "verified"],
    "damage": ["0", "[0.0]", CHANGED],
    "one rank fails": ["verified", "ended: True"],
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """What each rank of each story ended with."""
    command = [sys.executable, "-m", "tests.checkpoint.ranks", str(tmp_path_factory.mktemp("stories"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: Ended = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("name", "ranks"), [(name, ranks) for name, ranks, *_ in STORIES if name in EXPECTED])
def test_all_ranks_end_alike(ended: Ended, name: str, ranks: int) -> None:
    assert ended[name] == [EXPECTED[name]] * max(ranks, 1)


def test_other_values_under_one_name_are_said_once(ended: Ended) -> None:
    first, second = ended["other values"]
    said = "step 1: 4 values differ between ranks (form, kind, own, small.draws); those of the lowest rank are saved. "
    assert first == [f"{said}Give what each rank has for itself a name of its own.", "2"] and second == ["2"]


def test_what_a_rank_has_for_itself_is_loaded_on_any_number_of_ranks(ended: Ended) -> None:
    first, second, new = ["10.0", "10.0"], ["11.0", "11.0"], ["{0}.0", "{0}.0", "loader{0}", "rng{0}", "left"]
    assert ended["names"] == [["verified"], ["verified"]]
    assert ended["names to two"] == [first, second]
    assert ended["names to one"] == [first]
    assert ended["names to three"] == [first, second, [each.format(2) for each in new]]
    assert ended["name to one"] == [first]
    assert ended["name to two"] == [first, [each.format(1) for each in new]]


def test_a_save_that_one_rank_leaves_out_is_left_out_by_all(ended: Ended) -> None:
    first, second = ended["one is behind"]
    other, own = "left out: a rank was not done with the one before", "left out: the one before is not written after "
    assert first == ["verified", other, "verified", other]
    assert second == ["verified", f"{own}300 seconds", "verified", f"{own}300 seconds"]
