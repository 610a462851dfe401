"""How processes of a job ended, as launchers, schedulers and shells report it.

When one rank dies, the others complain that their peer went away. A rank that ended first and complained of nothing is
the one to look at: a crash in native code, a kill, an exit that nobody explains.
"""

import signal
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.diagnose import suspects
from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.diagnose.missing import absence

_ECHOES = ("NCCL Remote Error", "Connection Error", "Network Error")
"""What other ranks report when one is gone. They may also wait for it until they time out and abort."""

_CODE = regex.compile(
    r"(?i)\b(?:exit ?codes?|return ?code|exit ?status|(?:ended|exited|died|terminated|failed) with(?: code| status)?)"
    r"[ :=]{1,5}(?P<code>-?\d{1,3})\b"
)
_RAISED = regex.compile(r"^-- Process \d+ terminated with the following error")
_SIGNAL = regex.compile(r"(?i)\bsignals?[ .:=]{1,3}(?P<signal>SIG[A-Z]{2,6}|\d{1,2})\b")
_ROOT = regex.compile(r"Root Cause \(first observed failure\)")
_TIME = regex.compile(r"\btime +: (?P<time>\d[\d_:. -]{8,30})")
_ABOVE = 4  # torchrun gives the time at most 3 lines above the rank
_LOCAL = regex.compile(r"\blocal_rank(?:: |=)(?P<rank>\d{1,7})\b")
_PID = regex.compile(r"\(pid: (?P<pid>\d{1,10})\)|\b(?i:process) (?P<pid>\d{1,10})\b")
_RANK = regex.compile(
    r"(?i)(?:\b(?:(?:process )?rank|ProcessExitedException: process|Exception: process)|^-- process)"
    r"[ :=#]{1,2}(?P<rank>\d{1,7})\b"
)
_TASK = regex.compile(r"srun: error: [\w.-]+: tasks? (?:(?P<rank>\d{1,9}):)?")
_AGAIN = regex.compile(r"^\s*traceback : ")
_FRAME = regex.compile(r'File "(?:[^"]*/)?(?P<file>[^"/]+)", line (?P<line>\d+),? in (?P<name>[\w.<>]+)')
_ALIKE = 0.5  # share of the ranks with the same error from which on none is first
_FRAMES_AFTER = 8  # Python prints the frame at most 7 lines after a fatal error

_RAISES = 1
"""The exit code of Python after an exception, which its process prints."""
_SENT = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
"""Signals sent from outside: no program dies of them by its own fault."""
_BY_WORD = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Killed": signal.SIGKILL,
    "Out Of Memory": signal.SIGKILL,
    "Aborted": signal.SIGABRT,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Trace/breakpoint trap": signal.SIGTRAP,
    "Terminated": signal.SIGTERM,
    "Hangup": signal.SIGHUP,
}
_WORD = regex.compile(rf"(?:^|[:\d] {{1,3}})(?P<word>{'|'.join(_BY_WORD)})(?: {{1,40}}|$| \(core dumped\))")
_WORDS: dict[int, str] = {number: word.lower() for word, number in _BY_WORD.items() if number not in _SENT}
_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


class End(NamedTuple):
    """How a process ended, and the line that says so. `rank` is None and `pid` "" when unknown; `code` is the exit
    code, `number` the signal. `is_first` when its launcher saw it end before all others, at `time` by the launcher's
    clock."""

    stream: int
    line: int
    rule: str
    rank: int | None
    code: int
    number: int
    is_first: bool = False
    time: str = ""
    pid: str = ""

    @property
    def kind(self) -> str:
        """How it ended, such as "segmentation fault"."""
        if self.number in _SENT:
            return f"killed by {signal_name(self.number)}"
        if self.number:
            return _WORDS.get(self.number) or f"ended by {signal_name(self.number)}"
        return f"exit code {self.code} without a word"

    @property
    def detail(self) -> str:
        """How it ended, with its rank where that is known."""
        where = "" if self.rank is None else f"rank {self.rank}"
        if self.is_killed:
            return f"{where} {self.kind}, no witness".strip()
        return f"{self.kind} in {where}" if where and self.number else f"{where}: {self.kind}".removeprefix(": ")

    @property
    def is_killed(self) -> bool:
        """Whether it was killed from outside."""
        return self.number in _SENT

    @property
    def is_crash(self) -> bool:
        """Whether native code crashed or aborted."""
        return self.number in _WORDS

    @property
    def is_unexplained(self) -> bool:
        """Whether native code crashed in a way that no exception leads to; an uncaught one may abort."""
        return self.is_crash and self.number != signal.SIGABRT

    @property
    def is_anothers(self) -> bool:
        """Whether a process with a name of its own ended without an exception, that it would have printed."""
        is_named = self.rank is not None or bool(self.pid)
        return is_named and self.code != _RAISES and self.number != signal.SIGABRT

    def accounts_for(self, finding: LogFinding) -> bool:
        """Return whether other processes may have reported an error because this one was gone."""
        if finding.reason == "NCCL Timeout Error":
            return self.is_killed or self.is_unexplained
        is_echo = finding.rule is None or finding.reason in _ECHOES
        return finding.role == "cascade" and (is_echo or (self.is_crash and _is_abort(finding)))


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGSEGV; `signal N` if it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tells_of_crash(finding: LogFinding) -> bool:
    """Return whether a line reports a native crash that no exception before it explains."""
    code, number = _how(finding.origin.message[:2000]) or (0, 0)
    return End(finding.stream, finding.line, "", None, code, number).is_unexplained


