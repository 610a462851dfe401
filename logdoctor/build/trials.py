"""What trials need of the other parts: the diagnosis of what failed, and what is known of times."""

import hashlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from logdoctor.build import limits, scanner
from logdoctor.diagnose.ending import ReportedEnd
from logdoctor.errors import LogdoctorError
from logdoctor.pipeline import LogFile, diagnose
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings, data_folder
from logdoctor.trials.coordinator import Diagnose, Why
from logdoctor.trials.priors import Priors

_SENDING = 60.0


def priors(settings: Settings, path: Path | None = None) -> Priors:
    """Return what earlier trials measured, by default those whose data folder this is."""
    return Priors(path or data_folder(settings) / "trials" / "times.jsonl")


def diagnosing(settings: Settings, send: Callable[[str, Path, int | None], None] | None) -> Diagnose:
    """Return what diagnoses the logs of tasks that failed, by the rules; each goes to `send`, too."""
    guard = threading.Lock()  # the scanner is for one at a time
    compiled: list[Scanner] = []
    reading = limits(settings)._replace(workers=1)

    def why(name: str, log: bytes, code: int | None) -> Why | None:
        with tempfile.NamedTemporaryFile(suffix=".log") as file:
            file.write(log)
            file.flush()
            if send is not None:
                send(name, Path(file.name), code)
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


def sending(url: str, job: str, folder: Path) -> Callable[[str, Path, int | None], None]:
    """Return what sends the log of a task that failed to a service, as an attempt of a job; where the service is away,
    it lies in the state folder all the same."""

    def send(name: str, log: Path, code: int | None) -> None:
        key = hashlib.blake2b(f"{folder.resolve()}\0{name}".encode(), digest_size=16).hexdigest()
        target = ["--url", url, "--job", job, "--attempt-key", key, "--label", f"task={name[:100]}"]
        end = ["--no-follow", "--end", *([] if code is None else ["--exit-code", str(code)])]
        patience = ["--give-up-seconds", "20"]
        with tempfile.TemporaryDirectory() as state:
            command = [sys.executable, "-m", "logdoctor.send", "ship", *target, *end, *patience]
            try:
                subprocess.run(
                    [*command, "--state", f"{state}/state", str(log)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_SENDING,
                )
            except (OSError, subprocess.SubprocessError):
                return

    return send
