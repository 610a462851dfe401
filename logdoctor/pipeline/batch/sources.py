"""Finds the logs of an archive in files, folders, tars and buckets, lazily, so that a million of them fit."""

import glob
import hashlib
import os
import re
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import IO, Literal, NamedTuple, Protocol

from logdoctor.errors import InputError, LogdoctorError
from logdoctor.pipeline import LogFile
from logdoctor.pipeline.attempts import ATTEMPT, LOG_NAME, AttemptFiles, attempts, no_logs
from logdoctor.pipeline.batch.outages import listing_failed, outage
from logdoctor.pipeline.batch.told import Told
from logdoctor.store.log.objects import ObjectFacts
from logdoctor.text import natural

Mode = Literal["", "each", "jobs"]
"""Whether every log is a job, every folder is one, or names decide."""


class Listing(Protocol):
    """Facts about the objects of a bucket."""

    def walk(self, prefix: str) -> Iterator[ObjectFacts]:
        """Yield those below a prefix that ends with `/`, or all, in name order."""
        ...

    def facts(self, name: str) -> ObjectFacts | None:
        """Return the facts of one object; None without one."""
        ...


Fetch = Callable[[str, IO[bytes]], None]
"""Writes the content of a URL to a file."""

Bucket = Callable[[str], Listing]
"""Opens the bucket at a URL such as `s3://bucket`."""

SERVICE = "service:"
"""The prefix of names archived by a service."""

TAR_NAME = re.compile(r"\.(?:tar(?:\.\w{1,4})?|t[gx]z|tzst|tbz2?)$", re.I)
_MEMBER = re.compile(r"(?:rank|node|host|worker|proc(?:ess)?|replica|shard)[-_.]?\d+", re.I)
_NO_KEY = re.compile(r"(?:^|/)\.\.?(?:/|$)|[\x00-\x1f\x7f\ud800-\udfff]")
_BOTH = re.compile(r"^(?:stdout|stderr)\b", re.I)


class SourceFile(NamedTuple):
    """A log as a stream of a job: its place (a path or URL), its size in bytes, and a value that changes with it.
    `label` is its name, if not its place."""

    stream: str
    place: str
    size: int
    changed: str
    label: str = ""


class Source(NamedTuple):
    """One attempt of a job: its files, or the `error` why it has none; and what is told about it."""

    name: str
    files: tuple[SourceFile, ...] = ()
    attempt: str = ""
    error: LogdoctorError | None = None
    told: Told | None = None

    @property
    def size(self) -> int:
        """Return the bytes of all its files."""
        return sum(file.size for file in self.files)


Archived = Callable[[str], Iterator[Source]]
"""Finds the attempts of a service's query."""


class Tar(NamedTuple):
    """A tar, compressed or not, whose members are logs."""

    name: str
    size: int
    changed: str


