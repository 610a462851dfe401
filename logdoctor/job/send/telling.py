"""What is said at the end of a run that failed: its verdict, and where more of it is to be seen."""

import time
from collections.abc import Callable
from urllib.parse import quote

from logdoctor.errors import NotTaken
from logdoctor.job.send.client import Client
from logdoctor.job.send.target import ShippingTarget

_LOOK_SECONDS = 0.25
_MOST_WORDS = 200  # characters of what a verdict is called


def page_of(target: ShippingTarget, verdict: object = None) -> str:
    """Return the address of the page of a verdict by its number, or of the job where that is not known."""
    is_number = isinstance(verdict, int) and not isinstance(verdict, bool)
    return f"{target.url}/verdicts/{verdict}" if is_number else f"{target.url}/jobs/{quote(target.job, safe='')}"


def named(reason: str, detail: str) -> str:
    """Return what a verdict is called: its reason, with what is known of an unknown one."""
    told = f"{reason} ({detail})" if reason == "Unknown" and detail else reason
    return "".join(one if one.isprintable() else " " for one in told[:_MOST_WORDS])


def failed_run(target: ShippingTarget, attempt: int, seconds: float, pause: Callable[[float], bool]) -> str:
    """Return the verdict on an attempt that failed, and the address of its page, as a sentence; the service has so many
    seconds to make one. `pause` sleeps, and returns whether somebody wants this to end."""
    client = Client(target)
    client.deadline = until = time.monotonic() + seconds
    reason, page = "", page_of(target)
    try:
        while time.monotonic() < until:
            answer = client.verdict(attempt)
            verdict = answer.body.get("verdict")
            if answer.status == 200 and isinstance(verdict, dict):
                so_far = "" if answer.body.get("final") is True else " (so far)"
                reason = f"{named(str(verdict.get('reason')), str(verdict.get('detail', '')))}{so_far}"
                page = page_of(target, answer.body.get("id"))
            if answer.status not in (200, 404) or answer.body.get("final") is True or pause(_LOOK_SECONDS):
                break
    except NotTaken:  # the page is known all the same
        pass
    finally:
        client.close()
    return f"the verdict is {reason}: {page}" if reason else still_to_come(target)


def still_to_come(target: ShippingTarget) -> str:
    """Return where the verdict on an attempt that failed will be, as a sentence."""
    return f"its verdict will be at {page_of(target)}"
