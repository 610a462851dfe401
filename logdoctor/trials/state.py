"""The state folder of a trial: its file, journal and outputs. One coordinator at a time writes to it."""

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from logdoctor.errors import LogdoctorError, SendError, TrialError
from logdoctor.job.recovery.lease import Lease
from logdoctor.safe.lasting_files import new_file
from logdoctor.trials.journal import Event, Finished, Journal, read_journal
from logdoctor.trials.progress import Progress
from logdoctor.trials.trial_file import Trial, made
from logdoctor.trials.types import Shard

_TRIAL, _JOURNAL, _REMAINING = "trial.json", "journal.jsonl", "remaining.json"
_FRESH = 60.0  # seconds for which a noted remaining time is valid


class State:
    """The folder, for the one coordinator that holds it; others get `TrialError`."""

    def __init__(self, folder: Path, trial: Trial | None = None) -> None:
        """Open the folder: a new one with a `trial`, else an existing one."""
        self.folder = folder
        if trial is not None:
            for name in ("outputs", "logs"):
                _make(folder / name)
        elif not (folder / _TRIAL).exists():
            raise TrialError(str(folder), "holds no trial", "Name the folder that `logdoctor trials run --out` made.")
        try:
            self._lease = Lease(str(folder), "lease")
        except SendError as error:
            cause = error.cause if "supervised" not in error.cause else error.cause.replace("supervised", "run")
            raise TrialError(f"the trial in {folder}", cause, error.next_step) from error
        try:
            if trial is not None and (folder / _TRIAL).exists():
                step = f"Go on with it: logdoctor trials resume {folder}"
                raise TrialError(str(folder), "holds a trial already", step)
            if trial is not None:
                self._write(folder / _TRIAL, msgspec.json.encode(trial))
            self.trial = read_begun(folder)
            self.progress = Progress(read_journal(folder / _JOURNAL))
            self._journal = Journal(folder / _JOURNAL)
        except LogdoctorError:
            self._lease.release()
            raise

    def add(self, event: Event) -> None:
        """Record an event."""
        self._journal.add(event)
        self.progress.add(event)

    def forget_lost(self) -> list[Shard]:
        """Mark shards whose outputs are missing or changed as unmade, and return them."""
        lost = []
        for shard, event in list(self.progress.finished.items()):
            try:
                whole = digest_of(self.output(shard).read_bytes()) == event.digest
            except OSError:
                whole = False
            if not whole:
                self.progress.forget(shard)
                lost.append(shard)
        return lost

    def output(self, shard: Shard) -> Path:
        """Return the file with the outputs of a shard."""
        return self.folder / "outputs" / shard.set / f"{shard.start:08}-{shard.end:08}"

    def merged(self, name: str) -> Path:
        """Return the file with the outputs of a whole set."""
        return self.folder / "outputs" / name / "merged"

    def finish(self, shard: Shard, output: bytes, worker: str, seconds: float, at: float) -> None:
        """Write the outputs of a shard, then record that it is finished."""
        _make(self.output(shard).parent)
        self._write(self.output(shard), output)
        self.add(Finished(at, shard, worker, seconds, digest_of(output)))

    def merge(self, name: str) -> bytes:
        """Return a set's outputs in order of samples, and write them to one file."""
        whole = joined([self.output(shard).read_bytes() for shard in self.progress.parts(name)])
        self._write(self.merged(name), whole)
        return whole

    def log(self, shard: Shard, attempt: int, scoring: bool, text: bytes) -> Path:
        """Write the log of a failed try, and return its path."""
        what = "score" if scoring else f"{shard.start:08}-{shard.end:08}"
        path = self.folder / "logs" / shard.set / f"{what}.{attempt}.log"
        _make(path.parent)
        self._write(path, text)
        return path

    def note_remaining(self, seconds: float) -> None:
        """Write the expected remaining seconds, for observers."""
        self._write(self.folder / _REMAINING, msgspec.json.encode((time.time(), seconds)))

    def close(self) -> None:
        """Release the folder."""
        (self.folder / _REMAINING).unlink(missing_ok=True)
        self._journal.close()
        self._lease.release()

    def _write(self, path: Path, data: bytes) -> None:
        try:
            with new_file(path) as file:
                file.write(data)
        except OSError as error:
            step = "Free some space, then go on with `logdoctor trials resume`."
            raise TrialError(str(path), f"cannot be written ({error.strerror})", step) from error


def read_begun(folder: Path) -> Trial:
    """Return the trial of a state folder; `TrialError` when it holds none."""
    try:
        data = msgspec.json.decode((folder / _TRIAL).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        step = "Name the folder that `logdoctor trials run --out` made."
        raise TrialError(str(folder), "holds no trial", step) from error
    return made(data, str(folder / _TRIAL))


def read_progress(folder: Path) -> Progress:
    """Return the progress of the trial in a state folder, whoever works on it."""
    return Progress(read_journal(folder / _JOURNAL))


def read_remaining(folder: Path) -> float | None:
    """Return the expected remaining seconds of a trial; None if nobody works on it."""
    try:
        at, seconds = msgspec.json.decode((folder / _REMAINING).read_bytes(), type=tuple[float, float])
    except (OSError, msgspec.MsgspecError):
        return None
    passed = time.time() - at
    return max(0.0, seconds - passed) if 0 <= passed < _FRESH else None


def joined(parts: Sequence[bytes]) -> bytes:
    """Return outputs one after another, each ended by a line break."""
    return b"".join(part if not part or part.endswith(b"\n") else part + b"\n" for part in parts)


def digest_of(data: bytes) -> str:
    """Return the digest of outputs."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _make(folder: Path) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise TrialError(
            str(folder), f"cannot be made ({error.strerror})", "Give another folder with --out."
        ) from error