class Walk:
    """Walks given names: files, folders, patterns, tars, bucket URLs, and queries to a service (`archived`). What
    cannot be read becomes a source with an error. With `known` names of sources and tars, others are skipped, and
    missing ones are no errors."""

    def __init__(
        self,
        mode: Mode,
        bucket: Bucket,
        archived: Archived = lambda name: iter(()),
        known: Container[str] | None = None,
    ) -> None:
        self._mode, self._bucket, self._archived, self._known = mode, bucket, archived, known
        self.archived = 0
        """Attempts of a service."""
        self.logs = 0
        """Logs that were taken as one job each."""
        self.jobs = 0
        """Folders that were taken as one job."""
        self.first_job = ""
        self.skipped = 0
        """Files in folders and tars that are not named like logs."""

    def sources(self, names: Iterable[str]) -> Iterator[Source | Tar]:
        """Yield the sources of names, in an order that depends only on the names; repeated names count once.
        `StoreError` when a bucket or service does not list everything."""
        for name in _once(names):
            try:
                yield from self._named(name)
            except OSError as error:
                raise listing_failed(name, error) from error
            except LogdoctorError as error:
                if (ending := outage(name, error)) is not None:
                    raise ending from error
                yield Source(name, error=error)

    def takes(self, name: str) -> bool:
        """Return whether a file is named like a log, counting those that are not."""
        taken = LOG_NAME.search(name) is not None
        self.skipped += not taken
        return taken

    def _named(self, name: str) -> Iterator[Source | Tar]:
        if name.startswith(SERVICE):
            for source in self._archived(name):
                if self._is_wanted(source.name):
                    self.archived += 1
                    yield source
        elif "://" in name:
            yield from self._in_bucket(name)
        elif os.path.isdir(name):
            inside = self._in_folder(name)
            if (first := next(inside, None)) is not None:
                yield first
                yield from inside
            elif self._known is None:
                yield Source(name, error=no_logs(name))
        elif os.path.lexists(name) or not glob.has_magic(name):
            yield self._file(name)
        else:
            found = sorted(glob.iglob(name, recursive=True))
            if not found:
                yield Source(name, error=InputError(name, "matches no file", "Check the pattern."))
            for one in found:
                yield from self._in_folder(one) if os.path.isdir(one) else [self._file(one)]

    def _file(self, path: str) -> Source | Tar:
        try:
            facts = os.stat(path)
        except (OSError, ValueError) as error:  # a name with a NUL
            return Source(path, error=unreadable(path, error))
        if not stat.S_ISREG(facts.st_mode):
            return Source(path, error=InputError(path, "is no regular file", "Name files, folders, tars or URLs."))
        if TAR_NAME.search(path):
            return Tar(path, facts.st_size, str(facts.st_mtime_ns))
        self.logs += 1
        return Source(path, (SourceFile("main", path, facts.st_size, str(facts.st_mtime_ns)),))

    def _in_folder(self, root: str) -> Iterator[Source | Tar]:
        """Yield the logs of a folder tree, each folder's before those below it. Links to folders are not followed. A
        folder that is one job owns all logs below it, but not the tars."""
        waiting = [(root, False)]
        while waiting:
            folder, in_job = waiting.pop()
            try:
                folders, logs = self._listed(folder)
            except OSError as error:
                if not in_job:  # else its job's row says so
                    yield Source(folder, error=unreadable(folder, error))
                continue
            wanted = [place for name in logs if self._is_wanted(place := os.path.join(folder, name))]
            if not in_job and self._is_job(folder, folders, [name for name in logs if not TAR_NAME.search(name)]):
                in_job = True
                yield from self._job(folder)
            yield from (self._file(place) for place in wanted if not in_job or TAR_NAME.search(place))
            waiting += [(os.path.join(folder, name), in_job) for name in reversed(folders)]

    def _listed(self, folder: str) -> tuple[list[str], list[str]]:
        """Return the names of the folders in a folder, and of its logs and tars."""
        folders, logs = [], []
        with os.scandir(folder) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif not (entry.is_symlink() and os.path.isdir(entry.path)) and (
                    TAR_NAME.search(entry.name) or self.takes(entry.name)
                ):
                    logs.append(entry.name)
        return sorted(folders), sorted(logs)

    def _is_wanted(self, name: str) -> bool:
        return self._known is None or name in self._known

    def _is_job(self, folder: str, folders: list[str], logs: list[str]) -> bool:
        """Return whether a folder is one job: as requested; or because it has torchrun's attempts; or because its
        files, or without files its folders, are named like ranks or nodes of one job."""
        if self._mode == "each" or not self._is_wanted(folder):
            return False
        if logs:
            return self._mode == "jobs" or are_of_one_job(logs)
        return any(map(ATTEMPT.search, folders)) or are_of_one_job(folders)

    def _job(self, folder: str) -> Iterator[Source]:
        self.jobs += 1
        self.first_job = self.first_job or folder
        try:
            for attempt in attempts(Path(folder)):
                facts = [(stream, os.stat(stream.path)) for stream in attempt.streams]
                files = (SourceFile(one.name, str(one.path), of.st_size, str(of.st_mtime_ns)) for one, of in facts)
                yield Source(folder, tuple(files), attempt.name[len(folder) :].strip(" ()"))
        except OSError as error:
            yield Source(folder, error=unreadable(folder, error))
        except LogdoctorError as error:
            yield Source(folder, error=error)

    def _in_bucket(self, url: str) -> Iterator[Source | Tar]:
        """Yield the objects below a URL, or the one that it names; objects with one prefix count as files of a
        folder."""
        bucket, key = bucket_and_key(url)
        key = "/".join(filter(None, key.split("/")))
        if _NO_KEY.search(key):
            yield Source(url, error=InputError(url, "is no name of an object", "Check the URL."))
            return
        listing = self._bucket(bucket)
        found = 0
        for prefix, facts in _by_folder(listing.walk(f"{key}/" if key else "")):
            folder = f"{bucket}/{prefix}".rstrip("/")
            objects = [(f"{folder}/{name}", name, one) for one in facts if (name := one.name.rpartition("/")[2])]
            tars = [one for one in objects if TAR_NAME.search(one[1]) and self._is_wanted(one[0])]
            logs = [one for one in objects if not TAR_NAME.search(one[1]) and self.takes(one[1])]
            found += len(objects)
            yield from (Tar(place, one.bytes, str(one.at)) for place, _, one in tars)
            if logs and self._is_job(folder, [], [name for _, name, _ in logs]):
                self.jobs += 1
                self.first_job = self.first_job or folder
                logs.sort(key=lambda one: natural(one[1]))
                yield Source(folder, tuple(_object(place, name, one) for place, name, one in logs))
            else:
                logs = [one for one in logs if self._is_wanted(one[0])]
                self.logs += len(logs)
                yield from (Source(place, (_object(place, "main", one),)) for place, _, one in logs)
        if not found:
            one = listing.facts(key) if key else None
            if one is not None or self._known is None:
                yield self._object(url, f"{bucket}/{key}", one)

    def _object(self, url: str, place: str, facts: ObjectFacts | None) -> Source | Tar:
        if facts is None:
            return Source(url, error=InputError(url, "names no object and no prefix of objects", "Check the URL."))
        if TAR_NAME.search(place):
            return Tar(place, facts.bytes, str(facts.at))
        self.logs += 1
        return Source(place, (_object(place, "main", facts),))


