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

    `data` are the raw bytes, `offset` the position of the first one in the stream (after decompression), `line` the
    number of the first line, counted from 1, and `newlines` the positions of `\\n` in `data`. Only a stream's last
    segment may lack the newline of its last line. A line longer than `compress.cut.MAX_LINE` comes as segments of its
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

    `text` is the raw line, decoded; of a very long line the part around what drew attention. A line that is neither
    `strong` nor `weak` nor matched by a rule is context. The Log Agent took a `noticed` line for an error.
    """

    number: int
    text: str
    rules: tuple[int, ...] = ()
    strong: bool = False
    weak: bool = False
    noticed: bool = False


class ShapeGroup(NamedTuple):
    """Lines of one shape that no rule explains: how many, and examples as (stream, number, text)."""

    shape: int
    lines: int
    examples: tuple[tuple[str, int, str], ...]


class Readings(NamedTuple):
    """What one filter rule read from metric lines, in order: line numbers, steps, losses, throughput.

    A value is NaN where a line has none; one printed as NaN or infinity is inf. Throughput is in the framework's unit.
    """

    lines: "npt.NDArray[np.int64]"
    steps: "npt.NDArray[np.float64]"
    losses: "npt.NDArray[np.float64]"
    rates: "npt.NDArray[np.float64]"

    def at(self, places: "npt.NDArray[np.int64] | npt.NDArray[np.bool_] | slice") -> "Readings":
        """Return the readings at some indexes."""
        return Readings(self.lines[places], self.steps[places], self.losses[places], self.rates[places])


class MetricTexts(NamedTuple):
    """The raw text of metric lines, for quoting: line numbers, and the lines joined by newlines in a Zstandard
    frame."""

    lines: "npt.NDArray[np.int64]"
    frame: bytes


class Milestone(NamedTuple):
    """The first or last metric line of a rule: its number, raw text, and the time of the nearest stamp at or before it,
    in seconds since the epoch (None without one nearby)."""

    line: int
    text: str
    time: float | None


class Record(msgspec.Struct):
    """What diagnosis needs to know about one stream, whatever its size.

    `lines` are ordered by number: lines with evidence or marks and their neighbours. `last` are the stream's last
    lines. `progress` maps filter rule ids to what they read, `spans` to the first and last metric line, `placements`
    ranks to nodes, `aliases` IP addresses and pods to nodes; `total` is the planned number of steps; `shown` holds the
    last values of metric lines, those read by learned rules included: for display only, no verdict depends on it.
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
    is_witness: bool = False
    """Whether a source beside the job printed it: the kernel, the GPUs, the scheduler."""


class Coverage(msgspec.Struct, frozen=True):
    """Whether a source beside the log could be read for an attempt, such as `kernel@gpu-07`; `said` tells more.

    "empty" means that it was read and has nothing of that time: no proof that nothing happened.
    """

    source: str
    state: Literal["read", "empty", "refused", "too late", "absent"]
    said: str = ""


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
    """An error besides the cause: its reason, first line, how often it occurred, what explains it, and why it is not
    the cause."""

    reason: str
    line: int
    stream: str
    count: int
    explained_by: str
    why: str = ""


class DecidedBy(msgspec.Struct, frozen=True):
    """What decided the verdict: a rule, the structure of the report, a past case (`rule` is `case/` and its number),
    the Failure Agent (with its model and the digest of its prompt), or nobody; and with which rule book."""

    kind: Literal["rule", "structure", "case", "agent", "nobody"]
    rule: str = ""
    rulebook: str = ""
    model: str = ""
    prompt: str = ""


class Alternative(msgspec.Struct, frozen=True):
    """Another reason that was considered, and the argument for or against it."""

    reason: str
    why: str


class RuleCount(msgspec.Struct, frozen=True):
    """How many lines a filter rule removed, and the first and last of them."""

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
    """The values of one metric line; None for a missing one. In a curve with losses every line has one, so a loss of
    None was printed as NaN or infinity."""

    line: int
    step: int | None
    loss: float | None
    rate: float | None


