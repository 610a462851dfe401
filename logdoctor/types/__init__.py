"""The core types: what passes between the stages, and the JSON contract of a verdict.

bytes --cut--> Segment --compress--> Residual --diagnose--> Verdict
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

LEARNED = "learned/"
"""The prefix of learned rules' ids; no file below `rules/` has it."""

VERDICT_VERSION = 1
"""Raised when a field of the verdict changes its meaning or is removed; added fields do not raise it."""


class Segment(NamedTuple):
    """A run of lines of one stream, cut at line ends.

    `data` are the raw bytes, `offset` the position of the first of them in the stream (after decompression), `line` the
    number of the first line, counted from 1, and `newlines` the positions of `\\n` in `data`. Only the last segment of
    a stream may lack the newline of its last line. A line longer than `compress.cut.MAX_LINE` comes as segments of its
    own: `piece` 0, 1, 2, ..., all with its number.
    """

    stream: str
    data: bytes
    offset: int
    line: int
    newlines: "npt.NDArray[np.int64]"
    piece: int | None = None

    @property
    def lines(self) -> int:
        """Return how many lines begin in the segment."""
        if self.piece is not None:
            return int(self.piece == 0)
        return len(self.newlines) + (not self.data.endswith(b"\n") and len(self.data) > 0)


class Line(NamedTuple):
    """A line that diagnosis may need. `rules` are diagnosis rules, as indexes into the rule book.

    `text` is the raw line, decoded; of a very long line it is the part around what drew attention. A line that is
    neither `strong` nor `weak` nor matched by a rule is context. A `noticed` line was taken for an error by the Log
    Agent.
    """

    number: int
    text: str
    rules: tuple[int, ...] = ()
    strong: bool = False
    weak: bool = False
    noticed: bool = False


class ShapeGroup(NamedTuple):
    """Lines of one shape that no rule explains: how many, and some of them as (stream, number, text)."""

    shape: int
    lines: int
    examples: tuple[tuple[str, int, str], ...]


class Readings(NamedTuple):
    """What one filter rule read from metric lines, in order: line numbers, steps, losses, throughput.

    A value is NaN where a line does not give it; one printed as NaN or infinity is inf. Throughput is in the
    unit that the framework prints.
    """

    lines: "npt.NDArray[np.int64]"
    steps: "npt.NDArray[np.float64]"
    losses: "npt.NDArray[np.float64]"
    rates: "npt.NDArray[np.float64]"

    def at(self, places: "npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice") -> "Readings":
        """Return what was read at some places."""
        return Readings(self.lines[places], self.steps[places], self.losses[places], self.rates[places])


class MetricTexts(NamedTuple):
    """The raw text of metric lines, so that a verdict can quote them: line numbers, and the lines joined by
    newlines in a Zstandard frame."""

    lines: "npt.NDArray[np.int64]"
    frame: bytes


class Milestone(NamedTuple):
    """The first or last metric line of a rule: its number, its raw text, and the seconds of the nearest stamp at or
    before it, None when there is none nearby."""

    line: int
    text: str
    time: float | None


class Record(msgspec.Struct):
    """What diagnosis needs to know of one stream, whatever its size.

    `lines` are ordered by number: lines with evidence or marks and their neighbours. `last` are the last lines of the
    stream. `progress` maps filter rule ids to what they read, `spans` to the first and last metric line, `placements`
    ranks to nodes, `aliases` IP addresses and pods to nodes; `total` is the number of steps that the job plans; `shown`
    holds the last values of metric lines, those read by learned rules included: it is displayed, but no verdict depends
    on it.
    """

    stream: str
    file: str
    lines: list[Line] = []
    last: list[Line] = []
    progress: dict[str, Readings] = {}
    texts: list[MetricTexts] = []
    spans: dict[str, tuple[Milestone, Milestone]] = {}
    placements: dict[int, str] = {}
    aliases: dict[str, str] = {}
    total: int | None = None
    shown: "Progress" = msgspec.field(default_factory=lambda: Progress())
    compression: "Compression" = msgspec.field(default_factory=lambda: Compression())
    problems: list[str] = []


