"""What goes in and out as JSON, as the OpenAPI document tells it."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from logdoctor import taxonomy
from logdoctor.store.names import MAX_ATTEMPT, MAX_NAME
from logdoctor.store.rule_rows import MAX_KIND

JobName = Annotated[str, Path(min_length=1, max_length=MAX_NAME, description="name of the job", examples=["llama-7b"])]
AttemptNumber = Annotated[int, Path(ge=0, le=MAX_ATTEMPT, description="number of the attempt", examples=[1])]
StreamName = Annotated[
    str, Path(min_length=1, max_length=MAX_NAME, description="name of the stream", examples=["gpu-12"])
]
Offset = Annotated[
    int, Query(ge=0, le=1 << 62, description="place of the first byte in the stream, decompressed", examples=[0])
]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=500, description="items of a page")]
VerdictId = Annotated[int, Path(ge=1, le=(1 << 63) - 1, description="id of the verdict", examples=[1])]
LineRange = Annotated[
    str, Query(pattern=r"^[0-9]{1,15}(-[0-9]{1,15})?$", description="`A-B`, or one line", examples=["1120-1130"])
]
ExitCode = Annotated[int | None, Query(ge=-(1 << 31), lt=1 << 31, description="the job's exit code, where it is known")]
HasDied = Annotated[bool, Query(description="the job is known to have failed, however it ended")]
FileName = Annotated[str, Query(max_length=MAX_NAME, description="what the verdict calls the log")]
RuleId = Annotated[
    str,
    Path(
        pattern=r"^learned/[a-z0-9/-]+$",
        max_length=300,
        description="id of the learned rule",
        examples=["learned/megatron/pretrain-gpt-py/bed3b86f"],
    ),
]
CaseId = Annotated[int, Path(ge=1, le=(1 << 63) - 1, description="id of the case", examples=[12])]
NodeName = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$",
        max_length=253,
        description="name of the node",
        examples=["gpu-12"],
    ),
]
IncidentId = Annotated[int, Path(ge=1, le=(1 << 63) - 1, description="id of the incident", examples=[3])]
NodeTestId = Annotated[int, Path(ge=1, le=(1 << 63) - 1, description="id of the test", examples=[12])]
ActionId = Annotated[int, Path(ge=1, le=(1 << 63) - 1, description="id of the action", examples=[3])]
KindOfJobs = Annotated[str | None, Query(max_length=MAX_KIND, description="only rules learned from jobs of this kind")]
Status = Literal["proposed", "shadow", "active", "retired"]
_COUNT = Field(default=None, ge=0, le=100_000_000)
_TEXT = Field(default=None, max_length=10_000)


class JobIn(BaseModel):
    """What is known of a job. What is left out stays as it was."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "llama 7b, run 3",
                    "user": "u17",
                    "framework": "megatron",
                    "launcher": "slurm",
                    "nodes": 128,
                    "ranks_per_node": 8,
                    "gpus": 1024,
                    "image": "registry.local/train:2026-11",
                    "command": "torchrun pretrain_gpt.py",
                    "checkpoint_dir": "/ckpt/llama-7b",
                    "parent": "llama-7b/1",
                }
            ]
        },
    )
    name: str | None = _TEXT
    user: str | None = _TEXT
    framework: str | None = _TEXT
    launcher: str | None = _TEXT
    image: str | None = _TEXT
    command: str | None = Field(default=None, max_length=100_000)
    checkpoint_dir: str | None = _TEXT
    parent: str | None = Field(default=None, max_length=10_000, description="the `job/attempt` it goes on from")
    nodelist: str | None = Field(
        default=None, max_length=100_000, description="the nodes of the job by name", examples=["gpu-[01-08],gpu-11"]
    )
    nodes: int | None = _COUNT
    ranks_per_node: int | None = _COUNT
    gpus: int | None = Field(default=None, ge=0, le=100_000_000, description="in all")
    labels: dict[str, str] = Field(default={}, max_length=256)


class FactsOut(JobIn):
    """What is known of a job."""

    placed: bool = Field(
        default=False, description="whether `nodelist` was told with the right to (scope `place`), or is a claim"
    )
    like: str | None = Field(
        default=None, description="the kind of jobs whose log its own looks like, when that says more than the facts"
    )


