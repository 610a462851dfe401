"""Buttons pressed in Slack: the requests that Slack signs, and what they ask for.

The signature follows Slack's "Verifying requests from Slack": HMAC-SHA256 with the signing secret of the app over
`v0:TIMESTAMP:BODY`.
"""

import hashlib
import hmac
from typing import Literal, NamedTuple
from urllib.parse import parse_qs

import msgspec

WINDOW = 300.0
"""Seconds by which the time of a request may differ from ours; an older one may be a replay."""
ACKNOWLEDGE, ASSIGN = "acknowledge", "assign"
"""Action ids of our buttons."""
_MAX_NAME = 60
_MAX_ID = 18  # digits


class Pressed(NamedTuple):
    """A button press: its action, its incident, and who pressed it, as Slack reports."""

    action: Literal["acknowledge", "assign"]
    incident: int
    who: str


class _User(msgspec.Struct):
    username: str = ""
    name: str = ""
    id: str = ""


class _Action(msgspec.Struct):
    action_id: str = ""
    value: str = ""


class _Payload(msgspec.Struct):
    type: str = ""
    user: _User = msgspec.field(default_factory=_User)
    actions: list[_Action] = []


def check_signature(secret: str, timestamp: str, signature: str, body: bytes, now: float) -> None:
    """Raise `ValueError`, with the cause, unless Slack signed this body close to `now` (epoch seconds)."""
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 12):
        raise ValueError("it has no time")
    if abs(now - int(timestamp)) > WINDOW:
        raise ValueError("it is too old, or the clock of this machine is wrong")
    content = b"v0:" + timestamp.encode() + b":" + body
    wanted = "v0=" + hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "replace")):
        raise ValueError("its signature is not that of this app")


def pressed(body: bytes) -> list[Pressed]:
    """Return our buttons that were pressed; [] for other events, such as an opened link. `ValueError` for a body that
    is no interaction."""
    fields = parse_qs(body.decode("ascii"), max_num_fields=10)
    try:
        told = msgspec.json.decode(fields.get("payload", [""])[0], type=_Payload)
    except (msgspec.MsgspecError, RecursionError):
        raise ValueError("it is no interaction") from None
    who = _plain(told.user.username or told.user.name or told.user.id)
    found = []
    for one in told.actions if told.type == "block_actions" and who else ():
        is_number = one.value.isascii() and one.value.isdecimal() and len(one.value) <= _MAX_ID
        if is_number and one.action_id == ACKNOWLEDGE:
            found.append(Pressed("acknowledge", int(one.value), who))
        elif is_number and one.action_id == ASSIGN:
            found.append(Pressed("assign", int(one.value), who))
    return found


def _plain(name: str) -> str:
    """Return a name without characters that could pass for our own markup."""
    shown = "".join(char for char in name[: 4 * _MAX_NAME] if char.isprintable() and char not in "()<>")
    return " ".join(shown.split())[:_MAX_NAME]
