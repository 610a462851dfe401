"""Refusals of a service, as the errors that the same call on the data folder raises."""

from collections.abc import Iterator
from contextlib import contextmanager

from logdoctor.cli.client.connection import Refused
from logdoctor.errors import LogdoctorError

_OF_THE_CALL = (404, 409, 422)


@contextmanager
def refused_as(kind: type[LogdoctorError], next_step: str = "") -> Iterator[None]:
    """Raise errors of this kind where the service refuses what is asked for; `next_step` is for what does not exist.
    A token that may not do it stays a refusal of the request."""
    try:
        yield
    except Refused as error:
        if error.status not in _OF_THE_CALL:
            raise
        step = next_step if error.code == "not_found" and next_step else error.next_step
        raise kind(error.thing, error.cause, step) from error
