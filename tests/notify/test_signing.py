"""Signatures are those of Standard Webhooks."""

import base64
import time

import pytest

from logdoctor.service.notify.signing import headers, key, new_secret, signature
from tests.notify.receivers import OTHER, SECRET, Got


def test_the_vector_of_the_reference_libraries() -> None:
    """As the libraries of the specification test themselves."""
    found = signature((SECRET,), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_while_a_secret_is_replaced_there_are_two_signatures() -> None:
    body = b'{"type":"test"}'
    got = Got("/", headers((SECRET, OTHER), "msg_1", int(time.time()), body), body)
    assert got.is_signed(SECRET) and got.is_signed(OTHER) and not got.is_signed(new_secret())
    assert not got._replace(body=body + b" ").is_signed(SECRET)


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "whsec_!!!!",
        "ä",
        SECRET + " ",
        SECRET.removeprefix("whsec_"),
        *("whsec_" + base64.b64encode(b"x" * size).decode() for size in (23, 65)),
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError) as caught:
        key(secret)
    assert len(secret) < 8 or secret not in str(caught.value)


def test_new_secrets_are_sound() -> None:
    assert len(key(new_secret())) == 32 and new_secret() != new_secret()
