"""`logdoctor checkpoints` on the command line."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.recovery import makers
from tests.recovery.makers import NOON, ours
from tests.test_cli import Ran, assert_refused, run

__all__ = ["run"]  # a fixture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four checkpoints: the last is torn, the one before has a loss of NaN."""
    for step in (10, 20, 30, 40):
        ours(tmp_path / "ckpt", step, loss=float("nan") if step == 30 else 2.0)
    (tmp_path / "ckpt" / "step-40.attempt-1" / "__1_0.distcp").unlink()
    return tmp_path / "ckpt"


def lines(ran: Ran) -> list[dict[str, Any]]:
    """The JSON objects, one a line."""
    return [json.loads(line) for line in ran.out.splitlines()]


def test_the_list_says_what_is_wrong_with_each(run: Callable[..., Ran], folder: Path) -> None:
    out = run("checkpoints", "list", folder).out
    rows = {line.split()[0]: line.split() for line in out.splitlines()[1:5]}
    assert rows["step-10.attempt-1"][1:5] == ["10", "80", "2026-11-23", "12:10"]
    assert [rows[f"step-{step}.attempt-1"][-1] for step in (10, 20, 30, 40)] == [
        "healthy",
        "healthy",
        "suspect",
        "torn",
    ]
    assert "step-40.attempt-1: torn: __1_0.distcp is missing" in out
    assert "step-30.attempt-1: suspect: its loss is NaN" in out
    verified = run("checkpoints", "verify", folder, "step-30.attempt-1").out
    assert "step-30.attempt-1: suspect: its loss is NaN" in verified, "as the list says"
    assert_refused(run("checkpoints", "list", folder / "step-10.attempt-1"), "is itself a checkpoint", str(folder))
    (folder / "empty").mkdir()
    assert run("checkpoints", "list", folder / "empty").out == "no checkpoints\n"


def test_json_has_all_that_is_known(run: Callable[..., Ran], folder: Path) -> None:
    found = lines(run("checkpoints", "list", folder, "--json", "--before", 20))
    assert [one["complete"] for one in found] == [True, True, True, False]
    assert [one["health"] for one in found] == ["healthy", "suspect", "suspect", "suspect"]
    first = found[0]
    assert (first["step"], first["data_position"], first["saved_at"]) == (10, 80, NOON + 600)
    assert first["path"] == str(folder / "step-10.attempt-1") and first["framework"] == "logdoctor"


def test_best_prints_a_path_for_scripts_and_says_what_it_passed_over(run: Callable[..., Ran], folder: Path) -> None:
    found = run("checkpoints", "best", folder)
    assert (found.code, found.out) == (0, f"{folder}/step-20.attempt-1\n")
    assert "passed over step-40.attempt-1: it is torn" in found.err and "step-30.attempt-1" in found.err
    assert run("checkpoints", "best", folder, "--before", 20).out.endswith("step-10.attempt-1\n")
    assert run("checkpoints", "best", folder, "--onset", "2026-11-23T12:15:00Z").out.endswith("step-10.attempt-1\n")
    (one,) = lines(run("checkpoints", "best", folder, "--json"))
    assert one["name"] == "step-20.attempt-1" and list(one["skip_reason"]) == ["step-40.attempt-1", "step-30.attempt-1"]


def test_best_refuses_with_a_code_of_its_own(run: Callable[..., Ran], folder: Path) -> None:
    found = run("checkpoints", "best", folder, "--before", 10)
    assert (found.code, found.out) == (1, "") and "none of 4 checkpoints can be used" in found.err
    found = run("checkpoints", "best", folder, "--before", 10, "--json")
    assert found.code == 1 and "went wrong at step 10" in json.loads(found.out)["refused"]
    assert run("checkpoints", "best", folder, "--onset", "soon").code == 2


def test_a_path_that_steers_a_terminal_is_not_printed(run: Callable[..., Ran], tmp_path: Path) -> None:
    makers.lightning(tmp_path, 5, "a\x1b[2J.ckpt")
    assert_refused(run("checkpoints", "best", tmp_path), "cannot be printed", "--json")
    assert "\x1b" not in run("checkpoints", "list", tmp_path).out
    assert json.loads(run("checkpoints", "best", tmp_path, "--json").out)["name"] == "a\x1b[2J.ckpt"
    os.rename(tmp_path / "a\x1b[2J.ckpt", os.fsencode(tmp_path) + b"/\xff.ckpt")
    ran = run("checkpoints", "list", tmp_path, "--json")
    assert ran.code == 0 and json.loads(ran.out)["step"] == 5
    assert run("checkpoints", "verify", tmp_path).code == 0


def test_verify_reads_all_and_names_what_changed(run: Callable[..., Ran], folder: Path) -> None:
    found = run("checkpoints", "verify", folder, "step-10.attempt-1", "step-20.attempt-1")
    assert found.code == 0 and "step-10.attempt-1: whole: the checksums of 2 files agree" in found.out
    part = folder / "step-10.attempt-1" / "__0_0.distcp"
    part.write_bytes(b"X" + part.read_bytes()[1:])
    found = run("checkpoints", "verify", folder, "--json")
    assert found.code == 1
    assert [one["complete"] for one in lines(found)] == [False, True, True, False]
    assert "__0_0.distcp has changed" in lines(found)[0]["torn"]
    assert_refused(run("checkpoints", "verify", folder, "step-11"), "no checkpoint 'step-11'", "checkpoints list")


