"""A run with its parts: what dies, what is resumed, what is kept."""

import errno
import fcntl
import io
import os
import signal
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import IO
from uuid import uuid4

import msgspec
import pytest

from logdoctor.errors import StoreError, StoreRefused
from logdoctor.pipeline import ReadLimits
from logdoctor.pipeline.batch import run as batch_run
from logdoctor.pipeline.batch.answers import Lines
from logdoctor.pipeline.batch.files import moved
from logdoctor.pipeline.batch.judging import told_row
from logdoctor.pipeline.batch.processes import worked
from logdoctor.pipeline.batch.rows import Provenance, Row, read, rows
from logdoctor.pipeline.batch.run import Batch, Engine, parts_folder, parts_of, unpacked
from logdoctor.pipeline.batch.shards import Shard
from logdoctor.pipeline.batch.sources import Source, SourceFile, Tar, Walk
from logdoctor.settings import read_settings
from logdoctor.store.log.bucket import Bucket
from logdoctor.wiring.batch import judge

LIMITS = ReadLimits(1 << 20, 1, 1 << 30, 1000)


def no_fetch(url: str, file: IO[bytes]) -> None:
    raise AssertionError(url)


def judged(shard: Shard) -> list[Row]:
    """Rows without a diagnosis; a log called `killer` kills."""
    if any("killer" in source.name for source in shard.sources):
        os.kill(os.getpid(), signal.SIGKILL)
    return [told_row(source) for source in shard.sources]


def made(logs: Path, out: Path, engine: Engine | None = None, made_with: str = "1") -> Batch:
    """Make the table of the logs in a folder."""
    walk = Walk("each", Bucket)
    with parts_folder(out) as folder:
        run = Batch(folder, made_with, LIMITS, no_fetch)
        list(run.plan(walk.sources([str(logs)])))
        list(run.diagnose(engine or partial(worked, judged, workers=2), walk.takes))
        run.finish(out, Provenance(), lambda source, row: row)
    return run


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    for number in range(600):
        (tmp_path / "logs" / f"{number:03}.log").write_text(str(number))
    return tmp_path / "logs"


def test_a_log_that_kills_is_a_row_and_costs_no_other(logs: Path, tmp_path: Path) -> None:
    (logs / "100-killer.log").touch()
    (logs / "500-killer.log").touch()
    run = made(logs, tmp_path / "v.parquet")
    found = rows(read(tmp_path / "v.parquet"))
    assert [row.source for row in found] == [str(log) for log in sorted(logs.iterdir())]
    errors = {Path(row.source).name: row.error or "" for row in found if row.error}
    assert errors.keys() == {"100-killer.log", "500-killer.log"} and run.unread == 2
    assert all("its process died (killed by signal SIGKILL)" in error for error in errors.values())


def test_what_has_a_part_is_not_diagnosed_again(logs: Path, tmp_path: Path) -> None:
    def one_then_full(shards: Iterator[Shard]) -> Iterator[tuple[Shard, list[Row]]]:
        shard = next(shards)
        yield shard, judged(shard)
        raise StoreError("the disk", "is full", "Make room.")

    with pytest.raises(StoreError, match="is full"):
        made(logs, tmp_path / "v.parquet", one_then_full)  # type: ignore[arg-type]
    assert not (tmp_path / "v.parquet").exists()
    run = made(logs, tmp_path / "v.parquet")
    assert (run.resumed, run.attempts) == (16, 600)
    assert [row.source for row in rows(read(tmp_path / "v.parquet"))] == [str(log) for log in sorted(logs.iterdir())]


def test_a_part_that_is_damaged_is_made_again(logs: Path, tmp_path: Path) -> None:
    def broken_off(shards: Iterator[Shard]) -> Iterator[tuple[Shard, list[Row]]]:
        for shard in shards:
            yield shard, judged(shard)
        raise StoreError("the disk", "is full", "Make room.")

    with pytest.raises(StoreError):
        made(logs, tmp_path / "v.parquet", broken_off)  # type: ignore[arg-type]
    next((tmp_path / "v.parquet.parts").glob("part-*")).write_bytes(b"PAR1")
    run = made(logs, tmp_path / "v.parquet")
    assert 0 < run.resumed < 600 and len(rows(read(tmp_path / "v.parquet"))) == 600