class Progress(msgspec.Struct, frozen=True):
    """How far the job came: the last step, the planned total, the last loss, throughput and accuracy (in the
    framework's units), and the line of the step. `curve` has at most 96 points of one stream, in order: the first, the
    last, and in between the lowest and highest loss of each part. If `learned`, only learned rules read it: for display
    only, no verdict depends on it."""

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
    """The first error of a rank, or of a node or stream without a rank.

    `time` is the line's time stamp (in a stream with one writer, or the last before it), in seconds since the epoch as
    printed; the year is 2000 if no stamp of the log has one. `count` is how many ranks the entry represents: above 1 it
    is the first of that many equal errors.
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
    """A run before the last one in the same file: its first line, outcome (`unknown` when its lines do not show it),
    reason and detail, the line that decided that and its text (0 and "" if none), the confidence, and what decided (a
    kind of `DecidedBy`)."""

    line: int
    outcome: Outcome
    reason: Reason
    detail: str
    decided_at: int
    quote: str = ""
    confidence: float = 0.0
    decided_by: str = "nobody"


class WriterCourse(msgspec.Struct, frozen=True):
    """What the writer of an error did next, by the kept lines.

    `work` are the first words of the lines that it mostly printed before. After the error it printed `lines` without a
    sign of trouble, `work_lines` of them from that work. `survived` says how it is known that the error did not end the
    job; "" when it may have.
    """

    stream: str
    line: int
    writer: str
    reason: str
    work: tuple[str, ...]
    lines: int
    work_lines: int
    survived: str


Fate = Literal["own fault", "ended", "missing", "echo", "silent", "wrote nothing", "done", "no error"]


class RankFate(msgspec.Struct, frozen=True):
    """The fate of some ranks (`0-2,4`): `what` is the reason of their error or how they ended, and the line that
    says so of the first of them."""

    fate: Fate
    ranks: str
    count: int
    what: str = ""
    stream: str = ""
    line: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """How one attempt of a job ended, why, and the proof.

    `reason` is one of `taxonomy.REASONS`; for an outcome other than `failed` it is "None", or the fault that a
    recovered job survived. The outcome is `unknown` if the log shows neither an end nor a failure: then nothing is
    advised. `confidence` is 0 to 1. `problems` names what could not be read. `seconds` is the time the diagnosis took;
    `nodes` are those the job ran on, as far as its log shows. `ranks` are the cause and the first error of each rank of
    a failed job, in order of appearance; at most 64, further ones are folded into these. `onset_step` is the step at
    which the loss went bad, for a loss spike in a log with steps. `detail` is more specific than the reason, such as
    "segmentation fault in rank 1"; "" when the reason says all. `runs` are those before the last one, when a log holds
    several in a row: the verdict is on the last. `courses` are what the writers of up to 16 errors did next. `coverage`
    says which sources beside the log were read, and which streams of it are empty. `fates` are those of all ranks of a
    failed attempt, as far as ranks are known.
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
    coverage: tuple[Coverage, ...] = ()
    fates: tuple[RankFate, ...] = ()


def names_node(verdict: Verdict) -> bool:
    """Return whether a verdict names a node that could be cordoned."""
    return any(suspect.node for suspect in verdict.suspects)


class ReportedFailure(NamedTuple):
    """One failed attempt. Times are seconds since the epoch, None when unknown.

    `failed` is when the whole attempt was reported as ended, else when a verdict first called it failed; `next` is when
    the next attempt of its job began, None without one. `gpus` is the job's total, None when unknown. `decided` is what
    decided the current verdict: a kind of `DecidedBy`, "learned", or "person" when a person's confirmation or
    correction stands. `nodes` are those that it suspects.
    """

    reason: str
    category: str
    decided: str
    started: float | None
    failed: float | None
    next: float | None
    gpus: int | None
    nodes: tuple[str, ...] = ()


class Failures(NamedTuple):
    """The failures of a period, and whether older ones were cut off."""

    items: list[ReportedFailure]
    cut: bool


def as_json(verdict: Verdict) -> bytes:
    """Encode a verdict as JSON on one line; bytes of a file name that are not UTF-8 become escapes."""
    try:
        return msgspec.json.encode(verdict)
    except UnicodeEncodeError:
        import json
        import re

        text = json.dumps(msgspec.to_builtins(verdict), ensure_ascii=False)
        return re.sub(r"[\ud800-\udfff]", lambda half: f"\\\\u{ord(half[0]):x}", text).encode()
