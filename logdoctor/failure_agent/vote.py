"""From what the model claims to what is concluded: code weighs each claim, and lets several answers vote.

A claim weighs as much as its status, less where its lines do not lead: a line of the end of a job, an error that it
survived, or one that always follows another proves little, whatever the model says. What may restart a job or cordon
a node needs more than words: a lasting error that stands in the log, and for a node one that names a machine's fault.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import regex

from logdoctor import taxonomy
from logdoctor.diagnose.episodes import Episode
from logdoctor.failure_agent.brief import Shown
from logdoctor.failure_agent.forms import NOT_FAILED, STATUSES, named
from logdoctor.failure_agent.grounding import Grounded
from logdoctor.failure_agent.guide import NEVER_SURE, allowed, speaks_of
from logdoctor.text import origin, shown

SURE = 0.8
"""The weight of a claim that needs no second answer."""

_BY_STATUS = {"established": 0.9, "supported": 0.75, "hypothesis": 0.5}
_LEADS = {"cause": 1.0, "proximate": 1.0, "strong": 1.0, "": 1.0, "cascade": 0.65, "teardown": 0.4, "note": 0.4}
_SURVIVED = 0.4
_NO_EPISODE = 0.65
"""How much a line proves, by the role of its episode; a line of none is not even remarkable."""
_LEADING = 0.85
_SECOND = 0.85  # a claim that the model itself thinks less likely
_SPEAKS_OF_ELSE = 0.6  # its lines have no word of its reason, or none of a machine's fault where it is of a machine
_DROPPED = 0.9  # some of its quotes do not stand
_MOVES = ("restart", "isolate_and_restart", "rollback_and_skip")

_MACHINE = regex.compile(
    r"(?i)\bS?Xid\b.{0,40}\d|NVRM|fallen off the bus|uncorrectable|double[- ]bit|row.?remap"
    r"|\bECC\b.{0,40}(?:error|exceed)|nvlink|nvswitch|fabric ?manager|\bNVLS\b|\bNVML\b|nvidia-smi"
    r"|CUDA error|CUDA_ERROR|cudaError|cuda\w* failure|launch failure|illegal (?:memory|instruction)"
    r"|device-side assert|cublas_status|cudnn_status|hardware error|machine check|\bMCE\b|\bAER:|pcie|\bDIMM\b"
    r"|kernel panic|soft lockup|thermal|overheat|power (?:fail|supply)|mlx\d_|infiniband|\bIBV?_\w|\bib\d|\bRoCE\b"
    r"|link (?:is |went )?down|port .{0,20}down|carrier|\bNIC\b|no route to host|NODE_FAIL|heartbeat"
    r"|node.{0,60}(?:fail|not respond|unreachable|down|lost|dead|reboot)|host.{0,40}(?:down|lost|unreachable)"
    r"|nccl\w*error|NCCL WARN|watchdog|collective operation|socket closed|closed by (?:remote )?peer"
)
"""Forms in which machines, fabrics and their libraries report faults."""

_ADDRESSED = regex.compile(
    r"(?i)isolate[_ ]and[_ ]restart|rollback[_ ]and[_ ]skip|\bfix[_ ]first\b|\bask[_ ]human\b|\bcordon\b|\bverdict\b"
    r"|(?:ignore|disregard|forget)\b.{0,40}(?:instruction|previous|above|prior|prompt|rules)|system prompt"
    r"|\byou (?:are|must|should|will)\b.{0,40}\b(?:answer|report|quote|conclude|diagnose|an? (?:ai|language))\b"
    r"|\b(?:for|to) the (?:ai|agent|assistant|model|reviewing assistant)\b.{0,3}:|\bdiagnos\w+ agent\b"
    r"|\b(?:answer|reply|respond|output|conclude|say)\b.{0,30}\b(?:reason|recovery|status|hang|restart|unknown)\b"
    r"|\bas an ai\b|\"candidates\"|root cause (?:is|must)\b"
)
_TOLD = regex.compile(
    r"\b(?:" + "|".join(name for name in taxonomy.REASONS if " " in name and name != "Network Error") + r")\b"
    r"|\b(?:Assistant|Human) ?[,:]|\b(?:filter|diagnosis) rule\b|!\[\w* ?\w*\]\(|<(?:system|function_calls|invoke)\b"
)
"""Lines that speak of this diagnosis, as no program that trains does: they prove nothing. Programs write `KeyError`,
`CUDA error` and `NODE FAILURE`; the names of the taxonomy, letter by letter, are of who knows it."""
_UNSEEN = regex.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2069\U000e0000-\U000e007f]")
"""What turns the writing direction, or is not seen: programs that train do not print it."""

_DRIVER = regex.compile(
    r"(?:[\w.-]{1,80} )?kernel: |(?:\[ *\d+\.\d+\] ?)?"
    r"(?:NVRM: |nvidia-nvswitch\d*: |nvidia-fabricmanager|mlx\d_\w+ |EDAC |mce: |\{\d+\}\[Hardware Error\]|pcieport )"
    r"|\S{1,80}:\d+:\d+ \[\d+\] .{0,80}\bNCCL WARN |(?:slurmstepd|srun|slurmctld)(?:: error)?: "
)
"""Forms of kernels, drivers, NCCL and schedulers: only so a line without the skeleton of a report names a machine."""


class AgentClaim(NamedTuple):
    """A claim as code takes it: reason and recovery, its weight from 0 to 1, and its lines as (stream name, number)."""

    reason: str
    recovery: str
    fault: str
    weight: float
    why: str
    mitigation: str
    places: tuple[tuple[str, int], ...]
    detail: str = ""


class Outcome(NamedTuple):
    """What the answers agree on, and how sure that is."""

    claim: AgentClaim
    confidence: float


def claim(
    grounded: Sequence[Grounded], episodes: Sequence[Episode], mitigation: str = "", doubted: str = ""
) -> AgentClaim | None:
    """Return the weightiest of the claims of one answer; None when there is none, which says Unknown.

    `doubted` is the reason that the rules name, if they are in doubt: who confirms it stands on their word, too.
    """
    weighed = [taken for one in grounded if (taken := _weighed(one, episodes, mitigation, doubted)) is not None]
    return max(weighed, key=lambda one: one.weight, default=None)


def _weighed(one: Grounded, episodes: Sequence[Episode], mitigation: str, doubted: str) -> AgentClaim | None:
    lines = [line for line in one.lines if not _is_addressed(line.raw)]
    if not lines:
        return None
    leads = {(line.stream, line.number): _lead(line.stream, line.number, episodes) for line in lines}
    best = max(max(leads.values()), _LEADING if one.reason == doubted else 0.0)
    status = named(one.candidate.status, STATUSES) or "hypothesis"
    weight = _BY_STATUS[status] * (_SECOND if one.order else 1.0) * (_DROPPED if one.failed else 1.0)
    if one.reason == NOT_FAILED:
        lines = [line for line in lines if not _lasts(line.stream, line.number, episodes)]
        if not lines:
            return None
        places = tuple((line.name, line.number) for line in lines)
        return AgentClaim(NOT_FAILED, "none", "", weight, one.candidate.why, "", places)
    weight *= best
    texts = [text for line in lines for text in (line.raw, *_texts_with(line.stream, line.number, episodes))]
    weight *= 1.0 if any(speaks_of(text, one.reason) for text in texts) else _SPEAKS_OF_ELSE
    broken = any(_names_a_machine(line, episodes) for line in lines)
    recovery = named(one.candidate.recovery, taxonomy.RECOVERIES)
    recovery = recovery if recovery in (*allowed(one.reason), NEVER_SURE) else allowed(one.reason)[0]
    if allowed(one.reason)[0] == "isolate_and_restart" and recovery in _MOVES and not broken:
        weight *= _SPEAKS_OF_ELSE
    leading = any(lead >= _LEADING for lead in leads.values())
    if recovery in _MOVES and (status == "hypothesis" or not leading):
        recovery = NEVER_SURE
    if recovery == "isolate_and_restart" and not broken:
        recovery = NEVER_SURE
    lines.sort(key=lambda line: leads[line.stream, line.number] < _LEADING)  # stable: else in the model's order
    return AgentClaim(
        one.reason,
        recovery,
        named(one.candidate.fault, taxonomy.FAULTS),
        weight,
        one.candidate.why,
        mitigation,
        tuple((line.name, line.number) for line in lines),
        one.candidate.detail,
    )


def _names_a_machine(line: Shown, episodes: Sequence[Episode]) -> bool:
    """Return whether a line of a lasting error that leads names a machine's fault, in a form in which that is
    reported."""
    episode = _episode(line.stream, line.number, episodes)
    if episode is None or episode.survived or _LEADS.get(episode.role) != 1.0 or not _MACHINE.search(line.raw):
        return False
    return episode.role != "" or _DRIVER.match(origin(shown(line.raw)).message) is not None


def _is_addressed(line: str) -> bool:
    """Return whether a line speaks to whom reads it here."""
    return bool(_ADDRESSED.search(line) or _TOLD.search(line) or _UNSEEN.search(line))


def _lasts(stream: int, number: int, episodes: Sequence[Episode]) -> bool:
    """Return whether a line is of an error that the job did not survive: it shows no good end."""
    episode = _episode(stream, number, episodes)
    return episode is not None and not episode.survived


def _lead(stream: int, number: int, episodes: Sequence[Episode]) -> float:
    """Return how much a line proves."""
    episode = _episode(stream, number, episodes)
    if episode is None:
        return _NO_EPISODE
    return _SURVIVED if episode.survived else _LEADS.get(episode.role, _NO_EPISODE)


def _texts_with(stream: int, number: int, episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Return the texts of the episode that a line is of: a traceback's frames tell of what its last line does."""
    episode = _episode(stream, number, episodes)
    return episode.texts if episode is not None else ()


