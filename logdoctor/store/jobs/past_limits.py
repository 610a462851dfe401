"""Limits of past attempts, which come from tables and logs that anybody may have written."""

from typing import TYPE_CHECKING

from logdoctor import taxonomy
from logdoctor.errors import InputError
from logdoctor.store.names import checked, checked_attempt

if TYPE_CHECKING:
    from logdoctor.store.jobs.past import PastAttempt
    from logdoctor.store.jobs.records import JobFacts

MAX_TEXT, MAX_LIST = 10_000, 100_000
"""Characters of a fact of a job, and of its command and list of nodes."""
MAX_COUNT = 100_000_000
"""Nodes, ranks or GPUs of a job."""
MAX_LABELS = 256
_MAX_KEY = 200
_MAX_EXIT_CODE = 1 << 31

_LISTS = ("command", "nodelist")
_TEXTS = ("name", "user", "framework", "launcher", "image", "checkpoint_dir", "parent")
_COUNTS = ("nodes", "ranks_per_node", "gpus")


def misfit(past: "PastAttempt") -> str | None:
    """Return which part of a past attempt is invalid; None if it can be entered. `NameRefused` for names and
    numbers."""
    checked("job", past.job)
    if past.number is not None:
        checked_attempt(past.number)
    verdict = past.verdict
    wrong = {
        "its key": not 0 < len(past.key) <= _MAX_KEY,
        "its reason": verdict.reason != "None" and verdict.reason not in taxonomy.REASONS,
        "its confidence": not 0 <= verdict.confidence <= 1,
        "its exit code": past.exit_code is not None and abs(past.exit_code) > _MAX_EXIT_CODE,
    }
    return next((name for name, is_wrong in wrong.items() if is_wrong), None) or _misfit_fact(past.facts)


def require_fit(past: "PastAttempt") -> None:
    """Raise `InputError` for a past attempt that cannot be entered."""
    if wrong := misfit(past):
        step = "Send what `logdoctor batch` made; /openapi.json has the bounds."
        raise InputError(f"the past attempt of job {past.job!r}", f"{wrong} cannot be", step)


def _misfit_fact(facts: "JobFacts") -> str | None:
    lengths = {name: MAX_LIST for name in _LISTS} | {name: MAX_TEXT for name in _TEXTS}
    wrong = [name for name, most in lengths.items() if len(getattr(facts, name) or "") > most]
    wrong += [name for name in _COUNTS if not 0 <= (getattr(facts, name) or 0) <= MAX_COUNT]
    wrong += ["labels"] if len(facts.labels) > MAX_LABELS else []
    return f"{wrong[0]!r} in its facts" if wrong else None
