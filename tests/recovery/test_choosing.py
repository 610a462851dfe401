"""Which checkpoint is given, which may be removed, and what is written down beside them."""

import json
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import CheckpointError
from logdoctor.job.recovery import catalogue
from logdoctor.job.recovery.catalogue import Checkpoint, Onset, Pin, Refused
from logdoctor.job.recovery.catalogue.times import timestamp
from tests.recovery import makers
from tests.recovery.makers import NOON, ours


def names(found: list[Checkpoint]) -> list[str]:
    return [one.name for one in found]


def chosen(folder: Path, before_step: int | None = None, before_time: float | None = None) -> str:
    """The name of the best checkpoint in a folder, or why there is none."""
    found = catalogue.best(catalogue.read(folder), before_step, before_time)
    return found.reason if isinstance(found, Refused) else found.name


def test_the_newest_is_given_and_a_torn_one_never(tmp_path: Path) -> None:
    assert chosen_of_nothing(tmp_path) == "there are no checkpoints"
    for step in (10, 20, 100):
        ours(tmp_path, step)
    assert names(catalogue.read(tmp_path)) == ["step-10.attempt-1", "step-20.attempt-1", "step-100.attempt-1"]
    assert chosen(tmp_path) == "step-100.attempt-1"
    (tmp_path / "step-100.attempt-1" / "manifest.json").unlink()
    assert chosen(tmp_path) == "step-20.attempt-1"


def chosen_of_nothing(folder: Path) -> str:
    empty = folder / "empty"
    empty.mkdir()
    found = chosen(empty)
    empty.rmdir()
    return found


