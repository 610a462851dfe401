"""Answers about rules, with an example of each."""

import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from logdoctor.rules.schema import Claim, DiagnosisRule, Example, FilterRule, Origin, When
from logdoctor.store.learning.learned import Event, Learned
from logdoctor.store.learning.overrides import StoredOverride
from logdoctor.store.learning.refusals import StoredRefusal, Votes
from logdoctor.web.json_answer import PageOf
from logdoctor.web.parameters import Status


class SourceOut(msgspec.Struct, frozen=True):
    """The source of a rule: the attempt it comes from, and its job's facts."""

    job: str | None
    attempt: int | None
    framework: str | None
    image: str | None
    command: str | None
    user: str | None
    name: str | None


class VotesOut(Votes, frozen=True):
    """How many runs answered, which of them agreed, and the judge's comment."""


class ClaimOut(msgspec.Struct, frozen=True):
    """What a learned diagnosis rule states about a failure. An empty field means the default of the reason."""

    reason: str
    fault: str
    recovery: str
    suggestion: str


class LearnedRuleOut(Learned, frozen=True, kw_only=True):
    """A learned rule. It matched `lines` lines in `jobs` attempts; a filter rule removed `taken` of them. A diagnosis
    rule has a `claim`, and its kind is `diagnosis`."""

    place: Annotated[int, Meta(description="0, 1, 2, ... among the rules of its kind")]
    kind: Annotated[str, Meta(description="kind of jobs that it is tried on")]
    harmless: Annotated[bool, Meta(description="a human approved it for lines that look like trouble")]
    status: Status
    waits_for: Annotated[str, Meta(description="why a human must approve it")]
    source: SourceOut  # type: ignore[assignment] # as in JSON
    votes: VotesOut
    claim: ClaimOut | None = None  # type: ignore[assignment] # as in JSON
    last_hit: Annotated[float | None, Meta(description="when an attempt in which it matched was last counted")]


class LearnedRulePage(PageOf[LearnedRuleOut], frozen=True):
    """A page of learned rules, newest first. `next` is the cursor of the next page, which may hold fewer."""


class OverrideOut(StoredOverride, frozen=True, kw_only=True):
    """A person's override of a shipped diagnosis rule: another reason, or "" to mute it."""

    whose: Annotated[str, Meta(description='the job or the kind that is meant, "" for all')] = ""
    expires: Annotated[datetime.date | None, Meta(description="the last day (UTC) on which it holds")] = None


class OverridesOut(msgspec.Struct, frozen=True):
    """The overrides, newest first."""

    items: list[OverrideOut]


class ChangeOut(msgspec.Struct, frozen=True):
    """An attempt whose verdict would have been different."""

    job: str
    attempt: int
    before: str
    after: str
    confirmed: Annotated[bool, Meta(description="a person said what it was")]
    text: str
    says: Literal["agrees", "contradicts", "open"]


class RetriedOut(msgspec.Struct, frozen=True):
    """What an override would have changed, by the stored lines of past attempts."""

    attempts: Annotated[int, Meta(description="on how many it was tried, the newest first")]
    complete: Annotated[bool, Meta(description="these are all; else time ran out")]
    changed: int
    contradicted: Annotated[int, Meta(description="of these, against what a person said")]
    changes: Annotated[list[ChangeOut], Meta(description="some of them")]


class ShippedRuleOut(msgspec.Struct, frozen=True):
    """A shipped rule and its use in current verdicts: `attempts` of them used it. A filter rule removed `lines` lines;
    of a diagnosis rule, `lines` are cited. A token that is bound to jobs does not see these numbers, because they cover
    all jobs."""

    id: str
    kind: Literal["filter", "diagnosis"]
    status: Status
    title: str
    patterns: Annotated[list[str], Meta(description="one of them must match")]
    attempts: int | None
    lines: int | None
    last: Annotated[float | None, Meta(description="when such a verdict was last made")]


class ShippedRules(msgspec.Struct, frozen=True):
    """All shipped rules, by id."""

    items: list[ShippedRuleOut]


class RuleBookOut(msgspec.Struct, frozen=True):
    """The shipped rules as in their files, in the order in which they are tried."""

    filters: tuple[FilterRule, ...]
    diagnoses: tuple[DiagnosisRule, ...]


class RuleEventOut(Event, frozen=True, kw_only=True):
    """A step of a rule. `from_status` is "" for its entry; `undoes` is the event that it undoes."""

    to_status: Status


class RuleEventPage(PageOf[RuleEventOut], frozen=True):
    """A page of steps, newest first. `next` is the cursor of the next page, which may hold fewer."""


class RefusalOut(StoredRefusal, frozen=True, kw_only=True):
    """A refused proposal: which guard refused it, and why."""

    votes: VotesOut | None


