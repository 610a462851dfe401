"""Diagnoses a shard: sources in, rows out. Runs alike in a local process and on a node of a cluster."""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from logdoctor import pipeline
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.diagnose.taught import Taught
from logdoctor.errors import InputError, LogdoctorError, StoreRefused
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.pipeline.attempts import AttemptFiles
from logdoctor.pipeline.batch.outages import outage
from logdoctor.pipeline.batch.refusals import Given
from logdoctor.pipeline.batch.rows import LOGDOCTOR, ROWS_VERSION, Row, diagnosed, shown, unread
from logdoctor.pipeline.batch.shards import Shard
from logdoctor.pipeline.batch.sources import Fetch, Source, SourceFile
from logdoctor.pipeline.batch.told import Told
from logdoctor.rules.overrides import Overriding
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule, FilterRule, OverrideRule


class Learned(NamedTuple):
    """Learned rules: filters by kind of job, causes, and overrides of shipped rules."""

    filters: Mapping[str, tuple[FilterRule, ...]] = {}
    causes: tuple[DiagnosisRule, ...] = ()
    overrides: tuple[OverrideRule, ...] = ()


class Refused(NamedTuple):
    """The result of a shard with a refused log while its bucket has given no other: it is retried once one was
    given."""

    error: StoreRefused


class Judge:
    """Diagnoses with the shipped rules (`scanner`), those learned for a kind of job (`scanners`), the `taught` causes,
    and `overrides`."""

    def __init__(
        self,
        scanner: Scanner,
        limits: ReadLimits,
        fetch: Fetch,
        scanners: Mapping[str, Scanner],
        taught: Taught,
        folder: Path | None = None,
        overrides: tuple[OverrideRule, ...] = (),
    ) -> None:
        self._scanner, self._limits, self._fetch = scanner, limits._replace(workers=1), fetch
        self._scanners, self._taught, self._overrides = scanners, taught, overrides
        self._given = Given()
        self.folder = folder
        """The folder for fetched files; None for the system's."""

    def unpacking_in(self, folder: Path) -> "Judge":
        """Return the same judge with another folder for fetched files."""
        return Judge(self._scanner, self._limits, self._fetch, self._scanners, self._taught, folder, self._overrides)

    @property
    def digest(self) -> str:
        """Return 16 hex digits over the version, rules and limits that rows depend on."""
        learned = sorted((kind, scanner.book.digest) for kind, scanner in self._scanners.items())
        limits = (self._limits.unpacked, self._limits.expansion)
        overrides = (*self._scanner.book.overrides, *self._overrides)
        used = (LOGDOCTOR, ROWS_VERSION, self._scanner.book.digest, learned, self._taught.rules, limits, overrides)
        return hashlib.sha256(msgspec.json.encode(used)).hexdigest()[:16]

    @property
    def learned(self) -> "Learned":
        """Return the learned rules, from which another process can build the same judge."""
        filters = {kind: scanner.book.learned for kind, scanner in self._scanners.items()}
        return Learned(filters, self._taught.rules, self._overrides)

    def __call__(self, shard: Shard) -> list[Row] | Refused:
        """Return a row for each source of a shard; `StoreError` for what must end the run (`outages.outage`)."""
        try:
            return [self._row(source, shard.given) for source in shard.sources]
        except StoreRefused as error:
            return Refused(error)

    def scanner(self, kind: str) -> Scanner:
        """Return the rules for jobs of a kind."""
        return self._scanners.get(kind, self._scanner)

    def _row(self, source: Source, given: tuple[str, ...]) -> Row:
        row = told_row(source)
        scanner = self.scanner(row.kind)
        try:
            if source.error is not None:
                raise source.error
            with fetched(source, self._fetch, self.folder) as attempt:
                self._given.note(source.files[0].place, source.size)
                verdict = pipeline.diagnose(
                    attempt.streams,
                    scanner,
                    self._limits,
                    reported(source),
                    self._taught,
                    overriding=Overriding(self._overrides, row.job or "", row.kind),
                )
            return diagnosed(verdict, row)
        except StoreRefused as error:
            self._given.require_again(source, error, self._fetch, given)
            return unread(error, row)
        except Exception as error:  # one log must not end the others
            if (ending := outage(source.name, error)) is not None:
                raise ending from error
            if isinstance(error, LogdoctorError):
                return unread(error, row)
            cause = f"could not be diagnosed ({type(error).__name__}: {str(error)[:200]})"
            return unread(InputError(source.name, cause, "Report it, with the log if you can share it."), row)


def told_row(source: Source) -> Row:
    """Return the row of a source without a verdict."""
    told = source.told or Told()
    named = told.nodes if isinstance(told.nodes, tuple) else ()
    return Row(
        source=shown(source.name),
        attempt=shown(source.attempt),
        job=told.job,
        framework=told.framework,
        kind=told.kind,
        user=told.user,
        nodes=named,
        node_count=told.nodes if isinstance(told.nodes, int) else len(named) or None,
        gpus=told.gpus,
        exit_code=told.exit_code,
        started=told.start,
        ended=told.end,
        bytes=source.size,
    )


def reported(source: Source) -> ReportedEnd:
    """Return the reported end of a source's job."""
    return ReportedEnd(exit_code=source.told.exit_code if source.told else None)


@contextmanager
def fetched(source: Source, fetch: Fetch, below: Path | None = None) -> Iterator[AttemptFiles]:
    """Yield the files of a source as local files; fetched ones lie in a temporary folder `below` the given one."""
    if not any("://" in file.place for file in source.files):
        yield AttemptFiles(source.name, tuple(LogFile(one.stream, Path(one.place), one.label) for one in source.files))
        return
    with tempfile.TemporaryDirectory(prefix="logdoctor-", dir=below) as folder:
        places = [Path(folder, str(number)) for number in range(len(source.files))]
        for file, place in zip(source.files, places, strict=True):
            with place.open("wb") as copy:
                fetch(file.place, copy)
        yield AttemptFiles(source.name, tuple(map(_as_stream, source.files, places)))


def _as_stream(file: SourceFile, place: Path) -> LogFile:
    return LogFile(file.stream, place, file.label or file.place)
