"""Notifications of a real process: its figures, and that a kill loses no message and sends none twice as another."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import pytest

from tests import waiting
from tests.notify.receivers import SECRET, Got, Receiver, receiving
from tests.web.conftest import Running
from tests.web.test_notifications import fail, samples

Runs = Callable[..., AbstractContextManager[Running]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_figures_of_a_running_service(runs: Runs, receiver: Receiver) -> None:
    hook, secrets = f"ops={receiver.url}/hook", f"ops={SECRET}"
    told = {"LOGDOCTOR_NOTIFY_WEBHOOKS": hook, "LOGDOCTOR_NOTIFY_WEBHOOK_SECRETS": secrets}
    with runs(**told, LOGDOCTOR_NOTIFY_SETTLE_SECONDS="0") as running:
        running.start()

        def figures() -> dict[tuple[str, ...], float]:
            return samples(running.client.get("/metrics").text)

        delivered = ("notification_tries_total", "ops", "delivered")
        failed = ("notification_tries_total", "ops", "failed")
        queued, dead = ("notifications", "ops", "waiting"), ("notifications", "ops", "dead")
        lag = ("notification_lag_seconds", "ops")
        held = ("notifications", "ops", "held")
        assert figures() == dict.fromkeys((delivered, failed, queued, held, dead, lag), 0.0)
        fail(running.client, "a")  # type: ignore[arg-type]
        waiting.until(lambda: figures()[delivered] == 1)
        receiver.always(400)
        fail_otherwise(running.client, "b")
        waiting.until(lambda: figures()[dead] == 1)
        assert figures()[failed] == 1 and figures()[queued] == 0
        receiver.always(503)
        fail_otherwise(running.client, "c")
        waiting.until(lambda: figures()[failed] >= 2 and figures()[lag] > 0)
        assert figures()[queued] == 1 and figures()[delivered] == 1
        assert running.stop() == 0


def fail_otherwise(client: httpx.Client, job: str) -> None:
    """A failure of which nothing is known: such ones of two jobs are two incidents."""
    log = f"/v1/jobs/{job}/attempts/1/streams/main/log"
    client.post(log, params={"offset": 0}, content=f"RuntimeError: {job} is broken\n".encode())
    client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1})


def test_a_process_that_is_killed_before_it_marks_a_message_sends_it_again(runs: Runs, receiver: Receiver) -> None:
    """The receiver has it, and the process dies before it can know."""
    hook, secrets = f"ops={receiver.url}/hook", f"ops={SECRET}"
    told = {"LOGDOCTOR_NOTIFY_WEBHOOKS": hook, "LOGDOCTOR_NOTIFY_WEBHOOK_SECRETS": secrets}
    with runs(**told, LOGDOCTOR_NOTIFY_SECONDS="1", LOGDOCTOR_NOTIFY_SETTLE_SECONDS="0") as running:

        def kills(got: Got, number: int) -> tuple[int, dict[str, str], bytes]:
            if number == 1:
                running.kill()
            return 204, {}, b""

        receiver.answers = kills
        running.start()
        fail(running.client)  # type: ignore[arg-type]
        waiting.until(lambda: running.process is not None and running.process.poll() is not None)
        running.start()
        waiting.until(lambda: running.client.get("/v1/notifications", params={"state": "delivered"}).json()["items"])
        assert running.stop() == 0
    assert len(receiver.got) == 2 and len({one.id for one in receiver.got}) == 1


def test_a_killed_process_loses_no_message(runs: Runs, receiver: Receiver) -> None:
    """As a loss of power would end it, while a message is on its way and another one waits."""
    receiver.answers = lambda got, number: "hang"
    hook, secrets = f"ops={receiver.url}/hook", f"ops={SECRET}"
    told = {"LOGDOCTOR_NOTIFY_WEBHOOKS": hook, "LOGDOCTOR_NOTIFY_WEBHOOK_SECRETS": secrets}
    with runs(**told, LOGDOCTOR_NOTIFY_SECONDS="1", LOGDOCTOR_NOTIFY_SETTLE_SECONDS="0") as running:
        running.start()
        fail(running.client)  # type: ignore[arg-type]
        waiting.until(lambda: len(receiver.got) == 1)
        running.kill()
        receiver.always(204)
        running.start()
        delivered = {"state": "delivered"}
        waiting.until(lambda: running.client.get("/v1/notifications", params=delivered).json()["items"])
        assert SECRET not in running.messages() and "/hook" not in running.messages()
        assert running.stop() == 0
    assert len({one.id for one in receiver.got}) == 1 and all(one.is_signed() for one in receiver.got)