def _is_abort(finding: LogFinding) -> bool:
    """Return whether a line says only that native code gave up."""
    return finding.rule is not None and finding.rule.id.endswith("/aborted")


def tells_of_failure(message: str) -> bool:
    """Return whether a message reports a nonzero exit code or a signal."""
    return any(_how(message[:2000]) or ())


def of_report(exit_code: int | None, number: int | None) -> End | None:
    """Return the end that a sender reports of a whole command; None if it succeeded. An exit code of 128 + n, as shells
    give, means signal n."""
    if exit_code is not None and 128 < exit_code < 192:
        number = exit_code - 128
    return End(0, 0, "", None, exit_code or 0, number or 0) if exit_code or number else None


def ends(found: Sequence[LogFinding], readings: Sequence[StreamReading]) -> list[End]:
    """Return the ends of processes that the findings report, by stream and line. Successes are left out, and so are
    signals from outside, except to the process that ended first."""
    labelled = [suspects.tasks_are_ranks(reading) for reading in readings]
    reports = list(_reports(sorted(found, key=lambda one: (one.stream, one.line)), readings, labelled))
    ranks = {end.pid: end.rank for end, is_local in reports if end.pid and not is_local}
    own = [reading for reading in readings if not reading.record.is_witness]
    is_alone = len(own) == 1 and not any(one.origin.node or one.origin.task is not None for one in found)
    named: list[End] = []
    for end, is_local in reports:
        named.append(end._replace(rank=ranks.get(end.pid, end.rank if is_alone else None)) if is_local else end)
    return [end if end.rank is not None or not end.number else _of_rank(end, named) for end in named]


def _of_rank(end: End, some: Sequence[End]) -> End:
    """Return an end by a signal with the rank of the only one of which a launcher reports the same."""
    alike = {one.rank for one in some if one.number == end.number and one.rank is not None}
    return end._replace(rank=alike.pop()) if len(alike) == 1 else end


def _reports(
    found: Sequence[LogFinding], readings: Sequence[StreamReading], labelled: Sequence[bool]
) -> Iterator[tuple[End, bool]]:
    """Yield each end, and whether its rank is local to a node."""
    block: dict[tuple[int, str], tuple[int | None, bool, str]] = {}  # of torchrun's report: rank, was it first, time
    for finding in found:
        said, writer = finding.origin.message[:2000], (finding.stream, finding.origin.channel)
        rank, is_first, time = block.get(writer, (None, False, ""))
        if _ROOT.search(said):
            block[writer] = None, True, ""
        elif ranked := suspects.REPORTED.match(said):
            block[writer] = int(ranked["rank"]), is_first, _time(readings[finding.stream], finding.line)
        elif _is_report(finding, said) and (how := _how(said)) is not None:
            code, number = how
            if (number in _FROM_OUTSIDE and not is_first) or not (code or number):
                block.pop(writer, None)
                continue
            local, pid = _LOCAL.search(said), _PID.search(said)
            if rank is None:
                rank = _rank(said, labelled[finding.stream])
            is_local = rank is None and local is not None
            end = End(
                finding.stream,
                finding.line,
                finding.source,
                int(local["rank"]) if local and is_local else rank,
                code,
                number,
                is_first,
                time,
                pid["pid"] if pid else "",
            )
            block.pop(writer, None)
            yield end, is_local


def _time(reading: StreamReading, number: int) -> str:
    """Return the time above a rank in torchrun's report; "" if the record lacks it."""
    above = (_TIME.search(reading.text(line) or "") for line in range(number - 1, number - _ABOVE, -1))
    return next((found["time"] for found in above if found), "")


def _is_report(finding: LogFinding, said: str) -> bool:
    """Return whether a line may report how a process ended."""
    return (finding.role in ("teardown", "cascade") or bool(_TASK.search(said))) and not _AGAIN.match(said)


def _how(said: str) -> tuple[int, int] | None:
    """Return (exit code, signal) of a report, 0 for a missing one; None without both."""
    if found := _SIGNAL.search(said):
        name = found["signal"].upper()
        number = int(name) if name.isdigit() else getattr(signal, name, 0)
        return 0, int(number)
    if found := _CODE.search(said):
        code = int(found["code"])
        number = -code if code < 0 else code - 128 if 128 < code < 192 else 0
        return (0, number) if number else (code, 0)
    if found := _WORD.search(said):
        return 0, int(_BY_WORD[found["word"]])
    return (1, 0) if _RAISED.match(said) else None


def _rank(said: str, tasks_are_ranks: bool) -> int | None:
    found = _RANK.search(said) or (_TASK.search(said) if tasks_are_ranks else None)
    return int(found["rank"]) if found and found["rank"] else None