def each_log(folder: str) -> Iterator[AttemptFiles | LogdoctorError]:
    """Yield every log of a folder as a separate job, or its error."""
    none = True
    for source in Walk("each", _no_bucket).sources([folder]):
        none = False
        if isinstance(source, Tar):
            yield InputError(source.name, "is a tar", "Unpack it, or give it to `logdoctor batch`.")
        else:
            files = (LogFile(one.stream, Path(one.place)) for one in source.files)
            yield source.error or AttemptFiles(source.name, tuple(files))
    if none:
        yield no_logs(folder)


def _no_bucket(url: str) -> Listing:
    raise InputError(url, "is no folder", "Name a folder.")


def _once(names: Iterable[str]) -> Iterator[str]:
    seen: set[bytes] = set()  # digests take less than names
    for name in names:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            yield name


def bucket_and_key(url: str) -> tuple[str, str]:
    """Return the URL of an object's bucket, and the object's name in it, undecoded."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


def _by_folder(objects: Iterable[ObjectFacts]) -> Iterator[tuple[str, list[ObjectFacts]]]:
    """Yield folders with the objects directly in them. Objects come in name order, so a folder is complete when an
    object outside it comes."""
    begun: list[tuple[str, list[ObjectFacts]]] = []
    for one in objects:
        folder = one.name.rpartition("/")[0]
        while begun and begun[-1][0] and not f"{folder}/".startswith(f"{begun[-1][0]}/"):
            yield begun.pop()
        if not begun or begun[-1][0] != folder:
            begun.append((folder, []))
        begun[-1][1].append(one)
    yield from reversed(begun)


def are_of_one_job(names: list[str]) -> bool:
    """Return whether names differ only in the number of a rank, node, host or worker; or are standard output and
    error."""
    if len(names) < 2:
        return False
    if all(map(_BOTH.search, names)):
        return len(names) == 2
    return all(map(_MEMBER.search, names)) and len({_MEMBER.sub("", name) for name in names}) == 1


def _object(place: str, stream: str, facts: ObjectFacts) -> SourceFile:
    return SourceFile(stream, place, facts.bytes, str(facts.at))


def unreadable(path: str, error: OSError | ValueError) -> InputError:
    """Return the error for an unreadable path."""
    if isinstance(error, FileNotFoundError) and not os.path.islink(path):
        return InputError(path, "does not exist", "Check the path.")
    return InputError(
        path, f"cannot be read ({getattr(error, 'strerror', error)})", "Check the path and its permissions."
    )
