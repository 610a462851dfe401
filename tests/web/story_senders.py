"""Real senders and shippers to the real service: every byte arrives once, and the verdict is there."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests import waiting
from tests.web.conftest import Running
from tests.web.shippers import opentelemetry, recipe, running_rsyslog, running_syslog_ng

LOGDOCTOR = str(Path(sys.executable).with_name("logdoctor"))
CORPUS = Path(__file__).parents[2] / "eval" / "corpus" / "failures"
DYING = """
    import os, sys, time
    for step in range(40):
        print(f"step {step} loss {2.0 - step / 100}", flush=True)
        while step == 20 and sys.argv[1:] and not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
    sys.stderr.write("Traceback (most recent call last):\\n")
    sys.stderr.write('  File "train.py", line 7, in <module>\\n    batch["mask"]\\n')
    sys.stderr.write("KeyError: 'mask'\\n")
    sys.exit(3)
"""


def sent(running: Running, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """A sender's run to its end."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LOGDOCTOR_", "SLURM_"))}
    environment |= {
        "LOGDOCTOR_URL": running.url,
        "LOGDOCTOR_SPOOL_DIR": str(running.folder.parent / "spool"),
        "LOGDOCTOR_WITNESS_SECONDS": "0",
        **variables,
    }
    return subprocess.run([LOGDOCTOR, *arguments], env=environment, capture_output=True)


def verdict(running: Running, job: str, attempt: int = 1) -> dict[str, Any]:
    """The final verdict on an attempt."""

    def final() -> dict[str, Any] | None:
        answer = running.client.get(f"/v1/jobs/{job}/attempts/{attempt}/verdict")
        return answer.json() if answer.status_code == 200 and answer.json()["final"] else None

    return waiting.until(final)  # type: ignore[no-any-return]


def kept(running: Running, job: str, stream: str, attempt: int = 1) -> bytes:
    """The whole log of a short stream."""
    path = f"/v1/jobs/{job}/attempts/{attempt}/streams/{stream}/log"
    return running.client.get(path, params={"line": "1-10000"}).content


@pytest.fixture
def dying(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(DYING))
    return script


def test_a_command_that_dies(running: Running, dying: Path) -> None:
    done = sent(running, "run", "--job", "j", "--stream", "n", "--user", "u17", "--", sys.executable, str(dying))
    assert done.returncode == 3
    assert done.stdout.count(b"\n") == 40 and b"KeyError" in done.stderr
    found = verdict(running, "j")
    assert found["verdict"]["reason"] == "Key Error" and found["user"] == "u17"
    log = kept(running, "j", "n")
    *printed, told = done.stderr.splitlines(keepends=True)  # what is told at the end is not of the command
    known = f"[logdoctor] the verdict is Key Error: {running.url}/verdicts/{found['id']}\n"
    assert told.decode() in (known, f"[logdoctor] its verdict will be at {running.url}/jobs/j\n"), "on a busy machine"
    assert sorted(log.split(b"\n")) == sorted((done.stdout + b"".join(printed)).split(b"\n"))


def test_the_service_is_killed_while_a_command_runs(running: Running, dying: Path, tmp_path: Path) -> None:
    port, goes_on = running.port, tmp_path / "goes on"

    def interrupt() -> None:
        waiting.until(lambda: kept(running, "j", "n").count(b"step") == 21)
        running.kill()
        running.start("--port", str(port))
        goes_on.touch()

    thread = threading.Thread(target=interrupt)
    thread.start()
    done = sent(running, "run", "--job", "j", "--stream", "n", "--", sys.executable, str(dying), str(goes_on))
    thread.join()
    assert done.returncode == 3
    assert verdict(running, "j")["verdict"]["reason"] == "Key Error"
    lines = [line for line in kept(running, "j", "n").split(b"\n") if line.startswith(b"step")]
    assert lines == done.stdout.split(b"\n")[:-1]


