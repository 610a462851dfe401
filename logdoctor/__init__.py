"""logdoctor: finds the cause of a failed LLM training job in its log, with the lines that prove it.

>>> verdict = logdoctor.diagnose("train.log")  # doctest: +SKIP
>>> verdict.reason, verdict.recovery, verdict.evidence[0].quote  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from logdoctor.types import Verdict

__all__ = ["diagnose"]

importlib.import_module("logdoctor.diagnose")  # now, or the subpackage would take the function's name on its first use


def diagnose(path: str | os.PathLike[str]) -> Verdict:
    """The verdict on a log file, or on the last attempt in a folder of logs.

    `InputError` when it cannot be read, `RuleError` or `SettingsError` when logdoctor is set up wrongly.
    """
    from pathlib import Path

    from logdoctor import build, pipeline
    from logdoctor.attempts import attempts
    from logdoctor.settings import read_settings

    settings = read_settings()
    streams = attempts(Path(path))[-1].streams
    return pipeline.diagnose(streams, build.scanner(settings), build.limits(settings))