class JobOut(BaseModel):
    """A job. Times are seconds since the epoch."""

    job: str = Field(examples=["llama-7b"])
    facts: FactsOut
    created: float = Field(examples=[1795255505.2])
    updated: float = Field(examples=[1795255505.2])
    attempts: list["AttemptOut"] = []


class AttemptKey(BaseModel):
    """What all nodes of one try have in common."""

    model_config = ConfigDict(extra="forbid")
    key: str = Field(min_length=1, max_length=200, examples=["48213.0"])


class AttemptNumberOut(BaseModel):
    """The number of an attempt; the same key gives the same number."""

    attempt: int = Field(examples=[1])


class StandingOut(BaseModel):
    """Where a stream stands."""

    next_offset: int = Field(description="the byte to send next", examples=[4096])
    lines_in: int = Field(description="lines received", examples=[31])
    lines_scanned: int = Field(description="lines compressed so far", examples=[31])
    lines_kept: int = Field(description="of these, lines that no filter rule took", examples=[2])


class EndIn(BaseModel):
    """How an attempt ended, or with `stream` how one of its processes did."""

    model_config = ConfigDict(extra="forbid")
    exit_code: int | None = Field(default=None, ge=-(1 << 31), lt=1 << 31, examples=[1])
    signal: int | None = Field(default=None, ge=0, le=128, examples=[None])
    scheduler_state: str | None = Field(default=None, max_length=200, examples=["NODE_FAIL"])
    stream: str | None = Field(default=None, min_length=1, max_length=MAX_NAME, examples=[None])


class EndOut(BaseModel):
    """How a stream ended; the stream "" is the whole attempt."""

    stream: str
    exit_code: int | None
    signal: int | None
    scheduler_state: str | None
    at: float


class AttemptOut(BaseModel):
    """One try to run a job. `settled` when its final verdict stands."""

    job: str
    number: int
    started: float
    ended: float | None
    settled: bool
    ends: list[EndOut]
    deleted: float | None = Field(default=None, description="when retention took its raw log")
    streams: list[str] = []
    verdict: int | None = Field(default=None, description="id of its current verdict")


class VerdictOut(BaseModel):
    """A verdict in its place. `verdict` is what `logdoctor diagnose --json` prints; `logdoctor schema` tells of it."""

    id: int
    event: int = Field(description="grows with every change of any verdict")
    job: str
    attempt: int
    at: float
    final: bool = Field(description="the attempt has ended, and all that was sent is in it")
    current: bool
    superseded_by: int | None
    user: str | None
    verdict: dict[str, Any]


class ContextLine(BaseModel):
    """A line of the log, from the archive."""

    line: int
    text: str


class EvidenceContext(BaseModel):
    """The lines around one piece of evidence."""

    stream: str
    line: int
    lines: list[ContextLine]


class VerdictDetail(VerdictOut):
    """A verdict with its evidence in context (empty when the raw log was deleted), and the ids of its history."""

    context: list[EvidenceContext]
    history: list[int]


class VerdictPage(BaseModel):
    """Some verdicts, newest first; `next` is the cursor of the next page."""

    items: list[VerdictOut]
    next: str | None


class JobPage(BaseModel):
    """Some jobs, newest first; `next` is the cursor of the next page."""

    items: list[JobOut]
    next: str | None


class SourceOut(BaseModel):
    """Where a rule comes from: the attempt it was learned from, and what was told about the job."""

    job: str | None
    attempt: int | None
    framework: str | None
    image: str | None
    command: str | None
    user: str | None
    name: str | None


class VotesOut(BaseModel):
    """How many runs answered, which of them agreed, and what the judge said."""

    runs: int
    agreed: list[int]
    judge: str


class ClaimOut(BaseModel):
    """What a learned diagnosis rule says of a failure; "" means what the taxonomy says of the reason."""

    reason: str
    fault: str
    recovery: str
    suggestion: str