def first(some: Sequence[End]) -> End | None:
    """Return the end that a launcher saw first, the earliest of several launchers'. Without one, the first that was
    reported."""
    seen = [end for end in some if end.is_first]
    return min(seen, key=lambda end: end.time or "9") if seen else some[0] if some else None


def silent(
    some: Sequence[End], failing: Sequence[LogFinding], readings: list[StreamReading], labelled: Sequence[bool]
) -> End | None:
    """Return the end that came first if its process complained of nothing, else None.

    Complaints without a rank may come from any process, except one that crashed in native code, and unless all only
    miss another process. Clocks differ: if the process that seems first only complains that another is gone, a silent
    one that crashed, or that was killed first on its node, ended before it. The words of an abort are no complaint.
    """
    failing = [finding for finding in failing if not _is_abort(finding)]
    complaining = {suspects.rank_of(finding, readings, labelled) for finding in failing}
    end = first(some)
    if end is None:
        return None
    if None in complaining and end.is_anothers and all(map(end.accounts_for, failing)):
        return end
    if None in complaining and (end.rank is None or not end.is_unexplained):
        return None
    if end.rank in complaining:
        broken = [one for one in some if one.is_unexplained or (one.is_killed and one.is_first)]
        end = first([one for one in broken if one.rank is not None and one.rank not in complaining])
    return end if end is not None and (end.rank is not None or not failing) else None


def killer(end: End | None, found: Sequence[LogFinding]) -> LogFinding | None:
    """Return the kernel's line about a killed process; it names the process id, or only the job."""
    if end is None or end.number != signal.SIGKILL:
        return None
    said = (one for one in found if one.rule is not None and one.rule.id.endswith("/kernel-killed"))
    return next((one for one in said if one.captures.get("pid", end.pid) == end.pid), None)


def last_frame(reading: StreamReading, end: End) -> tuple[int, str]:
    """Return the line and frame of Python's crash report by the ended process, else 0 and "". A frame is such as
    `loader.py:17 in read`."""
    for line, where in reading.lines:
        if "Fatal Python error" in where.message and where.rank in (None, end.rank):
            for number in range(line.number + 1, line.number + _FRAMES_AFTER):
                if frame := _FRAME.search(reading.text(number) or ""):
                    return line.number, f"{frame['file']}:{frame['line']} in {frame['name']}"
    return 0, ""


def first_rank(
    found: list[LogFinding], cause: LogFinding, readings: list[StreamReading], some: Sequence[End]
) -> int | None:
    """Return the rank whose own error came first; None when none can be named.

    An error of the program that at least half of the ranks share has no first rank, nor has a fault of a node or of the
    network. The rank comes from the line's prefix, its message ("[Rank 3]"), Slurm's task label when each task is a
    rank, errors that the cause explains, or the launcher's report of who ended first.
    """
    if cause.reason in ("Node Failure", "Network Error"):
        return None
    if cause.reason == "Hang":
        absent = absence(readings, found, cause)
        return absent.ranks[0] if absent and absent.line is not None else None
    if cause.reason == "NCCL Timeout Error":
        if diverged := suspects.divergence(readings):
            return diverged.rank
        if (absent := absence(readings, found, cause)) and absent.line is not None:
            return absent.ranks[0]
    if killed := next((end for end in some if killer(end, [cause]) is not None), None):
        return killed.rank
    labelled = [suspects.tasks_are_ranks(reading) for reading in readings]
    same = [finding for finding in found if finding.key == cause.key]
    alike = {rank for finding in same if (rank := suspects.rank_of(finding, readings, labelled)) is not None}
    if len(alike) > 1 and taxonomy.REASONS[cause.reason].category in ("Script", "Framework"):
        speaking = {where.rank for reading in readings for _, where in reading.lines if where.rank is not None}
        speaking |= {end.rank for end in some if end.rank is not None}
        if len(alike) >= _ALIKE * len(speaking | alike):
            return None
    rank = suspects.rank_of(cause, readings, labelled)
    if rank is None and len(same) == 1:
        explained = (f for f in found if f.reason == cause.reason or f.reason in cause.explains)
        rank = first_of((f for f in explained if f.role in ("cause", "proximate")), readings, some)
    if rank is None:
        rank = first_of((f for f in found if f.reason == cause.reason or f.role in ("cause", "proximate")), readings)
    return rank


def first_of(errors: Iterable[LogFinding], readings: list[StreamReading], some: Sequence[End] = ()) -> int | None:
    """Return the rank that ended first if these errors name it or none, else the first named. Ends with an exit code
    count before signals: ranks that waited for the first one abort."""
    labelled = [suspects.tasks_are_ranks(reading) for reading in readings]
    named = [rank for error in errors if (rank := suspects.rank_of(error, readings, labelled)) is not None]
    end = first(
        [end for end in some if end.code] or [end for end in some if end.number != signal.SIGABRT or end.is_first]
    )
    ended = end.rank if end else None
    return ended if ended in named or not named else named[0]
