"""`logdoctor ship --resume`: send what earlier runs left in the spool folder."""

import os
from typing import Any

from logdoctor.errors import SendError
from logdoctor.send.notices import ShippingNotices
from logdoctor.send.shipper import CommandEnd, Shipper
from logdoctor.send.spool import left_spools, read_about, reopened
from logdoctor.send.target import ShippingTarget, checked_name, checked_url

GIVE_UP_SECONDS = 300.0


def resume(
    spool_folders: tuple[str, ...], *, url: str | None, token: str | None, give_up_seconds: float = GIVE_UP_SECONDS
) -> int:
    """Send every spool that no living process owns; return 0 when nothing is left, else 1.

    `url` None means the URL that each spool was meant for. The token is the caller's: a spool never stores one.
    """
    notices = ShippingNotices()
    left = 0
    seen: set[str] = set()
    for folder in [path for base in spool_folders for path in left_spools(base)]:
        if os.path.realpath(folder) in seen:
            continue
        seen.add(os.path.realpath(folder))
        try:
            left += not _resume_one(folder, url, token, give_up_seconds, notices)
        except BlockingIOError:
            continue
        except (OSError, ValueError, SendError) as error:
            notices.say(f"{folder} cannot be sent: {error}")
            left += 1
    return 1 if left else 0


def _resume_one(folder: str, url: str | None, token: str | None, seconds: float, notices: ShippingNotices) -> bool:
    spool = reopened(folder)  # a spool that is not closed below is ours until this process ends
    about = read_about(folder)
    end = _end(about.get("end"))
    if end is None and about.get("host") != os.uname().nodename:
        notices.say(f"{folder} is skipped: its run on {about.get('host')!s} may still be going on; resume it there.")
        return False
    base = about.get("base")
    shipper = Shipper(_target(about, url, token), spool, notices, base=base if isinstance(base, int) else None)
    shipper.start()
    if not shipper.finish(end or CommandEnd(None, None), seconds):
        shipper.stop()
        notices.say(f"{folder} could not be sent.")
        return False
    spool.remove()
    spool.close()
    notices.say(f"{folder} is sent.")
    return True


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
