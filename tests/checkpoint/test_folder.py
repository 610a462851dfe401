"""What is in the folder: whole checkpoints, of which none that is damaged is loaded, and none too many is kept."""

import json
import os
import pickle
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from logdoctor.checkpoint import Checkpointer, folders, hashing, latest, lease, load
from logdoctor.checkpoint.hashing import hash_file
from logdoctor.errors import CheckpointDamaged, CheckpointError
from logdoctor.job.recovery import catalogue
from logdoctor.safe.lasting_files import Folder
from tests.checkpoint.conftest import Gate
from tests.checkpoint.states import empty, state_of, steps_in


def saved(folder: Path, *steps: int, keep: int = 9) -> list[Path]:
    """Save states of these steps; where they are."""
    with Checkpointer(folder, keep=keep) as checkpoints:
        for step in steps:
            save = checkpoints.save(state_of(step), step=step, data_position=10 * step, loss=1 / (step + 1))
            assert save.wait(600) and save.problem is None
    return [folder / f"step-{step}.attempt-1" for step in steps]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite(place: Path, **changed: Any) -> None:
    """Change a manifest."""
    manifest = json.loads((place / "manifest.json").read_bytes())
    (place / "manifest.json").write_text(json.dumps(manifest | changed))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a byte": (lambda at: flip(at / "__0_0.distcp"), "was changed: __0_0.distcp has not the bytes that were written."),
    "metadata": (lambda at: flip(at / ".metadata"), "was changed: .metadata has not the bytes that were written."),
    "short": (lambda at: os.truncate(at / "__0_0.distcp", 100), "is torn: __0_0.distcp has 100 bytes, not "),
    "gone": (lambda at: (at / "__0_0.distcp").unlink(), "has no file __0_0.distcp."),
    "no JSON": (lambda at: (at / "manifest.json").write_text("{"), "has an invalid manifest.json: "),
    "other": (lambda at: rewrite(at, step=7), "has an invalid manifest.json: it is that of step-7.attempt-1."),
    "newer": (
        lambda at: rewrite(at, format="logdoctor-checkpoint/2"),
        "has an invalid manifest.json: format 'logdoctor-checkpoint/2'.",
    ),
    "outside": (
        lambda at: rewrite(at, files=[{"name": "../x", "bytes": 1, "xxh3_128": "0" * 32}]),
        "has an invalid manifest.json: '../x' is no name of a file.",
    ),
    "pipe": (
        lambda at: (at / "manifest.json").unlink() or os.mkfifo(at / "manifest.json"),
        "cannot be read (is no regular file",
    ),
    "nothing": (lambda at: rewrite(at, files=[]), "lists no .metadata."),
    "endless": (
        lambda at: rewrite(at, data_position=float("inf")),
        "has an invalid manifest.json: cannot convert float infinity to integer.",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_is_refused_and_the_one_before_is_loaded(tmp_path: Path, kind: str) -> None:
    damage, sentence = DAMAGE[kind]
    places = saved(tmp_path, 1, 2)
    damage(places[1])
    into = empty()
    found = load(tmp_path, into)
    assert found and (found.step, found.data_position, found.loss) == (1, 10, 0.5)
    assert steps_in(into) == {1}
    assert found.refused[0].startswith("checkpoint step-2.attempt-1 ") and sentence in found.refused[0]
    with pytest.raises(CheckpointDamaged, match=r"has no good checkpoint of step 2: checkpoint step-2\.attempt-1 "):
        load(tmp_path, into, 2)
    damage, _ = DAMAGE["a byte"]
    damage(places[0])
    with pytest.raises(CheckpointDamaged, match="has no good checkpoint: "):
        load(tmp_path, into)
    assert steps_in(into) == {1}


@pytest.mark.parametrize("name", ["pipe", "../pipe", "/dev/stdin"])
def test_metadata_that_name_a_pipe_or_a_place_elsewhere_have_it_opened_by_nobody(tmp_path: Path, name: str) -> None:
    [place] = saved(tmp_path / "run", 1)
    for folder in (place, place.parent):
        os.mkfifo(folder / "pipe")
    metadata = pickle.loads((place / ".metadata").read_bytes())
    for part in metadata.storage_data.values():
        part.relative_path = name
    (place / ".metadata").write_bytes(pickle.dumps(metadata))
    files = [hash_file(place / each)._asdict() for each in (".metadata", "__0_0.distcp")]
    rewrite(place, files=files)
    with pytest.raises(CheckpointError, match=r"cannot be loaded .*(regular file|no name in a folder)"):
        load(place.parent, empty())


def test_one_that_was_found_to_be_damaged_is_given_by_nobody_again(tmp_path: Path) -> None:
    places = saved(tmp_path, 1, 2, 3)
    flip(places[2] / "__0_0.distcp")
    said: list[str] = []
    with Checkpointer(tmp_path, on_report=lambda report: said.append(report.kind)) as checkpoints:
        found = checkpoints.load(empty())
        assert found and found.step == 2 and "step-3.attempt-1 was changed" in found.refused[0]
        newest = checkpoints.latest()
        assert newest and newest.step == 2 and said == ["damaged"]
        assert "found to be damaged" in catalogue.read(tmp_path)[2].suspect
        chosen = catalogue.best(catalogue.read(tmp_path))
        assert isinstance(chosen, catalogue.Checkpoint) and chosen.step == 2
        again = load(tmp_path, empty())
        assert again and again.step == 2 and not again.refused, "it was not read once more"
    with Checkpointer(tmp_path):
        assert places[2].exists(), "whoever comes next leaves it to be looked at"
    saved(tmp_path, 4, keep=1)
    assert catalogue.read(tmp_path)[-1].step == 4 and not places[2].exists()


def test_where_all_were_found_to_be_damaged_nothing_begins_anew(tmp_path: Path) -> None:
    for place in saved(tmp_path, 1, 2):
        flip(place / "__0_0.distcp")
    for _ in range(2):
        with Checkpointer(tmp_path) as checkpoints, pytest.raises(CheckpointDamaged, match="no good checkpoint"):
            checkpoints.load(empty())


def test_one_that_cannot_be_read_now_is_not_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)
    real = hashing.hash_file
    monkeypatch.setattr(folders, "hash_file", _unreachable)
    with Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(CheckpointDamaged, match=r"cannot be read: .metadata \(Stale"):
            checkpoints.load(empty())
        monkeypatch.setattr(folders, "hash_file", real)
        assert checkpoints.load(empty())


