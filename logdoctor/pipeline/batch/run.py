"""One run over an archive: plan, shards, parts, and the resulting table.

While the table is made, a folder of parts lies beside it. A shard whose part exists is done, so an interrupted run
resumes where it was.
"""

import fcntl
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Protocol

from logdoctor.errors import InputError, LogdoctorError, StoreError, StoreRefused
from logdoctor.pipeline import ReadLimits
from logdoctor.pipeline.batch.answers import Answers
from logdoctor.pipeline.batch.files import moved
from logdoctor.pipeline.batch.judging import Refused, told_row
from logdoctor.pipeline.batch.outages import outage
from logdoctor.pipeline.batch.processes import Died
from logdoctor.pipeline.batch.refusals import Given
from logdoctor.pipeline.batch.rows import Provenance, Row, packed, read, rows, table, unread, with_runs, write
from logdoctor.pipeline.batch.shards import Shard, ShardSize, cut, size_for
from logdoctor.pipeline.batch.sources import Fetch, Source, Tar, unreadable
from logdoctor.pipeline.batch.tars import members
from logdoctor.pipeline.batch.told import Told
from logdoctor.safe.lasting_files import Folder
from logdoctor.store.log.objects import FolderObjects

_PACKED = 4  # bytes of logs per byte of a tar, roughly
_UNKNOWN = 1 << 20  # assumed members of a tar, whose number is unknown
_LOCK = "lock"
_MOST_REFUSED = 10_000  # logs that may be refused before any is given
_TOGETHER = 1000  # sources written to the plan at once


Made = list[Row] | Refused | Died
"""The result of a shard: its rows; a refused log; or how its process died."""


Answer = Callable[[Source, Row], Row | None]
"""Returns the answer from above the rules for a row; None when nobody could be asked."""


class Engine(Protocol):
    """Diagnoses shards, in processes of this machine or on a cluster."""

    def __call__(self, shards: Iterable[Shard]) -> Iterator[tuple[Shard, Made]]:
        """Yield shards with their results as they complete, in any order. Shards are taken on demand."""
        ...