@pytest.mark.parametrize("changed", ["rules", "log"])
def test_what_has_changed_is_diagnosed_again(logs: Path, tmp_path: Path, changed: str) -> None:
    def broken_off(shards: Iterator[Shard]) -> Iterator[tuple[Shard, list[Row]]]:
        for shard in shards:
            yield shard, judged(shard)
        raise StoreError("the disk", "is full", "Make room.")

    with pytest.raises(StoreError):
        made(logs, tmp_path / "v.parquet", broken_off)  # type: ignore[arg-type]
    if changed == "log":
        (logs / "300.log").write_text("more than before")
    run = made(logs, tmp_path / "v.parquet", made_with="2" if changed == "rules" else "1")
    assert run.resumed == (0 if changed == "rules" else 600 - 16)
    assert len(rows(read(tmp_path / "v.parquet"))) == 600


def test_a_file_that_is_named_again_is_there_once(logs: Path, tmp_path: Path) -> None:
    walk = Walk("each", Bucket)
    with parts_folder(tmp_path / "v.parquet") as folder:
        run = Batch(folder, "1", LIMITS, no_fetch)
        list(run.plan(walk.sources([str(logs / "001.log")] * 300)))
        list(run.diagnose(partial(worked, judged, workers=2), walk.takes))
        run.finish(tmp_path / "v.parquet", Provenance(), lambda source, row: row)
    assert [row.source for row in rows(read(tmp_path / "v.parquet"))] == [str(logs / "001.log")]


