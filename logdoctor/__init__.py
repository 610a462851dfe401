"""logdoctor: finds the cause of a failed LLM training job in its log, with the lines that prove it.

>>> verdict = logdoctor.diagnose("train.log")  # doctest: +SKIP
>>> verdict.reason, verdict.recovery, verdict.evidence[0].quote  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from typing import IO, Any

    from logdoctor.words.panel import ShownVerdict

__all__ = ["diagnose"]

importlib.import_module("logdoctor.diagnose")  # now, or the subpackage would take the function's name on its first use


def diagnose(
    log: str | bytes | os.PathLike[str] | IO[Any], *, exit_code: int | None = None, died: bool = False
) -> ShownVerdict:
    """Return the verdict on a log: a path, an open file, bytes, or a text with more than one line. Of a folder of logs
    it is that on the last attempt.

    `print` and notebooks show it as the command line does; the reason and category of a job that did not fail are None.
    `exit_code` and `died` state how the job ended, which the log may not show. `TypeError` for other types,
    `ValueError` when they contradict each other, `InputError` when the log cannot be read, `RuleError` or
    `SettingsError` when logdoctor is set up wrongly.
    """
    import contextlib
    import os
    import tempfile
    from pathlib import Path

    from logdoctor import pipeline, wiring
    from logdoctor.diagnose.ending import ReportedEnd
    from logdoctor.errors import InputError
    from logdoctor.pipeline.attempts import attempts
    from logdoctor.settings import read_settings
    from logdoctor.words.panel import ShownVerdict

    if not isinstance(log, str | bytes | os.PathLike) and not hasattr(log, "read"):
        raise TypeError("log is a path, an open file, a text or bytes")
    if not isinstance(died, bool) or isinstance(exit_code, bool) or not isinstance(exit_code, int | None):
        raise TypeError("exit_code is an int or None, died a bool")
    reported = ReportedEnd(exit_code=exit_code, died=died)
    if reported.contradicts_itself:
        raise ValueError("died and exit_code=0 contradict each other")
    settings = read_settings()
    with contextlib.ExitStack() as stack:
        if isinstance(log, os.PathLike) or (isinstance(log, str) and log and "\n" not in log):
            try:
                streams = attempts(Path(log))[-1].streams
            except (OSError, ValueError) as error:
                step = "Give the text of one line as bytes or in an io.StringIO."
                raise InputError(ascii(os.fspath(log))[:80], f"is not the path of a log ({error})", step) from error
        else:
            given = log if isinstance(log, str | bytes) else log.read()
            kept = stack.enter_context(tempfile.NamedTemporaryFile(prefix="logdoctor-"))
            kept.write(given.encode("utf-8", "replace") if isinstance(given, str) else given)
            kept.flush()
            streams = (pipeline.LogFile("main", Path(kept.name), str(getattr(log, "name", "text"))),)
        verdict = pipeline.diagnose(streams, wiring.kept_scanner(settings), wiring.limits(settings), reported)
    return ShownVerdict.of(verdict)
