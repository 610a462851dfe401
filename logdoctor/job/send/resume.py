"""`logdoctor ship --resume`: sends what earlier runs left in the spool folder."""

import os
from typing import Any

from logdoctor.errors import SendError
from logdoctor.job.send.notices import ShippingNotices
from logdoctor.job.send.shipper import CommandEnd, Shipper
from logdoctor.job.send.spool import Spool, left_spools, read_about, reopened
from logdoctor.job.send.target import ShippingTarget, checked_name, checked_url

GIVE_UP_SECONDS = 30.0
_NEXT = (
    "nothing is lost. When it answers, run logdoctor ship --resume again; --url NEW --from OLD sends to its new "
    "URL, --give-up-seconds N keeps trying for longer."
)


def resume(
    spool_folders: tuple[str, ...],
    *,
    url: str | None,
    token: str | None,
    moved_from: str = "",
    give_up_seconds: float = GIVE_UP_SECONDS,
) -> int:
    """Send every spool that no living process owns; return 0 when nothing is left, else 1.

    Without `url` each spool goes to its own; with it only spools for it or for `moved_from` are sent. The token is the
    caller's: a spool never stores one.
    """
    resuming = _Resuming(url, token, moved_from, give_up_seconds)
    seen: set[str] = set()
    for folder in [path for base in spool_folders for path in left_spools(base)]:
        if os.path.realpath(folder) in seen:
            continue
        seen.add(os.path.realpath(folder))
        resuming.take(folder)
    return resuming.finish()


class _ResumingNotices(ShippingNotices):
    """Tells the waiting user that a service is away, how long it is retried, and that they may stop."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def away(self, reason: str, mend: str = "") -> None:
        """Report that the service is away, and what a person must fix, if anything."""
        then = mend or f"It is tried again for {self._seconds:g} s; Ctrl-C ends that, and nothing is lost."
        self._away = self.once("away", f"{reason}. {then}") or self._away


class _Resuming:
    """Sends spools in order; after a service failed once, its other spools are skipped."""

    def __init__(self, url: str | None, token: str | None, moved_from: str, seconds: float) -> None:
        self._url, self._token, self._seconds = url, token, seconds
        self._meant = {checked_url(one) for one in (url, moved_from) if one}
        self._notices = _ResumingNotices(seconds)
        self._away: set[str] = set()
        self._left = self._waits = 0

    def take(self, folder: str) -> None:
        """Send a spool that no living process owns, and report the result."""
        try:
            spool = reopened(folder)  # unless closed below it is ours until this process ends
            about = read_about(folder)
            end = _end(about.get("end"))
            if end is None and about.get("host") != os.uname().nodename:
                self._leave(
                    f"{folder} is skipped: its run on {about.get('host')!s} may still be going on; resume it there."
                )
            else:
                self._send(spool, about, end or CommandEnd(None, None))
        except BlockingIOError:
            return
        except (OSError, ValueError, RecursionError, SendError) as error:
            self._leave(f"{folder} cannot be sent: {error}")

    def finish(self) -> int:
        """Report what to do about what is left; return 0 when nothing is, else 1."""
        if self._waits:
            self._notices.say(_NEXT)
        return 1 if self._left else 0

    def _send(self, spool: Spool, about: dict[str, Any], end: CommandEnd) -> None:
        meant = checked_url(str(about.get("url")))
        if self._url and meant not in self._meant:
            how = f"logdoctor ship --resume --url {self._url} --from {meant}"
            self._leave(f"{spool.folder} is not sent: it was meant for {meant}. If that is the same service: {how}")
            spool.close()
            return
        target = _target(about, self._url, self._token)
        if target.url in self._away:
            self._wait(spool.folder, f"the server at {target.url} took nothing just now")
            return
        base = about.get("base")
        shipper = Shipper(target, spool, self._notices, base=base if isinstance(base, int) else None)
        shipper.start()
        if shipper.finish_patiently(end, self._seconds):
            spool.remove()
            spool.close()
            self._notices.say(f"{spool.folder} is sent.")
            return
        refused = shipper.refused
        if refused and not refused.only_this and not refused.mend:
            self._away.add(target.url)
        self._wait(spool.folder, refused.cause if refused else f"the server at {target.url} did not take it")

    def _wait(self, folder: str, cause: str) -> None:
        self._waits += 1
        self._leave(f"{folder} is not sent: {cause}.")

    def _leave(self, text: str) -> None:
        self._left += 1
        self._notices.say(text)


def _target(about: dict[str, Any], url: str | None, token: str | None) -> ShippingTarget:
    attempt, metadata = about.get("attempt"), about.get("metadata")
    return ShippingTarget(
        url=checked_url(url or str(about.get("url"))),
        token=token,
        job=checked_name("job", str(about.get("job"))),
        attempt=attempt if isinstance(attempt, int) else None,
        attempt_key=str(about.get("attempt_key"))[:200],
        stream=checked_name("stream", str(about.get("stream"))),
        metadata=metadata if isinstance(metadata, dict) else {},
    )


def _end(value: object) -> CommandEnd | None:
    if not isinstance(value, dict):
        return None
    code, number, state = value.get("exit_code"), value.get("signal"), value.get("scheduler_state")
    return CommandEnd(
        code if isinstance(code, int) else None,
        number if isinstance(number, int) else None,
        state if isinstance(state, str) else None,
    )
