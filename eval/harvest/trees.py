"""Files of a source tree: a checkout, an installed package, or revisions of a git mirror."""

import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import regex


class Source(NamedTuple):
    """One source file: its path inside the tree, and its text."""

    path: str
    text: str


def files(tree: Path, wanted: str, revisions: Sequence[str] = ("HEAD",)) -> Iterator[Source]:
    """Yield the files of a tree whose path matches `wanted`. From a git mirror they are those of every revision, each
    content once."""
    pattern = regex.compile(wanted)
    if not (tree / "HEAD").is_file() and not (tree / ".git").exists():
        for path in sorted(tree.rglob("*")):
            name = path.relative_to(tree).as_posix()
            if pattern.search(name) and path.is_file():
                yield Source(name, path.read_text(encoding="utf-8", errors="replace"))
        return
    paths: dict[str, str] = {}
    for revision in revisions:
        for line in _git(tree, "ls-tree", "-r", revision).decode("utf-8", "replace").splitlines():
            about, _, name = line.partition("\t")
            kind, blob = about.split()[1:3]
            if kind == "blob" and pattern.search(name):
                paths.setdefault(blob, name)
    for blob, text in zip(paths, _contents(tree, list(paths)), strict=True):
        yield Source(paths[blob], text)


def below(places: Collection[str], endings: str) -> str:
    """Return a pattern for files with the `endings` (`c|h`) that are, or lie below, the places."""
    return rf"^(?:{'|'.join(map(regex.escape, places))})(?:/.*)?(?<=\.(?:{endings}))$"


def last_with(tree: Path, path: str) -> str:
    """Return the last revision of a git mirror that has a file. It is the newest one if it has the file, or if none
    ever had."""
    if not (tree / "HEAD").is_file():
        return "HEAD"
    left = _git(tree, "log", "-1", "--format=%H", "--diff-filter=D", "--", path).decode().strip()
    return f"{left}^" if left else "HEAD"


def releases(tree: Path, first: tuple[int, ...], tag: str = r"v(\d+)\.(\d+)\.(\d+)(?:-\d+)?") -> list[str]:
    """Return a git mirror's release tags from version `first` on, oldest first, and its newest state. A tree without
    tags gives its newest state only."""
    if not (tree / "HEAD").is_file():
        return ["HEAD"]
    found = [(match, name) for name in _git(tree, "tag").decode().split() if (match := regex.fullmatch(tag, name))]
    versions = sorted((tuple(int(number) for number in match.groups() if number), name) for match, name in found)
    return [name for version, name in versions if version >= first] + ["HEAD"]


def _git(tree: Path, *arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(["git", "-C", str(tree), *arguments], input=given, capture_output=True, check=True).stdout


def _contents(tree: Path, blobs: list[str]) -> Iterator[str]:
    """Yield the texts of blobs, in order, with a single process."""
    raw = _git(tree, "cat-file", "--batch", given="".join(f"{blob}\n" for blob in blobs).encode())
    at = 0
    for _ in blobs:
        end = raw.index(b"\n", at)
        size = int(raw[at:end].rsplit(b" ", 1)[1])
        yield raw[end + 1 : end + 1 + size].decode("utf-8", "replace")
        at = end + size + 2