class LearnedRuleOut(BaseModel):
    """A learned rule. It matched `lines` lines in `jobs` attempts; a filter rule took `taken` of them. A diagnosis rule
    has a `claim`, and its kind is `diagnosis`."""

    id: str
    place: int = Field(description="0, 1, 2, ... among the rules of its kind")
    kind: str = Field(description="kind of jobs that it is tried on")
    pattern: str
    title: str
    examples: list[str]
    metrics: list[str]
    harmless: bool = Field(description="a human approved it for lines that look like trouble")
    status: Status
    waits_for: str = Field(description="why a human must approve it")
    agent: str
    source: SourceOut
    votes: VotesOut
    jobs: int
    lines: int
    taken: int
    created: float
    changed: float
    claim: ClaimOut | None = None
    last_hit: float | None = Field(description="when an attempt in which it matched was last counted")


class LearnedRulePage(BaseModel):
    """Some learned rules, newest first; `next` is the cursor of the next page, which may hold fewer."""

    items: list[LearnedRuleOut]
    next: str | None


class ShippedRuleOut(BaseModel):
    """A rule that came with logdoctor, with what it did in the verdicts that stand: it took part in `attempts` of them.
    A filter rule took `lines` lines; for a diagnosis rule so many are cited. A token that is bound to jobs is not told
    these numbers, because they are counted over all jobs."""

    id: str = Field(examples=["diagnosis/infrastructure/gpu-off-the-bus"])
    kind: Literal["filter", "diagnosis"]
    status: Status
    title: str
    patterns: list[str] = Field(description="one of them must match")
    attempts: int | None
    lines: int | None
    last: float | None = Field(description="when such a verdict was last made")


class ShippedRules(BaseModel):
    """All rules that came with logdoctor, by their ids."""

    items: list[ShippedRuleOut]


class RuleEventOut(BaseModel):
    """A step of a rule. `from_status` is "" when it was entered; `undoes` is the event that it takes back."""

    id: int
    rule: str
    at: float
    by: str
    step: str
    from_status: str
    to_status: Status
    why: str
    undoes: int | None
    harmless: bool


class RuleEventPage(BaseModel):
    """Some steps, newest first; `next` is the cursor of the next page, which may hold fewer."""

    items: list[RuleEventOut]
    next: str | None


class RefusalOut(BaseModel):
    """A proposal that was not taken: which guard refused it, and why."""

    id: int
    kind: str
    job: str
    attempt: int
    agent: str
    at: float
    pattern: str
    guard: str
    cause: str
    votes: VotesOut | None


class RefusalPage(BaseModel):
    """Some refusals, newest first; `next` is the cursor of the next page, which may hold fewer."""

    items: list[RefusalOut]
    next: str | None


class StepIn(BaseModel):
    """The reason of a step."""

    model_config = ConfigDict(extra="forbid")
    why: str = Field(default="", max_length=2000, examples=["seen in ten runs, says nothing"])


class ApproveIn(StepIn):
    """The reason of an approval, and what the rule was when that was decided."""

    seen_as: Literal["proposed", "shadow", "retired"] | None = Field(
        default=None,
        examples=["proposed"],
        description="refused when the rule has another status now; so that two people take one step",
    )


class StepOut(BaseModel):
    """Where a step led."""

    id: str = Field(examples=["learned/megatron/pretrain-gpt-py/bed3b86f"])
    status: Status = Field(examples=["shadow"])
    harmless: bool = Field(examples=[False])
    changed: float = Field(examples=[1795255505.2])


class SaidOut(BaseModel):
    """What rules do to a line of jobs of one kind; "" stands for all kinds of which no learned rule matches it."""

    kind: str
    findings: list[str]


class WhyOut(BaseModel):
    """What rules do to a line, and why."""

    line: str
    said: list[SaidOut]


class ImportedOut(BaseModel):
    """What became of a rule. `known`: the kind has a rule with this pattern, which stays as it is."""

    rule: str = Field(description="its id in what was sent")
    outcome: Literal["entered", "known"]
    id: str
    status: Status
    waits_for: str


class ImportOut(BaseModel):
    """What became of each rule that was sent."""

    rules: list[ImportedOut]


_WORDS = Field(default="", max_length=4000)
_REASONS: dict[str, Any] = {"enum": [name for name in taxonomy.REASONS if name != "Unknown"]}
_RECOVERIES: dict[str, Any] = {"enum": ["", *(name for name in taxonomy.RECOVERIES if name != "none")]}
_FAULTS: dict[str, Any] = {"enum": ["", *taxonomy.FAULTS]}


