"""`logdoctor run` where there is no service: the command runs, and its failure is diagnosed here."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from logdoctor.job.send.client import answers

ROOT = Path(__file__).parents[2]
NOBODY = "http://127.0.0.1:1"  # a port that no program of users may take
RUN = (
    "import sys\n"
    "from logdoctor.job.send import environment\n"
    "environment.DEFAULT_URL = sys.argv[1]\n"
    "from logdoctor.job.recovery.__main__ import main\n"
    "sys.exit(main(sys.argv[2:]))"
)
CRASH = "print('iteration 5/100 loss 2.5'); [][3]"
Ran = subprocess.CompletedProcess[str]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """Runs a command under `logdoctor run`, with a home and a folder for temporary files of its own."""
    (tmp_path / "tmp").mkdir()
    keep = {name: value for name, value in os.environ.items() if not name.startswith(("LOGDOCTOR_", "SLURM_"))}
    mine = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT)}
    cache = {"LOGDOCTOR_CACHE_DIR": os.environ.get("LOGDOCTOR_CACHE_DIR") or str(Path.home() / ".cache" / "logdoctor")}

    def ran(*arguments: str, url: str = NOBODY) -> Ran:
        command = [sys.executable, "-c", RUN, url, "run", *arguments]
        return subprocess.run(command, env=keep | mine | cache, cwd=tmp_path, capture_output=True, text=True)

    return ran


def test_a_failure_is_diagnosed_here_and_nothing_is_left(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run("--", sys.executable, "-c", CRASH)
    assert (ran.returncode, ran.stdout) == (1, "iteration 5/100 loss 2.5\n")
    assert "IndexError: list index out of range" in ran.stderr and "Index Error" in ran.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["tmp"]


def test_a_command_that_succeeds_says_what_it_says(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run("--", "sh", "-c", "echo fine; echo odd >&2")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "fine\n", "odd\n")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["tmp"]


def test_a_command_that_dies_of_a_signal_is_diagnosed_before_this_dies_of_it(run: Callable[..., Ran]) -> None:
    ran = run("--", "sh", "-c", "echo begun; kill -KILL $$")
    assert (ran.returncode, ran.stdout) == (-9, "begun\n") and "╭─" in ran.stderr


def test_one_that_was_interrupted_needs_no_verdict(run: Callable[..., Ran]) -> None:
    ran = run("--", "sh", "-c", "kill -TERM $$")
    assert (ran.returncode, ran.stdout, ran.stderr) == (-15, "", "")


def test_where_a_folder_for_the_copy_cannot_be_made_the_command_runs(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "tmp").rmdir()
    ran = run("--", "sh", "-c", f"echo $TMPDIR; test -e {tmp_path / 'tmp'}; exit 3")
    assert ran.returncode == 3 and ran.stdout == f"{tmp_path / 'tmp'}\n"


@pytest.fixture
def healthy() -> Iterator[str]:
    """The URL of a service that says that it is well, and of one below /other that says something else."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"status": "ok"}' if self.path == "/healthz" else b"<html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_service_is_known_by_its_answer(healthy: str) -> None:
    assert answers(healthy)
    assert not answers(f"{healthy}/other")
    assert not answers(NOBODY)


def test_a_service_on_this_machine_is_used(run: Callable[..., Ran], healthy: str, tmp_path: Path) -> None:
    ran = run("--drain-seconds", "0", "--", "true", url=healthy)
    assert ran.returncode == 0 and "no logs were sent" in ran.stderr
    assert any("spool" in str(path) for path in tmp_path.rglob("*"))
