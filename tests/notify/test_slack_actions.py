"""Requests that Slack signs: only those, only new ones, and only buttons of ours count."""

import json
from urllib.parse import urlencode

import pytest

from logdoctor.service.notify import messages, slack
from logdoctor.service.notify.slack_actions import Pressed, check_signature, pressed
from tests.notify.stories import AT, untold

# the example of Slack's documentation, "Verifying requests from Slack"
SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
TIME, SIGNATURE = "1531420618", "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"


def test_the_signature_is_that_of_slacks_example() -> None:
    check_signature(SECRET, TIME, SIGNATURE, BODY, 1531420618.0)
    check_signature(SECRET, TIME, SIGNATURE, BODY, 1531420618.0 + 299)


@pytest.mark.parametrize(
    ("secret", "time", "signature", "body", "now"),
    [
        ("other", TIME, SIGNATURE, BODY, 1531420618.0),
        (SECRET, "1531420619", SIGNATURE, BODY, 1531420618.0),
        (SECRET, TIME, SIGNATURE, BODY + b"x", 1531420618.0),
        (SECRET, TIME, SIGNATURE, BODY, 1531420618.0 + 301),
        (SECRET, TIME, SIGNATURE, BODY, 1531420618.0 - 301),
        (SECRET, TIME, "", BODY, 1531420618.0),
        (SECRET, TIME, "v0=", BODY, 1531420618.0),
        (SECRET, TIME, "v1=" + SIGNATURE[3:], BODY, 1531420618.0),
        (SECRET, TIME, "v0=\ud800é", BODY, 1531420618.0),
        (SECRET, "", SIGNATURE, BODY, 1531420618.0),
        (SECRET, "-1", SIGNATURE, BODY, 1531420618.0),
        (SECRET, "١٥٣", SIGNATURE, BODY, 1531420618.0),
        (SECRET, "9" * 400, SIGNATURE, BODY, 1531420618.0),
    ],
)
def test_any_other_request_is_refused(secret: str, time: str, signature: str, body: bytes, now: float) -> None:
    with pytest.raises(ValueError, match=r"signature|old|time"):
        check_signature(secret, time, signature, body, now)


def payload(**changes: object) -> bytes:
    """The body of an interaction."""
    told = {"type": "block_actions", "user": {"id": "U1", "username": "anna"}, **changes}
    return urlencode({"payload": json.dumps(told)}).encode()


def test_buttons_of_ours_are_read() -> None:
    acts = [{"action_id": "acknowledge", "value": "12"}, {"action_id": "assign", "value": "7"}]
    assert pressed(payload(actions=acts)) == [Pressed("acknowledge", 12, "anna"), Pressed("assign", 7, "anna")]


@pytest.mark.parametrize(
    "body",
    [
        payload(actions=[{"action_id": "open", "value": ""}]),
        payload(actions=[{"action_id": "acknowledge", "value": "1; DROP"}]),
        payload(actions=[{"action_id": "acknowledge", "value": "9" * 30}]),
        payload(actions=[{"action_id": "acknowledge", "value": "1"}], type="view_submission"),
        payload(actions=[{"action_id": "acknowledge", "value": "1"}], user={}),
        payload(),
    ],
)
def test_anything_else_that_slack_sends_does_nothing(body: bytes) -> None:
    assert pressed(body) == []


@pytest.mark.parametrize("body", [b"", b"payload=", b"payload=[]", b"\xff", b"a=1&" * 20, payload(actions="x")])
def test_what_is_no_interaction_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        pressed(body)


def test_a_name_is_made_harmless() -> None:
    acts = [{"action_id": "acknowledge", "value": "1"}]
    (one,) = pressed(payload(actions=acts, user={"username": " ops (admin)\u202e <b>\n" + "x" * 500}))
    assert one.who.startswith("ops admin bxxx") and len(one.who) <= 60


def test_messages_have_buttons_only_where_slack_answers() -> None:
    opened = messages.opened(untold(), "https://logdoctor.example", AT)
    gone = messages.resolved(opened, "anna", "", AT)
    assert gone is not None

    def buttons(message: messages.Message, answers: bool) -> list[tuple[str, str]]:
        blocks = slack.payload(message, answers)["blocks"]
        elements = [one for block in blocks if block["type"] == "actions" for one in block["elements"]]
        return [(one["action_id"], one.get("value", "")) for one in elements]

    assert buttons(opened, False) == buttons(gone, True) == [("open", "")]
    assert buttons(opened, True) == [("acknowledge", "12"), ("assign", "12"), ("open", "")]
    without = messages.opened(untold(), "", AT)
    assert buttons(without, True) == [("acknowledge", "12"), ("assign", "12")]
