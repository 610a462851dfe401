"""`logdoctor doctor`, `backup` and `restore` from the command line, over the data folder of a service."""

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logdoctor.cli import cli
from logdoctor.errors import LogdoctorError
from logdoctor.rules.scanner import Scanner
from logdoctor.store.names import Key
from tests import waiting
from tests.service.services import send, serving

KEY = Key("job", 1, "main")
LOG = b"step 1\nRuntimeError: CUDA error: an illegal memory access was encountered\n" * 40

Run = Callable[..., Result]


@pytest.fixture
def data(tmp_path: Path, scanner: Scanner) -> Path:
    """The data folder of a service that was stopped."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    with serving(folder, scanner) as service:
        send(service, KEY, LOG)
    return folder


@pytest.fixture
def run(data: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setenv("LOGDOCTOR_DATA_DIR", str(data))
    monkeypatch.setenv("LOGDOCTOR_MIN_FREE_BYTES", "0")

    def invoke(*args: object, **settings: str) -> Result:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(f"LOGDOCTOR_{name}", value)
            return CliRunner().invoke(cli, [str(arg) for arg in args])

    yield invoke


def states(result: Result) -> dict[str, str]:
    """Each check that is not ok, and what was found."""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(set(line) == {"name", "state", "found", "next_step"} for line in lines)
    return {line["name"]: line["found"] for line in lines if line["state"] != "ok"}


def test_a_file_of_cordons_without_a_list_of_nodes_is_told(run: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "cordons")
    assert "has no file" in states(run("doctor", "--json", CORDON_WITH="file"))["cordons"]
    found = states(run("doctor", "--json", CORDON_WITH="file", CORDON_FILE=file))
    assert found["cordons"].startswith("LOGDOCTOR_FLEET is not set")
    assert states(run("doctor", "--json", CORDON_WITH="file", CORDON_FILE=file, FLEET="gpu-[1-9]")) == {}


def test_all_is_well(run: Run) -> None:
    found = run("doctor", "--deep")
    assert found.exit_code == 0, found.output
    names = re.findall(r"^ok +([a-z ]+):", found.output, re.M)
    assert names == [
        *("settings", "versions", "extras", "data folder", "rules", "database", "archive", "clock", "identity"),
        *("log", "log size", "objects", "streams", "newer objects", "orphans"),
    ]
    assert states(run("doctor", "--json")) == {}


def test_a_service_may_run_meanwhile_but_nothing_is_repaired(run: Run, data: Path, scanner: Scanner) -> None:
    with serving(data, scanner):
        assert run("doctor").exit_code == 0
        refused = run("doctor", "--repair")
        assert refused.exit_code == 2 and "another service is using this data folder" in refused.stderr


def test_every_wrong_setting_is_named(run: Run) -> None:
    found = run("doctor", "--json", NONE_SUCH="1", PORT="many", SCAN_SECONDS="-1")
    assert found.exit_code == 1
    settings = [line for line in found.stdout.splitlines() if '"settings"' in line]
    for name, line in zip(("NONE_SUCH", "PORT", "SCAN_SECONDS"), settings, strict=True):
        assert f"LOGDOCTOR_{name}" in line and "docs/settings.md" in line
    assert run("doctor", "--repair", PORT="many").exit_code == 2


def test_a_folder_that_is_full_or_open_to_others(run: Run, data: Path) -> None:
    full = run("doctor", "--json", MIN_FREE_BYTES=str(1 << 60))
    assert full.exit_code == 1 and "new bytes are refused" in states(full)["data folder"]
    data.chmod(0o755)
    found = run("doctor", "--json")
    assert found.exit_code == 0 and "open to others" in states(found)["data folder"]


def test_nothing_is_created_for_a_look(run: Run, tmp_path: Path) -> None:
    found = run("doctor", "--json", "--data-dir", tmp_path / "none")
    assert found.exit_code == 1 and "does not exist" in states(found)["data folder"]
    assert "--data-dir" in found.stdout and not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir(0o700)
    empty = run("doctor", "--json", "--data-dir", tmp_path / "empty")
    assert empty.exit_code == 1 and states(empty)["database"].endswith("logdoctor.db does not exist"), "a sentence"


def test_rules_that_are_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    found = run("doctor", "--json", RULES=str(tmp_path / "rules"))
    assert found.exit_code == 1 and set(states(found)) == {"rules"}


@pytest.mark.parametrize(("status", "state"), [(200, ""), (401, "answers 401"), (0, "does not answer")])
def test_a_model(run: Run, status: int, state: str) -> None:
    asked = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port if status else 1}/v1"
        found = run("doctor", "--json", LLM_BASE_URL=url, LLM_MODEL="m", LLM_KEY="a-key")
        server.shutdown()
    assert state in states(found).get("model", "") and ("model" in states(found)) == bool(state)
    assert found.exit_code == (0 if status else 1)
    assert asked == ([("/v1/models", "Bearer a-key")] if status else [])
    assert "a-key" not in found.output


def test_a_lost_database_is_refused_and_filled_from_the_archive(run: Run, data: Path, scanner: Scanner) -> None:
    (data / "logdoctor.db").unlink()
    with pytest.raises(LogdoctorError, match="another database"), serving(data, scanner):
        pass
    found = run("doctor", "--json")
    assert found.exit_code == 1 and {"identity", "newer objects"} <= set(states(found))
    dry = run("doctor", "--repair", "--dry-run")
    assert "dry run: job/1: list the object job/1/" in dry.output and dry.exit_code == 1
    repaired = run("doctor", "--repair")
    assert "list the object job/1/" in repaired.output
    assert "let the archive and this database belong to each other" in repaired.output
    assert repaired.exit_code == 0 or "orphans" in repaired.output
    with serving(data, scanner) as service:
        assert b"".join(service.logs.view(KEY).chunks()) == LOG
        send(service, KEY, b"and more\n")
        waiting.until(lambda: service.logs.standing(KEY).next == len(LOG) + 9)


def test_what_was_backed_up_is_restored_and_served(run: Run, data: Path, scanner: Scanner, tmp_path: Path) -> None:
    with serving(data, scanner) as service:
        send(service, KEY, b"and more\n")
        made = run("backup", tmp_path / "backup")
    assert made.exit_code == 0, made.output
    assert "the database and" in made.output
    shutil.rmtree(data)
    restored = run("restore", tmp_path / "backup")
    assert restored.exit_code == 0, restored.output
    assert re.search(r"^ok +objects", restored.output, re.M)
    with serving(data, scanner) as service:
        assert b"".join(service.logs.view(KEY).chunks()) == LOG + b"and more\n"
    again = run("restore", tmp_path / "backup")
    assert isinstance(again.exception, LogdoctorError) and "is not empty" in str(again.exception)
    assert data.exists()


def test_nothing_is_backed_up_where_nothing_is(run: Run, tmp_path: Path) -> None:
    found = run("backup", tmp_path / "backup", "--data-dir", tmp_path / "none")
    assert isinstance(found.exception, LogdoctorError) and "holds no records" in str(found.exception)
    elsewhere = run("restore", tmp_path, "--data-dir", tmp_path / "new", DATABASE_URL="sqlite:////nowhere.db")
    assert "LOGDOCTOR_DATABASE_URL" in str(elsewhere.exception)


def test_a_dry_run_needs_a_repair(run: Run) -> None:
    assert run("doctor", "--dry-run").exit_code == 2
