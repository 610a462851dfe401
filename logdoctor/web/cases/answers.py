"""Answers about past cases and model calls, with an example of each."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from logdoctor.store.learning.confirmed import Cited
from logdoctor.web.json_answer import PageOf


class CitedOut(Cited, frozen=True):
    """A line that proves a case."""


class CaseOut(msgspec.Struct, frozen=True):
    """A confirmed failure: what it was, who says so, what fixed it. It decides similar failures until it is
    withdrawn."""

    id: int
    job: str
    attempt: int
    verdict: Annotated[int | None, Meta(description="id of the verdict that was looked at")]
    by: Annotated[str, Meta(description="who says so; `agreement` for attempts that the model agreed on")]
    at: float
    reason: str
    fault: str
    recovery: str
    fix: str
    comment: str
    suggestion: str
    corrects: Annotated[bool, Meta(description="the verdict said something else")]
    title: Annotated[str, Meta(description="the line that names the failure, without rank, host and time")]
    digests: Annotated[list[str], Meta(description="a failure with one of these is the same one")]
    summary: Annotated[str, Meta(description="what it is compared with others by")]
    evidence: list[CitedOut]
    nodes: Annotated[list[str] | None, Meta(description="nodes at fault; null where nobody said which")]
    detail: Annotated[str, Meta(description="a finer word than the reason for what failed")]
    withdrawn: bool
    withdrawn_by: str
    withdrawn_why: str
    withdrawn_at: float | None


class CasePage(PageOf[CaseOut], frozen=True):
    """A page of cases, newest first. `next` is the cursor of the next page, which may hold fewer."""


class LessonClaimOut(msgspec.Struct, frozen=True):
    """What a rule would state about the failures that it matches."""

    reason: str
    fault: str
    recovery: str
    suggestion: str


class LessonRuleOut(msgspec.Struct, frozen=True):
    """The rule that would be learned, and the line that it comes from."""

    pattern: str
    title: str
    status: Annotated[str, Meta(description="in which it begins")]
    waits_for: Annotated[
        str, Meta(description='a person who approves it, and why; "" when it becomes active by itself')
    ]
    claim: LessonClaimOut
    stream: str
    line: int
    attempts: Annotated[int, Meta(description="in how many attempts it must hit before it is active, its own included")]


class LessonHitOut(msgspec.Struct, frozen=True):
    """A past attempt that the rule matches."""

    job: str
    attempt: int
    outcome: str
    reason: str
    confirmed: Annotated[bool, Meta(description="somebody said what it was")]
    stream: str
    line: int
    text: str
    says: Literal["agrees", "contradicts", "open"]


class BackTestOut(msgspec.Struct, frozen=True):
    """The result of trying the rule on stored past attempts."""

    attempts: Annotated[int, Meta(description="on how many it was tried, the newest first")]
    complete: Annotated[bool, Meta(description="these are all; else time ran out")]
    agree: int
    contradict: int
    open: Annotated[int, Meta(description="hits where nobody knows better")]
    hits: Annotated[list[LessonHitOut], Meta(description="some of them")]


class LessonRefusalOut(msgspec.Struct, frozen=True):
    """A pattern that may not become a rule."""

    pattern: str
    guard: str
    cause: str


class PutBackOut(msgspec.Struct, frozen=True):
    """A rule that contradicts the case, and its new status."""

    rule: str
    status: str


class ObjectionOut(msgspec.Struct, frozen=True):
    """A rule that decides otherwise, and would again."""

    rule: str
    reason: str
    recovery: str
    quote: str
    renamed: Annotated[bool, Meta(description="it matches the line that was named, and is to say so; else it is muted")]


class LessonOut(msgspec.Struct, frozen=True):
    """What a correction would teach if it were saved."""

    reason: str
    corrects: bool
    digests: Annotated[list[str], Meta(description="failures with one of these would be known as this one")]
    evidence: list[CitedOut]
    why: Annotated[str, Meta(description='why no rule is learned; "" when one is')]
    rule: LessonRuleOut | None
    known: Annotated[str, Meta(description='the learned rule that knows it already; "" for none')]
    backtest: BackTestOut | None
    refused: list[LessonRefusalOut]
    put_back: list[PutBackOut]
    asks: Annotated[str, Meta(description='the model that is asked for a pattern when it is saved; "" for none')]
    nodes: Annotated[list[str] | None, Meta(description="nodes at fault; null: as far as the cited lines name them")]
    objections: Annotated[list[ObjectionOut], Meta(description="rules that `overrule` would overrule")]


class AskOut(msgspec.Struct, frozen=True):
    """The verdict whose failure is looked up again."""

    verdict: int


class SentOut(msgspec.Struct, frozen=True):
    """A message to a model as it was sent, with secrets masked."""

    role: str
    text: str


class ModelCallOut(msgspec.Struct, frozen=True):
    """One call to a model: exactly what was sent and what came back."""

    id: int
    at: float
    purpose: str
    model: str
    prompt: Annotated[str, Meta(description="digest of the prompt's file")]
    job: str
    attempt: int | None
    sent: list[SentOut]
    request: Annotated[str, Meta(description="what else was sent, as JSON: form of the answer, temperature, tools")]
    got: Annotated[str, Meta(description="what came back")]
    calls: Annotated[str, Meta(description="tools that the model asked for, as a JSON list")]
    tokens_in: int
    tokens_out: int
    dollars: float
    seconds: float
    cached: Annotated[bool, Meta(description="the same was asked before, so nothing was sent and nothing paid")]
    failure: Annotated[str, Meta(description='`unavailable` or `nonsense`; "" for a good answer')]
    cause: Annotated[str, Meta(description="what was wrong")]
    cut: Annotated[bool, Meta(description="a text was longer than the 200,000 characters that are kept")]


class ModelCallPage(msgspec.Struct, frozen=True):
    """The model calls about an attempt, oldest first."""

    items: list[ModelCallOut]


_AT = 1795255505.2
_CASE = CaseOut(
    id=12,
    job="llama-7b",
    attempt=1,
    verdict=7,
    by="ops",
    at=_AT,
    reason="ECC Error",
    fault="infrastructure",
    recovery="isolate_and_restart",
    fix="drained the node, board returned",
    comment="",
    suggestion="",
    corrects=False,
    title="Cuda failure 'uncorrectable ECC error encountered'",
    digests=["4d1f0c9be2a70f15"],
    summary="cuda failure 'uncorrectable ecc error encountered'",
    evidence=[CitedOut("gpu-12", 126, "[gpu-12] Cuda failure 'uncorrectable ECC error encountered'")],
    nodes=["gpu-12"],
    detail="the rank mapping of stage 3",
    withdrawn=False,
    withdrawn_by="",
    withdrawn_why="",
    withdrawn_at=None,
)
_CALL = ModelCallOut(
    id=40,
    at=1795255507.1,
    purpose="diagnose",
    model="a-model",
    prompt="1c2b9a40d7e35f88",
    job="llama-7b",
    attempt=1,
    sent=[SentOut("user", "You find out why a job that trains a large language model failed. ...")],
    request='{"temperature":0.0,"max_tokens":1000}',
    got='{"candidates": []}',
    calls="[]",
    tokens_in=4120,
    tokens_out=210,
    dollars=0.0052,
    seconds=2.1,
    cached=False,
    failure="",
    cause="",
    cut=False,
)
_LESSON = LessonOut(
    reason="Dataset Loading Error",
    corrects=True,
    digests=["5b0c8d5a1f2e3d4c"],
    evidence=[CitedOut("main", 17, "giving up on /data/shard-17.tar")],
    why="",
    rule=LessonRuleOut(
        r"giving up on \S+\.tar$",
        "giving up on /data/shard-17.tar",
        "shadow",
        "",
        LessonClaimOut("Dataset Loading Error", "user", "fix_first", ""),
        "main",
        17,
        3,
    ),
    known="",
    backtest=BackTestOut(2000, True, 1, 0, 0, []),
    refused=[],
    put_back=[],
    asks="",
    nodes=None,
    objections=[ObjectionOut("diagnosis/hw/ecc", "ECC Error", "isolate_and_restart", "ECC error", False)],
)
EXAMPLES = (_CASE, CasePage([_CASE], None), _LESSON, AskOut(7), ModelCallPage([_CALL]))
"""One of each answer."""
