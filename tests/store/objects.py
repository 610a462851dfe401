"""What every place for objects promises; a test of one gives the fixture `objects`."""

import random
import time

import pytest

from logdoctor.errors import StoreError
from logdoctor.store.log.objects import Objects
from tests.at_once import at_once


class ObjectsContract:
    """Tests for any place for objects."""

    def test_what_was_put_comes_back_in_any_part(self, objects: Objects) -> None:
        data = random.Random(1).randbytes(5000)
        objects.put("job/1/a.zst", data)
        for begin, end in ((0, 5000), (0, 1), (4999, 5000), (17, 3000)):
            assert objects.get("job/1/a.zst", begin, end) == data[begin:end]
        assert objects.size("job/1/a.zst") == 5000

    def test_nobody_writes_over_an_object(self, objects: Objects) -> None:
        objects.put("job/1/a.zst", b"first")
        for other in (b"other", b"first and more", b"fir"):
            with pytest.raises(StoreError, match="exists already"):
                objects.put("job/1/a.zst", other)
        assert objects.get("job/1/a.zst", 0, 5) == b"first"

    def test_of_many_who_write_one_object_at_once_one_succeeds(self, objects: Objects) -> None:
        def write(number: int) -> bool:
            try:
                objects.put("job/1/a.zst", b"%d" % number * 1000)
            except StoreError:
                return False
            return True

        (number,) = (number for number, won in enumerate(at_once(write, range(6))) if won)
        assert objects.get("job/1/a.zst", 0, 1000) == b"%d" % number * 1000

    def test_one_that_is_missing_or_short_is_an_error(self, objects: Objects) -> None:
        assert objects.size("job/1/a.zst") is None
        with pytest.raises(StoreError, match="missing"):
            objects.get("job/1/a.zst", 0, 1)
        objects.put("job/1/a.zst", b"12345")
        with pytest.raises(StoreError, match=r"job/1/a\.zst"):
            objects.get("job/1/a.zst", 2, 9)

    def test_what_is_deleted_is_gone_and_may_be_deleted_again(self, objects: Objects) -> None:
        objects.put("job/1/a.zst", b"x")
        objects.put("job/2/a.zst", b"y")
        for _ in range(2):
            objects.delete("job/1/a.zst")
        assert objects.size("job/1/a.zst") is None
        assert [facts.name for facts in objects.walk()] == ["job/2/a.zst"]

    def test_all_are_found_or_those_below_a_prefix(self, objects: Objects) -> None:
        assert list(objects.walk()) == []
        names = {f"job%20{job}/{attempt}/{n:06}-1.zst" for job in "ab" for attempt in (1, 11) for n in range(3)}
        for name in names:
            objects.put(name, b"bytes")
        found = list(objects.walk())
        assert {facts.name for facts in found} == names and {facts.bytes for facts in found} == {5}
        assert all(abs(facts.at - time.time()) < 3600 for facts in found)
        below = {facts.name for facts in objects.walk("job%20a/1/")}
        assert below == {name for name in names if name.startswith("job%20a/1/")}
        assert list(objects.walk("job%20c/")) == []
