"""Answers about jobs, attempts and verdicts, with an example of each."""

from typing import Annotated

import msgspec
from msgspec import Meta

from logdoctor.jobs.scores import Score
from logdoctor.jobs.timeline import Run, RunAttempt
from logdoctor.store.jobs.past import EnteredAttempt, PastAttempt
from logdoctor.store.jobs.records import Attempt, End, Job, JobFacts, StoredVerdict
from logdoctor.types import Compression, DecidedBy, Evidence, Progress, RuleCount, Suspect, Symptom, Verdict
from logdoctor.web.json_answer import PageOf


class FactsOut(JobFacts, frozen=True, kw_only=True):
    """The known facts about a job."""

    parent: Annotated[str | None, Meta(description="the `job/attempt` it goes on from")] = None
    nodelist: Annotated[str | None, Meta(description="the nodes of the job by name")] = None
    gpus: Annotated[int | None, Meta(description="in all")] = None
    placed: Annotated[
        bool, Meta(description="whether `nodelist` was reported with the right to (scope `place`), or is a claim")
    ] = False
    like: Annotated[
        str | None,
        Meta(description="the kind of jobs whose log its own looks like, when that says more than the facts"),
    ] = None


class EndOut(End, frozen=True):
    """How a stream ended; the stream "" is the whole attempt."""


class AttemptOut(Attempt, frozen=True, kw_only=True):
    """One try to run a job. `settled` once its final verdict is published."""

    ends: tuple[EndOut, ...]
    deleted: Annotated[float | None, Meta(description="since when there is no raw log of it")] = None
    streams: tuple[str, ...] = ()
    verdict: Annotated[int | None, Meta(description="id of its current verdict")] = None


class JobOut(Job, frozen=True, kw_only=True):
    """A job. Times are seconds since the epoch."""

    facts: FactsOut
    attempts: tuple[AttemptOut, ...] = ()


class JobPageOut(PageOf[JobOut], frozen=True):
    """A page of jobs, newest first; `next` is the cursor of the next page."""


class AttemptNumberOut(msgspec.Struct, frozen=True):
    """The number of an attempt; the same key gives the same number."""

    attempt: int


class EnteredAttempts(msgspec.Struct, frozen=True):
    """The results of entering past attempts, in the order sent. A `confirmed` one keeps its verdict, because a person
    decided it; a `known` one was watched live by the service, and stays as it is."""

    attempts: list[EnteredAttempt]


class EnteredScores(msgspec.Struct, frozen=True):
    """How many scores were entered."""

    entered: int


class ScoresOut(msgspec.Struct, frozen=True):
    """The scores of a job's checkpoints, by set, metric and step."""

    job: str
    scores: list[Score]


class StandingOut(msgspec.Struct, frozen=True):
    """The position of a stream."""

    next_offset: Annotated[int, Meta(description="the byte to send next")]
    lines_in: Annotated[int, Meta(description="lines received")]
    lines_scanned: Annotated[int, Meta(description="lines compressed so far")]
    lines_kept: Annotated[int, Meta(description="of these, lines that no filter rule took")]


class VerdictOut(StoredVerdict, frozen=True, kw_only=True):
    """A verdict in its place. `verdict` is what `logdoctor diagnose --json` prints; `logdoctor schema` describes it."""

    event: Annotated[int, Meta(description="grows with every change of any verdict")]
    final: Annotated[bool, Meta(description="the attempt has ended, and all that was sent is in it")]


class ContextLine(msgspec.Struct, frozen=True):
    """A line of the log, from the archive."""

    line: int
    text: str


class EvidenceContext(msgspec.Struct, frozen=True):
    """The lines around one piece of evidence."""

    stream: str
    line: int
    lines: list[ContextLine]


class VerdictDetail(VerdictOut, frozen=True, kw_only=True):
    """A verdict with its evidence in context, and the ids of its history. `context` is empty when the raw log was
    deleted."""

    context: list[EvidenceContext]
    history: list[int]


class VerdictPage(PageOf[VerdictOut], frozen=True):
    """A page of verdicts, newest first; `next` is the cursor of the next page."""


