"""The sender's own messages on stderr."""

import os
import time
from contextlib import suppress

PREFIX = "[logdoctor] "
_QUIET_SECONDS = 60.0


class ShippingNotices:
    """Prints what happens to the shipping; some kinds of message at most once a minute."""

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._written_at: dict[str, float] = {}
        self._away = False

    def say(self, text: str) -> None:
        """Write one line; a closed stderr is ignored."""
        line = "".join(character if character.isprintable() else "?" for character in text)
        with suppress(OSError):
            os.write(self._descriptor, f"{PREFIX}{line}\n".encode("utf-8", "replace"))

    def once(self, kind: str, text: str) -> bool:
        """Write one line unless the same kind was written in the last minute; return whether it was written."""
        now = time.monotonic()
        if now - self._written_at.get(kind, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return False
        self._written_at[kind] = now
        self.say(text)
        return True

    def away(self, reason: str, mend: str = "") -> None:
        """Report once that the service does not accept our bytes, and what a person must fix."""
        if not self._away:
            then = f". {mend}" if mend else "; they will be sent later."
            self._away = self.once("away", f"buffering logs: {reason}{then}")

    def back(self) -> None:
        """Report that the service accepts our bytes again, if its absence was reported."""
        if self._away:
            self._away = False
            self.say("sending logs again.")
