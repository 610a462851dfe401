"""One POST: signed, bounded in time and bytes, and without a word about secrets."""

import logging
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from email.utils import formatdate
from types import SimpleNamespace

import pytest

from logdoctor.service.notify import messages, sending
from logdoctor.service.notify.sending import LONGEST_RETRY_AFTER, SendResult, Target, Way, judged, send, shown
from tests.notify.receivers import OTHER, SECRET, Receiver, receiving
from tests.notify.stories import AT, untold

BODY = messages.encode(messages.opened(untold(), "https://logdoctor.example", AT)).decode()
WAY = Way(600.0)
PATH = "/services/T0/B0/verysecretending9876"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def webhook(receiver: Receiver, *secrets: str) -> Target:
    return Target("ops", "webhook", f"{receiver.url}{PATH}?token=abc", secrets or (SECRET,))


def test_a_webhook_is_signed_and_its_body_as_it_was_stored(receiver: Receiver) -> None:
    assert send(webhook(receiver, SECRET, OTHER), "msg_1", BODY, WAY) == SendResult("taken", "204")
    (got,) = receiver.got
    assert got.is_signed(SECRET) and got.is_signed(OTHER)
    assert got.id == "msg_1" and got.body.decode() == BODY and got.path == f"{PATH}?token=abc"
    assert got.headers["content-type"] == "application/json" and got.headers["user-agent"] == "logdoctor"


def test_slack_gets_blocks(receiver: Receiver) -> None:
    receiver.always(200, body=b"ok")
    target = Target("ops", "slack", receiver.url + PATH)
    assert send(target, "msg_1", BODY, WAY).outcome == "taken"
    (got,) = receiver.got
    assert got.json["blocks"][0]["type"] == "header" and "webhook-signature" not in got.headers


MEANING = {
    "taken": (200, 202, 204),
    "later": (301, 307, 408, 425, 429, 500, 503, 599),
    "refused": (400, 401, 404, 413),
    "gone": (410,),
}


@pytest.mark.parametrize(
    ("status", "outcome"), [(status, outcome) for outcome, statuses in MEANING.items() for status in statuses]
)
def test_what_answers_mean(receiver: Receiver, status: int, outcome: str) -> None:
    receiver.always(status, {"Location": f"{receiver.url}/elsewhere"}, b"" if status == 204 else b"because")
    assert send(webhook(receiver), "msg_1", BODY, WAY).outcome == outcome
    assert len(receiver.got) == 1, "a redirect was followed"


@pytest.mark.parametrize("how", ["hang", "drip", "flood", "continue", "header", "reset", "rubbish"])
def test_a_receiver_that_misbehaves_is_left_in_time(receiver: Receiver, how: str) -> None:
    receiver.answers = lambda got, number: how
    never_ends = how in ("hang", "drip", "continue")
    answer = send(webhook(receiver), "msg_1", BODY, Way(1.0) if never_ends else WAY)
    assert answer.outcome == "later" and answer.why
    if how in ("hang", "drip"):
        assert answer.why == "no answer within 1 s"
    if how == "flood":
        assert answer.why == "500"


@pytest.mark.parametrize(("status", "outcome"), [(200, "taken"), (400, "refused"), (503, "later")])
def test_an_answer_of_ten_megabytes_is_not_read(receiver: Receiver, status: int, outcome: str) -> None:
    receiver.always(status, body=b"no_service " + b"x" * 10_000_000)
    tracemalloc.start()
    answer = send(webhook(receiver), "msg_1", BODY, WAY)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.outcome == outcome and len(answer.why) < 20
    assert most < 10_000_000 + 2_000_000, "the receiver has it in memory; we do not"


def test_no_redirect_leads_elsewhere(receiver: Receiver) -> None:
    with receiving() as elsewhere:
        for place in (f"{elsewhere.url}/x", "http://169.254.169.254/latest/meta-data", "//localhost/", "file:///etc"):
            for status in (301, 302, 303, 307, 308):
                receiver.always(status, {"Location": place})
                answer = send(webhook(receiver), "msg_1", BODY, WAY)
                assert answer.outcome == "later" and "redirect" in answer.why and "Location" not in answer.why
        assert elsewhere.got == []


