"""What trials need from other parts: diagnosis of failures, and times of earlier trials."""

import hashlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.errors import LogdoctorError
from logdoctor.pipeline import LogFile, diagnose
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings, data_folder
from logdoctor.trials.coordinator import Diagnose, Why
from logdoctor.trials.priors import Priors
from logdoctor.wiring import limits, scanner

_SENDING = 60.0
_PATIENCE = 5.0


def priors(settings: Settings, path: Path | None = None) -> Priors:
    """Return the times that earlier trials measured, by default those in the data folder."""
    return Priors(path or data_folder(settings) / "trials" / "times.jsonl")


def diagnosing(settings: Settings, send: Callable[[str, bytes, int | None], None] | None) -> Diagnose:
    """Return a function that diagnoses a failed task's log by the rules. It also passes the log to `send`."""
    guard = threading.Lock()  # the scanner is not thread-safe
    compiled: list[Scanner] = []
    reading = limits(settings)._replace(workers=1)

    def why(name: str, log: bytes, code: int | None) -> Why | None:
        if send is not None:
            send(name, log, code)
        with tempfile.NamedTemporaryFile(suffix=".log") as file:
            file.write(log)
            file.flush()
            end = ReportedEnd(exit_code=code, died=code is None)
            try:
                with guard:
                    compiled[:] = compiled or [scanner(settings)]
                    verdict = diagnose([LogFile("main", Path(file.name))], compiled[0], reading, end)
            except LogdoctorError:
                return None
        if verdict.reason in ("None", "Unknown"):
            return None
        return Why(verdict.reason, verdict.evidence[0].quote if verdict.evidence else "")

    return why


class FailureSender:
    """Sends logs of failed tasks to a service in the background. Each is an attempt of a job. After a failure to reach
    the service it stops; the logs remain in the state folder."""

    def __init__(self, url: str, job: str, folder: Path) -> None:
        self._url, self._job, self._folder = url, job, folder
        self._sends = ThreadPoolExecutor(1, "logdoctor-send")
        self._away = False

    def __call__(self, name: str, log: bytes, code: int | None) -> None:
        """Queue a log with the exit code of its task."""
        self._sends.submit(self._send, name, log, code)

    def close(self) -> bool:
        """Wait until all are sent, and return whether they were."""
        self._sends.shutdown()
        return not self._away

    def _send(self, name: str, log: bytes, code: int | None) -> None:
        if self._away:
            return
        key = hashlib.blake2b(f"{self._folder.resolve()}\0{name}".encode(), digest_size=16).hexdigest()
        target = ["--url", self._url, "--job", self._job, "--attempt-key", key, "--label", f"task={name[:100]}"]
        end = ["--no-follow", "--end", *([] if code is None else ["--exit-code", str(code)])]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "log").write_bytes(log)
            files = ["--give-up-seconds", str(_PATIENCE), "--state", f"{folder}/state", f"{folder}/log"]
            command = [sys.executable, "-P", "-m", "logdoctor.job.send", "ship", *target, *end, *files]
            quiet = subprocess.DEVNULL
            try:
                done = subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=_SENDING)
                self._away = done.returncode != 0
            except (OSError, subprocess.SubprocessError):
                self._away = True
