"""Settings become targets, or an error that names the setting and shows no secret."""

from pathlib import Path
from typing import Any

import pytest

from logdoctor.errors import SettingsError
from logdoctor.service.notify.sending import Target
from logdoctor.settings import Settings
from logdoctor.wiring import notices, running
from logdoctor.wiring.notices import targets, terms
from tests.notify.receivers import OTHER, SECRET

HOOK = "https://pager.example/hook?key=a=b,c"


def test_targets_of_settings() -> None:
    found = targets(
        Settings(
            notify_webhooks=f"pager={HOOK}  own=http://127.0.0.1:8081/x",
            notify_webhook_secrets=f"pager={SECRET} own={OTHER} pager={OTHER}",
            notify_slack="ops=https://hooks.slack.com/services/T/B/X",
        )
    )
    assert found == [
        Target("pager", "webhook", HOOK, (SECRET, OTHER)),
        Target("own", "webhook", "http://127.0.0.1:8081/x", (OTHER,)),
        Target("ops", "slack", "https://hooks.slack.com/services/T/B/X"),
    ]
    assert targets(Settings()) == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"notify_webhooks": f"pager={HOOK}"}, "no secret for the webhook pager"),
        ({"notify_webhooks": f"pager={HOOK}", "notify_webhook_secrets": "pager=hunter2"}, "that of pager"),
        ({"notify_slack": "https://hooks.slack.com/services/T/B/hunter2"}, "part 1 is not in the form NAME=VALUE"),
        ({"notify_slack": "ops= x=hunter2"}, "part 1 is not in the form NAME=VALUE"),
        ({"notify_slack": "ops=ftp://hunter2.example"}, "not an HTTP URL"),
        ({"notify_slack": "ops=https://"}, "not an HTTP URL"),
        ({"notify_slack": "ops=https://[hunter2"}, "not an HTTP URL"),
        ({"notify_slack": "ops=https://a.example:99999/hunter2"}, "not an HTTP URL"),
        ({"notify_slack": "ops=https://a.example/ä/hunter2"}, "not an HTTP URL"),
        ({"notify_slack": "ops=https://a.example/hunter2 ops=https://b.example"}, "ops is used for two targets"),
        ({"notify_slack": " ".join(f"n{n}=https://a.example/hunter2" for n in range(21))}, "more than 20"),
    ],
)
def test_what_cannot_be_a_target_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match="NOTIFY_") as caught:
        targets(Settings(**given))
    assert named in str(caught.value) and "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"notify_quiet": "22-07"},
        {"notify_quiet": "22:00-22:00"},
        {"notify_timezone": "Mars/Olympus"},
        {"notify_quiet_except": "restart,panic"},
        {"public_url": "logdoctor.example"},
        {"public_url": "https://u:p@logdoctor.example"},
        {"public_url": "https://logdoctor.example/?x=1"},
        {"public_url": "https://logdoctor.example/" + "x" * 300},
    ],
)
def test_what_cannot_be_terms_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        terms(Settings(**given))
    assert next(iter(given)).upper() in str(caught.value)


def test_terms_of_settings(tmp_path: Path) -> None:
    found = terms(Settings(public_url="https://logdoctor.example/", notify_quiet="22:00-07:00", notify_resolved="off"))
    assert found.public_url == "https://logdoctor.example" and found.quiet is not None and not found.resolved
    assert found.quiet_except == {"isolate_and_restart", "ask_human"}
    assert notices.notifier(Settings(data_dir=tmp_path)).targets() == []
    with pytest.raises(SettingsError, match="NOTIFY_PROXY"):
        notices.notifier(Settings(data_dir=tmp_path, notify_proxy="proxy:3128"))


def test_how_long_messages_are_kept(tmp_path: Path) -> None:
    assert running.plan(Settings(data_dir=tmp_path)).retention.notices == 90 * 86_400
    assert running.plan(Settings(data_dir=tmp_path, notify_retention_days=0)).retention.notices == 0
