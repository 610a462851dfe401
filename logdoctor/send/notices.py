"""The sender's own few words on stderr."""

import os
import time
from contextlib import suppress

PREFIX = "[logdoctor] "
_QUIET_SECONDS = 60.0


class ShippingNotices:
    """Tells a person what happens to the shipping; each kind of message at most once in a minute."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._told: dict[str, float] = {}
        self._away = False

    def say(self, text: str) -> None:
        """Writes one line; a closed stderr is no error."""
        line = "".join(character if character.isprintable() else "?" for character in text)
        with suppress(OSError):
            os.write(self._descriptor, f"{PREFIX}{line}\n".encode("utf-8", "replace"))

    def once(self, kind: str, text: str) -> bool:
        """Writes one line unless the same kind was told in the last minute; whether it did."""
        now = time.monotonic()
        if now - self._told.get(kind, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return False
        self._told[kind] = now
        self.say(text)
        return True

    def away(self, reason: str) -> None:
        """The service does not take what we send; told at the first failure."""
        if not self._away:
            self._away = self.once("away", f"buffering logs: {reason}; they will be sent later.")

    def back(self) -> None:
        """The service takes what we send again; told only when its absence was."""
        if self._away:
            self._away = False
            self.say("sending logs again.")
