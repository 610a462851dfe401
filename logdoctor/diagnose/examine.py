"""Examination of an attempt before it is judged: findings, cause, symptoms, progress, spikes and stalls."""

from collections.abc import Sequence

from logdoctor.diagnose.aftermath import Aftermath
from logdoctor.diagnose.bad_losses import bad_losses
from logdoctor.diagnose.cause import judge
from logdoctor.diagnose.findings import findings, read
from logdoctor.diagnose.progress import StreamCourse, spike, stall
from logdoctor.diagnose.runs import runs
from logdoctor.diagnose.verdict import Examined
from logdoctor.diagnose.witnesses import about_job
from logdoctor.rules.load import RuleBook
from logdoctor.types import Record


def examine(records: Sequence[Record], book: RuleBook, died: bool = False, was_killed: bool = False) -> Examined:
    """Return the examined attempt, from the records of all its streams. Deterministic. `died` when it is known to have
    failed, `was_killed` when by SIGKILL."""
    whole = [Aftermath(read(record)) for record in records]
    parts = [[one.reading.record] if one.reading.record.is_witness else runs(one, book) for one in whole]
    last = [Aftermath(read(some[-1])) if len(some) > 1 else one for one, some in zip(whole, parts, strict=True)]
    courses = [StreamCourse(one, bad_losses(one.reading, book)) for one in last]
    readings = [one.reading for one in last]
    found = about_job(findings(readings, book), readings, was_killed)
    judgement = judge(found, courses, died)
    cancelled = (f for f in found if f.outcome == "cancelled" and not courses[f.stream].renewed_after(f.line))
    ended = min((f.time for f in (*judgement.teardown, *cancelled) if f.time is not None), default=None)
    own = [part for part, reading in zip(parts, readings, strict=True) if not reading.record.is_witness]
    earlier = own[0][:-1] if len(own) == 1 else []
    return Examined(readings, courses, found, judgement, spike(courses), stall(courses, ended), book, earlier)
