"""Sources beside the job's own log: which were read, and which of their findings are about the job."""

from collections.abc import Iterable, Sequence
from typing import Literal, cast

import msgspec
import regex

from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.text import seconds_of, zone_of
from logdoctor.types import Coverage, Milestone, Record

_STREAM = "coverage@"
_COVERED = regex.compile(
    r"^\[logdoctor\] coverage: (?P<source>\S{1,200}): (?P<state>read|empty|refused|too late|absent)"
    r"(?: \((?P<said>.*)\))?$"
)
_STATE = regex.compile(r"^slurm: .*\bJobState=(?P<state>[A-Z_]{2,30})\b")
_MOST = 20_000
_PIDS = regex.compile(r"(?i)\b(?:pids?|process(?: id)?)[ =:]{1,3}(?P<pid>\d{1,10})\b")
_OF_PROCESS = regex.compile(
    r"Kill(?:ed)? process (?P<pid>\d{1,10})\b|oom-kill:.*\bpid=(?P<pid>\d{1,10})\b"
    r"|Xid \(.{0,60}?\): (?:13|31|43|45|68|69|137), pid=(?P<pid>\d{1,10})\b"
    r"|kernel: (?:traps: )?\S{1,24}\[(?P<pid>\d{1,10})\]|invoked oom-killer|(?:oom_kill_process|out_of_memory)\+0x"
)
_OURS = "[logdoctor] "
_UNSURE = "(it may have been so before the attempt)"
_LATER = 120.0  # seconds of steps after which what the kernel told has not stopped a job
_KILLED = regex.compile(r"(?i)SIGKILL|signal(?:s|:)? ?:?9\b|Killed\b|exit ?code ?: ?(?:-9|137)\b")


def separate(records: Sequence[Record]) -> tuple[list[Record], tuple[Coverage, ...], str]:
    """Return the records of the job and, behind them, of the sources that were read; what was covered; and the state
    that Slurm gives the job, "" if none."""
    told = [one for record in records if record.stream.startswith(_STREAM) for one in _covered(record)]
    if not told:
        return list(records), (), ""
    read = {one.source for one in told if one.state == "read"}
    rest = [record for record in records if not record.stream.startswith(_STREAM)]
    own = [record for record in rest if record.stream not in read]
    beside = [msgspec.structs.replace(record, is_witness=True) for record in rest if record.stream in read]
    silent = (Coverage(one.stream, "empty") for one in own if not (one.compression.lines_in or one.lines or one.last))
    states = (_STATE.match(text) for one in beside if one.stream.startswith("slurm@") for text in _texts(one))
    return [*own, *beside], (*told, *silent)[:_MOST], next((found["state"] for found in states if found), "")


def about_job(found: Iterable[LogFinding], readings: Sequence[StreamReading], was_killed: bool) -> list[LogFinding]:
    """Return the findings without those of other sources that are not about this job: they name a process that neither
    its log nor a supervisor knows, or are older than its last steps. Marks of an outcome count only in the job's own
    log."""
    beside = [reading.record.is_witness for reading in readings]
    if not any(beside):
        return list(found)
    known = {
        pid
        for reading in readings
        for text in reading.texts.values()
        if not reading.record.is_witness or text.startswith(_OURS)
        for pid in _PIDS.findall(text[:2000])
    }
    found = list(found)
    was_killed |= any(_KILLED.search(one.text) for one in found if not beside[one.stream])
    own = [reading for reading in readings if not reading.record.is_witness]
    steps = [last for reading in own for _, last in reading.record.spans.values()]
    kept: list[LogFinding] = []
    for one in found:
        if beside[one.stream]:
            process = _OF_PROCESS.search(one.text)
            if (
                one.outcome
                or _UNSURE in one.text
                or any(_is_passed(one, step) for step in steps)
                or (process and process["pid"] not in known)
            ):
                continue
            if was_killed and one.rule is not None and one.rule.id.endswith("/kernel-killed"):
                one = one._replace(role="cause")
        kept.append(one)
    return kept


def _is_passed(finding: LogFinding, step: Milestone) -> bool:
    """Return whether the job made steps long after a finding; times without a zone are of the node's clock."""
    time, told = step.time, seconds_of(finding.text)
    if time is None or told is None:
        return False
    ahead, other = zone_of(step.text), zone_of(finding.text)
    if ahead is not None and other is not None:
        time, told = time - ahead, told - other
    return time - told > _LATER


def _covered(record: Record) -> list[Coverage]:
    lines = (_COVERED.match(text) for text in _texts(record))
    state = Literal["read", "empty", "refused", "too late", "absent"]
    return [Coverage(one["source"], cast(state, one["state"]), one["said"] or "") for one in lines if one]


def _texts(record: Record) -> list[str]:
    return list({line.number: line.text for line in (*record.lines, *record.last)}.values())