def test_none_is_of_the_onset_or_later_by_step_or_by_time(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        ours(tmp_path, step)  # saved 60 s after NOON for each step
    assert chosen(tmp_path, before_step=30) == "step-20.attempt-1"
    assert chosen(tmp_path, before_step=31) == "step-30.attempt-1"
    assert chosen(tmp_path, before_time=NOON + 20 * 60) == "step-10.attempt-1"
    assert chosen(tmp_path, before_time=NOON + 20 * 60 + 1) == "step-20.attempt-1"
    assert chosen(tmp_path, before_step=30, before_time=NOON + 20 * 60) == "step-10.attempt-1"
    assert "went wrong at step 10" in chosen(tmp_path, before_step=10)
    assert "none of 3" in chosen(tmp_path, before_time=NOON)


def test_a_clock_that_jumps_does_not_change_the_order_of_steps(tmp_path: Path) -> None:
    ours(tmp_path, 10, saved_at=timestamp(NOON + 9000))
    ours(tmp_path, 20, saved_at=timestamp(NOON))
    assert chosen(tmp_path) == "step-20.attempt-1"
    assert chosen(tmp_path, before_step=20) == "step-10.attempt-1"


def test_a_run_that_went_back_is_newer_than_what_it_left_behind(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        ours(tmp_path, step, epoch=1)
    for step in (20, 30):
        ours(tmp_path, step, 2, epoch=2)
    assert chosen(tmp_path) == "step-30.attempt-2"
    assert chosen(tmp_path, before_step=30) == "step-20.attempt-2"
    assert chosen(tmp_path, before_step=20) == "step-10.attempt-1"


def test_what_is_not_known_to_be_before_the_onset_is_not_given(tmp_path: Path) -> None:
    makers.saved_by_torch(tmp_path / "state", 10)
    assert chosen(tmp_path) == "state"
    assert "its step is not known" in chosen(tmp_path, before_step=100)
    ours(tmp_path / "other", 10, saved_at="yesterday")
    assert "at or after the time" in chosen(tmp_path / "other", before_time=NOON)


def test_one_that_kills_every_loader_is_passed_over_after_two_tries(tmp_path: Path) -> None:
    for step in (10, 20):
        ours(tmp_path, step)
    twenty = catalogue.read(tmp_path)[1]
    assert catalogue.tried(twenty) == 1
    assert chosen(tmp_path) == "step-20.attempt-1"
    assert catalogue.tried(twenty) == 2
    assert chosen(tmp_path) == "step-10.attempt-1"
    assert catalogue.read(tmp_path)[1].tries == 2
    catalogue.loaded(twenty)
    assert chosen(tmp_path) == "step-20.attempt-1"
    assert catalogue.tried(twenty) == 1  # a good load in between begins the count anew


def test_tries_of_an_earlier_checkpoint_of_the_same_name_do_not_count(tmp_path: Path) -> None:
    makers.aged(makers.megatron(tmp_path, 10, ("00",)), NOON)
    (ten,) = catalogue.read(tmp_path)
    catalogue.tried(ten)
    catalogue.tried(ten)
    assert "2 loads of it failed" in chosen(tmp_path)
    makers.aged(Path(ten.path), NOON + 60)
    assert chosen(tmp_path) == "iter_0000010"


def test_a_suspicion_stays_until_the_checkpoint_is_another(tmp_path: Path) -> None:
    for step in (10, 20):
        ours(tmp_path, step)
    catalogue.suspected(catalogue.read(tmp_path)[1], "the loss rose at step 18")
    assert chosen(tmp_path) == "step-10.attempt-1"
    found = catalogue.read(tmp_path)[1]
    assert (found.health, found.suspect) == ("suspect", "the loss rose at step 18")
    catalogue.suspected(found, "")
    assert chosen(tmp_path) == "step-20.attempt-1"


def test_notes_of_a_form_that_nobody_knows_are_no_error_and_a_pin_holds(tmp_path: Path) -> None:
    ours(tmp_path, 10)
    (one,) = catalogue.read(tmp_path)
    catalogue.tried(one)
    catalogue.pin(one, "me")
    for note in (tmp_path / ".logdoctor" / "history" / one.name, tmp_path / "pins" / one.name):
        note.write_bytes(b"{")
    (found,) = catalogue.read(tmp_path)
    assert found.tries == 0 and found.pinned is not None and found.pinned.by == "?"


def test_a_pin_ends_and_is_taken_away(tmp_path: Path) -> None:
    ours(tmp_path, 10)
    (one,) = catalogue.read(tmp_path)
    catalogue.pin(one, "me", "the paper", time.time() + 3600)
    (found,) = catalogue.read(tmp_path)
    assert found.pinned is not None and (found.pinned.by, found.pinned.why) == ("me", "the paper")
    written = json.loads((tmp_path / "pins" / one.name).read_text())
    assert written.keys() == {"by", "why", "at", "until"} and written["at"].endswith("Z") and "T" in written["until"]
    catalogue.pin(one, "me", until=time.time() - 1)
    assert catalogue.read(tmp_path)[0].pinned is None
    assert catalogue.unpin(tmp_path, one.name) and not catalogue.unpin(tmp_path, one.name)
    for name in ("../x", "", "..", "a/b"):
        with pytest.raises(CheckpointError):
            catalogue.unpin(tmp_path, name)


def test_a_note_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    ours(tmp_path, 10)
    (one,) = catalogue.read(tmp_path)
    (tmp_path / "pins").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        catalogue.pin(one, "me")


# ---- what may be removed


def test_the_newest_and_what_is_needed_stay(tmp_path: Path) -> None:
    for step in range(10, 80, 10):
        ours(tmp_path, step)
    (tmp_path / "step-70.attempt-1" / "manifest.json").unlink()  # a save that runs
    found = catalogue.read(tmp_path)
    catalogue.pin(found[0], "me")
    old = catalogue.removable(catalogue.read(tmp_path), 2, time.time())
    assert names(old) == ["step-20.attempt-1", "step-30.attempt-1", "step-40.attempt-1"]


def test_torn_ones_are_removable_once_nobody_writes_them(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        ours(tmp_path, step)
    (tmp_path / "step-20.attempt-1" / "manifest.json").unlink()
    assert names(catalogue.removable(catalogue.read(tmp_path), 5, time.time())) == []
    later = time.time() + 7200
    assert names(catalogue.removable(catalogue.read(tmp_path), 5, later)) == ["step-20.attempt-1"]


def test_the_last_healthy_one_stays_and_suspects_go(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        ours(tmp_path, step, loss=2.0 if step < 20 else float("nan"))
    old = catalogue.removable(catalogue.read(tmp_path), 1, time.time())
    assert names(old) == ["step-20.attempt-1", "step-30.attempt-1"]


def test_what_was_saved_after_a_roll_back_stays(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        ours(tmp_path, step)
    ours(tmp_path, 15, epoch=1)
    old = catalogue.removable(catalogue.read(tmp_path), 1, time.time())
    assert names(old) == [f"step-{step}.attempt-1" for step in (10, 20, 30)]  # 40 is the newest by time


def test_what_a_mark_names_stays(tmp_path: Path) -> None:
    for step in (30, 20, 10):  # the mark names the last that was made
        makers.aged(makers.deepspeed(tmp_path, step), NOON)
    assert (tmp_path / "latest").read_text() == "global_step10"
    found = [msgspec.structs.replace(one, torn="") for one in catalogue.read(tmp_path)]
    assert names(catalogue.removable(found, 1, time.time())) == ["global_step20"]


def flip(path: Path) -> None:
    data = bytearray((path / "__1_0.distcp").read_bytes())
    data[3] ^= 1
    (path / "__1_0.distcp").write_bytes(data)


def test_what_is_kept_is_read_before_anything_is_removed(tmp_path: Path) -> None:
    paths = [ours(tmp_path, step) for step in (10, 20, 30, 40, 50)]

    def old(keep: int) -> tuple[list[str], list[str]]:
        found = catalogue.read(tmp_path)
        lists = catalogue.removable_once_verified(found, keep, time.time(), lambda one: catalogue.verify(one).torn)
        return names(lists[0]), names(lists[1])

    assert old(2) == (["step-10.attempt-1", "step-20.attempt-1", "step-30.attempt-1"], [])
    for path in paths[3:]:
        flip(path)
    damaged = ["step-50.attempt-1", "step-40.attempt-1"]
    assert old(1) == (["step-10.attempt-1", "step-20.attempt-1", "step-40.attempt-1"], damaged)
    assert old(2) == (["step-10.attempt-1", "step-40.attempt-1"], damaged)
    for path in paths[:3]:
        flip(path)
    removed, found_damaged = old(1)
    assert removed == [] and len(found_damaged) == 5, "no good one would be left"


def test_nothing_is_removable_without_a_complete_one(tmp_path: Path) -> None:
    ours(tmp_path, 10)
    (tmp_path / "step-10.attempt-1" / "manifest.json").unlink()
    assert catalogue.removable(catalogue.read(tmp_path), 1, time.time() + 9e9) == []


def test_a_removal_leaves_nothing_behind_and_takes_no_link_for_what_it_leads_to(tmp_path: Path) -> None:
    for step in (10, 20):
        ours(tmp_path, step)
    elsewhere = ours(tmp_path / "elsewhere", 5)
    (tmp_path / "step-10.attempt-1" / "link").symlink_to(elsewhere)
    (tmp_path / ".logdoctor" / "removing" / "left over").mkdir(parents=True)
    ten = catalogue.read(tmp_path)[0]
    assert names(catalogue.remove([ten])) == ["step-10.attempt-1"]
    assert not (tmp_path / "step-10.attempt-1").exists() and (elsewhere / "manifest.json").exists()
    assert list((tmp_path / ".logdoctor" / "removing").iterdir()) == []
    assert catalogue.remove([ten]) == []


def test_what_was_pinned_meanwhile_and_links_stay(tmp_path: Path) -> None:
    ours(tmp_path, 10)
    elsewhere = ours(tmp_path / "elsewhere", 20)
    (tmp_path / elsewhere.name).symlink_to(elsewhere)
    ours(tmp_path, 30)
    ten, twenty, thirty = catalogue.read(tmp_path)
    assert twenty.linked and names(catalogue.removable([ten, twenty, thirty], 1, time.time())) == [ten.name]
    catalogue.pin(ten, "me")
    assert catalogue.remove([ten]) == []
    with pytest.raises(CheckpointError, match="is a link"):
        catalogue.remove([twenty])
    assert (elsewhere / "manifest.json").exists()


_checkpoint = st.builds(
    Checkpoint,
    folder=st.just("/x"),
    name=st.text("abcdefgh", min_size=1, max_size=6),
    path=st.just("/x/y"),
    framework=st.just("logdoctor"),
    step=st.none() | st.integers(0, 9),
    attempt=st.none() | st.integers(1, 3),
    run=st.none() | st.integers(0, 2),
    saved_at=st.none() | st.floats(0, 100),
    torn=st.sampled_from(["", "", "", "cut off"]),
    suspect=st.sampled_from(["", "", "NaN"]),
    pinned=st.sampled_from([None, None, Pin("me")]),
    latest=st.booleans(),
    tries=st.integers(0, 3),
)
_some = st.lists(_checkpoint, max_size=8, unique_by=lambda one: one.name)


@given(_some, st.none() | st.integers(0, 9), st.none() | st.floats(0, 100))
def test_law_what_is_given_is_whole_healthy_and_before_the_onset(
    some: list[Checkpoint], step: int | None, at: float | None
) -> None:
    given_one = catalogue.best(some, step, at)
    if isinstance(given_one, Refused):
        assert all(catalogue.skip_reason(one, Onset(step, at)) for one in some) and given_one.reason
        return
    assert given_one.complete and not given_one.suspect and given_one.tries < 2
    assert step is None or (given_one.step is not None and given_one.step < step)
    assert at is None or (given_one.saved_at is not None and given_one.saved_at < at)
    newer = [one for one in some if one.order > given_one.order]
    assert all(catalogue.skip_reason(one, Onset(step, at)) for one in newer)


@given(_some, st.integers(1, 4), st.floats(0, 10_000))
def test_law_a_removal_never_takes_what_is_needed(some: list[Checkpoint], keep: int, now: float) -> None:
    old = catalogue.removable(some, keep, now)
    left = [one for one in some if one not in old]
    assert not any(one.pinned or one.latest for one in old)
    before, after = catalogue.best(some), catalogue.best(left)
    assert isinstance(before, Refused) == isinstance(after, Refused)
    assert isinstance(before, Refused) or isinstance(after, Refused) or before.order == after.order
    for kind in (lambda one: one.complete, lambda one: one.complete and not one.suspect):
        assert any(map(kind, some)) == any(map(kind, left))
        newest = max(filter(kind, some), key=lambda one: one.order, default=None)
        assert newest is None or any(kind(one) and one.order == newest.order for one in left)
