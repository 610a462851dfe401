"""A copy in an object store: whole or not there, newest by what is there, and never in the way of training."""

import itertools
import os
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from fsspec.config import conf as fsspec_config
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from logdoctor.checkpoint import Checkpointer, Report, fetch, folders, latest, load
from logdoctor.checkpoint import mirror as mirror_module
from logdoctor.checkpoint import mirroring as mirroring_module
from logdoctor.checkpoint.lease import Lease
from logdoctor.checkpoint.mirror import Mirror
from logdoctor.errors import CheckpointError, CheckpointFenced
from logdoctor.job.recovery import catalogue
from logdoctor.job.recovery.catalogue import mirrored as in_mirrors
from logdoctor.safe.mirror_files import chunks
from tests import waiting
from tests.checkpoint.conftest import Gate
from tests.checkpoint.states import empty, state_of, steps_in

ROOT = Path(__file__).parents[2]
_number = itertools.count()
Place = tuple[str, dict[str, Any]]


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty mirror: its URL, and options."""
    name = f"run-{next(_number)}"
    return (f"file://{tmp_path}/{name}" if request.param == "file" else f"memory://{name}"), {}


@pytest.fixture
def memory() -> str:
    return f"memory://run-{next(_number)}"


def run(folder: Path, place: Place, *steps: int, keep: int = 9, **options: Any) -> Checkpointer:
    """A training that saves states of these steps, and waits until each is uploaded."""
    url, given = place
    with Checkpointer(folder, keep=keep, mirror=url, mirror_options=given, **options) as checkpoints:
        for step in steps:
            assert checkpoints.save(state_of(step), step=step, data_position=10 * step).wait(600)
            waiting.until(lambda step=step: checkpoints.stats.last_mirrored_step == step)  # type: ignore[misc]
    return checkpoints


def mirrored(place: Place) -> list[str]:
    return [each.name for each in Mirror(*place).complete()]


def test_another_machine_goes_on_from_the_mirror(tmp_path: Path, place: Place) -> None:
    run(tmp_path / "a", place, 1, 2, 3, keep=2)
    assert mirrored(place) == ["step-3.attempt-1", "step-2.attempt-1"] and len(Mirror(*place).names()) == 2
    with Checkpointer(tmp_path / "b", mirror=place[0], mirror_options=place[1]) as checkpoints:
        into = empty()
        found = checkpoints.load(into)
        assert found and (found.step, found.data_position, found.refused) == (3, 30, ())
        assert found.path == tmp_path / "b/step-3.attempt-1" and steps_in(into) == {3}
        checkpoints.save(state_of(2), step=2)  # it went back
    assert mirrored(place)[0] == "step-2.attempt-2", "a later run is newer, whatever its folder knew"
    assert fetch(place[0], tmp_path / "c", 3, **place[1]) == () and load(tmp_path / "c", empty(), 3)
    assert fetch(place[0], tmp_path / "c", **place[1]) == () and fetch(place[0], tmp_path / "c", **place[1]) == ()
    found = load(tmp_path / "c", into)
    assert found and found.step == 2 and steps_in(into) == {2}
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"step-2.attempt-2", "step-3.attempt-1"}


def test_what_was_changed_in_the_mirror_is_passed_over(tmp_path: Path, place: Place) -> None:
    run(tmp_path / "a", place, 1, 2)
    files, root = url_to_fs(place[0], **place[1])
    path = f"{root}/step-2.attempt-1/__0_0.distcp"
    data = bytearray(files.cat_file(path))
    data[len(data) // 2] ^= 1
    files.pipe_file(path, bytes(data))
    with Checkpointer(tmp_path / "b", mirror=place[0], mirror_options=place[1]) as checkpoints:
        found = checkpoints.load(empty())
        changed = "was changed: __0_0.distcp has not the bytes that were written."
        assert found and found.step == 1 and found.refused == (f"checkpoint {place[0]}/step-2.attempt-1 {changed}",)
        with pytest.raises(CheckpointError, match="has no good checkpoint of step 2"):
            checkpoints.load(empty(), 2)
    files.rm_file(f"{root}/step-1.attempt-1/.metadata")
    with Checkpointer(tmp_path / "c", mirror=place[0], mirror_options=place[1]) as checkpoints:
        with pytest.raises(CheckpointError, match=r"has no file \.metadata"):
            checkpoints.load(empty())
    assert folders.names(tmp_path / "c") == []


def test_the_manifest_is_put_last_after_all_was_read_back(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("put_file", "pipe_file", "open"):
        real = getattr(MemoryFileSystem, name)

        def noted(self: Any, path: str, *rest: Any, _real: Any = real, _name: str = name, **named: Any) -> Any:
            done.append(f"{_name} {Path(str(rest[0]) if _name == 'put_file' else path).name}")
            return _real(self, path, *rest, **named)

        monkeypatch.setattr(MemoryFileSystem, name, noted)
    run(tmp_path, (memory, {}), 1)
    begin, end = done.index("put_file .metadata"), done.index("pipe_file manifest.json")
    data = ["put_file .metadata", "put_file __0_0.distcp"]
    assert [each for each in done[begin:end] if "put_file" in each] == data
    assert done[begin:end].count("open .metadata") >= 2 and "open __0_0.distcp" in done[begin:end]


def test_an_upload_that_is_broken_off_is_no_checkpoint_and_goes_later(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "a", (memory, {}), 1)
    reports: list[Report] = []
    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "put_file", _damaging(MemoryFileSystem.put_file))
        with Checkpointer(tmp_path / "a", mirror=memory, on_report=reports.append) as checkpoints:
            checkpoints.save(state_of(2), step=2)
    assert checkpoints.stats.mirror_failed >= 1 and "has not arrived as it was saved" in str(
        checkpoints.stats.last_problem
    )
    assert mirrored((memory, {})) == ["step-1.attempt-1"] and len(Mirror(memory).names()) == 2
    assert fetch(memory, tmp_path / "b") == () and folders.names(tmp_path / "b") == ["step-1.attempt-1"]
    run(tmp_path / "a", (memory, {}), 3, keep=2)
    assert sorted(Mirror(memory).names()) == ["step-2.attempt-2", "step-3.attempt-3"], (
        "the last one of before is caught up"
    )


def _damaging(put: Any) -> Any:
    def damaged(self: Any, path: str, to: str, **named: Any) -> None:
        put(self, path, to, **named)
        if to.endswith(".distcp"):
            self.pipe_file(to, self.cat_file(to)[:-1])

    return damaged


def test_what_is_damaged_here_is_uploaded_once_and_is_no_checkpoint_there(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "a", (memory, {}), 1)
    run(tmp_path / "b", (f"{memory}-other", {}), 5)
    shutil.copytree(tmp_path / "b/step-5.attempt-1", tmp_path / "a/step-5.attempt-1")
    path = tmp_path / "a/step-5.attempt-1/__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setattr(mirroring_module, "_AGAIN", 0.01)
    with Checkpointer(tmp_path / "a", mirror=memory) as checkpoints:
        waiting.until(lambda: checkpoints.stats.mirror_failed)
        assert checkpoints.save(state_of(6), step=6).wait(600)
        waiting.until(lambda: checkpoints.stats.last_mirrored_step == 6)
    assert checkpoints.stats.mirror_failed == 1
    assert "step-5.attempt-1 is torn: __0_0.distcp has" in str(checkpoints.stats.last_problem)
    assert [name.partition(".")[0] for name in mirrored((memory, {}))] == ["step-6", "step-1"]


def test_a_mirror_that_is_away_keeps_nobody_waiting(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "a", (memory, {}), 1)
    monkeypatch.setattr(mirroring_module, "_AGAIN", 0.05)
    monkeypatch.setattr(mirror_module, "_PAUSES", (0.01,))
    reports: list[Report] = []
    with monkeypatch.context() as patched:
        patched.setattr(MemoryFileSystem, "ls", _away)
        with Checkpointer(tmp_path / "a", mirror=memory, on_report=reports.append) as checkpoints:
            waiting.until(lambda: reports)
            assert reports[0].kind == "mirror" and "cannot be written now: no route" in reports[0].sentence
            found = checkpoints.load(empty())
            assert found and found.step == 1 and found.refused == (f"mirror {memory} cannot be read (no route).",)
            save = checkpoints.save(state_of(2), step=2)
            assert save.wait(600) and save.state == "verified"
            waiting.until(lambda: checkpoints.stats.mirror_failed > 1)
            patched.undo()
            waiting.until(lambda: checkpoints.stats.mirrored == 1)
        with pytest.raises(CheckpointError, match=rf"{memory} cannot be read \(no route\)"):
            patched.setattr(MemoryFileSystem, "ls", _away)
            with Checkpointer(tmp_path / "b", mirror=memory) as checkpoints:
                checkpoints.load(empty())  # beginning anew by mistake would be worse
    assert mirrored((memory, {}))[0].startswith("step-2.")


def _away(*_: Any, **__: Any) -> Any:
    raise OSError("no route")


def test_one_failed_look_does_not_hide_the_newest(tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, training went on from an older one of the folder, and its saves drove the newest out of the mirror."""
    run(tmp_path / "a", (memory, {}), 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    run(tmp_path / "a", (memory, {}), 8, 9)
    monkeypatch.setattr(mirror_module, "_PAUSES", (0.01,))
    real, looks = MemoryFileSystem.ls, itertools.count()
    with monkeypatch.context() as patched, Checkpointer(tmp_path / "b", mirror=memory) as checkpoints:
        assert checkpoints._mirroring and checkpoints._mirroring.begun.wait(600)
        patched.setattr(
            MemoryFileSystem, "ls", lambda *a, **k: _away() if next(looks) == 0 else real(*a, **k), raising=True
        )
        found = checkpoints.load(empty())
        assert found and found.step == 9 and next(looks) > 1


def test_what_could_not_be_read_is_not_deleted(tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "a", (memory, {}), 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    run(tmp_path / "a", (memory, {}), 9, keep=1)
    monkeypatch.setattr(mirror_module, "_PAUSES", ())
    reports: list[Report] = []
    with Checkpointer(tmp_path / "b", keep=1, mirror=memory, on_report=reports.append) as checkpoints:
        assert checkpoints._mirroring and checkpoints._mirroring.begun.wait(600)
        with monkeypatch.context() as patched:
            patched.setattr(MemoryFileSystem, "ls", _away)
            found = checkpoints.load(empty())
            assert found and found.step == 1 and found.refused == (f"mirror {memory} cannot be read (no route).",)
        assert ("mirror", found.refused[0]) in [(report.kind, report.sentence) for report in reports]
        for step in (2, 3):
            assert checkpoints.save(state_of(step), step=step).wait(600)
            waiting.until(lambda step=step: checkpoints.stats.last_mirrored_step == step)  # type: ignore[misc]
    assert {name.partition(".")[0] for name in mirrored((memory, {}))} == {"step-3", "step-9"}


def test_a_folder_that_is_away_at_the_start_lets_no_upload_be_old(tmp_path: Path, memory: str) -> None:
    """Before, what was saved later had a lower epoch than what the mirror had, and was deleted once it was there."""
    for step in (1, 2):
        run(tmp_path / "a", (memory, {}), step, keep=2)
    (tmp_path / "b").write_text("no folder")
    with Checkpointer(tmp_path / "b", keep=2, mirror=memory) as checkpoints:
        assert checkpoints._mirroring and checkpoints._mirroring.begun.wait(600)
        (tmp_path / "b").unlink()
        for step in (8, 9):
            assert checkpoints.save(state_of(step), step=step).wait(600)
            waiting.until(lambda step=step: checkpoints.stats.last_mirrored_step == step)  # type: ignore[misc]
    assert mirrored((memory, {})) == ["step-9.attempt-3", "step-8.attempt-3"]


def test_a_lease_that_could_not_rise_does_so_with_the_next_save(tmp_path: Path, memory: str) -> None:
    for step in (1, 2):
        run(tmp_path / "a", (memory, {}), step)
    real, failures = Lease.held, itertools.count()

    def fails_once(self: Lease) -> Any:
        if next(failures) == 0:
            raise OSError(5, "Input/output error")
        return real(self)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Lease, "held", fails_once)
        with Checkpointer(tmp_path / "b", mirror=memory) as checkpoints:
            assert checkpoints._mirroring and checkpoints._mirroring.begun.wait(600) and next(failures) == 1
            assert checkpoints.save(state_of(9), step=9).wait(600)
    assert mirrored((memory, {}))[0] == "step-9.attempt-3"


def test_a_damaged_one_is_replaced_by_the_whole_one_of_the_mirror(tmp_path: Path, place: Place) -> None:
    url, options = place
    run(tmp_path, place, 1, 2)
    path = tmp_path / "step-2.attempt-1/__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-1])
    reports: list[Report] = []
    with Checkpointer(tmp_path, mirror=url, mirror_options=options, on_report=reports.append) as checkpoints:
        into = empty()
        found = checkpoints.load(into)
        assert found and (found.step, found.refused) == (2, ()) and steps_in(into) == {2}
    told = next(report for report in reports if report.kind == "damaged")
    assert told.step == 2 and "step-2.attempt-1 is torn: __0_0.distcp has" in told.sentence
    assert told.sentence.endswith(f"The whole one was fetched from {url}.")


def test_what_is_torn_here_is_replaced_and_what_is_whole_is_left(tmp_path: Path, memory: str) -> None:
    run(tmp_path / "a", (memory, {}), 1)
    name, mirror = "step-1.attempt-1", Mirror(memory)
    here = tmp_path / "b" / name
    here.mkdir(parents=True)
    (here / "__0_0.distcp").write_bytes(b"of a deletion that was broken off")
    assert mirror.fetch(tmp_path / "b") == () and load(tmp_path / "b", empty())
    inode = here.stat().st_ino
    assert mirror.restore(tmp_path / "b", name) is None and here.stat().st_ino == inode, "it is as good"
    (here / ".metadata").write_bytes(b"")
    assert mirror.restore(tmp_path / "b", name) is None and load(tmp_path / "b", empty())
    assert mirror.restore(tmp_path / "b", "step-7.attempt-1") == f"Mirror {memory} has none."
    assert [path.name for path in (tmp_path / "b").iterdir()] == [name]


def test_what_is_being_uploaded_is_kept_and_no_save_waits(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, put = Gate(), MemoryFileSystem.put_file

    def held_up(*given: Any, **named: Any) -> Any:
        gate.wait()
        return put(*given, **named)

    monkeypatch.setattr(MemoryFileSystem, "put_file", held_up)
    with Checkpointer(tmp_path, keep=1, mirror=memory) as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(600) and gate.reached.wait(600)
        for step in (2, 3):
            assert checkpoints.save(state_of(step), step=step).wait(600)
        assert sorted(folders.names(tmp_path)) == ["step-1.attempt-1", "step-3.attempt-1"]
        gate.open()
    assert checkpoints.stats.mirrored == 2 and mirrored((memory, {})) == ["step-3.attempt-1"]


def test_an_earlier_writer_uploads_nothing_more(tmp_path: Path, place: Place) -> None:
    url, options = place
    with Checkpointer(tmp_path / "a", mirror=url, mirror_options=options) as orphan:
        assert orphan._mirroring and orphan._mirroring.begun.wait(600)
        with Checkpointer(tmp_path / "b", mirror=url, mirror_options=options) as restarted:
            assert restarted._mirroring and restarted._mirroring.begun.wait(600)
            late = orphan.save(state_of(9), step=9)  # whole in the folder of its own
            assert late.wait(600) and late.state == "verified"
            waiting.until(lambda: orphan.stats.mirror_failed)
            assert "has another writer since (number 2, this is 1)" in str(orphan.stats.last_problem)
            assert restarted.save(state_of(1), step=1).wait(600)
    assert mirrored(place) == ["step-1.attempt-2"]
    newest = latest(tmp_path / "b")
    assert newest and newest.epoch == 2


def _take(url: str, found: list[int]) -> None:
    found.append(Mirror(url).take(1))


def test_writers_that_come_at_once_have_different_numbers(memory: str, tmp_path: Path) -> None:
    for url in (memory, f"file://{tmp_path}/m"):
        found: list[int] = []
        threads = [threading.Thread(target=_take, args=[url, found]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if url.startswith("file"):  # those in memory are of one process
            assert sorted(found) == sorted(set(found))
        first, second = Mirror(url), Mirror(url)
        first.take(1)
        assert second.take(1) == first.epoch + 1
        with pytest.raises(CheckpointFenced):
            first.prune(1, tmp_path)


def test_an_orphan_in_the_mirror_never_becomes_the_newest(tmp_path: Path, memory: str) -> None:
    """It looked whether it still is the writer a moment before it is none."""
    run(tmp_path / "a", (memory, {}), 9)
    run(tmp_path / "b", (memory, {}), 1)
    shutil.copytree(tmp_path / "a/step-9.attempt-1", tmp_path / "c/step-9.attempt-1")
    files, root = url_to_fs(memory)
    files.rm(f"{root}/step-9.attempt-1", recursive=True)
    orphan = Mirror(memory)
    orphan.epoch = 10**9
    orphan.upload(tmp_path / "c", "step-9.attempt-1")
    assert mirrored((memory, {})) == ["step-1.attempt-2", "step-9.attempt-1"]


def test_a_url_that_nothing_reads_is_an_error_of_the_program(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere://x cannot be used \(Protocol not known"):
        Checkpointer(tmp_path, mirror="nowhere://x")


def test_the_catalogue_reads_a_mirror_where_it_is(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = place
    monkeypatch.setitem(fsspec_config, url.partition(":")[0], options)
    run(tmp_path / "a", place, 1, 2, 3)
    here = {one.name: one for one in catalogue.read(tmp_path / "a")}
    there = in_mirrors.read(f"{url}/")
    assert [one.step for one in there] == [1, 2, 3] and all(one.complete for one in there)
    for one in there:
        same = here[one.name]
        assert (one.bytes, one.saved_at, one.data_position) == (same.bytes, same.saved_at, same.data_position)
        assert in_mirrors.verify(one) == catalogue.verify(same)
    files, root = url_to_fs(place[0], **place[1])
    path = f"{root}/step-3.attempt-1/__0_0.distcp"
    data = bytearray(files.cat_file(path))
    data[len(data) // 2] ^= 1
    files.pipe_file(path, bytes(data))
    assert in_mirrors.verify(there[2]).torn == "__0_0.distcp has changed since it was saved"
    files.rm_file(path)
    files.rm_file(f"{root}/step-2.attempt-1/manifest.json")
    now = {one.step: one for one in in_mirrors.read(url)}
    assert [now[step].torn[:24] for step in (1, 2, 3)] == ["", "manifest.json is missing", "__0_0.distcp is missing"]
    assert in_mirrors.verify(now[3]).torn == "__0_0.distcp is missing"
    found = catalogue.best(list(now.values()))
    assert isinstance(found, catalogue.Checkpoint) and found.path == f"{url}/step-1.attempt-1"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("step-")] == []


def test_a_mirror_that_is_none_is_an_error_with_a_next_step() -> None:
    for url, words in (("memory://not-there", "does not exist"), ("nothing://x", "cannot be read")):
        with pytest.raises(CheckpointError, match=words):
            in_mirrors.read(url)


def test_what_took_the_place_of_a_file_in_a_mirror_is_not_waited_for(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/mirror"
    run(tmp_path / "a", (url, {}), 1, 2)
    every = in_mirrors.read(url)
    pipe = tmp_path / "mirror/step-1.attempt-1/__0_0.distcp"
    pipe.unlink()
    os.mkfifo(pipe)
    assert in_mirrors.verify(every[0]).torn
    shutil.rmtree(tmp_path / "mirror/step-2.attempt-1")
    assert in_mirrors.verify(every[1]).torn, "deleted since it was listed"
    manifest = tmp_path / "mirror/step-1.attempt-1/manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    assert Mirror(url).complete() == [] and "is no regular file" in fetch(url, tmp_path / "c")[0]
    nested = f"{url}/step-3.attempt-1"  # a mirror whose own name is that of a checkpoint
    run(tmp_path / "b", (nested, {}), 3)
    assert [one.torn for one in in_mirrors.read(nested)] == [""]


def test_a_link_in_a_checkpoint_is_not_uploaded(tmp_path: Path, memory: str) -> None:
    """Who may write into the folder could have any file of the trainer's user brought to the mirror."""
    with Checkpointer(tmp_path / "a") as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(600)
    (place,) = (tmp_path / "a").glob("step-*")
    data = next(path for path in place.glob("*.distcp"))
    data.rename(tmp_path / "secret")
    data.symlink_to(tmp_path / "secret")
    mirror = Mirror(memory, {})
    mirror.take(1)
    with pytest.raises(OSError, match="is a link to another place"):
        mirror.upload(tmp_path / "a", place.name)
    assert data.name not in mirror._listed(place.name)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder beside the mirror, whose file nobody may read or change by way of it."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/__0_0.distcp").write_bytes(b"precious")
    return tmp_path / "victim"


@pytest.mark.parametrize("planted", ["step-1.attempt-1", "step-1.attempt-1/__0_0.distcp", "writers", "writers/1"])
def test_an_upload_follows_no_link(tmp_path: Path, victim: Path, planted: str) -> None:
    """Who may write into the mirror could have any file of the trainer's user written over."""
    there = tmp_path / "mirror"
    with Checkpointer(tmp_path / "a") as checkpoints:
        assert checkpoints.save(state_of(1), step=1).wait(600)
    link = there / planted
    link.parent.mkdir(parents=True)
    link.symlink_to(victim / "__0_0.distcp" if "distcp" in planted else victim / "new" if "/" in planted else victim)
    mirror = Mirror(str(there))
    mirror.epoch = mirror.take(1)
    if planted.endswith("-1"):
        with pytest.raises(CheckpointError, match="is a link to another place"):
            mirror.upload(tmp_path / "a", "step-1.attempt-1")
    else:
        assert mirror.upload(tmp_path / "a", "step-1.attempt-1") and mirrored((str(there), {})) == ["step-1.attempt-1"]
    assert [path.read_bytes() for path in victim.iterdir()] == [b"precious"]


def test_bad_names_in_a_mirror_are_passed_over(
    tmp_path: Path, victim: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, one link let no trainer write into the mirror, or go on from it."""
    url, there = f"file://{tmp_path}/mirror", tmp_path / "mirror"
    run(tmp_path / "a", (url, {}), 1)
    text = (there / "step-1.attempt-1/manifest.json").read_bytes()
    bad: dict[str, Any] = {
        "step-3.attempt-1": lambda path: path.symlink_to(victim),
        "step-4.attempt-1": lambda path: path.write_text("a file"),
        "step-5.attempt-1": lambda path: (path.mkdir(), (path / "manifest.json").symlink_to(victim / "__0_0.distcp")),
        "step-6.attempt-1": lambda path: _manifest(path, text.replace(b"__0_0.distcp", b"n" * 300)),
        "step-7.attempt-1": lambda path: _manifest(path, text.replace(b"__0_0.distcp", b"\\ud800")),
        "step-8.attempt-1": lambda path: _manifest(path, re.sub(rb'"seconds": [^,]+', b'"seconds": NaN', text)),
        "step-9.attempt-1": lambda path: (_manifest(path, b"{"), os.truncate(path / "manifest.json", 1 << 40)),
    }
    for name, plant in bad.items():
        plant(there / name)
    monkeypatch.setattr(folders, "LARGEST", 1 << 20)
    with Checkpointer(tmp_path / "b", keep=1, mirror=url) as checkpoints:
        found = checkpoints.load(empty())
        assert (
            found
            and found.step == 1
            and [sentence.split()[1] for sentence in found.refused] == [f"{url}/{name}" for name in bad]
        )
        assert checkpoints.save(state_of(2), step=2).wait(600)
    assert mirrored((url, {})) == ["step-2.attempt-2"] and {*Mirror(url).names()} == {"step-2.attempt-2", *bad}
    assert [path.read_bytes() for path in victim.iterdir()] == [b"precious"]
    assert "step-3.attempt-1 cannot be read (is a link to another place" in caplog.text
    for one in in_mirrors.read(url):
        assert bool(one.torn) == (one.name in bad) and bool(in_mirrors.verify(one).torn) == bool(one.torn)
    with (
        pytest.raises(CheckpointError, match="has no good checkpoint of step 3"),
        Checkpointer(tmp_path / "c", mirror=url) as checkpoints,
    ):
        checkpoints.load(empty(), 3)


def _manifest(path: Path, text: bytes) -> None:
    path.mkdir()
    (path / "manifest.json").write_bytes(text.replace(b'"step": 1,', f'"step": {path.name[5]},'.encode()))


def test_what_is_fetched_is_private_until_it_is_whole(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a link in the mirror brought any file of this user to where others read it."""
    url = f"file://{tmp_path}/mirror"
    run(tmp_path / "a", (url, {}), 1, 2)
    data = tmp_path / "mirror/step-2.attempt-1/__0_0.distcp"
    os.truncate(victim / "__0_0.distcp", data.stat().st_size)
    data.unlink()
    data.symlink_to(victim / "__0_0.distcp")
    modes, real = list[int](), mirror_module.hash_chunks

    def noted(name: str, chunks: Any) -> Any:
        found = real(name, chunks)
        for place in (tmp_path / "b").glob(".unfinished-*"):
            modes.extend(path.stat().st_mode & 0o777 for path in (place, *place.iterdir()))
        return found

    monkeypatch.setattr(mirror_module, "hash_chunks", noted)
    (refused,) = fetch(url, tmp_path / "b")
    assert "step-2.attempt-1 cannot be read (is a link to another place" in refused and "__0_0.distcp" in refused
    assert {*modes} == {0o700, 0o600}
    whole, usual = tmp_path / "b/step-1.attempt-1", tmp_path / "usual"
    usual.mkdir()
    (usual / "file").touch()
    assert whole.stat().st_mode == usual.stat().st_mode
    assert {path.stat().st_mode for path in whole.iterdir()} == {(usual / "file").stat().st_mode}


def test_a_file_that_grows_is_brought_as_far_as_the_manifest_says(tmp_path: Path, place: Place) -> None:
    run(tmp_path / "a", place, 1)
    files, root = url_to_fs(place[0], **place[1])
    path = f"{root}/step-1.attempt-1/__0_0.distcp"
    data = files.cat_file(path)
    files.pipe_file(path, data + bytes(1000))
    mirror = Mirror(*place)
    assert "is torn: __0_0.distcp has" in mirror.fetch(tmp_path / "b")[0] and folders.names(tmp_path / "b") == []
    assert mirror._files.read("step-1.attempt-1/__0_0.distcp", 10) == data[:10]
    with mirror._files.open("step-1.attempt-1/__0_0.distcp") as there, (tmp_path / "copy").open("wb") as copy:
        assert b"".join(chunks(there, len(data), copy)) == data
    assert (tmp_path / "copy").read_bytes() == data


def test_a_folder_by_way_of_another_implementation_is_refused(tmp_path: Path) -> None:
    """It would follow links."""
    with pytest.raises(CheckpointError, match="leads to a folder by way of another implementation"):
        Mirror(f"simplecache::file://{tmp_path}").names()
