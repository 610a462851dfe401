"""What else is known on this node about a failed attempt: the kernel, the GPUs, the cgroup, the scheduler are asked.

Each answer becomes a stream of the attempt, such as `kernel@gpu-07`. The stream `coverage@gpu-07` says of every source
whether it could be read: missing data is no proof that nothing happened.
"""

import os
import selectors
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, Protocol

from logdoctor.job.send.notices import PREFIX
from logdoctor.safe.lasting_files import Folder

MOST_BYTES = 512 << 10  # of one answer
_MOST_LINES = 2000
_LINE_CHARACTERS = 1000
_KEPT = "witness."  # begins the names of files that hold answers
COVERAGE = "coverage@"

State = Literal["read", "empty", "refused", "too late", "absent"]


class Told(NamedTuple):
    """A source's answer: its lines, and whether it could be read; `said` adds to that."""

    state: State
    lines: tuple[str, ...] = ()
    said: str = ""


class Source(Protocol):
    """Something to ask when an attempt has failed. It is made before the attempt begins."""

    stream: str

    def ask(self, pid: int, until: float) -> Told:
        """Return what is known since it was made. `pid` is the command's; `until` (time.monotonic) bounds the time."""


class Answer(NamedTuple):
    """The output of a program, cut at `MOST_BYTES`, and its exit code; None when it did not end in time."""

    lines: list[str]
    code: int | None


def ask(sources: Sequence[Source], pid: int, seconds: float) -> dict[str, str]:
    """Ask all sources at once for at most `seconds`; return the text of each stream by name, `coverage@HOST` first."""
    until = time.monotonic() + seconds
    told: dict[str, Told] = {}

    def put(source: Source) -> None:
        try:
            told[source.stream] = source.ask(pid, until)
        except Exception as error:  # noqa: BLE001  a source costs its seconds and nothing else
            told[source.stream] = Told("refused", said=f"{type(error).__name__}: {error}")

    asking = [threading.Thread(target=put, args=(one,), name="logdoctor-witness", daemon=True) for one in sources]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(max(until - time.monotonic(), 0.0))
    answers = {one.stream: told.get(one.stream, Told("too late")) for one in sources}
    coverage = [PREFIX + _covered(stream, answer) for stream, answer in answers.items()]
    texts = {
        stream: [_plain(line, PREFIX) for line in answer.lines[-_MOST_LINES:]] for stream, answer in answers.items()
    }
    texts = {COVERAGE + host(): coverage, **texts} if answers else {}
    return {stream: "".join(f"{line}\n" for line in lines) for stream, lines in texts.items() if lines}


def output_of(command: Sequence[str], until: float) -> Answer:
    """Run a program in a process group of its own, which is killed at `until`; `OSError` when it cannot be started."""
    import subprocess  # slow to import, and only needed after a failure

    data = b""
    with open(os.devnull, "rb") as nothing:
        process = subprocess.Popen(
            command, stdin=nothing, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    assert process.stdout
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0 and len(data) < MOST_BYTES and selector.select(left):
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    break
                data += part
        with suppress(subprocess.TimeoutExpired):
            process.wait(0 if len(data) >= MOST_BYTES else max(until - time.monotonic(), 0.0))
    finally:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.poll()  # one that cannot be killed is not waited for
    lines = data[:MOST_BYTES].decode("utf-8", "replace").splitlines()
    return Answer(lines, 0 if len(data) >= MOST_BYTES else process.returncode if process.returncode != -9 else None)


def keep(folder: str, texts: dict[str, str]) -> None:
    """Write the streams beside the copy of an output; `OSError` when the folder cannot be written."""
    for stream, text in texts.items():
        Folder(folder, private=True).write(_KEPT + stream, text.encode("utf-8", "replace"), lasting=False)


def kept(folder: str) -> dict[str, str]:
    """Return the paths of kept streams by name."""
    try:
        names = Folder(folder, private=True).names()
    except OSError:
        return {}
    return {name.removeprefix(_KEPT): os.path.join(folder, name) for name in names if name.startswith(_KEPT)}


def remove_kept(folder: str) -> None:
    """Remove kept streams; `OSError` when that fails."""
    for path in kept(folder).values():
        Folder(folder, private=True).remove(os.path.basename(path))


def host() -> str:
    """Return the name of this node."""
    return os.uname().nodename or "host"


def _covered(stream: str, told: Told) -> str:
    said = told.said or (f"{len(told.lines):,} lines" if told.lines else "")
    return _plain(f"coverage: {stream}: {told.state}{f' ({said[:200]})' if said else ''}")


def _plain(line: str, ours: str = "") -> str:
    """Return a line without what ends lines or passes for ours, unless that begins it."""
    whole = "".join(character if character.isprintable() else " " for character in line[:_LINE_CHARACTERS]).rstrip()
    own = ours if ours and whole.startswith(ours) else ""
    return own + whole.removeprefix(own).replace(PREFIX, PREFIX.strip() + ": ")