class Evidence(msgspec.Struct, frozen=True):
    """A line that proves the verdict. `quote` is, character for character, a part of that line (law 3)."""

    file: str
    stream: str
    line: int
    quote: str
    rule: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class Suspect(msgspec.Struct, frozen=True):
    """A node, rank or GPU that may be at fault, and why it is named."""

    node: str | None
    rank: int | None
    gpu: str | None
    why: str


class Symptom(msgspec.Struct, frozen=True):
    """An error besides the cause: its reason, first line, how often it came, what explains it, and why it is not the
    cause."""

    reason: str
    line: int
    stream: str
    count: int
    explained_by: str
    why: str = ""


class DecidedBy(msgspec.Struct, frozen=True):
    """What made the verdict: a rule, the structure of the report, a past case (`rule` is `case/` and its number), the
    Failure Agent (with its model and the digest of its prompt), or nobody; and with which rule book."""

    kind: Literal["rule", "structure", "case", "agent", "nobody"]
    rule: str = ""
    rulebook: str = ""
    model: str = ""
    prompt: str = ""


class Alternative(msgspec.Struct, frozen=True):
    """Another reason that was considered, with what speaks for or against it."""

    reason: str
    why: str


class RuleCount(msgspec.Struct, frozen=True):
    """How many lines a filter rule took, and the first and last of them."""

    lines: int
    first: int
    last: int


class Compression(msgspec.Struct, frozen=True):
    """What the filter rules left of the log. `lines_kept` + the lines of `rules` = `lines_in` (law 1)."""

    lines_in: int = 0
    lines_kept: int = 0
    bytes_in: int = 0
    bytes_kept: int = 0
    rules: dict[str, RuleCount] = {}


class Point(msgspec.Struct, frozen=True):
    """The values of one metric line; None for one that it does not have. In a curve with losses each line gives one, so
    None means that it was printed as NaN or infinity."""

    line: int
    step: int | None
    loss: float | None
    rate: float | None


class Progress(msgspec.Struct, frozen=True):
    """How far the job came: the last step, the total, the last loss, throughput and accuracy (in the units that the
    framework prints), and the line of the step. `curve` has at most 96 points of the same stream, in order: the first,
    the last, and of what lies between them the lowest and the highest loss of each part. When it is `learned`, only
    learned rules have read it: it is shown, but no verdict depends on it."""

    step: int | None = None
    total: int | None = None
    loss: float | None = None
    throughput: float | None = None
    line: int | None = None
    stream: str = ""
    curve: tuple[Point, ...] = ()
    accuracy: float | None = None
    learned: bool = False


class RankError(msgspec.Struct, frozen=True):
    """The first error of a rank, or of a node or stream that names no rank.

    `time` is the line's time stamp (in a stream with one writer, or the last before it), in seconds since the epoch as
    printed; the year is 2000 where no stamp of the log gives one. `count` is how many ranks the entry represents: above
    1 it is the first of that many equal errors.
    """

    rank: int | None
    node: str | None
    stream: str
    line: int
    time: float | None
    reason: str
    role: str
    count: int = 1


Reason = str
Category = Literal["Infrastructure", "Framework", "Script", "Anomaly", "None"]
Fault = Literal["user", "infrastructure", "nobody", "unknown"]
Recovery = Literal["restart", "isolate_and_restart", "rollback_and_skip", "fix_first", "ask_human", "none"]
Outcome = Literal["failed", "completed", "running", "cancelled", "recovered", "unknown"]


class EarlierRun(msgspec.Struct, frozen=True):
    """A run before the last one in the same file: its first line, how it ended as far as its lines tell (`unknown`
    where they do not), the reason and the finer word, the line that decided that with its text, 0 and "" where there is
    none, the confidence, and what decided (a kind of `DecidedBy`)."""

    line: int
    outcome: Outcome
    reason: Reason
    detail: str
    decided_at: int
    quote: str = ""
    confidence: float = 0.0
    decided_by: str = "nobody"