def _unreachable(*_: Any, **__: Any) -> None:
    raise OSError(116, "Stale file handle")


def test_the_announced_one_is_damaged_and_one_of_an_earlier_step_is_loaded(tmp_path: Path) -> None:
    places = saved(tmp_path, 1, 2, 3)
    flip(places[1] / "__0_0.distcp")
    with pytest.raises(CheckpointDamaged, match=r"no good checkpoint step-2\.attempt-1"):  # who only reads named it
        load(tmp_path, empty(), path=str(places[1]))
    with Checkpointer(tmp_path) as checkpoints:
        found = checkpoints.load(into := empty(), path=str(places[1]))
        assert found and found.step == 1 and steps_in(into) == {1} and len(found.refused) == 1
        flip(places[0] / ".metadata")
        with pytest.raises(CheckpointDamaged, match=r"no good checkpoint step-2\.attempt-1"):
            checkpoints.load(empty(), path=str(places[1]))


def test_one_without_a_manifest_is_torn(tmp_path: Path) -> None:
    places = saved(tmp_path, 1, 2)
    (places[1] / "manifest.json").unlink()
    found = load(tmp_path, empty())
    assert found and found.step == 1 and found.refused == ()
    with pytest.raises(CheckpointDamaged, match=r"step-2\.attempt-1 is torn: it has no manifest\.json"):
        load(tmp_path, empty(), 2)
    with pytest.raises(CheckpointDamaged, match=r"has no good checkpoint of step 3\. Restore"):
        load(tmp_path, empty(), 3)
    (places[0] / "manifest.json").unlink()
    assert load(tmp_path, empty()) is None
    assert load(tmp_path / "none", empty()) is None
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file cannot be read \(Not a directory\)"):
        load(tmp_path / "file", empty())


