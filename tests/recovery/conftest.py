"""A supervisor as its own process, a trainer that does as it is told, and a service whose verdicts are made for it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from logdoctor.job.recovery import orphans
from logdoctor.settings import cache_folder, read_settings
from tests import waiting
from tests.send.conftest import ROOT
from tests.send.service import Service

TRAINER = Path(__file__).with_name("trainer.py")

_BASE = {"outcome": "failed", "confidence": 0.9, "suggestion": "", "suspects": [], "progress": {"step": None}}
VERDICTS: dict[str, dict[str, Any]] = {
    "S3": {"reason": "S3 Storage Error", "recovery": "restart", "fingerprint": "s3"},
    "NET": {"reason": "Connection Error", "recovery": "restart", "fingerprint": "net"},
    "ECC": {"reason": "ECC Error", "recovery": "isolate_and_restart", "fingerprint": "ecc"},
    "BUG": {"reason": "Name Error", "recovery": "fix_first", "fingerprint": "bug", "suggestion": "Define it."},
    "LOAD": {"reason": "Model Loading Error", "recovery": "fix_first", "fingerprint": "load"},
    "SPIKE": {"reason": "Loss Spike", "recovery": "rollback_and_skip", "fingerprint": "sp", "onset_step": 90},
}
UNKNOWN = {"reason": "Unknown", "recovery": "ask_human", "fingerprint": "?", "confidence": 0.0}


def verdict_on(text: str) -> dict[str, Any]:
    """The verdict on a log of the trainer: by the word in its last line, with the nodes in brackets there, and its last
    step."""
    lines = [line for line in text.splitlines() if not line.startswith("srun:")] or [""]
    steps = [int(line.split()[1]) for line in lines if line.startswith("step: ")]
    found = next((VERDICTS[word] for word in VERDICTS if word in lines[-1]), UNKNOWN)
    named = [{"node": node} for node in re.findall(r"\[(\w+)\]", lines[-1])]
    return {**_BASE, **found, "suspects": named, "progress": {"step": steps[-1] if steps else None}}


class Judging(Service):
    """The service of tests, with verdicts on what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[dict[str, Any]] = []
        self.faulty: list[str] = []
        self.final = True
        self.more = self._more

    def _more(self, method: str, path: list[str]) -> dict[str, Any] | None:
        match method, path:
            case "GET", ["v1", "jobs", _, "attempts", number, "verdict"] if self.ends:
                text = b"".join(bytes(data) for (of, _), data in sorted(self.streams.items()) if of == int(number))
                return {"final": self.final, "verdict": verdict_on(text.decode())}
            case "GET", ["v1", "actions"]:
                return {"items": self.actions, "next": None}
            case "GET", ["v1", "node-tests", _]:
                found = [{"node": node, "standing": "faulty"} for node in self.faulty]
                return {"test": {"conclusion": {"findings": found}}, "worlds": []}
        return None


class Run:
    """A supervisor that runs, or has run."""

    def __init__(self, job: "Job", process: "subprocess.Popen[bytes]") -> None:
        self.process, self._job = process, job

    def wait(self) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        self.process.wait()
        self._job.err = (self._job.folder / "err").read_text()
        return self.process.returncode


class Job:
    """A job of the trainer, with its folder."""

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder, self.state, self.err = folder, folder / "state" / "job", ""
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "LOGDOCTOR_JOB": "job",
            "LOGDOCTOR_STATE_DIR": str(folder / "state"),
            "LOGDOCTOR_SPOOL_DIR": str(folder / "spool"),
            "LOGDOCTOR_WITNESS_SECONDS": "0",
            "LOGDOCTOR_CACHE_DIR": str(cache_folder(read_settings())),  # compiling all rules anew takes long
            **({"LOGDOCTOR_URL": url} if url else {}),
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        plan: list[dict[str, Any]],
        *options: str,
        module: str = "logdoctor.job.recovery",
        around: Sequence[str] = (),
        ignored: Collection[int] = (),
        program: Sequence[str] = (),
    ) -> Run:
        """Start a supervisor of a trainer with this plan, or of another program, behind the words of another command,
        if some are given, with some signals ignored."""
        (self.folder / "plan.json").write_text(json.dumps(plan))
        trainer = [sys.executable, str(TRAINER), str(self.folder / "plan.json")]
        quick = ["--delay", "0", *(f"--{what}-seconds=600" for what in ("drain", "verdict", "away"))]
        command = [
            *around,
            sys.executable,
            "-m",
            module,
            "run",
            "--restart",
            *quick,
            *options,
            "--",
            *(program or trainer),
        ]
        with (self.folder / "err").open("wb") as err:
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": err}
            quiet |= {"preexec_fn": lambda: [signal.signal(number, signal.SIG_IGN) for number in ignored]}
            process = subprocess.Popen(command, env=self.environment, cwd=self.folder, **quiet)  # type: ignore[call-overload]
        self._started.append(process)
        return Run(self, process)

    def run(self, plan: list[dict[str, Any]], *options: str, module: str = "logdoctor.job.recovery") -> int:
        """Supervise a trainer with this plan to its end; the exit code."""
        return self.start(plan, *options, module=module).wait()

    @property
    def starts(self) -> list[dict[str, Any]]:
        """What the trainer was started with, each time."""
        return _lines(self.folder / "starts.jsonl")

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The record, or those events of it that have this name."""
        return [event for event in _lines(self.state / "record.jsonl") if name in (None, event["event"])]

    @property
    def orphan(self) -> int:
        """The process that the trainer has left behind."""
        return int((self.folder / "orphan").read_text())

    @property
    def decisions(self) -> list[str]:
        """The kinds of the decisions, in order."""
        return [event["kind"] for event in self.events("decided")]

    def kill_runner(self) -> None:
        """Kill what sends the output of the last trainer and, without a supervisor, holds the lease."""
        told = Path(f"/proc/{self.starts[-1]['pid']}/stat").read_text()
        _kill(int(told.rpartition(")")[2].split()[1]))

    def lose_attempt(self) -> None:
        """Kill what a killed supervisor has left, as the death of its node does."""
        self.kill_runner()
        _kill(self.starts[-1]["pid"])

    def stop(self) -> None:
        """End what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        orphans.send(orphans.processes(self._is_of_the_job), signal.SIGKILL)

    def _is_of_the_job(self, pid: int) -> bool:
        try:
            return str(self.folder).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False


def is_alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _kill(pid: int) -> None:
    """Kill a process, and wait until it holds nothing any more."""
    os.kill(pid, signal.SIGKILL)
    waiting.until(lambda: not is_alive(pid), "it is killed")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def service() -> Iterator[Judging]:
    """A service whose verdicts are made for the trainer."""
    running = Judging()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def job(service: Judging, tmp_path: Path) -> Iterator[Job]:
    """A job whose logs go to the service."""
    it = Job(tmp_path, service.url)
    yield it
    it.stop()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Job]:
    """A job without a service: its log is diagnosed here."""
    it = Job(tmp_path, None)
    yield it
    it.stop()
