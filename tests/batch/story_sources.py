"""What is found in a bucket, and what it is taken for."""

import io

import pytest

from logdoctor.errors import StoreDamaged
from logdoctor.pipeline.batch.sources import Source, Walk
from logdoctor.store.log.bucket import Bucket
from logdoctor.wiring.batch import fetch
from tests.batch.test_sources import KNOWN, assert_only_known_are_found
from tests.store.buckets import Proxy, proxy, server

__all__ = ["proxy", "server"]  # fixtures


def test_objects_below_a_url_are_sources(proxy: Proxy) -> None:
    bucket = Bucket("s3://logs/sources")
    for name in ("a/one.log", "a/two.log", "a/b.json", "job/rank0.log", "job/rank1.log", "x.tar"):
        bucket.put(name, b"bytes")
    some = Walk("", Bucket)
    found = list(some.sources(["s3://logs/sources/"]))
    assert sorted(one.name for one in found) == [
        f"s3://logs/sources/{name}" for name in ("a/one.log", "a/two.log", "job", "x.tar")
    ]
    (job,) = [one for one in found if one.name.endswith("job")]
    assert isinstance(job, Source) and [file.stream for file in job.files] == ["rank0.log", "rank1.log"]
    assert (some.logs, some.jobs, some.skipped) == (2, 1, 1)
    (one,) = Walk("", Bucket).sources(["s3://logs/sources/a/one.log"])
    assert isinstance(one, Source) and one.files[0].size == 5
    later = [one for one in Walk("", Bucket).sources(["s3://logs/sources"]) if one.name.endswith("a/one.log")]
    assert [one] == later, "the same object by its name and by its prefix"
    (none,) = Walk("", Bucket).sources(["s3://logs/nothing"])
    assert isinstance(none, Source) and "no prefix of objects" in str(none.error)
    (strange,) = Walk("", Bucket).sources(["ftp://x/y"])
    assert isinstance(strange, Source) and strange.error is not None


def test_a_prefix_is_one_folder_whatever_lies_below_it(proxy: Proxy) -> None:
    bucket = Bucket("s3://logs/whole")
    for name in ("run/rank0.log", "run/rank0/trace.txt", "run/rank1.log", "run-2/a.log"):
        bucket.put(name, b"bytes")
    found = [one for one in Walk("", Bucket).sources(["s3://logs/whole"]) if isinstance(one, Source)]
    assert {one.name: len(one.files) for one in found} == {
        "s3://logs/whole/run": 2,
        "s3://logs/whole/run/rank0/trace.txt": 1,
        "s3://logs/whole/run-2/a.log": 1,
    }


def test_names_of_objects_are_taken_as_they_are(proxy: Proxy) -> None:
    bucket = Bucket("s3://logs")
    strange = ("strange/a%41#x?y/1.log", "strange/a%41#x?y/2 .log", "strange/aA")
    for name in strange:
        bucket.put(name, name.encode())
    for place in ("s3://logs/strange/a%41#x?y", "s3://logs/strange/a%41#x?y/1.log"):
        for one in Walk("each", Bucket).sources([place]):
            assert isinstance(one, Source) and one.name.removeprefix("s3://logs/") in strange
            file = io.BytesIO()
            fetch(one.files[0].place, file)
            assert f"s3://logs/{file.getvalue().decode()}" == one.name
    with pytest.raises(StoreDamaged, match="is missing"):
        fetch("s3://logs/strange/none.log", io.BytesIO())
    (one,) = Walk("each", Bucket).sources(["s3://logs/strange/../x"])
    assert isinstance(one, Source) and one.error is not None


def test_of_known_objects_no_others_are_found_and_none_that_is_gone(proxy: Proxy) -> None:
    for name in KNOWN:
        Bucket("s3://logs/known").put(name, b"bytes")
    assert_only_known_are_found("s3://logs/known")
    gone = "s3://logs/known/gone.log"
    assert list(Walk("jobs", Bucket, known={gone}).sources([gone])) == []
