"""Matches many patterns over a whole buffer in one pass. The only module that knows Hyperscan."""

import fcntl
import hashlib
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import hyperscan
import numpy as np
import numpy.typing as npt
import regex

from logdoctor.errors import RuleError
from logdoctor.rules.pattern_size import WRITTEN_OUT, require_small
from logdoctor.safe import cache_files
from logdoctor.text import PREFIX

LINE_START = b"\n\x01\x02\x03"
"""A line start that may precede each line of a buffer: no line contains it. `LINE_STARTS` is its expression."""
LINE_STARTS = "".join(rf"\x{one:02x}" for one in LINE_START)
PatternRejected = hyperscan.HyperscanError
_RELEASE = version("hyperscan")
_CACHED = 2000  # newest databases kept on disk
_WIDTH = 40  # bits of a hit's end, below the number of its expression
_SLOTS = 1 << 30  # byte slots of the file in which processes lock what they compile


def expand(pattern: str, start: str = PREFIX) -> str:
    """Return the expression that is compiled for a rule's pattern.

    `^` skips prefixes (or matches the expression `start`), `$` allows `\\r`, and nothing matches across a line end
    (classes exclude `\\n`), so that a line's hits do not depend on its neighbours.
    """
    pattern = _within_line(pattern)
    if pattern.startswith("^"):
        pattern = f"^{start}(?:{pattern[1:]})"
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
    """Return the pattern without `\\n` in negated classes and in `\\s`, `\\v`, `\\D`, `\\W` and `\\H`."""
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
    """Return whether a class, escape or flag may match `\\n` inside a pattern."""
    try:
        return atom.startswith("(?") or atom in (r"\C", r"\cJ") or regex.fullmatch(atom, "\n") is not None
    except regex.error:
        return False  # the regex package does not know it


def size_complaint(pattern: str) -> str | None:
    """Return why a rule's pattern is too large to compile; None when it is not."""
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
        _compile([expand(pattern, "")], literal=False)
    except PatternRejected as error:
        return str(error)
    return None


def _compile(expressions: Sequence[str] | Sequence[bytes], literal: bool) -> hyperscan.Database:
    raw = [one.encode() if isinstance(one, str) else one for one in expressions]
    for expression in () if literal else map(bytes.decode, raw):
        if atom := next(
            filter(_crosses, _ATOM.findall(expression.removeprefix(LINE_STARTS).rstrip(")").removesuffix(r"\n"))), None
        ):
            raise PatternRejected(f"{atom} may match a line end")
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    flag = 0 if literal else hyperscan.HS_FLAG_MULTILINE
    database.compile(expressions=raw, ids=list(range(len(raw))), flags=[flag] * len(raw), literal=literal)
    return database


class Compiled:
    """Expressions, or `literal` texts, searched for in one pass; compiled on first use.

    A database is kept in `cache` under the digest of its expressions and of the Hyperscan release; a damaged or foreign
    file is replaced. Of several processes that need the same one, one compiles it. Raises `PatternRejected` for a
    refused expression.
    """

    def __init__(
        self, expressions: Sequence[str] | Sequence[bytes], cache: Path | None = None, literal: bool = False
    ) -> None:
        self._expressions, self._literal = expressions, literal
        self._path = cache / f"{self._digest()}.hsdb" if cache and expressions else None
        self._database: hyperscan.Database | None = None
        self._scratches: list[hyperscan.Scratch] = []
        """Scratch spaces, one for each thread that scanned at once: to make one takes longer than most scans."""

    def _digest(self) -> str:
        digest = hashlib.sha256(f"{_RELEASE} {self._literal}\n".encode())
        for one in self._expressions:
            digest.update((one.encode() if isinstance(one, str) else one) + b"\n")
        return digest.hexdigest()[:32]

    def is_kept(self) -> bool:
        """Return whether the cache seems to contain it."""
        return self._path is not None and self._path.name in _kept(self._path.parent)

    def ready(self) -> bool:
        """Return whether it is compiled, loading it from the cache if possible."""
        if self._database is None and self._path is not None:
            self._database = _load(self._path)
        return self._database is not None or not self._expressions

    def make_ready(self) -> None:
        """Compile it, or wait for another process that is compiling it."""
        if self.ready():
            return
        if self._path is None:
            self._database = _compile(self._expressions, self._literal)
            return
        with _alone(self._path):
            if not self.ready():
                self._database = _compile(self._expressions, self._literal)
                _store(self._path, hyperscan.dumpb(self._database))

    def scan(self, buffer: bytes) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return all hits in a buffer: numbers of expressions (int32) and end offsets (int64, one past the last byte).

        Ordered by expression, then by offset.
        """
        if not self._expressions or not len(buffer):
            return np.empty(0, np.int32), np.empty(0, np.int64)
        self.make_ready()
        assert self._database is not None
        hits = array("q")
        add = hits.append
        try:
            scratch = self._scratches.pop()
        except IndexError:
            scratch = hyperscan.Scratch(self._database)
        self._database.scan(
            buffer,
            match_event_handler=lambda number, start, end, flags, _: add(number << _WIDTH | end),
            scratch=scratch,
        )
        self._scratches.append(scratch)
        if not hits:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        found = np.sort(np.frombuffer(hits, np.int64))
        return (found >> _WIDTH).astype(np.int32), found & (1 << _WIDTH) - 1


@cache
def _kept(folder: Path) -> frozenset[str]:
    """Return the names in a cache folder at its first use."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


class Matcher:
    """A compiled set of patterns, for whole buffers. `RuleError` names a refused pattern."""

    def __init__(self, patterns: Sequence[str], cache: Path | None = None) -> None:
        self.size = len(patterns)
        self._compiled = Compiled([expand(pattern) for pattern in patterns], cache)
        if self._compiled.ready():
            return
        for pattern in patterns:
            require_small(pattern, WRITTEN_OUT)
        try:
            self._compiled.make_ready()
        except PatternRejected as error:
            raise refusal(patterns, error) from error

    def scan(self, buffer: bytes) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Return all hits in a buffer, as `Compiled.scan` does."""
        return self._compiled.scan(buffer)


def refusal(patterns: Sequence[str], error: PatternRejected) -> RuleError:
    """Return the error that names the pattern refused by Hyperscan."""
    bad = next((pattern for pattern in patterns if hyperscan_complaint(pattern)), "the whole set")
    return RuleError(f"pattern {bad!r}", f"Hyperscan refuses it ({error})", "Simplify it.")


def _load(path: Path) -> hyperscan.Database | None:
    """Return the database in a cache file (SHA-256 of the rest, then the serialised database); None when it is damaged,
    or belongs to neither this user nor root: a forged one makes native code write anywhere."""
    kept = cache_files.read(path) or b""
    packed = kept[32:]
    if hashlib.sha256(packed).digest() != kept[:32]:
        return None
    try:
        return hyperscan.loadb(packed, hyperscan.HS_MODE_BLOCK)
    except PatternRejected:
        return None


def _store(path: Path, serialised: bytes) -> None:
    """Write a cache file."""
    cache_files.write(path, hashlib.sha256(serialised).digest() + serialised)


def sweep(cache: Path) -> None:
    """Remove the oldest databases of a cache that holds too many."""
    with suppress(OSError):
        kept = sorted(cache.glob("*.hsdb"), key=lambda file: file.stat().st_mtime, reverse=True)
        for old in kept[_CACHED:]:
            old.unlink(missing_ok=True)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time make a cache file; without locks, all may."""
    lock = None
    slot = int(path.stem[:16], 16) % _SLOTS
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.with_name("compiling"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, slot)  # per process: not inherited by a fork
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)
