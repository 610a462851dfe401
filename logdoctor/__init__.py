"""logdoctor: finds the cause of a failed LLM training job in its log, with the lines that prove it.

>>> verdict = logdoctor.diagnose("train.log")  # doctest: +SKIP
>>> verdict.reason, verdict.recovery, verdict.evidence[0].quote  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from logdoctor.words.panel import ShownVerdict

__all__ = ["diagnose"]

importlib.import_module("logdoctor.diagnose")  # now, or the subpackage would take the function's name on its first use


def diagnose(path: str | os.PathLike[str], *, exit_code: int | None = None, died: bool = False) -> ShownVerdict:
    """Return the verdict on a log, or on the last attempt in a folder of logs.

    `print` and notebooks show it as the command line does; the reason and category of a job that did not fail are None.
    `exit_code` and `died` state how the job ended, which the log may not show. `TypeError` for other types,
    `ValueError` when they contradict each other, `InputError` when the log cannot be read, `RuleError` or
    `SettingsError` when logdoctor is set up wrongly.
    """
    from pathlib import Path

    from logdoctor import pipeline, wiring
    from logdoctor.diagnose.ending import ReportedEnd
    from logdoctor.pipeline.attempts import attempts
    from logdoctor.settings import read_settings
    from logdoctor.words.panel import ShownVerdict

    if not isinstance(died, bool) or isinstance(exit_code, bool) or not isinstance(exit_code, int | None):
        raise TypeError("exit_code is an int or None, died a bool")
    reported = ReportedEnd(exit_code=exit_code, died=died)
    if reported.contradicts_itself:
        raise ValueError("died and exit_code=0 contradict each other")
    settings = read_settings()
    streams = attempts(Path(path))[-1].streams
    verdict = pipeline.diagnose(streams, wiring.kept_scanner(settings), wiring.limits(settings), reported)
    return ShownVerdict.of(verdict)