def test_what_was_left_is_sent_later(running: Running, dying: Path) -> None:
    away = sent(
        running,
        "run",
        "--job",
        "j",
        "--stream",
        "n",
        "--drain-seconds",
        "0.2",
        "--",
        sys.executable,
        str(dying),
        LOGDOCTOR_URL="http://127.0.0.1:9",
    )
    assert away.returncode == 3 and b"ship --resume" in away.stderr
    assert sent(running, "ship", "--resume", "--url", running.url, "--from", "http://127.0.0.1:9").returncode == 0
    assert verdict(running, "j")["verdict"]["reason"] == "Key Error"
    assert kept(running, "j", "n").count(b"step") == 40


def test_all_nodes_of_an_attempt_are_one(running: Running, dying: Path) -> None:
    for node in ("a", "b"):
        sent(running, "run", "--job", "j", "--attempt-key", "k", "--stream", node, "--", sys.executable, str(dying))
    answer = running.client.get("/v1/jobs/j").json()
    assert [(attempt["number"], attempt["streams"]) for attempt in answer["attempts"]] == [(1, ["a", "b"])]
    assert verdict(running, "j")["verdict"]["reason"] == "Key Error"


def test_finished_files(running: Running, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in ("inf-028", "usr-061"):
        (folder / f"{name}.log").write_bytes((CORPUS / f"{name}.log").read_bytes())
    shipped = sent(
        running, "ship", "--job", "files", "--attempt", "4", "--no-follow", "--end", "--exit-code", "1", str(folder)
    )
    assert shipped.returncode == 0, shipped.stderr
    assert verdict(running, "files", 4)["verdict"]["outcome"] == "failed"
    for name in ("inf-028", "usr-061"):
        assert kept(running, "files", f"{name}.log", 4) == (CORPUS / f"{name}.log").read_bytes()


def followed(text: str, log: Path, port: int) -> str:
    """A recipe of docs/senders.md, for a file and a service of this machine."""
    changed = text
    for mine, theirs in (
        ("/var/log/train.log", str(log)),
        ("logdoctor.example:8080", f"127.0.0.1:{port}"),
        ("/opt/logdoctor/bin/logdoctor", LOGDOCTOR),
        ("/var/lib/syslog-ng", str(log.parent)),
    ):
        changed = changed.replace(mine, theirs)
    return changed


@pytest.mark.parametrize(
    ("name", "shipper"), [("syslog-ng", running_syslog_ng), ("rsyslog", running_rsyslog)], ids=["syslog-ng", "rsyslog"]
)
def test_a_recipe_of_the_docs_with_the_real_shipper(
    running: Running, tmp_path: Path, name: str, shipper: Callable[..., AbstractContextManager[object]]
) -> None:
    log = tmp_path / "train.log"
    text = (CORPUS / "usr-061.log").read_bytes()
    lines = [line for line in text.split(b"\n") if line.strip()]  # syslog knows no empty messages
    log.write_bytes(text[:1000])
    with shipper(tmp_path / "shipper", followed(recipe(name), log, running.port)):
        waiting.until(lambda: kept(running, "llama-7b", "gpu-12").startswith(lines[0]))
        with log.open("ab") as file:
            file.write(text[1000:])
        waiting.until(lambda: [one for one in kept(running, "llama-7b", "gpu-12").split(b"\n") if one.strip()] == lines)
    running.client.post("/v1/jobs/llama-7b/attempts/1/end", json={"exit_code": 1})
    assert verdict(running, "llama-7b")["verdict"]["reason"] == "Key Error"


def test_opentelemetry_to_the_service(running: Running) -> None:
    with opentelemetry(running.port, {"service.name": "traced", "host.name": "gpu-2"}) as logger:
        for step in range(5):
            logger.warning("step %d loss 2.0", step)
        try:
            {}["mask"]
        except KeyError:
            logger.exception("it died")
    assert running.client.post("/v1/jobs/traced/attempts/1/end", json={"exit_code": 1}).status_code == 202
    assert verdict(running, "traced")["verdict"]["reason"] == "Key Error"
    assert b"KeyError: 'mask'" in kept(running, "traced", "gpu-2")
