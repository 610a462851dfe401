"""`logdoctor report` and `logdoctor notify` through a service."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logdoctor.store.jobs.records import Records
from tests import waiting
from tests.client.conftest import ENGINEER, Twins
from tests.notify.receivers import SECRET, Receiver, receiving
from tests.store.test_report import HOUR, KEY, MONDAY, ran
from tests.test_cli import Ran, assert_refused


def fill(folder: Path, *times: float) -> None:
    """Failures at some times; of three days without any."""
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    for job, at in zip("abc", times or (MONDAY, MONDAY + 86_399, MONDAY + 86_400), strict=False):
        ran(records, job, 1, at - HOUR, at, KEY)
    records.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def targets(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A webhook and a Slack, which the settings name."""
    monkeypatch.setenv("LOGDOCTOR_NOTIFY_WEBHOOKS", f"ops={receiver.url}/secret-path-of-ops")
    monkeypatch.setenv("LOGDOCTOR_NOTIFY_WEBHOOK_SECRETS", f"ops={SECRET}")
    monkeypatch.setenv("LOGDOCTOR_NOTIFY_SECONDS", "60")
    monkeypatch.setenv("LOGDOCTOR_NOTIFY_SLACK", f"chat={receiver.url}/services/secret-of-chat")


@pytest.fixture
def pair(twins: Callable[..., Twins], targets: None) -> Twins:
    return twins(lambda folder: Records(f"sqlite:///{folder / 'logdoctor.db'}").close())


def test_the_report_is_the_same(twins: Callable[..., Twins], monkeypatch: pytest.MonkeyPatch) -> None:
    pair = twins(fill)
    pair.same("report", "--csv")
    for options, count in (
        ([], 3),
        (["--since", "2026-11-23", "--until", "2026-11-23"], 2),
        (["--since", "2026-11-24"], 1),
        (["--until", "2026-11-22"], 0),
    ):
        pair.same("report", *options)
        assert json.loads(pair.same("report", "--json", *options).out)["total"]["count"] == count, options
    assert pair.same("report", "--until", "2026-11-22").out == "no failures\n"
    assert pair.same("report", "--since", "soon").code == pair.same("report", "--json", "--csv").code == 2
    monkeypatch.setenv("COLUMNS", "160")
    pair.same("report")
    assert_refused(pair.there("report", token=pair.secret("ingest")), "does not allow 'read'")


def test_the_service_sends_messages(pair: Twins, receiver: Receiver) -> None:
    found = pair.both("notify", "test")
    assert found.same().code == 0 and found.there.out.count("delivered") == 2
    assert {one.path for one in receiver.got} == {"/secret-path-of-ops", "/services/secret-of-chat"}
    assert pair.same("notify", "test", "ops").code == 0
    pair.same("notify", "list")
    listed = [json.loads(line) for line in pair.there("notify", "list", "--json").out.splitlines()]
    here = [json.loads(line) for line in pair.here("notify", "list", "--json").out.splitlines()]
    assert [one.keys() for one in listed] == [one.keys() for one in here]
    assert {one["by"] for one in listed} == {ENGINEER} and "secret" not in found.there.out + str(listed)
    pair.same("notify", "list", "--state", "dead")
    pair.same("notify", "list", "--target", "chat", "--limit", 1)


def test_a_message_is_sent_again_by_the_service(twins: Callable[..., Twins], targets: None, receiver: Receiver) -> None:
    receiver.always(400)
    pair = twins(lambda folder: fill(folder, time.time() - 60))  # nobody is told of failures of a day ago

    def given_up() -> list[int]:
        told = pair.there("notify", "list", "--state", "dead", "--target", "ops", "--json").out.splitlines()
        return [json.loads(line)["id"] for line in told]

    number = waiting.until(given_up)[0]
    ran = pair.there("notify", "retry", number)
    assert ran.code == 1 and "dead" in ran.out, ran.err
    receiver.always(200)
    ran = pair.there("notify", "retry", number)
    assert ran.code == 0 and "delivered" in ran.out, ran.err
    assert_refused(pair.there("notify", "retry", number), "is delivered")
    assert_refused(pair.there("notify", "retry", 999), "notification 999", "does not exist")


def test_what_cannot_be_sent(pair: Twins, receiver: Receiver) -> None:
    receiver.always(404, body=b"no_service \x1b[31m")
    found = pair.same("notify", "test", "chat")
    assert found.code == 1 and "404: no_service" in found.out and "\x1b" not in found.out
    for command in (["test", "nobody"], ["retry", "1"], ["retry", "99"]):
        told = pair.both("notify", *command)
        assert_refused(told.here)
        assert_refused(told.there)
    assert "ops, chat" in pair.here("notify", "test", "nobody").err
    assert "dead" in pair.same("notify", "list", "--state", "dead").out
    assert pair.same("notify", "list", "--state", "waiting").out == "no messages\n"
    reader = pair.secret("read")
    assert_refused(pair.there("notify", "test", "ops", token=reader), "does not allow 'operate'")
    bound = pair.secret("read", prefixes=("a",))
    assert_refused(pair.there("notify", "list", token=bound), "notifications tell of all jobs")


def test_without_a_target(twins: Callable[..., Twins]) -> None:
    found = twins(fill).both("notify", "test")
    assert found.same().code == 2 and "No target is set" in found.there.err


def test_a_new_secret(run: Callable[..., Ran]) -> None:
    first, second = (run("notify", "secret").out.strip() for _ in range(2))
    assert first.startswith("whsec_") and first != second
