"""Findings: every line that says something about the failure, by a rule or by the structure of a traceback."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import regex
import zstandard

from logdoctor import taxonomy
from logdoctor.diagnose.carriers import is_report, names_another_fault
from logdoctor.diagnose.stamps import dated, rising
from logdoctor.diagnose.tracebacks import Traceback, deepest, tracebacks
from logdoctor.rules.captures import captures, matches
from logdoctor.rules.load import RuleBook
from logdoctor.rules.once import once
from logdoctor.rules.priority import priority
from logdoctor.rules.schema import DiagnosisRule
from logdoctor.text import LineOrigin, decode, origin, said_in, seconds_of, shown, zone_of
from logdoctor.types import Line, Record

_CASCADES = (
    "ConnectionResetError",
    "BrokenPipeError",
    "ConnectionAbortedError",
    "EOFError",
    "DistBackendError",
    "DistStoreError",
    "DistNetworkError",
    "BrokenProcessPool",
)
_ASKS_A_SERVICE = regex.compile(r"(?:client|connectionpool|sessions|adapters|urllib3?|request|http\w*)\.py:")
_READS_A_FILE = regex.compile(
    r"(?:serialization|_weights_only_unpickler|pickle|pickler|safetensors|gzip|zipfile|tarfile|_?npyio\w*)\.py:"
)
"""Frames: who raises there misses no other process of its job."""
_UNREADABLE = ("JSONDecodeError", "UnicodeDecodeError")
_READS_DATA = regex.compile(r"(?i)data ?_?(?:set|load)|:__getitem__|collat|^fetch\.py:|samples?\b|jsonl|tokeniz")
"""Exceptions of a text that cannot be read, and frames in which that is one of the data."""
_IGNORED = (
    "KeyboardInterrupt",
    "SystemExit",
    "GeneratorExit",
    "SignalException",
    "StopIteration",
    "CancelledError",
)
_BARE = regex.compile(
    r"^(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Fault|Killed))(?:: (?P<message>.*)|:?\s*)$"
)
_CRASH = regex.compile(r"Fatal Python error|Segmentation fault|[Cc]ore dumped|Bus error|\*\*\* Aborted|stack smashing")
_HANDLED = regex.compile(r"Exception ignored in|Exception (?:happened|occurred) during processing of request")
"""How Python announces an error that it drops, in a destructor or for one request of a server."""
_RANK = regex.compile(r"[0-9]{1,9}")
_ALL_DONE = regex.compile(
    r"(?i)(?<![\d/.])(?P<all>\d{2,9}) ?(?:/|of) ?(?P=all)\b.{0,80}\b(?:done|finished|completed?|written|saved)\b"
    r"|\b(?:summary|finished|completed?|done)\b.{0,40}?(?<![\d/.])(?P<all>\d{2,9}) ?(?:/|of) ?(?P=all)\b"
)
_ALL_MADE = regex.compile(
    r"(?i)^\W{0,20}all \d{1,9} (?:steps|epochs|iterations|samples|examples|tasks|batches) (?:are |were |have been )?"
    r"(?:done|finished|completed?)(?:, exiting)?\W{0,20}$"
)
"""Last words of a program that made all that was planned."""
_RESULTS = regex.compile(
    r"(?i)(?:^|[-|:>\]])\W{0,12}(?:final|test|overall) (?:results?|scores?|metrics?|summary)\b.{0,40}[:=].{0,300}\d"
)
"""How programs close their work: all items are done, or these are the results."""
_CLOSING_WORDS = ("done", "finish", "complete", "written", "saved", "summary", "result", "score", "metric")
"""Each match of `_ALL_DONE` or `_RESULTS` has one of these words; looking for them takes a tenth of the time."""
_WORK = (
    r"(?:pre-?|fine-?)?(?:training|tuning|evaluat(?:ion|ing)|inference|test(?:ing|s)?|benchmark(?:ing)?|jobs?|runs?|script|program"
    r"|experiments?|pipeline|generation|conversion|export|simulation|sampling|tasks?|everything"
    r"|subcommand|treinamento|entrenamiento|entra[iî]nement)"
)
_THINGS = (
    r"(?:results?|weights|adapters?|outputs?|predictions?|reports?|summary|figures?|plots?|grid|embeddings|submission)"
)
_CLOSED = regex.compile(
    rf"(?i)^\W{{0,40}}(?:all |is |and )*(?:done|finished|completed?|success(?:fully)?|end(?:ed)?)\b\W{{0,40}}$"
    rf"|\b{_WORK}\b[^:;]{{0,80}}\b(?:done|finished|completed?|concluded|ended|conclu[ií]do|terminad[oa]|termin[eé]e?)\b"
    rf"|\b(?:done|finished|completed?|concluded|ended|end of)[: ]{{1,2}}(?:with |the |all |of )*{_WORK}\b"
    rf"|\b(?:{_WORK}|total|overall)\b.{{0,30}}\b(?:took|time|elapsed|duration)\b.{{0,30}}\d"
    r"|\b(?:exit|return) ?(?:code|status)[ =:]{1,3}0\b|\bfinal (?:test )?accuracy\b.{0,10}\d|\bepilog(?:ue)?\b"
    r"|^\W{0,40}(?:all )?(?:done|finished|completed?) (?:in|after) \d"
    r"|\b(?:saved|wrote|written|exported)\b.{0,20}\bfinal (?:model|weights|state)\b"
    rf"|\b{_THINGS}\b.{{0,40}}\b(?:saved|written|exported|stored|dumped|uploaded) (?:to|at|in|as)\b"
    rf"|\b(?:saved|wrote|written|exported|stored|dumped|uploaded)\b.{{0,40}}\b{_THINGS}\b"
    r"|^wandb: (?:Synced \d|Find logs at)|^Ran [1-9]\d{0,5} tests? in \d"
    r"|^\W{0,40}(?:(?:finished|completed?) successfully|successfully (?:finished|completed))\W{0,40}$"
)
"""Last words of programs whose work is over."""
_CLOSING = regex.compile(
    r"(?i)\b(?:done|finish|complete|success|end|conclu|termin|took|time\b|elapsed|duration|exit|return|final|epilog"
    r"|saved|written|wrote|exported|stored|dumped|uploaded|wandb|ran )"
)
"""Each match of `_CLOSED` has one of these words; looking for them takes a tenth of the time."""
_FIGURES = regex.compile(
    r"(?i)\b(?:overall|average|mean|test)\b.{0,30}\b(?:acc(?:uracy)?|scores?|f1|bleu|wer|m?ap|m?iou|perplexity|rewards?"
    r"|success rate|results?|metrics?)\b.{0,30}\d"
    r"|\b(?:accuracy|perplexity|ppl|f1|bleu|wer|success rate|pass@\d{1,3})\b\W{0,4}\d"
)
"""Last words of programs that measured something; those that train print them now and then."""
_PASSING = regex.compile(
    r"(?i)\b(?:checkpoints?|ckpt|steps?|epochs?|iter(?:ation)?s?|batch(?:es)?|shards?|workers?|not|no|start\w*|begin\w*"
    r"|next|memory|load\w*|initiali[sz]\w*|set ?up|connect\w*|compil\w*|build\w*|install\w*|download\w*)\b"
)
"""Words of lines that may recur while work goes on."""
_BAD = regex.compile(
    r"(?i)(?<!\b0 )\b(?:fail(?:ed|ures?|ing)?|errors?|abort\w*|crash\w*|abnormal\w*|giv(?:e|ing) up|lost|kill\w*"
    r"|(?:code|status|exited)\W{1,3}-?[1-9]\d*)\b"
)
"""Words of last lines that rule out a good end."""
_LATE = regex.compile(r"Exception (?:in thread|ignored in)\b|resource_tracker: |^\s*warnings\.warn\(")
"""What is printed after the last words of a program, by its threads and the interpreter."""
_END = 6  # last lines that count as the end of the output
_AT_ITS_END = regex.compile(r"(?<![\d/])(?P<all>\d{2,9})/(?P=all) \[")
_GOODBYE = regex.compile(
    r"(?i)\b(?:closed|closing|shut(?:ting)? ?down|tear ?down|exit(?:ing|ed)?|bye|goodbye|finished|done)\b"
)
_OF_RANK = regex.compile(r"\(RANK (?P<rank>\d{1,9})\)$")
"""Heading of an error in a rank's collection of other ranks' errors."""
_LEVELS = ("ERROR", "CRITICAL", "FATAL")
_ANNOUNCED = regex.compile(r"(?i)\brank(?:[ _]id)?[ :=]{1,2}(?P<rank>\d{1,9})\b")
"""How a logger names the rank of an exception, on the line above."""
_RANK_MARK = regex.compile(r"\[[Rr]ank[ :_]?\d{1,9}\]:?")
_BLANK = " \t\r=*#-_+"
_FLOOD = 3000
_NUMBER = regex.compile(r"\d+")
_MESSAGE = 5  # lines after a generic claim in which its message may continue
_DATA = regex.compile(
    r"""(?is)^\s*(?:\S{1,200}:\d+: )?(?:\w+\.)*\w*Warning: .*|(?<=^|[:=({\[,]\s{0,3})"""
    r"""(?<!\b(?:message|msg|log|line|error|err|details?|reason|description|event|stderr|output)["']?\s{0,2}[:=]\s{0,3})"""
    r"""(?:'[^']{20,}'|"(?:[^"\\]|\\.){20,}")"""
)
"""What a program says in a warning of Python, or prints in quotes that no logger sets around its message."""
_TOLD = 2000  # characters
_HEAD = regex.compile(r"[\w./-]{2,60}: \S")  # how a program begins a report
_WHAT = 5  # lines after `terminate called` in which its `what()` may appear


class LogFinding(NamedTuple):
    """One claim about the failure, at one line.

    `rule` is None when only the structure of the line makes the claim; then `name` is the exception class. `order`
    sorts the findings of all streams: within a stream by line, between streams by the second where times are known (in
    UTC where all of them give a time zone), else by position. Fractions of a second are ignored: clocks of two nodes
    differ by more. `frames` are the innermost frames of a traceback. `also` are other lines of the same episode that
    may be cited. Where a rule matched another exception of a chain, `root` is the line of the deepest one, else 0.
    """

    order: tuple[float, int, int]
    stream: int
    line: int
    text: str
    reason: str
    role: str
    rule: DiagnosisRule | None
    name: str
    recovery: str
    fault: str
    outcome: str
    suggestion: str
    explains: tuple[str, ...]
    captures: dict[str, str]
    origin: LineOrigin
    time: float | None
    frames: tuple[str, ...] = ()
    also: tuple[int, ...] = ()
    root: int = 0

    @property
    def is_mild(self) -> bool:
        """Whether such a line rarely ends a job."""
        return self.rule is not None and self.rule.verdict.mild and not self.frames

    @property
    def rank(self) -> int | None:
        """The rank that the line names, or that printed it."""
        for name in ("rank", "global_rank"):
            if _RANK.fullmatch(self.captures.get(name, "")):
                return int(self.captures[name])
        return self.origin.rank

    @property
    def source(self) -> str:
        """What makes the claim: the id of a rule, or `structure/` and the exception class."""
        return self.rule.id if self.rule else f"structure/{self.name}"

    @property
    def key(self) -> str:
        """A key that is equal for the same claim by other ranks: numbers are left out."""
        return f"{self.reason}|{self.source}|{_NUMBER.sub('', self.origin.message)[:160]}"


@dataclass(frozen=True, eq=False)
class StreamReading:
    """One parsed stream. `lines` are kept lines; `times` are the times at them; `texts` and `origins` are of every line
    that the record holds; `suspicious` are sorted numbers of lines with a sign of trouble; `processes` maps processes
    to ranks.

    Lookups use indexes that are made once: a log may have as many findings as lines.
    """

    record: Record
    lines: list[tuple[Line, LineOrigin]]
    chains: list[Traceback]
    times: dict[int, float]
    texts: dict[int, str]
    origins: dict[int, LineOrigin]
    suspicious: npt.NDArray[np.int64]
    processes: dict[str, int]

    def chain_at(self, number: int) -> Traceback | None:
        """Return the first traceback around a line, even one of another writer."""
        place = bisect_left(self._ends, number)
        chain = self.chains[place] if place < len(self.chains) else None
        return chain if chain and chain.first <= number else None

    @once
    def _ends(self) -> list[int]:
        """The greatest last line of the tracebacks up to each one."""
        return list(accumulate((chain.last for chain in self.chains), max))

    @once
    def in_chains(self) -> set[int]:
        """The lines of tracebacks, and those of other writers in between."""
        return _covered((chain.first, chain.last) for chain in self.chains)

    @once
    def by_channel(self) -> dict[str, list[Line]]:
        """The lines of each channel, in order."""
        found: dict[str, list[Line]] = {}
        for line, where in self.lines:
            found.setdefault(where.channel, []).append(line)
        return found

    def rank_of(self, channel: str) -> int | None:
        """Return the rank that a process names in other lines; None if unknown."""
        return self.processes.get(_process(channel)) if self.processes else None

    def ordinary_after(self, number: int) -> int:
        """Count the lines after a line without a sign of trouble; 0 in a flood of errors."""
        suspicious = len(self.suspicious) - int(np.searchsorted(self.suspicious, number, "right"))
        if suspicious >= _FLOOD:
            return 0  # the middle of a flood of errors is not kept, so ordinary lines in it cannot be counted
        return max(self.record.compression.lines_in - number - suspicious, 0)

    def text(self, number: int) -> str | None:
        """Return the raw text of a line; None if the record lacks it."""
        if number in self.texts:
            return self.texts[number]
        for part in self.record.texts:
            found = np.flatnonzero(part.lines == number)
            if len(found):
                return decode(zstandard.ZstdDecompressor().decompress(part.frame).split(b"\n")[int(found[0])])
        return None


def _covered(spans: Iterable[tuple[int, int]]) -> set[int]:
    """Return the lines of spans that are sorted by first line. Each is visited once, however many spans overlap."""
    found: set[int] = set()
    end = 0
    for first, last in spans:
        found.update(range(max(first, end + 1), last + 1))
        end = max(end, last)
    return found


def read(record: Record) -> StreamReading:
    """Parse the line prefixes of a record and find its tracebacks."""
    milestones = [milestone for span in record.spans.values() for milestone in span]
    texts = {milestone.line: milestone.text for milestone in milestones}
    texts |= {line.number: line.text for line in (*record.last, *record.lines)}
    origins = {number: origin(shown(text)) for number, text in texts.items()}
    lines = [(line, origins[line.number]) for line in record.lines]
    times: dict[int, float] = {}
    now: float | None = None
    for line, _ in lines:
        now = seconds_of(line.text) or now
        if now is not None:
            times[line.number] = now
    suspicious = np.sort([line.number for line, _ in lines if line.strong or line.weak or line.rules]).astype(np.int64)
    return StreamReading(record, lines, tracebacks(lines), times, texts, origins, suspicious, _processes(lines))


def _processes(lines: list[tuple[Line, LineOrigin]]) -> dict[str, int]:
    """Return the rank of each process with an id whose lines name exactly one."""
    named: dict[str, set[int]] = {}
    for _, where in lines:
        if where.rank is not None and "pid=" in where.channel:
            named.setdefault(_process(where.channel), set()).add(where.rank)
    return {process: ranks.pop() for process, ranks in named.items() if len(ranks) == 1}


def _process(channel: str) -> str:
    """Return the process of a channel: its marks without the rank."""
    return _RANK_MARK.sub("", channel)


def findings(readings: list[StreamReading], book: RuleBook) -> list[LogFinding]:
    """Return the findings of all streams, in order."""
    own = [reading for reading in readings if not reading.record.is_witness]
    timed = len(readings) > 1 and bool(own) and all(reading.times for reading in own)
    latest = max((time for reading in readings for time in reading.times.values()), default=0.0)
    zones = [_zone(reading) for reading in readings] if timed else []
    known = all(zone is not None or not reading.times for zone, reading in zip(zones, readings, strict=False))
    ahead = [zone or 0 for zone in zones] if known else [0] * len(zones)
    found: list[LogFinding] = []
    for number, reading in enumerate(readings):
        seconds = _seconds(reading.times, latest) if timed else {}
        if seconds and ahead[number]:
            seconds = {line: second - ahead[number] for line, second in seconds.items()}
        found += _of_stream(number, reading, book, seconds)
    return sorted(found, key=lambda finding: finding.order)


def _zone(reading: StreamReading) -> int | None:
    """Return the one time zone of a stream's stamps, in seconds ahead of UTC. None when they differ or lack one."""
    zones = {zone_of(line.text) for line, _ in reading.lines if seconds_of(line.text) is not None}
    return zones.pop() if len(zones) == 1 else None


def _seconds(times: dict[int, float], latest: float) -> dict[int, float]:
    """Return each line's second, in the year closest to `latest` and never before an earlier line's. `latest` is the
    last stamp of all streams."""
    runs = [(time, len(list(run))) for time, run in groupby(times.values(), math.floor)]
    seconds = rising([dated(float(time), latest) for time, _ in runs])
    repeated = (second for second, (_, count) in zip(seconds, runs, strict=True) for _ in range(count))
    return dict(zip(times, repeated, strict=True))


def claim(readings: list[StreamReading], stream: int, number: int) -> LogFinding | None:
    """Return a line as a finding without a claim, for callers that know more about it. None when the records lack
    it."""
    reading = readings[stream]
    text = reading.text(number)
    if text is None:
        return None
    default = (0.0, stream, number)
    where, time = origin(shown(text)), reading.times.get(number)
    return LogFinding(default, stream, number, text, "", "note", None, "", "", "", "", "", (), {}, where, time)


def _of_stream(number: int, reading: StreamReading, book: RuleBook, seconds: dict[int, float]) -> list[LogFinding]:
    maker = _Maker(number, reading, book, seconds)
    by_line: dict[int, LogFinding] = {}
    quiet: set[int] = set()
    for line, where in reading.lines:
        if line.rules:
            finding = maker.by_rules(line, where)
            if finding is not None:
                by_line[line.number] = finding
            elif maker.knows(line):
                quiet.add(line.number)
    _drop_code(reading, by_line)
    for chain in reading.chains:
        finding = maker.by_chain(chain, by_line, quiet)
        for raised in chain.raised:
            by_line.pop(raised.line, None)
        if finding is not None:
            by_line[finding.line] = _of_headed_rank(reading, chain, finding)
    for line, where in reading.lines:
        if (
            line.strong
            and line.number not in by_line
            and line.number not in quiet
            and line.number not in reading.in_chains
        ):
            bare = _BARE.match(where.message)
            if bare and not _ignored(bare["name"]):
                by_line[line.number] = maker.by_name(line, where, bare["name"], bare["message"] or "", ())
            elif crash := _CRASH.search(where.message):
                by_line[line.number] = maker.crash(line, where, crash.group())
    _drop_continued(reading, by_line)
    return [*by_line.values(), *(maker.closed(*one) for one in _closing(reading, by_line))]


def _of_headed_rank(reading: StreamReading, chain: Traceback, finding: LogFinding) -> LogFinding:
    """Return a traceback's finding with the rank that its heading names. Another rank printed it, or a logger that does
    not name the rank in each line."""
    named = _OF_RANK.search((reading.text(chain.first) or "").rstrip())
    above = reading.origins.get(chain.first - 1)
    if above and above.level in _LEVELS and above.channel == finding.origin.channel:
        named = named or _ANNOUNCED.search(above.message)
    return finding._replace(captures=finding.captures | {"rank": named["rank"]}) if named else finding


def _closing(reading: StreamReading, by_line: dict[int, LogFinding]) -> Iterable[tuple[Line, LineOrigin, str]]:
    """Return the lines with which a program closed its work, and how. `closing`: all is done, or goodbye behind a
    complete bar; `results`: what they are; `end` or `figures`: what is said or measured at the very end."""
    found: dict[str, tuple[Line, LineOrigin, str]] = {}
    is_at_end = False
    said_last = (line for line in reading.record.last if line.text.strip(_BLANK) and not _LATE.search(line.text))
    end = [line for line in said_last if line.number not in reading.in_chains][-_END:]
    begin = end[0].number if end and not any(_BAD.search(line.text[:1000]) for line in end) else math.inf
    for line in reading.record.last:
        where = reading.origins[line.number]
        said = said_in(where.message[:2000])[:1000]
        lowered = said.lower()
        is_candidate = is_at_end or line.number >= begin or any(word in lowered for word in _CLOSING_WORDS)
        if is_candidate and line.number not in by_line and line.number not in reading.in_chains:
            is_bar = _AT_ITS_END.search(said) is not None
            if (not is_bar and _ALL_DONE.search(said)) or (is_at_end and _GOODBYE.search(said)):
                found["closing"] = line, where, "closing"
            elif _RESULTS.search(said):
                found["results"] = line, where, "results"
            elif line.number >= begin and _ALL_MADE.search(said):
                found["end"] = line, where, "end"
            elif line.number >= begin and not _PASSING.search(said):
                is_closed = _CLOSING.search(said) and _CLOSED.search(said)
                if how := "end" if is_closed else "figures" if _FIGURES.search(said) else "":
                    found["end"] = line, where, how
        is_at_end |= _AT_ITS_END.search(line.text[-2000:]) is not None
    return found.values()


def _drop_code(reading: StreamReading, by_line: dict[int, LogFinding]) -> None:
    """Drop findings in source lines of tracebacks, which mention errors without meaning one."""
    frames = _covered((chain.first, chain.last - 1) for chain in reading.chains)
    raised = {one.line for chain in reading.chains for one in chain.raised}
    for number in frames.intersection(by_line) - raised:
        if by_line[number].origin.message[:1].isspace():
            del by_line[number]


def _drop_continued(reading: StreamReading, by_line: dict[int, LogFinding]) -> None:
    """Drop a RuntimeError or a match of a fallback rule that a specific rule explains. That rule matches the writer's
    next lines, in which the message continues."""
    general: dict[str, list[LogFinding]] = {}
    previous: dict[str, int] = {}
    for line, where in reading.lines:
        here, before = by_line.get(line.number), general.setdefault(where.channel, [])
        before[:] = [one for one in before if line.number <= one.line + _MESSAGE or previous[where.channel] == one.line]
        if here is not None and (here.rule.fallback if here.rule else here.name.endswith("RuntimeError")):
            before.append(here)
        elif here is not None and before and _goes_on(here, adjacent=previous[where.channel] == before[-1].line):
            for finding in before:
                if finding.rule is None or here.line == finding.line + 1 or _is_coded(here):
                    del by_line[finding.line]
            before.clear()
        previous[where.channel] = line.number


def _goes_on(here: LogFinding, adjacent: bool) -> bool:
    """Return whether a claim's line continues a message. It is adjacent and begins no new report, or has an error code
    that a table knows."""
    if here.rule is None or here.role not in ("cause", "proximate") or here.is_mild:
        return False
    return _is_coded(here) or (adjacent and _HEAD.match(here.origin.message) is None)


def _is_coded(finding: LogFinding) -> bool:
    return finding.rule is not None and bool(finding.rule.verdict.lookup)


def _ignored(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in _IGNORED


def _by_code(claims: list[LogFinding]) -> list[LogFinding]:
    """Return the claims of a line; a known error code outranks wider patterns. Those count only as a cause or an
    outcome then."""
    coded = [claim for claim in claims if claim.rule and claim.rule.verdict.lookup]
    wider = [claim for claim in claims if not coded or claim.role == "cause" or claim.outcome]
    return coded + [claim for claim in wider if claim not in coded]


def _is_data(finding: LogFinding) -> bool:
    """Return whether a machine is blamed only by what a program prints in quotes or warns of: it may be its data."""
    if finding.rule is None or taxonomy.REASONS[finding.reason].category != "Infrastructure":
        return False
    text = finding.origin.message[:_TOLD]
    plain = _DATA.sub(" ", text)
    return plain != text and not matches(finding.rule, plain)


def _is_of_peers(name: str) -> bool:
    """Return whether an exception is of those that a process raises when another one has gone."""
    return name.rsplit(".", 1)[-1] in _CASCADES


def _misses_a_peer(name: str, frames: Sequence[str]) -> bool:
    """Return whether an exception was raised because another process had gone, and not by a request to a service or by
    a file that ends too early."""
    others = any(_ASKS_A_SERVICE.match(frame) or _READS_A_FILE.match(frame) for frame in frames)
    return _is_of_peers(name) and not others


class _Maker:
    """Makes the findings of one stream."""

    def __init__(self, number: int, reading: StreamReading, book: RuleBook, seconds: dict[int, float]) -> None:
        self._number = number
        self._book = book
        self._seconds = seconds
        self._times = reading.times
        self._lines = {line.number: (line, where) for line, where in reading.lines}

    def knows(self, line: Line) -> bool:
        """Return whether a rule without an error-code lookup matches the line."""
        return any(not self._book.diagnoses[number].verdict.lookup for number in line.rules)

    def by_rules(self, line: Line, where: LineOrigin) -> LogFinding | None:
        """Return the finding of the rule that knows most about a line. None when it is only noted or tells of something
        handled."""
        rules = sorted((self._book.diagnoses[number] for number in line.rules), key=priority)
        if any(rule.verdict.handled for rule in rules):
            return None
        every = [claim for rule in rules if (claim := self._claim(rule, line, where)) is not None]
        known = [claim for claim in every if claim.rule and not claim.rule.fallback]
        claims = _by_code(known or every)
        claims.sort(key=lambda finding: taxonomy.ROLES.index(finding.role))
        outcomes = [claim for claim in claims if claim.outcome]
        errors = [claim for claim in claims if claim.role in ("cause", "proximate", "cascade")]
        teardown = [claim for claim in claims if claim.role == "teardown"]
        ordered = errors or outcomes or teardown
        if not ordered:
            return None
        merged = {name: value for claim in reversed(every) for name, value in claim.captures.items()}
        best = ordered[0]
        if best.role == "cause" and _is_data(best):
            best = best._replace(role="cascade")
        return best._replace(captures=merged | best.captures)

    def _claim(self, rule: DiagnosisRule, line: Line, where: LineOrigin) -> LogFinding | None:
        verdict = rule.verdict
        reason, role = verdict.reason, str(verdict.role)
        recovery, fault, suggestion = verdict.recovery, verdict.fault, rule.suggestion
        found = captures(rule, shown(line.text))
        if verdict.lookup:
            row = self._book.knowledge(verdict.lookup).get(found.get(verdict.lookup, ""))
            if row is None:
                return None
            reason, role = row["reason"], row["role"]
            recovery, fault = row.get("recovery") or recovery, row.get("fault") or fault
            suggestion = row.get("suggestion") or suggestion
        if reason == "Runtime Error" and role == "cascade" and names_another_fault(self._report(line, where)):
            reason, recovery, fault = "Unknown", "", ""  # a process died of an exception that no rule knows
        return self._finding(line, where, reason, role, rule, "", recovery, fault, suggestion, found)

    def _report(self, line: Line, where: LineOrigin) -> str:
        """Return a line with the `what()` that its writer prints after it."""
        after = (self._lines.get(number) for number in range(line.number + 1, line.number + _WHAT + 1))
        messages = (one[1].message for one in after if one is not None and one[1].channel == where.channel)
        what = next((message for message in messages if message.lstrip().startswith("what():")), "")
        return f"{where.message.removeprefix('terminate called')} {what}"

    def by_chain(self, chain: Traceback, by_line: dict[int, LogFinding], quiet: set[int]) -> LogFinding | None:
        """Return a chain's finding: by the best rule for its exceptions, else by its deepest one. None if Python or the
        program dealt with it."""
        before = self._lines.get(chain.first - 1)
        if before is not None and _HANDLED.search(before[0].text):
            return None
        if not chain.raised:
            return self.crash(*self._lines[chain.first], "Traceback")
        ruled = [by_line[raised.line] for raised in chain.raised if raised.line in by_line]
        of_peers = [raised for raised in chain.raised if _is_of_peers(raised.name)]
        own = {raised.line for raised in of_peers if not _misses_a_peer(raised.name, raised.frames)}
        ruled = [finding for finding in ruled if finding.role != "cascade" or finding.line not in own]
        ruled = [finding for finding in ruled if finding.role != "teardown"] or ruled
        at = deepest(chain)
        chosen = chain.raised[at]
        others = tuple(raised.line for raised in chain.raised)
        unruled = [raised for raised in chain.raised if raised.line not in by_line and raised.line not in quiet]
        if ruled:
            best = min(ruled, key=lambda finding: (taxonomy.ROLES.index(finding.role), finding.line != chosen.line))
            inner_plain = (
                chosen in unruled and not _ignored(chosen.name) and not _misses_a_peer(chosen.name, chosen.frames)
            )
            if best.role in ("cause", "proximate") or not inner_plain:
                frames = next(raised.frames for raised in chain.raised if raised.line == best.line)
                return best._replace(frames=frames, also=others, root=0 if _ignored(chosen.name) else chosen.line)
        if chosen.line in quiet or all(_ignored(raised.name) for raised in chain.raised):
            return None
        if _ignored(chosen.name):
            chosen = next(raised for raised in chain.raised if not _ignored(raised.name))
        line, where = self._lines[chosen.line]
        finding = self.by_name(line, where, chosen.name, chosen.message, chosen.frames)._replace(also=others)
        if finding.reason in ("Runtime Error", "Unknown") and not chosen.name.endswith("RuntimeError"):
            # the program's own class: another class of its chain may tell its family
            informative = [one for one in chain.raised if not is_report(one.name, one.message, one.frames)]
            reasons = [taxonomy.reason_of_exception(one.name) for one in informative]
            reason = next((reason for reason in reasons if reason != "Runtime Error"), finding.reason)
            default = taxonomy.REASONS[reason]
            role = finding.role if reason == finding.reason else "proximate"
            finding = finding._replace(reason=reason, role=role, recovery=default.recovery, fault=default.fault)
        return finding

    def by_name(self, line: Line, where: LineOrigin, name: str, message: str, frames: tuple[str, ...]) -> LogFinding:
        """Return the finding of an exception that no rule knows, by its class or class family.

        A class that says nothing gives `Unknown`, which is kept so that errors that follow from it are not taken for
        the cause.
        """
        if is_report(name, message, frames):
            return self.crash(line, where, name)._replace(frames=frames)
        is_torn_file = name == "EOFError" and any(map(_READS_A_FILE.match, frames))
        reason = "Model Loading Error" if is_torn_file else taxonomy.reason_of_exception(name)
        if name.rsplit(".", 1)[-1] in _UNREADABLE and any(map(_READS_DATA.search, frames)):
            reason = "Dataset Loading Error"
        if reason == "Runtime Error" and names_another_fault(f"{name}: {message}"):
            reason = "Unknown"
        role = "cascade" if _misses_a_peer(name, frames) else "proximate"
        return self._finding(line, where, reason, role, None, name, "", "", "", {})._replace(frames=frames)

    def crash(self, line: Line, where: LineOrigin, name: str) -> LogFinding:
        """Return the finding of a process that died of a signal; the line does not say why."""
        return self._finding(line, where, "Unknown", "teardown", None, name, "", "", "", {})

    def closed(self, line: Line, where: LineOrigin, how: str) -> LogFinding:
        """Return the finding of a line with which a program closed its work."""
        return self._finding(line, where, "None", "note", None, how, "", "", "", {})._replace(outcome="completed")

    def _finding(
        self,
        line: Line,
        where: LineOrigin,
        reason: str,
        role: str,
        rule: DiagnosisRule | None,
        name: str,
        recovery: str,
        fault: str,
        suggestion: str,
        found: dict[str, str],
    ) -> LogFinding:
        default = taxonomy.REASONS.get(reason)
        return LogFinding(
            order=(self._seconds.get(line.number, 0.0), self._number, line.number),
            stream=self._number,
            line=line.number,
            text=line.text,
            reason=reason,
            role=role,
            rule=rule,
            name=name,
            recovery=recovery or (default.recovery if default else ""),
            fault=fault or (default.fault if default else ""),
            outcome=rule.verdict.outcome if rule else "",
            suggestion=suggestion,
            explains=rule.explains if rule else (),
            captures=found,
            origin=where,
            time=self._times.get(line.number),
        )
