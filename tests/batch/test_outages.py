"""Which errors end a run, and which are about one log."""

import pytest

from logdoctor.cli.client.connection import Refused
from logdoctor.errors import InputError, LogdoctorError, ServiceAway, StoreDamaged, StoreError
from logdoctor.pipeline.batch.outages import outage


@pytest.mark.parametrize(
    "error",
    [
        StoreError("s3://logs", "cannot be read", "Check it."),
        ServiceAway("the service", "cannot be reached", "Try again later."),
        Refused(403, "forbidden", "token 'ci'", "it does not allow 'read'", "Use another token."),
        Refused(500, "failed", "the request", "it failed", "Look into the log of the service."),
    ],
)
def test_what_another_try_may_cure_ends_the_run(error: LogdoctorError) -> None:
    ending = outage("a.log", error)
    assert ending is not None and error.cause.removeprefix("it ") in str(ending)
    assert "give the same command again" in str(ending)


@pytest.mark.parametrize(
    "error",
    [
        StoreDamaged("s3://logs/a", "is missing", "Check it."),
        Refused(404, "not_found", "stream a/1/main", "it does not exist", "Check the name."),
        InputError("a.log", "is no gzip", "Check it."),
        ValueError("a"),
    ],
)
def test_what_is_wrong_with_one_log_does_not(error: Exception) -> None:
    assert outage("a.log", error) is None
