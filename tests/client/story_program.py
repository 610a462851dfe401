"""The real program, asking a real `logdoctor serve`, with tokens."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import waiting
from tests.test_cli import program
from tests.web.conftest import FAILED, running_in


def test_who_is_on_call_has_a_url_and_a_token(tmp_path: Path) -> None:
    with running_in(tmp_path / "data", LOGDOCTOR_AUTH="on") as running:
        admin = running.start_with_token()
        secret = running.command("tokens", "create", "oncall", "--scope", "read", "--scope", "operate").strip()
        place = {"LOGDOCTOR_URL": running.url, "LOGDOCTOR_TOKEN": secret, "LOGDOCTOR_DATA_DIR": "/nowhere"}
        log = "/v1/jobs/llama/attempts/1/streams/main/log"
        running.client.post(log, params={"offset": 0}, content=FAILED, headers=admin)
        running.client.post("/v1/jobs/llama/attempts/1/end", json={"exit_code": 1}, headers=admin)
        listed = waiting.until(lambda: program("incidents", "list", "--json", **place).out)
        assert json.loads(listed)["newest"]["job"] == "llama"
        resolved = program("incidents", "resolve", 1, "--note", "fixed", **place)
        assert (resolved.code, resolved.out) == (0, "incident 1: resolved\n"), resolved.err
        assert "by oncall: fixed" in program("incidents", "show", 1, **place).out
        running.stop()
        away = program("incidents", "list", **place)
        assert away.code == 2 and "cannot be reached" in away.err and secret not in away.err


def test_a_terminal_that_is_killed_ends_no_test(tmp_path: Path) -> None:
    with running_in(
        tmp_path / "data", LOGDOCTOR_AUTH="on", LOGDOCTOR_LAUNCHER="local", LOGDOCTOR_LOCAL_NODES="2"
    ) as running:
        secret = running.start_with_token()["Authorization"].split()[1]
        place = {"LOGDOCTOR_URL": running.url, "LOGDOCTOR_TOKEN": secret, "LOGDOCTOR_DATA_DIR": "/nowhere"}
        command = [sys.executable, "-m", "logdoctor.cli", "nodes", "test"]
        terminal = subprocess.Popen(command, env={**os.environ, **place}, stderr=subprocess.PIPE)
        try:
            assert terminal.stderr is not None and terminal.stderr.readline().startswith(
                b"test 1: 2 nodes through local"
            )
        finally:
            terminal.kill()
            terminal.wait()

        def ended() -> bool:
            told = json.loads(program("nodes", "show-test", 1, "--json", **place).out)
            return bool(told["test"]["state"] == "finished")

        waiting.until(ended)
