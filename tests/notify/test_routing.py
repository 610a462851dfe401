"""The routing table: which target is told of which incident."""

import pytest

from logdoctor.errors import SettingsError
from logdoctor.service.notify.routing import Route, chosen, read_routes
from logdoctor.settings import Settings
from logdoctor.wiring.notices import terms

ALL = ["ops", "rl", "pager"]
TOLD = {
    "job": "rl-ppo-7",
    "user": "anna",
    "team": "rl",
    "kind": "rl/train-py",
    "category": "Script",
    "reason": "Key Error",
}


@pytest.mark.parametrize(
    ("routes", "names"),
    [
        ("", ALL),
        ("rl=job:rl-*", ALL),
        ("rl=job:llama-*", ["ops", "pager"]),
        ("rl=team:rl pager=category:Infrastructure", ["ops", "rl"]),
        ("rl=user:anna,category:Infrastructure rl=kind:rl/*", ALL),
        ("ops=user:ben rl=user:anna pager=user:ben", ["rl"]),
        ("ops=user:ben rl=user:carl pager=node:gpu-*", ALL),
        ("ops=reason:Key?Error rl=job:RL-* pager=user:ben", ["ops"]),
    ],
)
def test_a_target_with_routes_is_told_of_what_fits_one_of_them(routes: str, names: list[str]) -> None:
    assert chosen(read_routes(routes), ALL, TOLD) == names


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("rl", "part 1 is not in the form"),
        ("rl=", "part 1 is not in the form"),
        ("rl=job", "part 1 is not in the form"),
        ("rl=job:", "part 1 is not in the form"),
        ("=job:x", "part 1 is not in the form"),
        ("rl=job:x ops=colour:red", "part 2 asks for 'colour'"),
    ],
)
def test_a_route_that_cannot_be_read_is_refused(text: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        read_routes(text)
    with pytest.raises(SettingsError, match="LOGDOCTOR_NOTIFY_ROUTES"):
        terms(Settings(notify_routes=text))


def test_a_route_to_nobody_is_refused() -> None:
    slack = "ops=https://hooks.slack.example/services/T/B/x"
    with pytest.raises(SettingsError, match=r"'rl' is no target\. Known are: ops"):
        terms(Settings(notify_slack=slack, notify_routes="rl=job:x"))
    made = terms(Settings(notify_slack=slack, notify_routes="ops=job:x,user:y"))
    assert made.routes == (Route("ops", (("job", "x"), ("user", "y"))),)
