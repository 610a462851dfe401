"""One failure has one fingerprint, and another failure another."""

import pytest

from logdoctor.diagnose.fingerprint import fingerprint, normalised
from tests.diagnose.conftest import Diagnose
from tests.diagnose.logs import ECC, interleaved, nccl_timeout, prefixed, steps, traceback

KEY = traceback("acme.ShardNotFoundError: shard 17 of /data/run-3/part.bin is not at 0x7f3a")


def same(diagnose: Diagnose, one: str, other: str) -> bool:
    return diagnose(one).fingerprint == diagnose(other).fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        prefixed("[rank5]: ", KEY),
        prefixed("2024-03-02 11:08:47,123 [rank17]: ", KEY),
        prefixed("[default3]:", KEY),
        prefixed("gpu-17: ", KEY),
        KEY.replace("17", "903"),
        KEY.replace("/data/run-3/part.bin", "/mnt/other/place/run-99/x.bin"),
        KEY.replace("0x7f3a", "0xdeadbeef"),
        KEY.replace("line 9", "line 12"),
        KEY.replace("/opt/app/", "/home/kira/app/"),
        "\x1b[31m" + KEY.rstrip("\n") + "\x1b[0m\n",
        steps(0, 40) + KEY,
        interleaved(prefixed("[rank0]: ", KEY), prefixed("[rank1]: ", KEY), prefixed("[rank2]: ", KEY)),
        KEY + nccl_timeout(range(7)),
    ],
)
def test_ranks_times_numbers_paths_and_mixing_leave_it_alone(diagnose: Diagnose, changed: str) -> None:
    assert same(diagnose, KEY, changed)


@pytest.mark.parametrize(
    "changed",
    [
        KEY.replace("ShardNotFoundError", "IndexNotFoundError"),
        KEY.replace("is not at", "is beyond"),
        traceback("acme.ShardNotFoundError: shard 17 of /data/run-3/part.bin is not at 0x7f3a", "other_step"),
        KEY.replace("loop.py", "fetch.py"),
        ECC,
        nccl_timeout([1]),
        "",
    ],
)
def test_another_failure_has_another(diagnose: Diagnose, changed: str) -> None:
    assert not same(diagnose, KEY, changed)


def test_of_many_frames_the_innermost_count() -> None:
    frames = ("train.py:main", "loop.py:fit", "loop.py:step", "data.py:fetch", "data.py:read")
    plain = fingerprint("Key Error", "shard", frames)
    assert fingerprint("Key Error", "shard", ("launch.py:main", "job.py:run", *frames[2:])) == plain
    assert fingerprint("Key Error", "shard", (*frames[:-1], "data.py:seek")) != plain


def test_a_rule_s_failure_has_one_fingerprint_on_any_node(diagnose: Diagnose) -> None:
    kernel = (
        "Mar 02 10:59:10 {} kernel: NVRM: Xid (PCI:0000:{}:00): 79, pid={}, name=python, GPU has fallen off the bus."
    )
    assert same(diagnose, kernel.format("wn061", "1b", 4182), kernel.format("wn117", "c3", 99))
    assert not same(diagnose, kernel.format("wn061", "1b", 4182), ECC)


def test_which_rank_prints_first_leaves_it_alone(diagnose: Diagnose) -> None:
    ranks = [prefixed(f"[rank{rank}]: ", KEY.replace("17", str(rank))) for rank in range(6)]
    assert same(diagnose, interleaved(*ranks), interleaved(*reversed(ranks)))


def test_outcomes_have_fingerprints_too(diagnose: Diagnose) -> None:
    assert same(diagnose, steps(0, 20), steps(100, 190))
    assert not same(diagnose, steps(0, 20), "")


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("shard 17 of 40", "shard <n> of <n>"),
        ("at 0x7F3A and 0x11", "at <hex> and <hex>"),
        ("no file /a/b-1/c.txt here", "no file <path> here"),
        ("GPU 0000:3b:00.0 lost", "GPU <pci> lost"),
        ("host gpu-12.cluster is  away ", "host <n> is away"),
    ],
)
def test_what_differs_between_occurrences_is_left_out(message: str, plain: str) -> None:
    assert normalised(message) == plain