class Batch:
    """A run with its parts in a folder. `made_with` identifies all that rows depend on besides their sources, `fetch`
    gets URLs, `told` returns what is known about a job by its log's name. Rows that are `open` keep their sources for
    `finish` to answer; `asked` identifies what answers depend on besides them."""

    def __init__(
        self,
        folder: Path,
        made_with: str,
        limits: ReadLimits,
        fetch: Fetch,
        told: Callable[[str], Told | None] = lambda name: None,
        is_open: Callable[[Row], bool] | None = None,
        asked: str = "",
    ) -> None:
        self._folder, self._made_with, self._limits, self._fetch = folder, made_with, limits, fetch
        self._told, self._is_open = told, is_open
        self._objects = FolderObjects(folder)
        self._plan: IO[bytes] = tempfile.TemporaryFile(dir=folder)
        self._parts: dict[str, dict[int, Source] | None] = {}
        self._given = Given()
        self._answers = Answers(folder, asked)
        self._whole = ShardSize(0, 0)
        self.bytes = self.resumed_bytes = self.attempts = self.resumed = self.unread = self.open = 0
        """Progress: bytes of the archive, attempts, and among them those of an earlier run, unreadable and open
        ones."""

    def plan(self, found: Iterable[Source | Tar]) -> Iterator[tuple[int, int]]:
        """Store what is to be diagnosed; yield the numbers of logs and tars, and bytes, so far."""
        some: list[Source | Tar] = []
        number = size = 0
        for one in found:
            number, size = number + 1, size + one.size
            if isinstance(one, Source):
                self._whole = ShardSize(self._whole.bytes + one.size, self._whole.sources + 1)
            some.append(one)
            if len(some) == _TOGETHER:
                pickle.dump(some, self._plan)
                some = []
                yield number, size
        pickle.dump(some, self._plan)
        pickle.dump(None, self._plan)
        yield number, size

    def diagnose(self, engine: Engine, takes: Callable[[str], bool]) -> Iterator[None]:
        """Diagnose every shard without a part; yield after each. Members of tars are those whose names it `takes`.
        Refused logs are retried once it is known which logs are given; logs whose process died are retried one by one.
        """
        crashed: list[Shard] = []
        refused: list[Shard] = []
        for shard, result in engine(self._waiting(takes)):
            if isinstance(result, Died):
                crashed.append(shard)
            elif isinstance(result, Refused):
                refused.append(shard)
                self._require_given(refused, result)
            else:
                self._keep(shard, result)
                yield
        for shard, result in engine(self._with_given(refused)):
            if isinstance(result, Died):
                crashed.append(shard)
            else:
                self._keep(shard, _rows_of(result))
                yield
        for shard in self._with_given(crashed):
            self._keep(shard, _each_alone(shard, engine))
            yield

    def finish(self, out: Path, provenance: Provenance, answer: Answer) -> None:
        """Write the table, with the `answer` in place of each open row; each answer is stored as soon as it arrives.
        Earlier runs in a log get their own rows."""

        def answered(part: str, left: dict[int, Source]) -> Iterator[Row]:
            known = self._answers.of(part)
            for place, row in enumerate(rows(read(self._folder / part))):
                if place in left and (said := answer(left[place], row)) is not None:
                    self._answers.keep(part, place, said)
                    yield said
                else:
                    yield known.get(place, row)

        tables = (
            read(self._folder / part) if left is None else table(answered(part, left), provenance)
            for part, left in self._parts.items()
        )
        made = self._folder / "table.parquet"  # if this is killed, it is swept with the parts
        write(made, map(with_runs, tables), provenance)
        moved(made, out)

    def clear(self) -> None:
        """Remove the parts: there is nothing left to resume."""
        self._plan.close()
        for entry in os.scandir(self._folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != _LOCK:  # it is held; the folder goes with it
                with suppress(OSError):  # the folder then stays, and the next run sweeps it
                    os.unlink(entry.path)

    def _require_given(self, refused: list[Shard], last: Refused) -> None:
        """End a run whose bucket gives nothing, before it has requested everything."""
        if not self._given.places and sum(len(shard.sources) for shard in refused) > _MOST_REFUSED:
            _rows_of(last)

    def _with_given(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        return (shard._replace(given=self._given.places) for shard in shards)

    def _waiting(self, takes: Callable[[str], bool]) -> Iterator[Shard]:
        """Yield the shards without a part."""
        for shard in self._shards(takes):
            shard = shard._replace(part=f"part-{shard.digest(self._made_with)}.parquet")
            if shard.part in self._parts:
                continue  # the same files were named twice
            self._parts[shard.part] = None
            if (made := self._made(shard.part)) is None:
                yield shard
            else:
                self.resumed += len(shard.sources)
                self.resumed_bytes += shard.weight
                self._settle(shard, made)

    def _made(self, part: str) -> list[Row] | None:
        """Return the rows of a part; None without one. A damaged part is deleted."""
        if self._objects.size(part) is None:
            return None
        try:
            return rows(read(self._folder / part))
        except InputError:
            self._objects.delete(part)
            return None

    def _shards(self, takes: Callable[[str], bool]) -> Iterator[Shard]:
        """Yield what was planned as shards, with tars unpacked."""
        loose: list[Tar] = []

        def weighed() -> Iterator[tuple[Source, int]]:
            for one in self._planned():
                if isinstance(one, Tar):
                    loose.append(one)
                else:
                    yield one._replace(told=self._told(one.name) or one.told), one.size

        yield from cut(weighed(), size_for(self._whole))
        numbers = count()
        for tar in loose:
            yield from self._unpack(tar, takes, numbers)

    def _planned(self) -> Iterator[Source | Tar]:
        self._plan.seek(0)
        while (some := pickle.load(self._plan)) is not None:
            yield from some

    def _unpack(self, tar: Tar, takes: Callable[[str], bool], numbers: Iterator[int]) -> Iterator[Shard]:
        """Yield the logs in a tar as shards, each in its own folder."""
        folder = self._fresh(numbers)

        def members_of(file: IO[bytes]) -> Iterator[tuple[Source, int]]:
            for source, weight in members(tar, file, self._limits, takes, lambda: folder):
                yield source._replace(told=self._told(source.name)), weight

        try:
            with self._opened(tar) as file:
                self._given.note(tar.name, tar.size)
                for shard in cut(members_of(file), size_for(ShardSize(_PACKED * tar.size, _UNKNOWN))):
                    yield shard._replace(unpacked=folder)
                    folder = self._fresh(numbers)
        except StoreRefused as error:  # whoever diagnoses the shard finds out whether that concerns this tar alone
            yield Shard((Source(tar.name, error=error),), tar.size)
        except (LogdoctorError, OSError) as error:
            if (ending := outage(tar.name, error)) is not None:
                raise ending from error
            said = error if isinstance(error, LogdoctorError) else unreadable(tar.name, error)
            yield Shard((Source(tar.name, error=said),), tar.size)

    def _fresh(self, numbers: Iterator[int]) -> Path:
        folder = unpacked(self._folder) / str(next(numbers))
        folder.mkdir()
        return folder

    @contextmanager
    def _opened(self, tar: Tar) -> Iterator[IO[bytes]]:
        if "://" not in tar.name:
            with open(tar.name, "rb") as file:
                yield file
            return
        with tempfile.TemporaryFile(dir=self._folder) as copy:
            self._fetch(tar.name, copy)
            copy.seek(0)
            yield copy

    def _keep(self, shard: Shard, made: list[Row]) -> None:
        """Write the part of a shard."""
        self._objects.put(shard.part, packed(table(made, Provenance())))
        self._settle(shard, made)

    def _settle(self, shard: Shard, made: list[Row]) -> None:
        """Count a shard's rows, and remove its unpacked files, except sources of open rows."""
        self.bytes += shard.weight
        self.attempts += len(made)
        self.unread += sum(row.error is not None for row in made)
        for source, row in zip(shard.sources, made, strict=True):
            if row.error is None and source.files:
                self._given.note(source.files[0].place, source.size)
        left = self._parts[shard.part] = self._unanswered(shard, made)
        self.open += len(left or ())
        if shard.unpacked is None:
            return
        if not left:
            shutil.rmtree(shard.unpacked, ignore_errors=True)
            return
        for file in (file for place, source in enumerate(shard.sources) if place not in left for file in source.files):
            Path(file.place).unlink(missing_ok=True)

    def _unanswered(self, shard: Shard, made: list[Row]) -> dict[int, Source] | None:
        """Return the sources of rows to be answered, by index; None when no row is open."""
        is_open = self._is_open
        if is_open is None or not (places := [place for place, row in enumerate(made) if is_open(row)]):
            return None
        known = self._answers.of(shard.part)
        return {place: shard.sources[place] for place in places if place not in known}


def _each_alone(shard: Shard, engine: Engine) -> list[Row]:
    """Return the rows of a shard whose process died; a log that kills it again gets a row that says so."""
    alone = shard.split()
    place = {id(one): number for number, one in enumerate(alone)}
    made: list[list[Row]] = [[] for _ in alone]
    for one, result in engine(alone):
        if isinstance(result, Died):
            result = [unread(result.of(source.name), told_row(source)) for source in one.sources]
        made[place[id(one)]] = _rows_of(result)
    return [row for some in made for row in some]


def _rows_of(result: list[Row] | Refused) -> list[Row]:
    """Return rows; raise the error that ends the run for a bucket that gives nothing."""
    if isinstance(result, Refused):
        raise outage(result.error.thing, result.error) or result.error from result.error
    return result


@contextmanager
def parts_folder(out: Path) -> Iterator[Path]:
    """Yield the folder for a table's parts, swept of unfinished ones; it is removed when empty. `StoreError` when
    another run makes the same table, or the folder cannot be made or is not private: its content is taken for rows, and
    removed."""
    folder = parts_of(out)
    private = Folder(folder, private=True)
    try:
        private.make(mode=0o700)
        lock = private.open(_LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise StoreError(str(folder), f"cannot be used ({error.strerror})", "Choose another --out.") from error
    try:
        _hold(lock, out)
        shutil.rmtree(unpacked(folder), ignore_errors=True)
        FolderObjects(folder).sweep(0.0)
        unpacked(folder).mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            shutil.rmtree(unpacked(folder), ignore_errors=True)
            with suppress(OSError):  # another run may have begun to create it
                if os.listdir(folder) == [_LOCK]:
                    (folder / _LOCK).unlink()
                    folder.rmdir()
    finally:
        os.close(lock)


def unpacked(parts: Path) -> Path:
    """Return the folder, in a folder of parts, for unpacked or fetched logs; it is removed with the run."""
    return parts / "unpacked"


def parts_of(out: Path) -> Path:
    """Return the folder for the parts of a table."""
    return out.with_name(f"{out.name}.parts")


def _hold(lock: int, out: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(lock).st_nlink:
            raise BlockingIOError  # the run that held it has just removed it
    except BlockingIOError as error:
        raise StoreError(str(out), "is being made by another run", "Wait for it, or choose another --out.") from error
    except OSError as error:
        cause = f"cannot be locked ({error.strerror})"
        raise StoreError(f"{out}.parts", cause, "Choose an --out on a disk with locks.") from error