def test_who_is_killed_while_the_table_is_written_leaves_nothing_beside_it(logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.parquet"

    def finish(answer: Callable[[Source, Row], Row]) -> None:
        walk = Walk("each", Bucket)
        with parts_folder(out) as folder:
            run = Batch(folder, "1", LIMITS, no_fetch, is_open=lambda row: True)
            list(run.plan(walk.sources([str(logs)])))
            list(run.diagnose(partial(worked, judged, workers=1), walk.takes))
            run.finish(out, Provenance(), answer)

    def die(source: Source, row: Row) -> Row:
        os.kill(os.getpid(), signal.SIGKILL)
        return row

    process = get_context("fork").Process(target=finish, args=(die,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and not out.exists()
    assert not [left for left in tmp_path.iterdir() if left.name.startswith(".")], "nothing would ever remove it"
    finish(lambda source, row: row)
    assert out.exists() and not [left for left in parts_of(out).iterdir() if left.name.startswith(".")]


def test_nobody_begins_while_the_parts_of_another_run_are_removed(logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.parquet"
    made(logs, out)
    with parts_folder(out) as folder:
        run = Batch(folder, "1", LIMITS, no_fetch)
        assert list(folder.glob("part-*"))
        run.clear()
        assert not list(folder.glob("part-*"))
        with pytest.raises(StoreError, match="is being made by another run"), parts_folder(out):
            pass
    assert not folder.exists()


@pytest.mark.parametrize("harm", ["a link", "a link to a file", "a folder of all"])
def test_parts_that_others_could_have_made_are_neither_taken_nor_removed(tmp_path: Path, harm: str) -> None:
    out, elsewhere = tmp_path / "v.parquet", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    if harm == "a link":
        parts_of(out).symlink_to(elsewhere)
    else:
        parts_of(out).mkdir(0o700)
        (parts_of(out) / "lock").symlink_to(elsewhere / "new")
        parts_of(out).chmod(0o777 if harm == "a folder of all" else 0o700)
    said = {"a link": "is a link", "a link to a file": "is a link", "a folder of all": "can be written by others"}
    with pytest.raises(StoreError, match=said[harm]), parts_folder(out) as folder:
        Batch(folder, "1", LIMITS, no_fetch).clear()
    assert [path.name for path in elsewhere.iterdir()] == ["mine"]


def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreError, match="cannot be locked"), parts_folder(tmp_path / "v.parquet"):
        pass


def test_a_table_goes_also_to_another_disk(tmp_path: Path) -> None:
    made, place = Path("/dev/shm") / f"logdoctor-{uuid4().hex}", tmp_path / "v.parquet"
    assert made.parent.stat().st_dev != tmp_path.stat().st_dev
    made.write_text("rows")
    moved(made, place)
    assert place.read_text() == "rows" and not made.exists()


def test_of_a_tar_only_what_is_open_stays_on_the_disk(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in ("a.log", "open.log", "b.log"):
            member = tarfile.TarInfo(name)
            member.size = 5
            tar.addfile(member, io.BytesIO(b"lines"))
    walk = Walk("each", Bucket)
    with parts_folder(tmp_path / "v.parquet") as folder:
        run = Batch(folder, "1", LIMITS, no_fetch, is_open=lambda row: row.source.endswith("open.log"))
        list(run.plan(walk.sources([str(tmp_path / "x.tar")])))
        list(run.diagnose(partial(worked, judged, workers=2), walk.takes))
        assert [file.name for file in unpacked(folder).rglob("*") if file.is_file()] == ["1"]
        asked: list[str] = []

        def answer(source: Source, row: Row) -> Row:
            asked.append(Path(source.files[0].place).read_text())
            return row

        run.finish(tmp_path / "v.parquet", Provenance(), answer)
    assert asked == ["lines"] and len(rows(read(tmp_path / "v.parquet"))) == 3


def test_an_answer_is_kept_as_soon_as_it_is_there(logs: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for number in range(4):
            tar.add(logs / f"{number:03}.log", f"{number}.log")
    walk = Walk("each", Bucket)

    def finished(asked: str, most: int) -> list[str]:
        """Those that were asked about until there was an end."""
        names: list[str] = []

        def answer(source: Source, row: Row) -> Row | None:
            if len(names) == most:
                raise KeyboardInterrupt
            names.append(f"{Path(row.source).name} {Path(source.files[0].place).read_text()}")
            return None if row.source.endswith("0.log") else msgspec.structs.replace(row, reason="ECC Error")

        with parts_folder(tmp_path / "v.parquet") as folder:
            run = Batch(folder, "1", LIMITS, no_fetch, is_open=lambda row: True, asked=asked)
            list(run.plan(walk.sources([str(tmp_path / "x.tar")])))
            list(run.diagnose(partial(worked, judged, workers=2), walk.takes))
            with suppress(KeyboardInterrupt):
                run.finish(tmp_path / "v.parquet", Provenance(), answer)
        return names

    assert finished("a model", 3) == ["0.log 0", "1.log 1", "2.log 2"]
    assert finished("a model", 3) == ["0.log 0", "3.log 3"], "who could not be asked is asked again"
    assert [row.reason for row in rows(read(tmp_path / "v.parquet"))] == [None, *["ECC Error"] * 3]
    assert finished("another", 1) == ["0.log 0"]


def test_what_was_left_half_written_is_left_out(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines", tuple[int, str])
    assert list(lines) == []
    lines.append((1, "a"))
    with (tmp_path / "lines").open("ab") as file:
        file.write(b'[2, "b')
    lines.append((3, "c"))
    lines.append((4, "\ud800"))
    assert list(lines) == [(1, "a"), (3, "c")]
    with pytest.raises(StoreError, match="cannot be written"):
        Lines(tmp_path / "none" / "lines", tuple[int, str]).append((1, "a"))


def secrets_first(folder: Path, secret: str) -> Batch:
    """A run over 40 logs and a tar in a bucket, of which those called secret are refused."""

    def fetch(url: str, file: IO[bytes]) -> None:
        if secret in url:
            raise StoreRefused(url, "the bucket refuses (403)", "Check the bucket.")
        file.write(b"hello\n")

    names = [f"s3://b/{'secret' if number < 20 else 'log'}-{number:02}.log" for number in range(40)]
    run = Batch(folder, "1", LIMITS, fetch)
    list(
        run.plan(
            [*(Source(name, (SourceFile("main", name, 6, ""),)) for name in names), Tar("s3://b/secret.tar", 1, "")]
        )
    )
    list(run.diagnose(partial(worked, judge(read_settings(), fetch=fetch), workers=1), lambda name: True))
    return run


def test_logs_that_are_refused_are_rows_once_others_are_given(tmp_path: Path) -> None:
    with parts_folder(tmp_path / "v.parquet") as folder:
        run = secrets_first(folder, "secret")
        run.finish(tmp_path / "v.parquet", Provenance(), lambda source, row: row)
    found = rows(read(tmp_path / "v.parquet"))
    assert len(found) == 41 and (run.attempts, run.unread) == (41, 21)
    assert all(("the bucket refuses" in (row.error or "")) == ("secret" in row.source) for row in found)


def test_a_bucket_that_refuses_all_is_the_end_and_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with parts_folder(tmp_path / "v.parquet") as folder:
        with pytest.raises(StoreError, match="give the same command again"):
            secrets_first(folder, "s3:")
        monkeypatch.setattr(batch_run, "_MOST_REFUSED", 10)
        with pytest.raises(StoreError, match="secret-00"):
            secrets_first(folder, "s3:")
    assert not list((tmp_path / "v.parquet.parts").glob("part-*"))


def test_a_bucket_that_fails_over_a_tar_is_the_end_and_no_row(tmp_path: Path) -> None:
    def failing(url: str, file: IO[bytes]) -> None:
        raise StoreError("the bucket", "fails", "Wait.")

    with parts_folder(tmp_path / "v.parquet") as folder:
        run = Batch(folder, "1", LIMITS, failing)
        list(run.plan([Tar("s3://b/x.tar", 10, "")]))
        with pytest.raises(StoreError, match="give the same command again"):
            list(run.diagnose(partial(worked, judged, workers=1), lambda name: True))
    assert not list((tmp_path / "v.parquet.parts").glob("part-*"))