_AT = 1795255505.2
VERDICT_EXAMPLE = Verdict(
    reason="ECC Error",
    category="Infrastructure",
    fault="infrastructure",
    recovery="isolate_and_restart",
    outcome="failed",
    confidence=0.95,
    suggestion="Cordon the node and reset the GPU, so that the row is remapped.",
    evidence=(
        Evidence(
            "llama-7b/1/gpu-12",
            "gpu-12",
            126,
            "[gpu-12] Cuda failure 'uncorrectable ECC error encountered'",
            "diagnosis/infrastructure/ecc-uncorrectable",
            ("[gpu-12] Last error:",),
        ),
    ),
    suspects=(Suspect("gpu-12", 96, None, "GPU memory has an uncorrectable error (line 126)"),),
    first_rank=96,
    symptoms=(Symptom("NCCL Timeout Error", 189, "gpu-12", 55, "diagnosis/infrastructure/ecc-uncorrectable"),),
    decided_by=DecidedBy("rule", "diagnosis/infrastructure/ecc-uncorrectable", "9f2c4e1ab07d3356"),
    fingerprint="4d1f0c9be2a7",
    progress=Progress(1200, 500_000, 2.31, 412.5, 118, "gpu-12"),
    compression=Compression(281, 66, 63_902, 21_011, {"filter/nccl/info": RuleCount(215, 3, 120)}),
    nodes=("gpu-11", "gpu-12"),
    file="llama-7b/1/gpu-12",
)
PAST_EXAMPLE = PastAttempt(
    job="llama-7b",
    key="archive/2026/llama-7b.log",
    number=1,
    facts=JobFacts(user="u17", framework="megatron", nodes=128, gpus=1024),
    started=1795250000.0,
    ended=1795255504.9,
    exit_code=1,
    verdict=VERDICT_EXAMPLE,
)
_STORED = VerdictOut(
    id=7,
    event=9,
    job="llama-7b",
    attempt=1,
    at=_AT,
    final=True,
    current=True,
    superseded_by=None,
    user="u17",
    verdict=VERDICT_EXAMPLE,
)
_ATTEMPT = AttemptOut(
    job="llama-7b",
    number=1,
    started=1795250000.0,
    ended=1795255504.9,
    settled=True,
    ends=(EndOut("", 1, None, None, 1795255504.9),),
    streams=("gpu-12",),
    verdict=7,
)
_FACTS = FactsOut(user="u17", nodes=128)
_JOB = JobOut(job="llama-7b", facts=_FACTS, created=1795250000.0, updated=1795250000.0, attempts=(_ATTEMPT,))
EXAMPLES = (
    VERDICT_EXAMPLE,
    _STORED,
    VerdictDetail(
        **msgspec.structs.asdict(_STORED),
        context=[EvidenceContext("gpu-12", 126, [ContextLine(125, "[gpu-12] Last error:")])],
        history=[7],
    ),
    VerdictPage([_STORED], None),
    _ATTEMPT,
    _JOB,
    JobPageOut([_JOB], None),
    AttemptNumberOut(1),
    EnteredAttempts([EnteredAttempt("llama-7b", 1, "entered")]),
    EnteredScores(1),
    ScoresOut("llama-7b", [Score(12000, "humaneval", "pass@1", 0.31, 164)]),
    StandingOut(4096, 31, 31, 2),
    Run(
        job="llama-7b",
        attempts=[
            RunAttempt(
                number=1,
                started=1795250000.0,
                ended=1795255504.9,
                outcome="failed",
                reason="NVLink Error",
                recovery="isolate_and_restart",
                first_step=1,
                last_step=3659,
                judged=1795255505.1,
                verdict=7,
                lost_steps=59,
                lost_seconds=88.5,
                detection=0.2,
                restart=61.0,
            )
        ],
        wall=5504.9,
        detection=0.2,
        restart=61.0,
        lost=88.5,
        lost_steps=59,
        effective=0.97,
    ),
)
"""One of each answer."""