def test_a_pin_keeps_a_checkpoint_from_being_pruned(run: Callable[..., Ran], folder: Path) -> None:
    assert run("checkpoints", "pin", folder, "step-10.attempt-1", "--why", "paper", "--by", "me").code == 0
    assert "pinned by me: paper" in run("checkpoints", "list", folder).out
    out = run("checkpoints", "prune", folder, "--keep", 1).out
    assert "would remove 0 checkpoints" in out
    assert run("checkpoints", "unpin", folder, "step-10.attempt-1").out == "unpinned step-10.attempt-1\n"
    assert run("checkpoints", "unpin", folder, "step-10.attempt-1").out == "step-10.attempt-1 was not pinned\n"
    found = json.loads(run("checkpoints", "pin", folder, "step-20.attempt-1", "--days", 1, "--json").out)
    assert found["pinned"]["until"] > found["pinned"]["at"]


def test_prune_removes_only_when_told_to(run: Callable[..., Ran], folder: Path) -> None:
    ran = run("checkpoints", "prune", folder, "--keep", 1, "--dry-run")
    assert "would remove step-10.attempt-1" in ran.out and "do it with --yes" in ran.out
    assert (folder / "step-10.attempt-1").exists()
    assert run("checkpoints", "prune", folder, "--yes", "--dry-run").code == 2
    (one,) = lines(run("checkpoints", "prune", folder, "--keep", 1, "--yes", "--json"))
    assert (one["name"], one["removed"]) == ("step-10.attempt-1", True)
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert left == ["step-20.attempt-1", "step-30.attempt-1", "step-40.attempt-1"]


def test_advice_says_what_it_was_reckoned_from(run: Callable[..., Ran], folder: Path) -> None:
    out = run("checkpoints", "advise", folder, "--mtbf", 10).out
    assert "a save takes" in out and "1.5 s (median of 3 manifests" in out
    assert "sqrt(2 x 1.5 s x 3.6e+04 s) = 329 s" in out
    assert "save every 5.5 min, 5 steps" in out
    assert "10.0 min" in out and "at the present one" in out
    found = json.loads(run("checkpoints", "advise", folder, "--mtbf", 10, "--interval", 60, "--json").out)
    assert found["advice"]["present"]["interval"] == 60
    assert found["advice"]["present"]["total"] > found["advice"]["best"]["total"]


def test_advice_without_its_figures_says_what_to_give(run: Callable[..., Ran], tmp_path: Path, folder: Path) -> None:
    makers.lightning(tmp_path / "other", 5)
    assert_refused(run("checkpoints", "advise", tmp_path / "other", "--mtbf", 10), "no manifest", "--save-seconds")
    assert run("checkpoints", "advise", tmp_path / "other", "--mtbf", 10, "--save-seconds", 20).code == 0
    for number in ("nan", "inf", "0", "-1"):
        assert run("checkpoints", "advise", folder, "--mtbf", number).code == 2
    for options in ((), ("--mtbf", 10, "--job", "x")):
        ran = run("checkpoints", "advise", folder, *options)
        assert ran.code == 2 and "--mtbf HOURS or --job JOB" in ran.err


def test_a_folder_that_is_none_is_an_error(run: Callable[..., Ran], tmp_path: Path) -> None:
    assert run("checkpoints", "list", tmp_path / "nowhere").code == 2
    (tmp_path / "pins").mkdir()
    assert run("checkpoints", "best", tmp_path).code == 1


def test_a_mirror_is_read_by_its_url(run: Callable[..., Ran], folder: Path, tmp_path: Path) -> None:
    url = f"file://{folder}"
    found = run("checkpoints", "best", url)
    assert (found.code, found.out) == (0, f"{url}/step-20.attempt-1\n")
    ran = run("checkpoints", "verify", url, "step-10.attempt-1")
    assert (ran.code, ran.out) == (0, "step-10.attempt-1: whole: the checksums of 2 files agree\n")
    assert run("checkpoints", "verify", url).code == 1
    assert lines(run("checkpoints", "list", url, "--json"))[0]["path"] == f"{url}/step-10.attempt-1"
    assert "--watch wants the FOLDER" in run("checkpoints", "list", url, "--watch").err
    assert_refused(run("checkpoints", "list", f"file://{tmp_path}/none"), "does not exist")


def test_one_that_would_fill_the_memory_is_listed_and_passed_over(run: Callable[..., Ran], tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    makers.lightning(folder, 2)
    with zipfile.ZipFile(folder / "epoch=0-step=3.ckpt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"}" * 1_000_000 + b".")
    good, bad = lines(run("checkpoints", "list", folder, "--json"))
    assert good["complete"] and not bad["complete"]
    assert bad["torn"].startswith("it is unreadable: epoch=0-step=3.ckpt holds a pickle that would fill more than")
    assert json.loads(run("checkpoints", "best", folder, "--json").out)["name"] == good["name"]
