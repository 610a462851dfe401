"""Objects in a bucket: written once, read in parts, whatever becomes of the connection."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from logdoctor.errors import SettingsError, StoreError, StoreRefused
from logdoctor.store.log import bucket
from logdoctor.store.log.bucket import Bucket
from tests.store.buckets import Proxy, proxy, server

__all__ = ["proxy", "server"]
DATA = bytes(range(256)) * 400


@pytest.fixture
def objects(proxy: Proxy, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(f"s3://logs/{request.node.name}")


def test_objects_are_written_once_and_read_in_parts(objects: Bucket) -> None:
    objects.put("job/1/000001-1.zst", DATA)
    assert objects.get("job/1/000001-1.zst", 0, len(DATA)) == DATA
    assert objects.get("job/1/000001-1.zst", 1000, 1010) == DATA[1000:1010]
    assert objects.size("job/1/000001-1.zst") == len(DATA)
    objects.put("job/1/000001-1.zst", DATA)  # the same once more: a repetition
    with pytest.raises(StoreError, match="exists already"):
        objects.put("job/1/000001-1.zst", b"other")
    assert objects.get("job/1/000001-1.zst", 0, len(DATA)) == DATA


def test_what_is_missing_or_too_short_is_named(objects: Bucket) -> None:
    objects.put("short", b"0123456789")
    assert objects.size("none") is None
    objects.delete("none")
    with pytest.raises(StoreError, match="none is missing"):
        objects.get("none", 0, 10)
    with pytest.raises(StoreError, match="short"):
        objects.get("short", 5, 20)


def test_all_objects_below_a_prefix_are_listed(objects: Bucket) -> None:
    names = [f"job/{number}/{part:06}.zst" for number in (1, 2) for part in range(60)]
    for name in names:
        objects.put(name, b"x")
    assert sorted(facts.name for facts in objects.walk()) == names
    assert sorted(facts.name for facts in objects.walk("job/2/")) == names[60:]
    assert all(facts.bytes == 1 and abs(facts.at - time.time()) < 3600 for facts in objects.walk())
    objects.delete(names[0])
    assert len(list(objects.walk())) == len(names) - 1


@pytest.mark.parametrize("trouble", [["answer"], ["refuse"], ["refuse", "answer", "refuse"]])
def test_what_a_broken_connection_left_undone_can_be_done_again(proxy: Proxy, trouble: list[str]) -> None:
    """Also when the object was written and only the answer was lost."""
    url = f"s3://logs/broken-{'-'.join(trouble)}"
    for call in (lambda one: one.put("one", DATA), lambda one: one.get("one", 0, len(DATA))):
        proxy.trouble = list(trouble)
        found = again(lambda call=call: call(Bucket(url)))
        assert not proxy.trouble
    assert found == DATA


def again(call: Callable[[], Any]) -> Any:
    """What a call gives in the end, as whoever archives tries again."""
    for _ in range(6):
        try:
            return call()
        except StoreError as error:
            assert "s3://logs/broken" in str(error)
    raise AssertionError("it fails for good")


def test_a_slow_bucket_is_waited_for(proxy: Proxy, objects: Bucket) -> None:
    proxy.delay = 1.5
    objects.put("one", DATA)
    assert objects.get("one", 3, 9) == DATA[3:9]


def test_a_bucket_that_is_away_is_an_error_that_names_it(
    server: int, monkeypatch: pytest.MonkeyPatch, proxy: Proxy
) -> None:
    monkeypatch.setattr(bucket, "_TRIES", 1)
    objects = Bucket("s3://logs/away")
    proxy.close()
    calls = (lambda: objects.put("one", b"x"), lambda: objects.get("one", 0, 1), lambda: list(objects.walk()))
    for call in (*calls, lambda: objects.size("one"), lambda: objects.delete("one")):
        with pytest.raises(StoreError, match="s3://logs/away"):
            call()


def test_what_is_refused_is_told_from_what_fails(objects: Bucket, proxy: Proxy) -> None:
    objects.put("secret", b"x")
    proxy.refused = [b"/secret"]
    for call in (lambda: objects.size("secret"), lambda: objects.get("secret", 0, 1)):
        with pytest.raises(StoreRefused, match="secret: the bucket refuses"):
            call()
    with pytest.raises(StoreError) as missing:
        objects.get("none", 0, 1)
    assert not isinstance(missing.value, StoreRefused)


def test_a_url_of_no_bucket_is_refused() -> None:
    for url in ("ftp://logs/x", "s3://", "nonsense://a/b"):
        with pytest.raises((SettingsError, StoreError)):
            Bucket(url).put("one", b"x")
