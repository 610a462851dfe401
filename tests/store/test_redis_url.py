"""A URL of Redis that cannot be used is refused, without its password."""

import pytest

from logdoctor.errors import SettingsError
from logdoctor.store.redis_state import RedisState


def test_a_password_that_breaks_the_url_is_not_shown() -> None:
    with pytest.raises(SettingsError, match="%2F") as refused:
        RedisState("redis://:secret/word@127.0.0.1/0")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["localhost:6379", "http://127.0.0.1/", "redis://127.0.0.1:port/"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="LOGDOCTOR_REDIS_URL"):
        RedisState(url)
