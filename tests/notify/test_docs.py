"""What docs/notifications.md says is so."""

import json
import re
import time
from pathlib import Path

import pytest

from logdoctor.service.notify.messages import Opened, decode
from logdoctor.service.notify.signing import headers
from logdoctor.settings import Settings
from tests.notify.receivers import OTHER, SECRET

DOCUMENT = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCUMENT, re.S)
    assert found is not None
    return found[1]


def test_the_check_of_signatures_works() -> None:
    code: dict[str, object] = {}
    exec(block("python"), code)
    verify = code["verify"]
    assert callable(verify)
    body, now = b'{"type":"test"}', int(time.time())
    verify(SECRET, headers((SECRET,), "msg_1", now, body), body)
    verify(OTHER, headers((SECRET, OTHER), "msg_1", now, body), body)
    for secret, sent, got in ((OTHER, body, body), (SECRET, body, body + b" ")):
        with pytest.raises(ValueError, match="not ours"):
            verify(secret, headers((SECRET,), "msg_1", now, sent), got)
    with pytest.raises(ValueError, match="too old"):
        verify(SECRET, headers((SECRET,), "msg_1", now - 600, body), body)


def test_the_example_is_a_message() -> None:
    message = decode(block("json").encode())
    assert isinstance(message, Opened)
    assert set(json.loads(block("json"))["data"]) == set(message.data.__struct_fields__)


def test_the_defaults_are_those_of_the_settings() -> None:
    rows = re.findall(r"^\| `LOGDOCTOR_(NOTIFY_\w+)` \| `?([^|`]+)`? \|", DOCUMENT, re.M)
    assert len(rows) == 9
    for name, default in rows:
        value = getattr(Settings(), name.lower())
        shown = f"{value:g}" if isinstance(value, float) else str(value) or "none"
        assert default.strip() == shown, name
