"""What becomes of a log that cannot be diagnosed: a row, or the end of a run that can go on."""

import errno
from pathlib import Path
from typing import IO

import pytest

from logdoctor.errors import InputError, ServiceAway, ServiceError, StoreDamaged, StoreError, StoreRefused
from logdoctor.pipeline.batch.judging import Refused
from logdoctor.pipeline.batch.rows import Row
from logdoctor.pipeline.batch.shards import Shard
from logdoctor.pipeline.batch.sources import Source, SourceFile
from logdoctor.settings import read_settings
from logdoctor.wiring.batch import judge

ASKED = Shard((Source("s3://b/a.log", (SourceFile("main", "s3://b/a.log", 4, ""),)),), 4)


def judged(error: Exception) -> list[Row]:
    def fetch(url: str, file: IO[bytes]) -> None:
        raise error

    made = judge(read_settings(), fetch=fetch)(ASKED)
    assert isinstance(made, list)
    return made


@pytest.mark.parametrize(
    "error",
    [
        StoreError("the bucket", "fails", "Wait."),
        ServiceAway("the service", "does not answer", "Wait."),
        ServiceError("the service", "does not accept the token", "Make one."),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
)
def test_what_may_pass_ends_the_run(error: Exception) -> None:
    with pytest.raises(StoreError, match="give the same command again"):
        judged(error)


@pytest.mark.parametrize(
    "error",
    [
        StoreDamaged("a.log", "is missing", "Look."),
        InputError("a.log", "is damaged", "Look."),
        OSError(errno.EIO, "Input/output error"),
        ValueError("x"),
    ],
)
def test_what_is_wrong_with_one_log_is_a_row(error: Exception) -> None:
    (row,) = judged(error)
    assert row.error is not None and str(error).split(" ")[0] in row.error


class Store:
    """A bucket that refuses some logs, and all once it has given so many."""

    def __init__(self, gives: int = 100) -> None:
        self.gives = gives

    def fetch(self, url: str, file: IO[bytes]) -> None:
        if "secret" in url or self.gives == 0:
            raise StoreRefused(url, "the bucket refuses (403)", "Check the bucket.")
        self.gives -= 1
        file.write(b"hello\n")


def shard(*names: str, given: tuple[str, ...] = ()) -> Shard:
    places = [f"s3://b/{name}" for name in names]
    return Shard(tuple(Source(place, (SourceFile("main", place, 6, ""),)) for place in places), 1, given=given)


def test_a_log_that_is_refused_alone_is_a_row() -> None:
    made = judge(read_settings(), fetch=Store().fetch)(shard("a.log", "secret.log", "b.log"))
    assert isinstance(made, list)
    assert [row.error for row in made] == [None, "s3://b/secret.log: the bucket refuses (403). Check the bucket.", None]
    made = judge(read_settings(), fetch=Store().fetch)(shard("secret.log", given=("s3://b/a.log",)))
    assert isinstance(made, list) and "the bucket refuses" in (made[0].error or "")


def test_a_bucket_that_refuses_all_ends_the_run() -> None:
    for gives in (1, 0):
        with pytest.raises(StoreError, match="give the same command again"):
            judge(read_settings(), fetch=Store(gives).fetch)(
                shard("a.log", "b.log", given=() if gives else ("s3://b/x",))
            )


def test_nobody_knows_what_is_refused_before_anything_is_given() -> None:
    for given in ((), ("s3://other/a.log",)):
        made = judge(read_settings(), fetch=Store().fetch)(shard("secret.log", "a.log", given=given))
        assert isinstance(made, Refused)


def test_a_tar_that_is_refused_alone_is_a_row() -> None:
    error = StoreRefused("s3://b/x.tar", "the bucket refuses (403)", "Check the bucket.")
    tar = Shard((Source("s3://b/x.tar", error=error),), 1, given=("s3://b/a.log",))
    made = judge(read_settings(), fetch=Store().fetch)(tar)
    assert isinstance(made, list) and made[0].error == str(error)
    with pytest.raises(StoreError, match="give the same command again"):
        judge(read_settings(), fetch=Store(0).fetch)(tar)


def test_what_was_fetched_lies_where_it_is_cleared(tmp_path: Path) -> None:
    seen: list[str] = []

    def fetch(url: str, file: IO[bytes]) -> None:
        seen.append(file.name)

    judge(read_settings(), fetch=fetch).unpacking_in(tmp_path)(ASKED)
    assert Path(seen[0]).is_relative_to(tmp_path) and not list(tmp_path.iterdir())