class ConfirmIn(BaseModel):
    """What is to be remembered of a verdict that is right."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"fix": "drained the node"}]})
    fix: str = Field(default="", max_length=4000, description="what fixed it")
    comment: str = _WORDS
    suggestion: str = Field(default="", max_length=4000, description="what to do next time")
    known: int | None = Field(
        default=None,
        ge=0,
        le=2**63 - 1,
        description="id of the case that counted when you looked, 0 for none: 409 when that changed or the verdict no "
        "longer stands. Without it, nobody asks.",
    )


class LineIn(BaseModel):
    """A line of the log of the attempt."""

    model_config = ConfigDict(extra="forbid")
    stream: str = Field(min_length=1, max_length=MAX_NAME, examples=["gpu-12"])
    line: int = Field(ge=1, le=(1 << 62), examples=[126])


class CorrectIn(ConfirmIn):
    """What a failure was instead. "" for recovery or fault means what is usual for the reason."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "reason": "Key Error",
                    "recovery": "fix_first",
                    "fix": "renamed the setting",
                    "evidence": [{"stream": "gpu-12", "line": 126}],
                }
            ]
        },
    )
    reason: str = Field(min_length=1, max_length=100, json_schema_extra=_REASONS)
    recovery: str = Field(default="", max_length=100, json_schema_extra=_RECOVERIES)
    fault: str = Field(default="", max_length=100, json_schema_extra=_FAULTS)
    evidence: list[LineIn] = Field(
        default=[], max_length=20, description="lines that prove it, the one that names the failure first"
    )


class CitedOut(BaseModel):
    """A line that proves a case."""

    stream: str
    line: int
    quote: str


class CaseOut(BaseModel):
    """A confirmed failure: what it was, who says so, what fixed it. It decides about others unless it is withdrawn."""

    id: int
    job: str
    attempt: int
    verdict: int | None = Field(description="id of the verdict that was looked at")
    by: str = Field(description="who says so; `agreement` for attempts that the model agreed on")
    at: float
    reason: str
    fault: str
    recovery: str
    fix: str
    comment: str
    suggestion: str
    corrects: bool = Field(description="the verdict said something else")
    title: str = Field(description="the line that names the failure, without rank, host and time")
    digests: list[str] = Field(description="a failure with one of these is the same one")
    summary: str = Field(description="what it is compared with others by")
    evidence: list[CitedOut]
    withdrawn: bool
    withdrawn_by: str
    withdrawn_why: str
    withdrawn_at: float | None


class CasePage(BaseModel):
    """Some cases, newest first; `next` is the cursor of the next page, which may hold fewer."""

    items: list[CaseOut]
    next: str | None


class LessonClaimOut(BaseModel):
    """What a rule would say of the failures that it hits."""

    reason: str
    fault: str
    recovery: str
    suggestion: str


class LessonRuleOut(BaseModel):
    """The rule that would be learned, and the line it is made of."""

    pattern: str
    title: str
    status: str = Field(description="in which it begins")
    waits_for: str = Field(description='a person who approves it, and why; "" when it becomes active by itself')
    claim: LessonClaimOut
    stream: str
    line: int
    attempts: int = Field(description="in how many attempts it must hit before it is active, its own included")


class LessonHitOut(BaseModel):
    """A past attempt in which the rule hits."""

    job: str
    attempt: int
    outcome: str
    reason: str
    confirmed: bool = Field(description="somebody said what it was")
    stream: str
    line: int
    text: str
    says: Literal["agrees", "contradicts", "open"]


class BackTestOut(BaseModel):
    """What became of trying the rule on what is kept of past attempts."""

    attempts: int = Field(description="on how many it was tried, the newest first")
    complete: bool = Field(description="these are all; else time ran out")
    agree: int
    contradict: int
    open: int = Field(description="hits where nobody knows better")
    hits: list[LessonHitOut] = Field(description="some of them")


class LessonRefusalOut(BaseModel):
    """A pattern that may not become a rule."""

    pattern: str
    guard: str
    cause: str


class PutBackOut(BaseModel):
    """A rule that says something else of the failure, and what becomes of it."""

    rule: str
    status: str