class WriterCourse(msgspec.Struct, frozen=True):
    """What the writer of an error did next, by the lines that are kept.

    `work` are the first words of the lines that it mostly printed before. Behind the error it printed so many `lines`
    without a sign of trouble, `work_lines` of these of that work. `survived` says how it is known that the error did
    not end the job; "" where it may have.
    """

    stream: str
    line: int
    writer: str
    reason: str
    work: tuple[str, ...]
    lines: int
    work_lines: int
    survived: str


class Verdict(msgspec.Struct, frozen=True):
    """How one attempt of a job ended, why, and the proof.

    `reason` is one of `taxonomy.REASONS`; for an outcome other than `failed` it is "None", or the fault that a
    recovered job survived. The outcome is `unknown` where the log shows neither an end nor a failure: then nothing is
    advised. `confidence` is 0 to 1. `problems` names what could not be read. `seconds` is the time the diagnosis took,
    `nodes` are those that the job ran on, as far as its log shows. `ranks` are the cause and the first error of each
    rank of a failed job, in order of appearance; at most 64, further ones are folded into these. `onset_step` is the
    step from which on the loss is bad, for a loss spike whose log tells its steps. `detail` says more finely what
    failed, such as "segmentation fault in rank 1"; "" where the reason says all. `runs` are those before the last one,
    when a log holds several, one appended to the other: the verdict is on the last. `courses` are what the writers of
    errors did after them, of 16 errors at most.
    """

    reason: Reason
    category: Category
    fault: Fault
    recovery: Recovery
    outcome: Outcome
    confidence: float
    suggestion: str
    evidence: tuple[Evidence, ...]
    suspects: tuple[Suspect, ...]
    first_rank: int | None
    symptoms: tuple[Symptom, ...]
    decided_by: DecidedBy
    fingerprint: str
    progress: Progress
    compression: Compression
    problems: tuple[str, ...] = ()
    why: str = ""
    alternatives: tuple[Alternative, ...] = ()
    file: str = ""
    version: int = VERDICT_VERSION
    seconds: float = 0.0
    nodes: tuple[str, ...] = ()
    ranks: tuple[RankError, ...] = ()
    onset_step: int | None = None
    detail: str = ""
    runs: tuple[EarlierRun, ...] = ()
    courses: tuple[WriterCourse, ...] = ()


def names_node(verdict: Verdict) -> bool:
    """Return whether a verdict names a node that could be cordoned."""
    return any(suspect.node for suspect in verdict.suspects)


class ReportedFailure(NamedTuple):
    """One attempt that failed. Times are seconds since the epoch, None where they are not known.

    `failed` is when the whole attempt was said to have ended, else when a verdict first called it failed; `next` is
    when the next attempt of its job began, None when there is none. `gpus` are those of the job in all, None when it
    did not tell. `decided` is what made the verdict that stands: a kind of `DecidedBy`, "learned", or "person" when a
    person confirmed or corrected it and that stands.
    """

    reason: str
    category: str
    decided: str
    started: float | None
    failed: float | None
    next: float | None
    gpus: int | None


class Failures(NamedTuple):
    """The failures of a period, and whether older ones were left out because there are too many."""

    items: list[ReportedFailure]
    cut: bool


def as_json(verdict: Verdict) -> bytes:
    """Return a verdict as JSON on one line; bytes of a file's name that are not UTF-8 are shown as escapes."""
    try:
        return msgspec.json.encode(verdict)
    except UnicodeEncodeError:
        import json
        import re

        text = json.dumps(msgspec.to_builtins(verdict), ensure_ascii=False)
        return re.sub(r"[\ud800-\udfff]", lambda half: f"\\\\u{ord(half[0]):x}", text).encode()
