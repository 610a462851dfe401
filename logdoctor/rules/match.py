"""Many patterns over a whole buffer in one pass. The only place that knows Hyperscan."""

import hashlib
import threading
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import hyperscan
import numpy as np
import numpy.typing as npt
import regex

from logdoctor.errors import RuleError
from logdoctor.lasting_files import new_file
from logdoctor.rules.pattern_size import WRITTEN_OUT, require_small
from logdoctor.text import PREFIX

_CACHED = 64  # databases that are kept on disk, the newest


def expand(pattern: str) -> str:
    """Return the expression that is compiled for a rule's pattern.

    `^` skips prefixes, `$` allows `\\r`, and nothing matches across a line end (classes leave `\\n` out), so
    that what a line hits does not depend on its neighbours.
    """
    pattern = _within_line(pattern)
    if pattern.startswith("^"):
        pattern = f"^{PREFIX}(?:{pattern[1:]})"
    if pattern.endswith("$)") and not pattern.endswith("\\$)"):
        pattern = f"{pattern[:-2]}\\r?$)"
    elif pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = f"{pattern[:-1]}\\r?$"
    return pattern


_TOKEN = regex.compile(r"\\.|\[\^?\]?|\]|[^\\\[\]]+", regex.DOTALL)
_OUTSIDE = {
    r"\s": r"[ \t\r\f\x0b]",
    r"\v": r"[\r\f\x0b]",  # in Hyperscan any vertical space, `\n` too
    r"\D": r"[^\d\n]",
    r"\W": r"[^\w\n]",
    r"\H": r"[^ \t\n]",
}
_INSIDE = {r"\s": r" \t\r\f\x0b", r"\v": r"\r\f\x0b"}
_ATOM = regex.compile(
    r"\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]"
    r"|\\(?:x[0-9a-fA-F]{2}|[0-7]{3}|c.|[pP](?:\{\^?\w+\}|\w)|.)|\(\?[a-z]*s[a-z]*[):]",
    regex.DOTALL,
)


def _within_line(pattern: str) -> str:
    """Return the pattern with `\\n` taken out of its negated classes and of `\\s`, `\\v`, `\\D`, `\\W` and `\\H`."""
    parts: list[str] = []
    inside = negated = False
    for token in _TOKEN.findall(pattern):
        if inside:
            inside = token != "]"
            parts.append(token if negated else _INSIDE.get(token, token))
        elif token.startswith("["):
            inside, negated = True, token.startswith("[^")
            parts.append({"[^": r"[^\n", "[^]": r"[^\n\]"}.get(token, token))
        else:
            parts.append(_OUTSIDE.get(token, token))
    return "".join(parts)


@cache
def _crosses(atom: str) -> bool:
    """Return whether a class, an escape or a flag of an expanded pattern lets it match `\\n`, which only a last `\\n`
    may."""
    try:
        return atom.startswith("(?") or atom in (r"\C", r"\cJ") or regex.fullmatch(atom, "\n") is not None
    except regex.error:
        return False  # not for this package


def size_complaint(pattern: str) -> str | None:
    """Return why a rule's pattern is not compiled at all: it would take long; None when it may be compiled."""
    try:
        require_small(pattern, WRITTEN_OUT)
    except RuleError as error:
        return error.cause
    return None


def hyperscan_complaint(pattern: str) -> str | None:
    """Return why a rule's pattern cannot be compiled; None when it can (and is thus linear in time)."""
    if complaint := size_complaint(pattern):
        return complaint
    try:
        _compile([expand(pattern)])
    except hyperscan.HyperscanError as error:
        return str(error)
    return None


def _compile(expressions: Sequence[str]) -> hyperscan.Database:
    for expression in expressions:
        if atom := next(filter(_crosses, _ATOM.findall(expression.rstrip(")").removesuffix(r"\n"))), None):
            raise hyperscan.HyperscanError(f"{atom} may match a line end")
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=[expression.encode() for expression in expressions],
        ids=list(range(len(expressions))),
        flags=[hyperscan.HS_FLAG_MULTILINE] * len(expressions),
    )
    return database


class Matcher:
    """A compiled set of patterns.

    Compiling some hundred patterns takes seconds, so the database is kept in `cache` under the digest of
    its sources and of the Hyperscan release; a damaged or foreign cache file is ignored and written anew.
    """

    def __init__(self, patterns: Sequence[str], cache: Path | None = None) -> None:
        self.size = len(patterns)
        expressions = [expand(pattern) for pattern in patterns]
        if not expressions:
            self._database = None
            return
        path = cache / f"{self._digest(expressions)}.hsdb" if cache else None
        database = _load(path) if path else None
        if database is None:
            for pattern in patterns:
                require_small(pattern, WRITTEN_OUT)
            try:
                database = _compile(expressions)
            except hyperscan.HyperscanError as error:
                bad = next((p for p in patterns if hyperscan_complaint(p)), "the whole set")
                raise RuleError(f"pattern {bad!r}", f"Hyperscan refuses it ({error})", "Simplify it.") from error
            if path:
                _store(path, hyperscan.dumpb(database))
        self._database = database
        self._threads = threading.local()

    @staticmethod
    def _digest(expressions: Sequence[str]) -> str:
        digest = hashlib.sha256(f"{version('hyperscan')}\n".encode())
        digest.update("\n".join(expressions).encode())
        return digest.hexdigest()[:32]

    def scan(self, buffer: bytes) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return all hits in a buffer: pattern numbers (int32) and end offsets (int64, one past the last byte).

        Ordered by pattern, then by offset.
        """
        if self._database is None or not len(buffer):
            return np.empty(0, np.int32), np.empty(0, np.int64)
        # this runs for every hit, a million times in 100 MB: one index and one call, no arithmetic
        adders = _Adders()
        self._database.scan(
            buffer,
            match_event_handler=lambda number, start, end, flags, _: adders[number](end),
            scratch=self._scratch(),
        )
        found = adders.ends
        if not found:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        hit = sorted(found)
        counts = [len(found[number]) for number in hit]
        return np.repeat(np.array(hit, np.int32), counts), np.concatenate(
            [np.frombuffer(found[number], np.int64) for number in hit]
        )

    def _scratch(self) -> hyperscan.Scratch:
        """Return the working space of this thread: Hyperscan lets only one scan at a time use one."""
        scratch: hyperscan.Scratch | None = getattr(self._threads, "scratch", None)
        if scratch is None:
            scratch = self._threads.scratch = hyperscan.Scratch(self._database)
        return scratch


class _Adders(dict[int, Callable[[int], None]]):
    """What takes the end of a hit, for each pattern that has hit: most of a thousand never do. They go to `ends`."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: dict[int, array[int]] = {}

    def __missing__(self, number: int) -> Callable[[int], None]:
        ends = self.ends[number] = array("q")
        self[number] = ends.append
        return ends.append


def _load(path: Path) -> hyperscan.Database | None:
    """Return the database kept in a cache file: a SHA-256 of the rest, then the serialised database."""
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(kept[32:]).digest() != kept[:32]:
        return None
    try:
        return hyperscan.loadb(kept[32:], hyperscan.HS_MODE_BLOCK)
    except hyperscan.HyperscanError:
        return None


def _store(path: Path, serialised: bytes) -> None:
    """Write a cache file whole or not at all; a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with new_file(path) as file:
            file.write(hashlib.sha256(serialised).digest() + serialised)
        kept = sorted(path.parent.glob("*.hsdb"), key=lambda file: file.stat().st_mtime, reverse=True)
        for old in kept[_CACHED:]:
            old.unlink(missing_ok=True)
    except OSError:
        return
