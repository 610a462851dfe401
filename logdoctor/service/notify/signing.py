"""Signatures of webhooks, as Standard Webhooks defines them (standardwebhooks.com, specification 1.0).

The signature `v1,BASE64` is the HMAC-SHA256 of `ID.TIMESTAMP.BODY`. A secret is written `whsec_` and Base64 of 24 to 64
bytes. While a secret is being replaced, a message carries one signature by each, separated by spaces.
"""

import base64
import binascii
import hashlib
import hmac
import secrets as chance
from collections.abc import Sequence

PREFIX = "whsec_"
_LEAST, _MOST, _USUAL = 24, 64, 32  # bytes of a secret


def new_secret() -> str:
    """Return a new secret in its written form."""
    return PREFIX + base64.b64encode(chance.token_bytes(_USUAL)).decode()


def key(secret: str) -> bytes:
    """Decode a secret to bytes; `ValueError`, which does not repeat it, when it is malformed."""
    try:
        found = base64.b64decode(secret.removeprefix(PREFIX).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("it is not whsec_ and Base64") from None
    if not secret.startswith(PREFIX) or not _LEAST <= len(found) <= _MOST:
        raise ValueError(f"it is not whsec_ and Base64 of {_LEAST} to {_MOST} bytes")
    return found


def signature(secrets: Sequence[str], id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`: a signature by each secret."""
    content = b".".join((id.encode(), str(timestamp).encode(), body))
    return " ".join(f"v1,{_signed(key(secret), content)}" for secret in secrets)


def headers(secrets: Sequence[str], id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that sign a webhook."""
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(secrets, id, timestamp, body),
    }


def _signed(by: bytes, content: bytes) -> str:
    return base64.b64encode(hmac.new(by, content, hashlib.sha256).digest()).decode()
