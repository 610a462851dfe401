"""Refusals of a service, raised as the same call's errors on the data folder."""

from collections.abc import Iterator
from contextlib import contextmanager

from logdoctor.cli.client.connection import Refused
from logdoctor.errors import LogdoctorError

_OF_THE_CALL = (404, 409, 422)


@contextmanager
def refused_as(kind: type[LogdoctorError], next_step: str = "") -> Iterator[None]:
    """Raise refusals of the service as errors of this kind. `next_step` is for a missing resource. A token without
    permission stays a refusal of the request."""
    try:
        yield
    except Refused as error:
        if error.status not in _OF_THE_CALL:
            raise
        step = next_step if error.code == "not_found" and next_step else error.next_step
        raise kind(error.thing, error.cause, step) from error
