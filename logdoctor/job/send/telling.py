"""What is printed after a failed run: its verdict, and the address of its page."""

import time
from collections.abc import Callable
from urllib.parse import quote

from logdoctor.errors import NotTaken
from logdoctor.job.send.client import Client
from logdoctor.job.send.target import ShippingTarget

_LOOK_SECONDS = 0.25
_MOST_WORDS = 200  # characters of a verdict's title


def page_of(target: ShippingTarget, verdict: object = None) -> str:
    """Return the address of a verdict's page; without its number, of the job's page."""
    is_number = isinstance(verdict, int) and not isinstance(verdict, bool)
    return f"{target.url}/verdicts/{verdict}" if is_number else f"{target.url}/jobs/{quote(target.job, safe='')}"


def named(reason: str, detail: str) -> str:
    """Return a verdict's title: its reason, with the detail of an Unknown one."""
    told = f"{reason} ({detail})" if reason == "Unknown" and detail else reason
    return "".join(one if one.isprintable() else " " for one in told[:_MOST_WORDS])


def failed_run(target: ShippingTarget, attempt: int, seconds: float, pause: Callable[[float], bool]) -> str:
    """Return a failed attempt's verdict and its page, as a sentence; without a verdict within `seconds`, where it will
    be. `pause` sleeps, and returns whether somebody wants this to end."""
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
            if answer.status == 403:
                return f"{still_to_come(target)} (not here, because the token has no scope `read`)"
            if answer.status not in (200, 404) or answer.body.get("final") is True or pause(_LOOK_SECONDS):
                break
    except NotTaken:  # the page is known anyway
        pass
    finally:
        client.close()
    return f"the verdict is {reason}: {page}" if reason else still_to_come(target)


def still_to_come(target: ShippingTarget) -> str:
    """Return, as a sentence, where the verdict on a failed attempt will be."""
    return f"its verdict will be at {page_of(target)}"
