"""Cordons in a file of node names, for clusters whose scheduler reads one.

A line is a name, and after a `#` who cordoned it and why: `gpu-12  # logdoctor cordon 45 verdict 123: why`. Lines of
others stay as they are; they may name several nodes, as `gpu-[01-04]` or `gpu-01,gpu-02`.
"""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from logdoctor.errors import CordonError, CordonRefused, InputError
from logdoctor.nodes.cordon.cordoner import carries, mark_of, reason_text
from logdoctor.nodes.slurm import expanded
from logdoctor.safe.lasting_files import Folder, new_file
from logdoctor.types.nodes import Mark, NodeState, checked_name

MAX_BYTES = 16 << 20
"""The largest file that is read."""
MAX_NAMES = 200_000
"""Most nodes that the lines of a file may name in all."""
LOCK_SECONDS = 20.0
"""How long to wait while another logdoctor holds the file."""

_CODING = ("utf-8", "surrogateescape")  # others' bytes are preserved


class FileCordoner:
    """A file of cordoned nodes; it and its lock `PATH.lock` need not exist yet. Safe for any thread and process.

    `fleet` returns the existing nodes; other names in the file are left alone.
    """

    how = "file"

    def __init__(self, path: Path, fleet: Callable[[], Iterable[str]]) -> None:
        self._path = path
        self._fleet = fleet

    def nodes(self) -> list[NodeState]:
        """Return the fleet, each node with what the file says about it; `CordonError` when the file cannot be read."""
        entries = _entries(self._lines())
        return [_state(name, entries.get(name, [])) for name in dict.fromkeys(self._fleet())]

    def node(self, name: str) -> NodeState | None:
        """Return one node of the fleet."""
        if name not in set(self._fleet()):
            return None
        return _state(name, _entries(self._lines()).get(name, []))

    def cordon(self, name: str, mark: Mark) -> None:
        """Append the node with its mark; see `Cordoner`."""
        checked_name(name)
        with self._alone() as lines:
            state = _state(name, _entries(lines).get(name, []))
            if carries(state, mark):
                return
            if state.cordoned:
                raise _of_others(name, state)
            self._write([*lines, f"{name}  # {reason_text(mark)}"])

    def uncordon(self, name: str, mark: Mark) -> None:
        """Remove the node's line; see `Cordoner`."""
        with self._alone() as lines:
            state = _state(name, _entries(lines).get(name, []))
            if not carries(state, mark):
                raise _of_others(name, state)
            self._write([line for line in lines if _name(line) != name])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[list[str]]:
        """Lock the file, and yield its lines."""
        try:
            lock = Folder(self._path.parent).open(f"{self._path.name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._take(lock)
            yield self._lines()
        finally:
            os.close(lock)

    def _take(self, lock: int) -> None:
        """Wait for the lock; `CordonError` when another process holds it for too long."""
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if time.monotonic() > end:
                    raise self._unusable(error) from error
            time.sleep(0.02)  # a file lock does not announce its release

    def _lines(self) -> list[str]:
        try:
            if self._path.exists() and not self._path.is_file():  # reading a pipe would block
                raise CordonError(f"the file {self._path}", "is not a regular file", "Name another file.")
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from error
        if len(content) > MAX_BYTES:
            raise CordonError(f"the file {self._path}", f"has over {MAX_BYTES} bytes", "Name another file.")
        lines = content.decode(*_CODING).split("\n")
        return lines if lines[-1] else lines[:-1]

    def _write(self, lines: list[str]) -> None:
        """Replace the file atomically, with the same permissions."""
        target = self._path.resolve()
        content = "".join(f"{line}\n" for line in lines).encode(*_CODING)
        try:
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
            with new_file(target, mode) as file:
                file.write(content)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> CordonError:
        return CordonError(
            f"the file {self._path}", f"cannot be used ({error})", "Check its folder and its permissions."
        )


def _name(line: str) -> str:
    """Return the node of a line, "" when it has none."""
    words = line.partition("#")[0].split()
    return words[0] if words else ""


def _entries(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the lines of each node."""
    entries: dict[str, list[str]] = {}
    count = 0
    for line in lines:
        names = _names(line)
        if (count := count + len(names)) > MAX_NAMES:
            raise CordonError("the file of cordoned nodes", f"names over {MAX_NAMES:,} nodes", "Check its lines.")
        for name in names:
            entries.setdefault(name, []).append(line)
    return entries


def _names(line: str) -> list[str]:
    """Return the nodes of a line; what only looks like a hostlist is a name."""
    name = _name(line)
    if "[" not in name and "," not in name:
        return [name] if name else []
    try:
        return list(dict.fromkeys(expanded(name)))
    except InputError:
        return [name]


def _state(name: str, lines: list[str]) -> NodeState:
    """Return a node's state from its lines. Two lines are never ours alone, whatever they say."""
    raw = "; ".join(line.encode(*_CODING).decode("utf-8", "replace") for line in lines)
    reason = raw.partition("#")[2].strip()
    return NodeState(name, bool(lines), mark_of(reason) if len(lines) == 1 else None, reason, raw)


def _of_others(name: str, state: NodeState) -> CordonRefused:
    cause = f"is cordoned by others ({state.reason[:200]!r})" if state.cordoned else "is not cordoned"
    return CordonRefused(f"node {name}", cause, "Leave it, or ask whoever cordoned it.")