def test_a_message_of_another_version_is_not_made_for_slack(receiver: Receiver) -> None:
    target = Target("ops", "slack", receiver.url + PATH)
    answer = send(target, "msg_1", "{}", WAY)
    assert answer.outcome == "refused" and "another version" in answer.why and receiver.got == []


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answer = send(Target("ops", "webhook", f"http://127.0.0.1:{port}/", (SECRET,)), "msg_1", BODY, WAY)
    assert answer == SendResult("later", "no connection")


def test_a_name_that_nobody_knows() -> None:
    answer = send(Target("ops", "webhook", "http://no-such-host.invalid/", (SECRET,)), "msg_1", BODY, WAY)
    assert answer.outcome == "later"


def test_it_is_broken_off(receiver: Receiver) -> None:
    stopping = threading.Event()
    receiver.answers = lambda got, number: stopping.set() or "hang"  # type: ignore[func-returns-value]
    assert send(webhook(receiver), "msg_1", BODY, Way(1e6), stopping) == SendResult("later", "logdoctor was stopped")


def test_a_receiver_may_say_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(sending, "time", SimpleNamespace(time=lambda: now))
    assert judged(429, "", "120").retry_after == 120.0
    assert judged(503, "", formatdate(now + 600, usegmt=True)).retry_after == 600.0
    assert judged(503, "", formatdate(now - 600, usegmt=True)).retry_after == 0.0
    assert judged(429, "", "99999999").retry_after == LONGEST_RETRY_AFTER
    a_year = formatdate(now + 365 * 86_400, usegmt=True)
    assert judged(429, "", a_year).retry_after == judged(503, "", "31536000").retry_after == LONGEST_RETRY_AFTER
    for nonsense in (None, "", "soon", "-5", "1e9", "٣", "Fri, 99 Foo 2026"):
        assert judged(429, "", nonsense).retry_after is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("bad {url} {secret} \x1b[31m password=hunter2secret", "400"),
        ("no_service for T0/B0/verysecretending9876", "400: no_service"),
        ('{{"error":"\\/services\\/T0\\/B0\\/verysecretending9876"}}', "400"),
        ('{{"ok":false,"error":"channel_is_archived"}}', "400: channel_is_archived"),
        ("token abc is wrong, so is MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "400"),
        ("verysecretending9876", "400"),
        ("invalid_payload", "400: invalid_payload"),
        ("no_service_id\n", "400: no_service_id"),
        ("x" * 10_000 + " invalid_payload", "400"),
    ],
)
def test_no_secret_is_told(receiver: Receiver, caplog: pytest.LogCaptureFixture, answer: str, why: str) -> None:
    target = webhook(receiver)
    receiver.always(400, body=answer.format(url=target.url, secret=SECRET).encode())
    with caplog.at_level(logging.DEBUG):
        assert send(target, "msg_1", BODY, WAY).why == why
    for secret in ("verysecret", SECRET, "hunter2", "\x1b"):
        assert secret not in caplog.text
    receiver.close()
    assert "verysecret" not in send(target, "msg_1", BODY, WAY).why


SLOW = """
import socket, threading
socket.getaddrinfo = lambda *args, **how: threading.Event().wait()
from logdoctor.service.notify.sending import Target, Way, send
print(send(Target("ops", "webhook", "http://nowhere.example/x"), "msg_1", "{}", Way(0.5)).why)
"""


def test_a_name_server_that_does_not_answer_holds_up_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True)
    assert done.returncode == 0 and "no answer within 0.5 s" in done.stdout, done.stderr


def test_a_proxy_is_used_when_one_is_set(receiver: Receiver) -> None:
    target = Target("ops", "webhook", "http://far.example/hook", (SECRET,))
    assert send(target, "msg_1", BODY, Way(600.0, receiver.url)).outcome == "taken"
    assert receiver.got[0].path == "http://far.example/hook" and receiver.got[0].is_signed()


def test_the_environment_has_no_say(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert send(webhook(receiver), "msg_1", BODY, WAY).outcome == "taken"


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("https://hooks.slack.com/services/T00/B00/abcdefghijkl", "https://hooks.slack.com/…ijkl"),
        ("https://u:p@in.example:8443/x?key=123456789012345", "https://in.example:8443/…2345"),
        ("https://in.example/short", "https://in.example/…"),
        ("http://[", "…"),
    ],
)
def test_as_much_of_a_url_as_people_may_see(url: str, wanted: str) -> None:
    assert shown(url) == wanted
