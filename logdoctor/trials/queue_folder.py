"""Tasks through a shared folder of a cluster: one process writes them, a remote worker answers.

Files appear complete, by renaming. A live worker keeps incrementing a counter; observers check whether it changes, so
clocks need not agree.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from logdoctor.errors import LogdoctorError, TrialError
from logdoctor.trials.node import Node
from logdoctor.trials.tasks import Loading, Outcome, Task, WorkerLost
from logdoctor.trials.trial_file import Trial

_BEAT = 2.0
_SILENT = 90.0  # seconds without a beat before a peer is dead; shared folders show files late
_LOOK = 0.2
_ASK = 5.0  # seconds between queries to Slurm
_QUIET = 6 * _BEAT  # silence after which Slurm is asked for the job
_CLOSED, _HERE = "closed", "coordinator"

Sent = TypeVar("Sent")


class _Begun(msgspec.Struct):
    """A worker's first message: how it got the checkpoint, or why it did not."""

    loading: Loading | None = None
    refused: tuple[str, str, str] | None = None


class Beats:
    """Increments a counter in a file while this process works."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended = threading.Event()
        _write(path, b"0")
        threading.Thread(target=self._run, name="logdoctor-beats", daemon=True).start()

    def stop(self) -> None:
        """Stop counting."""
        self._ended.set()

    def _run(self) -> None:
        count = 0
        while not self._ended.wait(_BEAT):
            count += 1
            with suppress(OSError):
                _write(self._path, str(count).encode())


class Pulse:
    """Watches whether a peer that increments a counter is alive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = b""
        self._changed = time.monotonic()

    def is_there(self) -> bool:
        """Return whether the counter changed lately."""
        return self.silence() < _SILENT

    def silence(self) -> float:
        """Return the seconds since it last changed."""
        try:
            now = self._path.read_bytes()
        except OSError:
            now = self._last
        if now != self._last:
            self._last, self._changed = now, time.monotonic()
        return time.monotonic() - self._changed


class FolderWorker:
    """A remote worker, as the coordinator sees it."""

    def __init__(self, folder: Path, name: str, is_known: Callable[[], bool]) -> None:
        """Watch a folder; `is_known` returns whether the worker's job is pending or running."""
        self.name = name
        self._folder, self._is_known = folder, is_known
        self._pulse = Pulse(folder / "beat")
        self._asked = 0
        self._loading = Loading("")

    @property
    def loading(self) -> Loading:
        """How it got the checkpoint."""
        return self._loading

    def begin(self, over: Callable[[], bool]) -> bool:
        """Wait until it has the checkpoint, however long its node takes; return False if the trial is `over` before.
        `TrialError` when it cannot have it, `WorkerLost` when its job ended before."""
        looked = time.monotonic()
        gone = 0
        while (begun := _read(self._folder / "begun", _Begun)) is None:
            if over():
                return False
            if time.monotonic() - looked > _ASK:
                gone = 0 if self._is_known() else gone + 1
                looked = time.monotonic()
                if gone > 1:  # what it wrote may appear late
                    raise WorkerLost("its job ended before it began to work")
            time.sleep(_LOOK)
        if begun.refused is not None or begun.loading is None:
            raise TrialError(*(begun.refused or ("a worker", "cannot begin", "See its log.")))
        self._loading = begun.loading
        return True

    def run(self, task: Task) -> Outcome:
        """Run a task remotely and return its outcome."""
        self._asked += 1
        _write(self._folder / f"task-{self._asked}", msgspec.json.encode(task))
        answer = self._folder / f"outcome-{self._asked}"
        asked = time.monotonic()
        while (outcome := _read(answer, Outcome)) is None:
            silence = self._pulse.silence()
            if silence > _QUIET and time.monotonic() - asked > _ASK:
                asked = time.monotonic()
                silence = silence if self._is_known() else _SILENT
            if silence >= _SILENT:
                raise WorkerLost("its node or its job is gone")
            time.sleep(_LOOK)
        answer.unlink(missing_ok=True)
        return outcome

    def close(self) -> None:
        """Make it end after its current task."""
        with suppress(OSError):
            _write(self._folder / _CLOSED, b"")


def begin_queue(folder: Path) -> Beats:
    """Create the folder of a queue, with the beat of its coordinator."""
    folder.mkdir(parents=True)
    return Beats(folder / _HERE)


def work(folder: str, number: int, trial: Trial) -> None:
    """Run a worker: do the tasks of a folder until it is closed, or its coordinator is dead."""
    mine = Path(folder) / f"worker-{number}"
    mine.mkdir(exist_ok=True)
    asks = Pulse(Path(folder) / _HERE)
    beats = Beats(mine / "beat")
    try:
        node = Node(trial, f"worker {number}")
    except LogdoctorError as error:
        _write(mine / "begun", msgspec.json.encode(_Begun(refused=(error.thing, error.cause, error.next_step))))
        return
    try:
        _write(mine / "begun", msgspec.json.encode(_Begun(loading=node.loading)))
        _serve(node, mine, Path(folder) / _CLOSED, asks)
    finally:
        beats.stop()
        node.close()


def _serve(node: Node, mine: Path, closed: Path, asks: Pulse) -> None:
    next_task = 1
    while asks.is_there() and not closed.exists() and not (mine / _CLOSED).exists():
        task = _read(mine / f"task-{next_task}", Task)
        if task is None:
            time.sleep(_LOOK)
            continue
        watching = threading.Event()
        threading.Thread(target=_stop_when, args=(node, closed, asks, watching), daemon=True).start()
        outcome = node.run(task)
        watching.set()
        _write(mine / f"outcome-{next_task}", msgspec.json.encode(outcome))
        (mine / f"task-{next_task}").unlink(missing_ok=True)
        next_task += 1


def _stop_when(node: Node, closed: Path, asks: Pulse, done: threading.Event) -> None:
    """End what runs once nobody waits for it any longer."""
    while not done.wait(_BEAT):
        if closed.exists() or not asks.is_there():
            node.stop()
            return


def close_queue(folder: Path) -> None:
    """Make all workers of a queue end at once."""
    with suppress(OSError):
        _write(folder / _CLOSED, b"")


def _write(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{secrets.token_hex(8)}")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _read(path: Path, kind: type[Sent]) -> Sent | None:
    """Return what was sent; None while it is not there."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=kind)
