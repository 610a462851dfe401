"""The service to send to, and the sender as its own process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.send.service import Service

ROOT = Path(__file__).parents[2]


@pytest.fixture
def service() -> Iterator[Service]:
    """A service that runs."""
    running = Service()
    running.start()
    yield running
    running.stop()


class Sender:
    """`python -m logdoctor.job.send` with an environment of its own."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.spool = folder / "spool"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "LOGDOCTOR_URL": service.url,
            "LOGDOCTOR_JOB": "job",
            "LOGDOCTOR_SPOOL_DIR": str(self.spool),
            "LOGDOCTOR_WITNESS_SECONDS": "0",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options}
        command = [sys.executable, "-m", "logdoctor.job.send", *arguments]
        self._started.append(subprocess.Popen(command, env=self.environment, cwd=self.spool.parent, **options))
        return self._started[-1]

    def run(self, *command: str, options: tuple[str, ...] = ("--stream", "s")) -> tuple[int, bytes, bytes]:
        """Exit status, stdout and stderr of `run` with a command."""
        process = self.start("run", *options, "--", *command)
        out, err = process.communicate()
        return process.returncode, out, err

    def python(self, code: str, *options: str) -> tuple[int, bytes, bytes]:
        return self.run(sys.executable, "-c", code, options=("--stream", "s", *options))

    def ship(self, *arguments: str) -> tuple[int, bytes]:
        """Exit status and stderr of `ship`."""
        process = self.start("ship", *arguments)
        err = process.communicate()[1]
        return process.returncode, err

    def left(self) -> list[Path]:
        return sorted(path for path in self.spool.iterdir() if path.is_dir()) if self.spool.exists() else []

    def stop(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout, process.stderr)):
                with suppress(OSError):
                    pipe.close()


@pytest.fixture
def sender(service: Service, tmp_path: Path) -> Iterator[Sender]:
    """The sender, told about the service."""
    it = Sender(service, tmp_path)
    yield it
    it.stop()
