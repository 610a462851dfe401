"""The record of a job: attempts, decisions and reasons as JSON lines in the job's state folder.

STATE/JOB/
    record.jsonl         what happened, in order
    lease                held (flock) by the job's supervisor; names the owner
    done                 the last attempt completed the job
    stop.json            a request to end the named attempt
    log, log.before      the newest output of the attempt, for local diagnosis
"""

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from logdoctor.errors import SendError
from logdoctor.job.recovery.deciding import Attempt
from logdoctor.job.recovery.judged import Judged
from logdoctor.safe.lasting_files import Folder

RECORD = "record.jsonl"
_MOST_BYTES = 64 << 20
_MOST_LINE = 1 << 20


class Record:
    """The record of one job, written only by the holder of its lease."""

    def __init__(self, folder: str, job: str) -> None:
        self._folder = Folder(folder, private=True)
        self.path = self._folder.path_of(RECORD)
        self._job = job

    def add(self, event: str, **facts: Any) -> None:
        """Append one event durably; `SendError` when the state folder cannot be written."""
        line = json.dumps({"at": round(time.time(), 3), "job": self._job, "event": event, **facts}).encode() + b"\n"
        try:
            how = os.O_RDWR | os.O_CREAT | os.O_APPEND
            with os.fdopen(self._folder.open(RECORD, how), "ab+", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
                file.write(b"\n" * torn + line)
                os.fsync(file.fileno())
        except OSError as error:
            raise SendError(
                self.path, f"cannot be written ({error.strerror})", "Check its disk, or give --state."
            ) from error

    def events(self) -> list[dict[str, Any]]:
        """Return the events in order, without torn lines and other jobs' lines; `SendError` when the file cannot be
        read."""
        try:
            lines = self._folder.read(RECORD, _MOST_BYTES).split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SendError(self.path, f"cannot be read ({error.strerror})", "Check its permissions.") from error
        return [event for line in lines if (event := _event(line)) is not None and event.get("job") == self._job]


def attempts(events: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """Return the ended attempts since the job was last begun afresh."""
    found: list[Attempt] = []
    for event in events:
        if event.get("event") == "begun" and event.get("anew"):
            found.clear()
        if event.get("event") == "ended" and (attempt := attempt_of(event)) is not None:
            found.append(attempt)
    return found


def facts_of(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt as the fields of its event."""
    verdict = attempt.judged._asdict() if attempt.judged else None
    return {**attempt._asdict(), "judged": verdict}


def attempt_of(event: Mapping[str, Any]) -> Attempt | None:
    """Return the attempt whose end an event reports; None when it cannot be read."""
    known = {name: event[name] for name in Attempt._fields if name in event}
    try:
        verdict = known.pop("judged", None)
        fields = {**verdict, "nodes": tuple(verdict["nodes"])} if verdict else None
        attempt = Attempt(**known, judged=Judged(**fields) if fields else None)
        return attempt if isinstance(attempt.number, int) and isinstance(attempt.seconds, int | float) else None
    except (TypeError, KeyError):  # written by a version with other fields
        return None


def _event(line: bytes) -> dict[str, Any] | None:
    if not line or len(line) > _MOST_LINE:
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None