def test_the_manifest_says_what_was_saved(tmp_path: Path) -> None:
    (place,) = saved(tmp_path, 4)
    told = json.loads((place / "manifest.json").read_bytes())
    files = [hash_file(path)._asdict() for path in sorted(place.iterdir()) if path.name != "manifest.json"]
    assert told.pop("files") == files
    assert 0 < told.pop("seconds") < 60 and told.pop("saved_at").endswith("Z")
    expected = {"format": "logdoctor-checkpoint/1", "step": 4, "attempt": 1, "data_position": 40, "loss": 0.2}
    assert told == expected | {"world_size": 1, "epoch": 1, "rank_forms": None}
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(state_of(5), step=5, loss=float("nan"))
    newest = latest(tmp_path)
    assert newest and (newest.step, str(newest.loss), newest.data_position, newest.epoch) == (5, "nan", None, 2)


def test_a_step_is_never_saved_twice_under_one_name(tmp_path: Path) -> None:
    for _ in range(2):
        with Checkpointer(tmp_path) as checkpoints:
            for value in (1, 2):
                checkpoints.save(state_of(value), step=5)
    assert sorted(folders.names(tmp_path)) == [f"step-5.attempt-{each}" for each in (2, 3, 4)]
    found, into = load(tmp_path, empty()), empty()
    assert found and found.path.name == "step-5.attempt-4"
    assert load(tmp_path, into, 5) and steps_in(into) == {2}


def test_a_run_that_went_back_is_newer_than_what_it_left_behind(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30)
    with Checkpointer(tmp_path) as checkpoints:  # the loss spiked at 20
        checkpoints.load(empty(), 10)
        checkpoints.save(state_of(11), step=11)
    newest = latest(tmp_path)
    assert newest and newest.step == 11


def test_old_ones_go_except_pinned_ones(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4)
    (tmp_path / "pins").mkdir()
    later, before = folders.timestamp(time.time() + 3600), folders.timestamp(time.time() - 3600)
    for step, until in ((1, None), (2, later), (3, before)):
        (tmp_path / "pins" / f"step-{step}.attempt-1").write_text(json.dumps({"by": "a", "until": until}))
    (tmp_path / "step-9.attempt-1").mkdir()  # torn
    (tmp_path / "writer.lease.0.tmp").touch()
    (tmp_path / "notes").mkdir()
    with Checkpointer(tmp_path, keep=1) as checkpoints:
        assert not (tmp_path / "step-9.attempt-1").exists() and not (tmp_path / "writer.lease.0.tmp").exists()
        checkpoints.save(state_of(5), step=5)
    assert sorted(folders.names(tmp_path)) == ["step-1.attempt-1", "step-2.attempt-1", "step-5.attempt-2"]
    assert checkpoints.stats.deleted == 2 and (tmp_path / "notes").exists()


@pytest.mark.parametrize("number", [10**18 - 1, 10**18, 10**30])
def test_saving_goes_on_beside_numbers_that_nobody_can_count_on_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    folders._say_ignored.cache_clear()
    [place] = saved(tmp_path, 1)
    rewrite(place, epoch=number)
    (tmp_path / f"step-2.attempt-{number}").mkdir()
    (tmp_path / "writer.lease").write_bytes(lease.signature(number, "someone"))
    mirror = tmp_path / "mirror"
    (mirror / "writers").mkdir(parents=True)
    (mirror / "writers" / str(number)).touch()
    with Checkpointer(tmp_path, keep=1, mirror=f"file://{mirror}") as checkpoints:
        for step in (2, 3, 3):
            save = checkpoints.save(state_of(step), step=step)
            assert save.wait(600) and save.problem is None
    newest = latest(tmp_path)
    assert newest and newest.step == 3 and checkpoints.stats.mirrored and not checkpoints.stats.mirror_failed
    assert caplog.text.count("it is not counted") == 1


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"until": 5}', '{"until": "soon"}'])
def test_a_pin_that_cannot_be_read_holds(tmp_path: Path, torn: str) -> None:
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "step-1.attempt-1").write_text(torn)
    assert folders.pinned(tmp_path, "step-1.attempt-1", time.time())


def test_nothing_is_deleted_for_one_that_cannot_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)
    with Checkpointer(tmp_path, keep=1) as checkpoints:
        with monkeypatch.context() as patched:
            patched.setattr(hashing.HashedFile, "close", _damaging(hashing.HashedFile.close))
            save = checkpoints.save(state_of(2), step=2)
            assert save.wait(600) and save.state == "failed"
            assert save.problem and "was changed: " in save.problem
        assert checkpoints.stats.changed == 1 and len(folders.names(tmp_path)) == 2
        newest = latest(tmp_path)
        assert newest and newest.step == 1, "what is known to be bad claims to be complete"
        checkpoints.save(state_of(3), step=3)
    assert folders.names(tmp_path) == ["step-3.attempt-2"]


