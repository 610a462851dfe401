"""`logdoctor notify`, as a person types it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from logdoctor.cli import cli
from tests.notify.receivers import SECRET, Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def folder(tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOGDOCTOR_NOTIFY_WEBHOOKS", f"ops={receiver.url}/secret-path-of-ops")
    monkeypatch.setenv("LOGDOCTOR_NOTIFY_WEBHOOK_SECRETS", f"ops={SECRET}")
    monkeypatch.setenv("LOGDOCTOR_NOTIFY_SLACK", f"chat={receiver.url}/services/secret-of-chat")
    return tmp_path / "data"


def run(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["notify", *arguments, "--data-dir", str(folder)])


def test_a_test_of_all_targets(folder: Path, receiver: Receiver) -> None:
    found = run(folder, "test", "--by", "u1")
    assert found.exit_code == 0 and found.output.count("delivered") == 2
    assert {one.path for one in receiver.got} == {"/secret-path-of-ops", "/services/secret-of-chat"}
    listed = run(folder, "list", "--json").output.splitlines()
    assert [(json.loads(line)["target"], json.loads(line)["by"]) for line in listed] == [("chat", "u1"), ("ops", "u1")]
    assert "secret" not in found.output + "".join(listed)


def test_one_that_does_not_arrive(folder: Path, receiver: Receiver) -> None:
    receiver.always(404, body=b"no_service \x1b[31m")
    found = run(folder, "test", "chat")
    assert found.exit_code == 1 and "404: no_service" in found.output and "\x1b" not in found.output
    assert run(folder, "retry", "1").exit_code != 0, "a test is not sent again"
    assert run(folder, "retry", "99").exit_code != 0
    assert "dead" in run(folder, "list", "--state", "dead").output
    assert run(folder, "list", "--state", "waiting").output == "no messages\n"


def test_what_is_not_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ops, chat" in str(run(folder, "test", "nobody").exception)
    for name in ("WEBHOOKS", "WEBHOOK_SECRETS", "SLACK"):
        monkeypatch.delenv(f"LOGDOCTOR_NOTIFY_{name}")
    found = run(folder, "test")
    assert found.exit_code == 2 and "No target is set" in found.output
    assert run(folder.parent / "none", "list").exit_code != 0


def test_a_new_secret() -> None:
    first, second = (CliRunner().invoke(cli, ["notify", "secret"]).output.strip() for _ in range(2))
    assert first.startswith("whsec_") and first != second