_LESSON: dict[str, Any] = {
    "reason": "Dataset Loading Error",
    "corrects": True,
    "digests": ["5b0c8d5a1f2e3d4c"],
    "evidence": [{"stream": "main", "line": 17, "quote": "giving up on /data/shard-17.tar"}],
    "why": "",
    "rule": {
        "pattern": r"giving up on \S+\.tar$",
        "title": "giving up on /data/shard-17.tar",
        "status": "shadow",
        "waits_for": "",
        "claim": {"reason": "Dataset Loading Error", "fault": "user", "recovery": "fix_first", "suggestion": ""},
        "stream": "main",
        "line": 17,
        "attempts": 3,
    },
    "known": "",
    "backtest": {"attempts": 2000, "complete": True, "agree": 1, "contradict": 0, "open": 0, "hits": []},
    "refused": [],
    "put_back": [],
    "asks": "",
}


class LessonOut(BaseModel):
    """What a correction would teach if it was saved."""

    model_config = ConfigDict(json_schema_extra={"examples": [_LESSON]})

    reason: str
    corrects: bool
    digests: list[str] = Field(description="failures with one of these would be known as this one")
    evidence: list[CitedOut]
    why: str = Field(description='why no rule is learned; "" when one is')
    rule: LessonRuleOut | None
    known: str = Field(description='the learned rule that knows it already; "" for none')
    backtest: BackTestOut | None
    refused: list[LessonRefusalOut]
    put_back: list[PutBackOut]
    asks: str = Field(description='the model that is asked for a pattern when it is saved; "" for none')


class AskOut(BaseModel):
    """The verdict whose failure is looked up again."""

    verdict: int = Field(examples=[7])


class SentOut(BaseModel):
    """A message to a model, as it was sent: with secrets masked."""

    role: str
    text: str


class ModelCallOut(BaseModel):
    """One call to a model: exactly what was sent and what came back."""

    id: int
    at: float
    purpose: str
    model: str
    prompt: str = Field(description="digest of the prompt's file")
    job: str
    attempt: int | None
    sent: list[SentOut]
    request: str = Field(description="what else was sent, as JSON: form of the answer, temperature, tools")
    got: str = Field(description="what came back")
    calls: str = Field(description="tools that the model asked for, as a JSON list")
    tokens_in: int
    tokens_out: int
    dollars: float
    seconds: float
    cached: bool = Field(description="the same was asked before, so nothing was sent and nothing paid")
    failure: str = Field(description='`unavailable` or `nonsense`; "" for a good answer')
    cause: str = Field(description="what was wrong")
    cut: bool = Field(description="a text was longer than the 200,000 characters that are kept")


class ModelCallPage(BaseModel):
    """What models were asked about an attempt, the oldest call first."""

    items: list[ModelCallOut]


class NodeTestIn(BaseModel):
    """Which nodes are to be tested (without names those of the verdict's job), and how. What is left out is as set."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"nodes": ["gpu-11", "gpu-12", "gpu-13"], "launcher": "slurm", "verdict": 7}]},
    )
    nodes: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(default=[], max_length=10_000)
    launcher: Literal["slurm", "ssh", "kubernetes", "local"] | None = None
    verdict: int | None = Field(default=None, ge=1, le=(1 << 63) - 1, description="id of the verdict it is because of")
    repeats: int | None = Field(default=None, ge=1, le=1000, description="how often the gather is repeated in a world")
    seconds: float | None = Field(default=None, ge=1, le=3600, description="after which a world is ended by force")


class CordonIn(BaseModel):
    """Why a node is to be taken out, and what proves it."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "gather fails with 2 good nodes", "test": 12}]}
    )
    reason: str = Field(min_length=1, max_length=2000, description="written on the node, as far as it fits")
    verdict: int | None = Field(default=None, ge=1, le=(1 << 63) - 1, description="id of a verdict")
    test: int | None = Field(default=None, ge=1, le=(1 << 63) - 1, description="id of a test of nodes")


class IncidentStepIn(BaseModel):
    """A person's words on a step, and what the incident was when they decided."""

    model_config = ConfigDict(extra="forbid")
    note: str = Field(default="", max_length=2000, examples=["draining the node"])
    seen_as: Literal["new", "acknowledged", "resolved"] | None = Field(
        default=None,
        examples=["new"],
        description="refused when it is in another state now; so that two people take one step",
    )


class NodeStepIn(BaseModel):
    """The reason of a step."""

    model_config = ConfigDict(extra="forbid")
    why: str = Field(default="", max_length=2000, examples=["board replaced"])
