"""`service:` as a source: the attempts archived by a service, all or those of a query."""

import datetime
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from logdoctor import taxonomy
from logdoctor.errors import InputError
from logdoctor.learning.filters.kind import kind_of
from logdoctor.pipeline.batch.sources import SERVICE, Source, SourceFile
from logdoctor.pipeline.batch.told import Told
from logdoctor.store.jobs.records import Attempt, JobFacts, StoredVerdict, Wanted
from logdoctor.store.names import Key, key

_PLACE = "service://"
_WORDS = ("reason", "category", "node", "user", "job", "recovery", "fingerprint")
_TIMES = ("since", "until")
FILTERS = (*_WORDS, *_TIMES)
"""Filters other than outcomes, named like the fields of `Wanted`."""
_KNOWN = (*_WORDS, "outcome", *_TIMES)


class ArchivedAttempt(NamedTuple):
    """An attempt with a verdict: its job's facts, the bytes of its log, and its streams, none once its log is gone.
    Times are seconds since the epoch."""

    job: str
    number: int
    facts: JobFacts
    started: float
    ended: float | None
    exit_code: int | None
    judged: float
    bytes: int
    streams: tuple[str, ...]

    @classmethod
    def of(
        cls, stored: StoredVerdict, attempt: Attempt, facts: JobFacts, size: int, streams: Iterable[str]
    ) -> "ArchivedAttempt":
        """Return the attempt of a verdict, with the bytes of its log."""
        exit_code = next((end.exit_code for end in attempt.ends if not end.stream), None)
        times = (attempt.started, attempt.ended)
        return cls(stored.job, stored.attempt, facts, *times, exit_code, stored.at, size, tuple(sorted(streams)))


class Archive(Protocol):
    """A service's archive, accessed in its data folder or through the service."""

    def attempts(self, wanted: Wanted) -> Iterator[ArchivedAttempt]:
        """Yield the attempts whose current verdicts match, newest first."""
        ...

    def save(self, stream: Key, file: IO[bytes]) -> None:
        """Write the log of a stream to a file."""
        ...


def archived_sources(archive: Archive, name: str) -> Iterator[Source]:
    """Yield the attempts of a query such as `service:?job=llama-7b&since=2026-03-01`; `InputError` for an invalid
    one."""
    for one in archive.attempts(query(name)):
        yield _source(one)


def save(archive: Archive, place: str, file: IO[bytes]) -> None:
    """Write the log at a source file's place to a file."""
    job, number, stream = (unquote(part) for part in place.removeprefix(_PLACE).split("/"))
    archive.save(key(job, int(number), stream), file)


def query(name: str) -> Wanted:
    """Parse a query. Times are dates, ISO 8601 (UTC), or seconds since the epoch."""
    asked = name.removeprefix(SERVICE).removeprefix("//")
    if asked and not asked.startswith("?"):
        raise InputError(name, "is no query", f"Write {SERVICE} for all, or {SERVICE}?job=NAME&since=2026-03-01.")
    given = dict(parse_qsl(asked[1:], keep_blank_values=True))
    if unknown := next((word for word in given if word not in _KNOWN), None):
        raise InputError(name, f"asks for {unknown[:60]!r}", f"Ask for some of {', '.join(_KNOWN)}.")
    outcomes = tuple(dict.fromkeys(given["outcome"].split(","))) if given.get("outcome") else ()
    for what, word, words in (
        ("reason", given.get("reason"), (*taxonomy.REASONS, "None")),
        *(("outcome", one, taxonomy.OUTCOMES) for one in outcomes),
    ):
        if word is not None and word not in words:
            raise InputError(name, f"asks for the {what} {word[:60]!r}", f"Known are {', '.join(words)}.")
    asked_for: dict[str, object] = {word: given[word] for word in _WORDS if given.get(word)}
    asked_for |= {word: _time(name, given[word]) for word in _TIMES if given.get(word)}
    return msgspec.convert(asked_for | {"outcomes": outcomes}, Wanted)


def _time(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(name, f"has {text[:60]!r} as a time", "Write it as 2026-03-01, or in seconds.") from error
    return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()


def _source(one: ArchivedAttempt) -> Source:
    name = f"{SERVICE}{one.job}/{one.number}"
    told = _told(one)
    if not one.streams:
        gone = InputError(name, "has no log any more", "Its verdict is in the service: logdoctor incidents list.")
        return Source(name, attempt=str(one.number), error=gone, told=told)
    files = tuple(
        SourceFile(
            stream, _place(one, stream), 0 if at else one.bytes, str(one.judged), f"{one.job}/{one.number}/{stream}"
        )
        for at, stream in enumerate(one.streams)
    )
    return Source(name, files, str(one.number), told=told)


def _place(one: ArchivedAttempt, stream: str) -> str:
    return f"{_PLACE}{quote(one.job, safe='')}/{one.number}/{quote(stream, safe='')}"


def _told(one: ArchivedAttempt) -> Told:
    facts = one.facts
    gpus = facts.gpus or (facts.nodes or 0) * (facts.ranks_per_node or 0) or None
    return Told(
        job=one.job,
        framework=facts.framework,
        exit_code=one.exit_code,
        nodes=facts.nodes,
        user=facts.user,
        start=_moment(one.started),
        end=None if one.ended is None else _moment(one.ended),
        gpus=gpus,
        kind=kind_of(one.job, facts),
    )


def _moment(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
