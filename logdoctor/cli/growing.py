"""`logdoctor diagnose --follow -`: judge standard input while it arrives, and again when it ends."""

import os
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logdoctor.diagnose.ending import ReportedEnd
    from logdoctor.types import Verdict

_BLOCK = 1 << 20
_LOOK_SECONDS = 1.0


def follow(
    reported: "ReportedEnd",
    told: "Callable[[Verdict], None]",
    times: float = 1.0,
    suspected: Callable[[bool], None] = lambda is_suspect: None,
) -> "Verdict":
    """Judge standard input as it arrives, and return the verdict at its end. Before that, `told` gets each verdict that
    reports a hang or a bad loss, or takes that back, and `suspected` each change of whether a hang is suspected. The
    wait for a hang is `times` as long as usual."""
    from logdoctor import wiring
    from logdoctor.service.live.log import LiveLog, Patience
    from logdoctor.settings import read_settings

    settings = read_settings()
    patience = Patience(settings.hang_least_seconds, settings.hang_seconds, times)
    is_suspect = False
    log = LiveLog("stdin", wiring.scanner(settings), patience)
    source = sys.stdin.fileno()
    while True:
        if select.select([source], [], [], _LOOK_SECONDS)[0]:
            data = os.read(source, _BLOCK)
            if not data:
                return log.end(reported)
            log.push(data)
        if (verdict := log.look()) is not None:
            told(verdict)
        if log.is_suspect != is_suspect:
            is_suspect = not is_suspect
            suspected(is_suspect)