def test_one_that_was_never_read_back_takes_no_place_of_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise OSError(5, "Input/output error")

    with Checkpointer(tmp_path, keep=2) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(600)
        with monkeypatch.context() as patched:
            patched.setattr(folders, "difference", away)
            unread = checkpoints.save(state_of(2), step=2)
            assert unread.wait(600) and (unread.state, unread.problem) == ("failed", "[Errno 5] Input/output error")
        assert checkpoints.save(state_of(3), step=3).wait(600)
    assert sorted(folders.names(tmp_path)) == [f"step-{step}.attempt-1" for step in (1, 2, 3)]


def test_one_whose_loss_is_no_number_takes_no_place_of_a_good_one(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=1) as checkpoints:
        for step, loss in enumerate((2.0, float("nan"), float("inf")), 1):
            assert checkpoints.save(state_of(step), step=step, loss=loss).wait(600)
    assert sorted(folders.names(tmp_path)) == [f"step-{step}.attempt-1" for step in (1, 2, 3)]
    found = load(tmp_path, empty())
    assert found and found.step == 1


def _damaging(close: Callable[[Any], None]) -> Callable[[Any], None]:
    """A disk that changes what it is given."""

    def closed(file: Any) -> None:
        first = file._open
        close(file)
        if first and file._path.suffix == ".distcp":
            flip(file._path)

    return closed


def test_names_are_durable_in_the_order_that_makes_them_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name.split('.json.')[0]}")
        sync(descriptor)

    def renamed(self: Path, to: Path) -> Path:
        done.append(f"rename {Path(to).name}")
        return rename(self, to)

    with Checkpointer(tmp_path) as checkpoints:
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Path, "rename", renamed)
        checkpoints.save(state_of(1), step=1)
    name, root = "step-1.attempt-1", tmp_path.name
    data = [f"sync {root}", "sync __0_0.distcp", "sync .metadata.tmp", "rename .metadata", f"sync {name}"]
    assert done == [*data, "sync manifest", "rename manifest.json", f"sync {name}"]


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "owned"),)

    (place,) = saved(tmp_path, 1)
    (place / ".metadata").write_bytes(pickle.dumps(Evil()))
    files = [hash_file(path)._asdict() for path in place.iterdir() if path.name != "manifest.json"]
    rewrite(place, files=files)
    with pytest.raises(CheckpointError, match=r"cannot be loaded into this state: .*names posix\.mkdir"):
        load(tmp_path, empty())
    assert not (tmp_path / "owned").exists()


def test_a_state_of_another_form_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    state = empty()
    del state["model"]["bias"], state["text"]
    with pytest.raises(CheckpointError, match=r"has no place for model\.bias and 1 more of the checkpoint"):
        load(tmp_path, state)
    assert load(tmp_path, state, strict=False) and state["pair"] == (1, 1)
    with pytest.raises(CheckpointError, match="Missing key in checkpoint state_dict: more"):
        load(tmp_path, empty() | {"more": 1})
    with pytest.raises(CheckpointError, match=r"Size mismatch"):
        load(tmp_path, empty() | {"optimizer": [torch.zeros(3), torch.zeros(1)]})


def test_only_the_last_writer_commits(tmp_path: Path) -> None:
    reports = []
    with Checkpointer(tmp_path, on_report=reports.append) as first, Checkpointer(tmp_path) as second:
        refused = first.save(state_of(1), step=1)
        assert refused.wait(600) and refused.state == "failed"
        assert refused.problem and "writes there since " in refused.problem and "End one of" in refused.problem
        assert second.save(state_of(2), step=2).wait(600)
        assert [report.kind for report in reports] == ["failed"]
    assert folders.names(tmp_path) == ["step-2.attempt-2"]