def _episode(stream: int, number: int, episodes: Sequence[Episode]) -> Episode | None:
    """Return the most suspicious episode that a line is of."""
    of = (one for one in episodes if one.stream == stream and (number == one.line or number in one.lines))
    return next(of, None)


def is_sure(taken: AgentClaim | None) -> bool:
    """Return whether one answer is enough: Unknown is, and a claim of great weight."""
    return taken is None or taken.weight >= SURE


def settled(votes: Sequence[AgentClaim | None], samples: int) -> bool:
    """Return whether further answers cannot change what most of the samples say."""
    if is_sure(votes[0]) or len(votes) >= samples:
        return True
    most = Counter(_ballot(vote) for vote in votes).most_common(1)[0][1]
    return most * 2 > samples


def decided(votes: Sequence[AgentClaim | None], threshold: float) -> Outcome | None:
    """Return what more than half of the answers agree on; None when they do not, or when it is not sure enough.

    An answer that says Unknown, or that could not be had, is a vote against all others. Those who agree on the reason
    but not on the recovery leave it to a person.
    """
    agreeing: dict[str, list[AgentClaim]] = {}
    for vote in votes:
        if vote is not None:
            agreeing.setdefault(vote.reason, []).append(vote)
    most = max(agreeing.values(), key=len, default=[])
    if 2 * len(most) <= len(votes):
        return None
    recovery, backers = Counter(vote.recovery for vote in most).most_common(1)[0]
    agreed = 2 * backers > len(votes)
    confidence = sum(vote.weight for vote in most) / len(most) * (0.6 + 0.4 * len(most) / len(votes))
    if confidence < threshold:
        return None
    best = max((vote for vote in most if vote.recovery == recovery), key=lambda vote: vote.weight)
    return Outcome(best if agreed else best._replace(recovery=NEVER_SURE), round(confidence, 2))


def _ballot(vote: AgentClaim | None) -> tuple[str, str]:
    return ("", "") if vote is None else (vote.reason, vote.recovery)
