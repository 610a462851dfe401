"""Fingerprints of failures: equal for equal failures, whatever ranks, times and numbers they mention."""

import hashlib

import regex

_PLACEHOLDERS = (
    (regex.compile(r"0x[0-9a-fA-F]+"), "<hex>"),
    (regex.compile(r"\b[0-9a-fA-F]{2,4}(?::[0-9a-fA-F]{2,4})+(?:\.\d)?\b"), "<pci>"),
    (regex.compile(r"(?:/[\w.@+-]+){2,}/?"), "<path>"),
    (regex.compile(r"[\w.-]*\d[\w.-]*"), "<n>"),
    (regex.compile(r"\s+"), " "),
)


def normalised(message: str) -> str:
    """Return a message without addresses, paths, numbers and names with numbers, at most 200 characters."""
    for pattern, placeholder in _PLACEHOLDERS:
        message = pattern.sub(placeholder, message)
    return message.strip()[:200]


_CODE = regex.compile(
    r"(?i)\b(?:errno|err(?:or)?|(?:exit)?code|status|s?xid|signal|rc|ret(?:urn)?|http)\b"
    r"(?: code)?[\s=:#(\[]{0,4}(?:\(?PCI:[^)]{1,20}\)[:\s]{0,3})?(?P<code>-?\d{1,5}|0x[0-9a-f]{1,8})\b"
    r"|\b(?:failed|aborted|exited|refused|returned)\b\s?[:(]\s?(?P<code>-?\d{1,5})\b"
    r"|\b(?:s?xid|err|ora|ec|e)(?P<code>[-_]?\d{1,6})\b"
)
_LETTERS = str.maketrans("-_0123456789", "mmghijklnopq")  # no hex digits among them


def with_codes(message: str) -> str:
    """Return a message as `normalised` does, but keep its error codes. Another code (`status 17`, `Errno 28`, `Xid ...:
    79`) is another failure."""
    return normalised(_CODE.sub(_spelt, message))


def _spelt(match: regex.Match[str]) -> str:
    begin, end = match.span("code")
    whole = match.group()
    code = match["code"].translate(_LETTERS)
    return f"{whole[: begin - match.start()]}code_{code}{whole[end - match.start() :]}"


def fingerprint(reason: str, message: str, frames: tuple[str, ...]) -> str:
    """Return 16 hex digits over the reason, the normalised message and the 3 innermost frames.

    What decided is left out: a line is the same failure, whether a rule, a past case or a person named it.
    """
    parts = (reason, normalised(message), *frames[-3:])
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:16]