@pytest.mark.parametrize("locks", [True, False])
def test_an_orphan_cannot_commit_after_the_restart(
    tmp_path: Path, storage: Gate, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    if not locks:
        monkeypatch.setattr(lease, "_lock", lambda *_: None)
    saved_before = saved_without_gate(tmp_path, storage)
    with Checkpointer(tmp_path) as orphan:
        late = orphan.save(state_of(9), step=9)
        assert storage.reached.wait(600)
        with Checkpointer(tmp_path) as restarted:
            found = restarted.load(empty())
            assert found and found.path == saved_before
            storage.open()
            assert late.wait(600) and late.state == "failed"
            newest = latest(tmp_path)
            assert newest and newest.step == 1
            assert restarted.save(state_of(2), step=2).wait(600)
    assert sorted(folders.names(tmp_path)) == ["step-1.attempt-1", "step-2.attempt-3"]


def saved_without_gate(folder: Path, storage: Gate) -> Path:
    """A checkpoint from before."""
    storage.open()
    (place,) = saved(folder, 1)
    storage.__init__()  # type: ignore[misc]
    return place


def test_an_orphan_between_the_lease_and_the_rename_finds_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without locks: the lease is taken after the orphan read it and before it renames."""
    monkeypatch.setattr(lease, "_lock", lambda *_: None)
    monkeypatch.setattr(lease, "_in_process", defaultdict(nullcontext))
    real, takers = Path.rename, []

    def renamed(self: Path, to: Path) -> Path:
        if to.name == "manifest.json" and not takers:
            takers.append(Checkpointer(tmp_path))
        return real(self, to)

    with Checkpointer(tmp_path) as orphan:
        monkeypatch.setattr(Path, "rename", renamed)
        late = orphan.save(state_of(9), step=9)
        assert late.wait(600) and late.state == "failed", late
    assert takers and latest(tmp_path) is None and folders.names(tmp_path) == []
    takers[0].close()


def test_an_orphan_never_writes_into_a_folder_of_its_successor(tmp_path: Path, storage: Gate) -> None:
    """It saved step 5 before and is at it again; its successor saves step 5, too."""
    storage.open()
    with Checkpointer(tmp_path) as orphan:
        assert orphan.save(state_of(5), step=5).wait(600)
        storage.__init__()  # type: ignore[misc]
        late = orphan.save(state_of(7), step=5)
        assert storage.reached.wait(600)
        with Checkpointer(tmp_path) as restarted:
            storage.open()
            assert restarted.save(state_of(6), step=5).wait(600)
            assert late.wait(600) and (late.name, late.state) == ("step-5.attempt-2", "failed")
    into = empty()
    assert load(tmp_path, into) and steps_in(into) == {6}
    assert sorted(folders.names(tmp_path)) == ["step-5.attempt-1", "step-5.attempt-3"]


def test_what_is_deleted_goes_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is killed in between: the next writer ends it."""
    places = saved(tmp_path, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "remove_all", lambda *_: None)
        folders.delete(tmp_path, places[0].name)
    (left,) = tmp_path.glob(".unfinished-*")
    assert (left / ".metadata").exists() and folders.names(tmp_path) == [places[1].name]
    assert [one.name for one in catalogue.read(tmp_path)] == [places[1].name]
    with Checkpointer(tmp_path):
        assert not left.exists()
    (tmp_path / places[0].name).mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "move", _full)
        folders.delete(tmp_path, places[0].name)
    assert folders.names(tmp_path) == [places[1].name]


def _full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_lease_that_is_damaged_or_deleted_is_written_anew(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=9) as checkpoints:
        spoils = (Path.unlink, lambda path: path.write_text("no JSON"), lambda path: path.write_text("[" * 9000))
        for step, spoil in enumerate(spoils, 1):
            spoil(tmp_path / "writer.lease")
            assert checkpoints.save(state_of(step), step=step).wait(600)
        assert checkpoints.stats.saved == 3
    said = json.loads((tmp_path / "writer.lease").read_bytes())
    assert said["format"] == "logdoctor-lease/1" and said["epoch"] == 1 and said["pid"] == os.getpid()
    (tmp_path / "writer.lease").unlink()
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(state_of(4), step=4)
    newest = latest(tmp_path)
    assert newest and newest.epoch == 2


def test_whoever_only_loads_takes_no_lease(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(600)
        assert load(tmp_path, empty()) and checkpoints.latest() == latest(tmp_path)
        assert checkpoints.save(state_of(2), step=2).wait(600)
        assert checkpoints.stats.saved == 2
    shutil.rmtree(tmp_path)
