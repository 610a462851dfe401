"""When a past case is sure enough to say of a failure what it was: rather seldom, because a wrong answer costs more.

Most of what failed logs have in common is what follows from any failure: reports of launchers, signals, peers that went
away. Only two things count as proof. Either the line that named a past failure is there again, in its own words, and no
case ever told it of anything else; or several past failures are close as a whole, agree, and none that is nearly as
close says otherwise.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.diagnose.conclude import RootCause
from logdoctor.diagnose.episodes import FOLLOWING, Episode
from logdoctor.failure_agent.cases.cases import Case, Neighbour

_MARGIN = 0.1  # a case that says otherwise, and is less than this behind, makes closeness no proof
_SHARED = 0.5  # share of a title's words that the quoted line must have for a case to be about it
_PLACES = 3

_GENERIC = regex.compile(
    r"(?i)\broot cause \(first observed|\bclosing signal\b|\bsig(?:term|abrt|kill|int|segv|bus|hup)\b|\bexit ?code\b"
    r"|\bexited\b|\bFAILED$|^failures?\b|child ?failed ?error|\bterminate called after\b|^Traceback \(most recent"
    r"|\bmost recent call first|\b(?:above|another) exception\b|\bwatchdog\b|\bcollective operation timeout"
    r"|\basync(?:hronous)? (?:nature|NCCL)|\bremote process exited|\bremote worker crash|\bdump signal\b"
    r"|\bDataLoader worker\b|\b(?:broken pipe|connection (?:reset|closed) by peer)\b|\bcore dumped\b"
    r"|\bjob step aborted|\bCANCELLED (?:AT|DUE)|\bcrashed with\b|\bterminated with the following\b|\bto terminate\b"
    r"|\baborting (?:communicator|job)|^Exception ignored in|^\W*File \"|^\W*(?:Aborted|Killed|Terminated)\W*$"
    r"|\bdistBackendError\b|\bnccl\w{4,30}Error\b|\bkilling (?:the )?(?:subprocess|child|worker)"
)
"""Words of reports that follow from any failure: they prove none, however often they come."""

_FRAME = regex.compile(r".{0,200}?\bFile \"[^\"]{1,300}\", line \d+")
_FRAMES = 3
_WORD = regex.compile(r"[^\W\d_]{3,}")
_CLASSES = frozenset(
    "error exception runtime runtimeerror warning fatal critical failed failure rank line none".split()
)
"""Words that say nothing by themselves."""


class _Claim(NamedTuple):
    """What a case says a failure was: what cases must agree in."""

    reason: str
    recovery: str


def by_case(
    found: Sequence[Episode],
    neighbours: Sequence[Neighbour],
    similarity: float,
    agreement: int,
    streams: Sequence[str],
) -> RootCause | None:
    """Return what past cases say of a failure, or None when they do not prove it.

    Sure is the line that named a past failure, come again, when all cases that hold it agree in reason and recovery and
    nothing unknown stands before it; else `agreement` cases from that `similarity` on that agree, when none that is
    nearly as close disagrees. Likeness alone never cordons a node. `streams` are the names of the records' streams.
    """
    known = [one for one in neighbours if one.case.reason in taxonomy.REASONS and one.case.reason != "Unknown"]
    telling = [one for one in found if not one.survived and one.role not in FOLLOWING and is_telling(one)]
    return _by_line(telling, known, agreement, streams) or _by_likeness(telling, known, similarity, agreement, streams)


def is_telling(one: Episode) -> bool:
    """Return whether an episode has words of its own, or a traceback, so that another failure would hardly have the
    same."""
    words = _words(one.normal)
    traced = sum(bool(_FRAME.match(text)) for text in one.texts) >= _FRAMES
    return _GENERIC.search(one.normal) is None and len(words) >= (1 if traced else 2)


def _by_line(
    telling: Sequence[Episode], neighbours: Sequence[Neighbour], agreement: int, streams: Sequence[str]
) -> RootCause | None:
    """Return the claim of the cases whose naming line is there, when nothing speaks against it."""
    holding: dict[str, list[Case]] = {}
    for neighbour in neighbours:
        for digest in neighbour.case.digests if neighbour.same else ():
            holding.setdefault(digest, []).append(neighbour.case)
    proofs = [one for one in telling if _names(one, holding.get(one.digest, []))]
    claims = {_claim(holding[one.digest][0]) for one in proofs}
    if len(claims) != 1:
        return None
    proof, (claim,) = proofs[0], claims
    cases = [case for case in holding[proof.digest] if case.digests[0] == proof.digest]
    if len(cases) < agreement and not any(case.quote for case in cases):
        return None  # nobody said that this line named them: it was the most suspicious
    unknown = (one for one in telling if one.normal != proof.normal and not _is_known(one, holding, claim))
    if any(_stands_before(one, proof) for one in unknown):
        return None
    times = f"{len(cases)} past failures were" if len(cases) > 1 else "a past failure was"
    why = f"The quoted line identified what {times} confirmed to be ({_cited(cases)})."
    return _conclusion(cases, 0.95 if len(cases) > 1 else 0.9, why, proofs, streams)


def _names(one: Episode, cases: Sequence[Case]) -> bool:
    """Return whether an episode named a past failure, and no case that holds it says otherwise."""
    return any(case.digests[0] == one.digest for case in cases) and len({_claim(case) for case in cases}) == 1


def _is_known(one: Episode, holding: Mapping[str, Sequence[Case]], claim: _Claim) -> bool:
    """Return whether cases hold an episode, and it named none that was something else."""
    cases = holding.get(one.digest, ())
    return bool(cases) and all(_claim(case) == claim for case in cases if case.digests[0] == one.digest)


def _stands_before(one: Episode, proof: Episode) -> bool:
    """Return whether an episode that no case knows may have led to the one that is to be the proof."""
    if one.suspicion > proof.suspicion:
        return False
    if one.stream == proof.stream:
        return one.line < proof.line
    # fractions of a second would compare the clocks of two nodes
    return one.time is None or proof.time is None or math.floor(one.time) < math.floor(proof.time)


def _by_likeness(
    telling: Sequence[Episode],
    neighbours: Sequence[Neighbour],
    similarity: float,
    agreement: int,
    streams: Sequence[str],
) -> RootCause | None:
    """Return the claim of the nearest cases, when enough of them agree and none that is nearly as close disagrees."""
    near = sorted((one for one in neighbours if one.similarity > 0), key=lambda one: -one.similarity)
    if not near:
        return None
    claim = _claim(near[0].case)
    agreeing = {
        (one.case.job, one.case.attempt): one
        for one in near
        if _claim(one.case) == claim and one.similarity >= similarity
    }
    votes = list(agreeing.values())[:agreement]
    if len(votes) < agreement or claim.recovery == "isolate_and_restart":
        return None
    least = votes[-1].similarity
    if any(_claim(one.case) != claim and one.similarity > least - _MARGIN for one in near):
        return None
    cases = [one.case for one in votes]
    proofs = [one for one in telling if all(_is_about(case, one) for case in cases)]
    if not proofs:
        return None
    why = f"The {len(cases)} past failures that are closest to this one were confirmed to be this ({_cited(cases)})."
    return _conclusion(cases, round(0.8 * least, 2), why, proofs, streams)


def _is_about(case: Case, one: Episode) -> bool:
    """Return whether the line that named a case speaks of the same as an episode."""
    words = {word for word in _words(case.title) if not word.endswith(("error", "exception"))}
    return bool(words) and len(words & _words(one.normal)) >= _SHARED * len(words)


def _conclusion(
    cases: Sequence[Case], confidence: float, why: str, proofs: Sequence[Episode], streams: Sequence[str]
) -> RootCause:
    """Return what the newest of the cases says, proved by these episodes."""
    newest = max(cases, key=lambda case: (case.at, case.id))
    places = tuple((streams[one.stream], one.line) for one in proofs[:_PLACES])
    fix = f"What helped: {newest.fix}" if newest.fix else ""
    suggestion = " ".join(part for part in (newest.suggestion, fix) if part)
    claim = _claim(newest)
    return RootCause(
        claim.reason, claim.recovery, newest.fault, confidence, why, suggestion, places, "case", f"case/{newest.id}"
    )


def _claim(case: Case) -> _Claim:
    return _Claim(case.reason, case.recovery or taxonomy.REASONS[case.reason].recovery)


def _cited(cases: Sequence[Case]) -> str:
    """Return the cases by their numbers, the newest first."""
    newest = sorted(cases, key=lambda case: (-case.at, -case.id))[:3]
    return ", ".join(f"case {case.id}" for case in newest)


def _words(text: str) -> set[str]:
    """Return the words of a line that say something, in small letters."""
    return {word.lower() for word in _WORD.findall(text[:2000])} - _CLASSES
