"""The library of past cases: found by what they have in common with a failure, and by likeness.

What is true stands in the records; the vectors are made from it, and made again whenever they are lost. A case with an
episode of the same digest is found without vectors, so without a model and within milliseconds.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

import structlog

from logdoctor.errors import RecallError, VectorsDamaged
from logdoctor.failure_agent.cases.vectors import VectorRow, Vectors

log = structlog.get_logger()

_FORMAT = "1"  # of what is embedded; another number is another collection
_SAME = 5  # cases with one digest and one claim that are found, the newest
_IN_PASSING = 16  # summaries that a search takes up before it looks: tens of milliseconds
_WIDER = 4  # times as many are searched as are wanted, because some are left out
_REPAIRS = 3600.0  # seconds after which vectors that are damaged again are made again by themselves


class Case(NamedTuple):
    """A failure that was confirmed.

    "" for fault or recovery means what the taxonomy says of the reason. `title` is the line that names the failure,
    `digests` those of its episodes, the naming one first, `summary` what is embedded, `fix` what helped, `quote` the
    line that proves it; `at` is when it was confirmed, in seconds since the epoch.
    """

    id: int
    reason: str
    fault: str
    recovery: str
    fix: str
    suggestion: str
    title: str
    digests: tuple[str, ...]
    summary: str
    job: str
    attempt: int
    at: float
    quote: str


class Neighbour(NamedTuple):
    """A case that is like a failure; `same` when an episode has the same digest.

    `similarity` is the cosine of the summaries, 0 to 1, and 0 where it was not measured.
    """

    case: Case
    similarity: float
    same: bool


class _Shelf(NamedTuple):
    """The cases as they were read, the oldest first; by row those that are told in the same words, and by digest, the
    newest first."""

    version: object
    cases: tuple[Case, ...]
    rows: dict[str, list[Case]]
    by_digest: dict[str, list[Case]]


class CaseLibrary:
    """All cases that are confirmed and not withdrawn; any thread may ask.

    `vectors_of` opens the vectors of a name, one for each model that embeds and each `space`: services that share a
    server but not their records need different ones. `cases` gives the truth, the oldest first or in any order;
    `version` something that changes with it and is cheap to ask for.
    """

    def __init__(
        self,
        vectors_of: Callable[[str], Vectors],
        embedder_name: str,
        cases: Callable[[], Sequence[Case]],
        version: Callable[[], object] | None = None,
        space: str = "",
    ) -> None:
        self._vectors = vectors_of(collection_name(embedder_name, space))
        self._cases, self._version = cases, version
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._shelf: _Shelf | None = None
        self._settled: _Shelf | None = None  # what is known to be in the vectors
        self._repaired = -_REPAIRS
        self._trouble: RecallError | None = None

    @property
    def trouble(self) -> RecallError | None:
        """Return why the last search by likeness was left out; None when it was not."""
        return self._trouble

    def same(self, digests: Sequence[str], without: tuple[str, int] | None = None) -> list[Neighbour]:
        """Return the cases with one of these digests, those with the most first, of equal ones the newest.

        Of each digest a few of each claim (reason and recovery), so that no claim hides another. `without` is a job and
        attempt that is never found. Needs no vectors and no model.
        """
        return [Neighbour(case, 0.0, True) for case in _same(self._read(), digests, without)]

    def similar(
        self, summary: str, digests: Sequence[str], k: int, without: tuple[str, int] | None = None
    ) -> list[Neighbour]:
        """Return the cases of `same`, and at most `k` more that are the most like the summary, the nearest first.

        No more than half of these (or two) are of one claim, so that one that is a little further and says otherwise is
        seen. When the vectors or the model cannot be used, `trouble` says so and the cases of `same` are all there is.
        """
        shelf = self._read()
        same = _same(shelf, digests, without)
        near = self._likeness(summary, _WIDER * k + len(same)) if summary.strip() and shelf.rows else []
        likeness = {case.id: score for case, score in near}
        left_out = {case.id for case in same}
        claims: Counter[tuple[str, str]] = Counter()
        others: list[Neighbour] = []
        for case, score in near:
            claim = case.reason, case.recovery
            if case.id not in left_out and (case.job, case.attempt) != without and claims[claim] < max(2, k // 2):
                claims[claim] += 1
                others.append(Neighbour(case, score, False))
        return [Neighbour(case, likeness.get(case.id, 0.0), True) for case in same] + others[:k]

    def refresh(self) -> int:
        """Take up what is new among the summaries of the cases and forget what was withdrawn; how many rows changed.

        Cheap when nothing changed. Vectors that are damaged are made again. `RecallError` when they cannot be used.
        """
        try:
            return self._take_up(None)
        except VectorsDamaged as error:
            log.warning("vectors of past cases made again", cause=str(error))
            return self.reindex()

    def reindex(self) -> int:
        """Throw the vectors away and make them again; how many rows there are. `RecallError` when that fails."""
        with self._writing:
            self._settled = None
            self._vectors.clear()
        return self._take_up(None)

    def _read(self) -> _Shelf:
        """Return the cases as they are now."""
        with self._reading:
            version = self._version() if self._version else None
            if self._shelf is not None and self._version and self._shelf.version == version:
                return self._shelf
            cases = tuple(sorted(self._cases(), key=lambda case: (case.at, case.id)))
            if self._shelf is not None and self._shelf.cases == cases:
                self._shelf = self._shelf._replace(version=version)
            else:
                self._shelf = _arranged(version, cases)
            return self._shelf

    def _take_up(self, most: int | None) -> int:
        """Bring the vectors nearer to the cases, by at most so many new rows, the newest first; how many changed."""
        with self._writing:
            if self._settled is not None and self._settled.rows is self._read().rows:
                return 0
            there = self._vectors.ids()
            shelf = self._read()  # after the ids: what another process adds meanwhile is not taken for withdrawn
            rows = shelf.rows
            gone = sorted(there - rows.keys())
            new = [name for name in rows if name not in there]
            some = new if most is None else new[:most]
            self._vectors.remove(gone)
            self._vectors.add(
                [VectorRow(name, rows[name][0].summary, {"reason": rows[name][0].reason}) for name in some]
            )
            if len(some) == len(new):
                self._settled = shelf
            return len(gone) + len(some)

    def _likeness(self, summary: str, most: int) -> list[tuple[Case, float]]:
        """Return the cases that are told in the words most like a summary, the nearest first; none when it cannot be
        told."""
        try:
            try:
                found = self._searched(summary, most)
            except VectorsDamaged as error:
                self._clear_damaged(error)
                found = self._searched(summary, most)
        except RecallError as error:
            if str(error) != str(self._trouble):
                log.warning("past cases not searched by likeness", cause=str(error))
            self._trouble = error
            return []
        self._trouble = None
        return found

    def _clear_damaged(self, error: VectorsDamaged) -> None:
        """Forget what is damaged, so that it is made again, bit by bit; not again and again: then the error stands."""
        with self._writing:
            if time.monotonic() - self._repaired < _REPAIRS:
                raise error
            self._repaired = time.monotonic()
            log.warning("vectors of past cases made again", cause=str(error))
            self._settled = None
            self._vectors.clear()

    def _searched(self, summary: str, most: int) -> list[tuple[Case, float]]:
        self._take_up(_IN_PASSING)
        hits = self._vectors.search(summary, most)
        rows = self._read().rows
        if len(hits) < min(most, len(rows)):
            self._settled = None  # somebody else cleared the vectors: look again next time
        return [(case, hit.score) for hit in hits for case in rows.get(hit.id, [])]


def collection_name(embedder: str, space: str = "") -> str:
    """Return the name of the vectors that a model made of the cases of a space."""
    return "cases-" + sha256("\n".join((_FORMAT, embedder, space)).encode("utf-8", "replace")).hexdigest()[:24]


def _arranged(version: object, cases: tuple[Case, ...]) -> _Shelf:
    rows: dict[str, list[Case]] = {}
    by_digest: dict[str, list[Case]] = {}
    for case in reversed(cases):
        if case.summary.strip():
            rows.setdefault(sha256(case.summary.encode("utf-8", "replace")).hexdigest()[:24], []).append(case)
        for digest in dict.fromkeys(case.digests):
            by_digest.setdefault(digest, []).append(case)
    return _Shelf(version, cases, rows, by_digest)


def _same(shelf: _Shelf, digests: Sequence[str], without: tuple[str, int] | None) -> list[Case]:
    """Return the cases that share a digest, those with the most first, then the newest."""
    shared: Counter[int] = Counter()
    chosen: dict[int, Case] = {}
    for digest in dict.fromkeys(digests):
        claims: Counter[tuple[str, str]] = Counter()
        for case in shelf.by_digest.get(digest, ()):
            if (case.job, case.attempt) != without and claims[case.reason, case.recovery] < _SAME:
                claims[case.reason, case.recovery] += 1
                shared[case.id] += 1
                chosen[case.id] = case
    return sorted(chosen.values(), key=lambda case: (-shared[case.id], -case.at, -case.id))
