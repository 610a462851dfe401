"""Errors read as sentences."""

import pytest

from logdoctor.errors import InputError


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("does not exist", "a.log does not exist. Check it."),
        ("it is too long", "a.log is too long. Check it."),
        ("another process uses it", "a.log: another process uses it. Check it."),
    ],
)
def test_a_cause_with_a_verb_continues_the_thing(cause: str, said: str) -> None:
    error = InputError("a.log", cause, "Check it.")
    assert (str(error), error.thing, error.cause) == (said, "a.log", cause)