class RefusalPage(PageOf[RefusalOut], frozen=True):
    """A page of refusals, newest first. `next` is the cursor of the next page, which may hold fewer."""


class SaidOut(msgspec.Struct, frozen=True):
    """What rules do to a line in jobs of one kind. "" stands for all kinds without a matching learned rule."""

    kind: str
    findings: list[str]


class WhyOut(msgspec.Struct, frozen=True):
    """What rules do to a line, and why."""

    line: str
    said: list[SaidOut]


class ImportedOut(msgspec.Struct, frozen=True):
    """The result for one rule. `known`: the kind has a rule with this pattern, which stays as it is."""

    rule: Annotated[str, Meta(description="its id in what was sent")]
    outcome: Literal["entered", "known"]
    id: str
    status: Status
    waits_for: str


class ImportOut(msgspec.Struct, frozen=True):
    """The result for each rule of an import."""

    rules: list[ImportedOut]


_AT = 1795255505.2
_ID, _KIND = "learned/megatron/pretrain-gpt-py/bed3b86f", "megatron/pretrain_gpt.py"
_VOTES = VotesOut(5, (0, 1, 3, 4), "4 of 5 runs agree")
_RULE = LearnedRuleOut(
    id=_ID,
    place=0,
    kind=_KIND,
    pattern="^Opening data shard [0-9]+ of [0-9]+$",
    title="opening data shard (N) of (N)",
    examples=("Opening data shard 3 of 9",),
    metrics=(),
    harmless=False,
    status="active",
    waits_for="",
    agent="miner",
    source=SourceOut(
        "llama-7b", 1, "megatron", "registry.local/train:2026-11", "torchrun pretrain_gpt.py", "u17", "llama 7b, run 3"
    ),
    votes=_VOTES,
    jobs=2,
    lines=24_062,
    taken=12_031,
    created=1795250000.0,
    changed=_AT,
    last_hit=_AT,
)
_SHIPPED = ShippedRuleOut(
    "diagnosis/infrastructure/gpu-off-the-bus",
    "diagnosis",
    "active",
    "The GPU has fallen off the bus",
    [r"(?i)\bfallen off the bus"],
    4,
    4,
    _AT,
)
_EVENT = RuleEventOut(
    id=12,
    rule=_ID,
    at=_AT,
    by="logdoctor",
    step="promote",
    from_status="shadow",
    to_status="active",
    why="watched in 2 attempts on 24062 lines, none of them evidence",
    undoes=None,
    harmless=False,
)
_REFUSAL = RefusalOut(
    id=3,
    kind=_KIND,
    job="llama-7b",
    attempt=1,
    agent="miner",
    at=1795250000.0,
    pattern="^.*$",
    guard="grammar",
    cause="the wildcard . for any character (at character 1)",
    votes=_VOTES,
)
_ORIGIN = Origin("logdoctor", datetime.date(2026, 11, 21), "a job of ours")
_FILTER = FilterRule(
    id="filter/framework/checkpoint-saved",
    status="active",
    title="A checkpoint was saved",
    patterns=(r"^saved checkpoint \d+$",),
    must_match=("saved checkpoint 7",),
    origin=_ORIGIN,
)
_DIAGNOSIS = DiagnosisRule(
    id=_SHIPPED.id,
    status="active",
    title=_SHIPPED.title,
    when=When(tuple(_SHIPPED.patterns)),
    verdict=Claim("ECC Error", "cause"),
    must_match=(Example("GPU 3 has fallen off the bus"),),
    origin=_ORIGIN,
)
_OVERRIDE = OverrideOut(
    id=7,
    rule=_SHIPPED.id,
    scope="job",
    whose="llama-7b",
    reason="NVLink Error",
    fault="infrastructure",
    recovery="isolate_and_restart",
    suggestion="",
    why="the bridge was loose",
    expires=datetime.date(2027, 2, 20),
    verdict=142,
    quote="GPU 3 has fallen off the bus",
    by="ops",
    at=_AT,
)
EXAMPLES = (
    _OVERRIDE,
    OverridesOut([_OVERRIDE]),
    RetriedOut(800, True, 3, 0, [ChangeOut("llama-7b", 1, "ECC Error", "NVLink Error", False, "GPU 3", "open")]),
    _RULE,
    LearnedRulePage([_RULE], None),
    _SHIPPED,
    ShippedRules([_SHIPPED]),
    RuleEventPage([_EVENT], None),
    RefusalPage([_REFUSAL], None),
    RuleBookOut((_FILTER,), (_DIAGNOSIS,)),
    WhyOut("Opening data shard 3 of 9", [SaidOut(_KIND, [f"taken by   {_ID}"])]),
    ImportOut([ImportedOut(f"filter/{_ID}", "entered", _ID, "shadow", "")]),
)
"""One of each answer."""
