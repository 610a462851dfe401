"""The content of a verdict's page beside the verdict itself: proof, context, and possible steps."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from logdoctor import taxonomy
from logdoctor.errors import RequestRefused
from logdoctor.failure_agent.ladder import is_open
from logdoctor.service.service import Service
from logdoctor.store.incidents.grouping import BY_US
from logdoctor.store.incidents.table import Incident, WantedIncidents
from logdoctor.store.jobs.records import Attempt, End, JobFacts, StoredVerdict
from logdoctor.store.learning.confirmed import AGREEMENT, Confirmation
from logdoctor.store.nodes.records import NodeRecords
from logdoctor.types import Progress, Verdict, names_node
from logdoctor.types.nodes import NAME, NodeHistory, PastCordon
from logdoctor.web import units
from logdoctor.web.cases.api import calls_about, may_decide, visible_case
from logdoctor.web.cases.saving import corrected
from logdoctor.web.gate import Caller
from logdoctor.web.incidents import underway
from logdoctor.web.incidents.later import later_attempt
from logdoctor.web.incidents.restart import Restart, restart
from logdoctor.web.jobs.excerpts import Viewer, decisive, ending, proofs
from logdoctor.web.nodes import words as node_wording
from logdoctor.words import phrases

_CALLS = 20  # model calls on a page, the newest
_ENDS = 20
_RULES = 20
_SUSPECTS = 20  # whose history is shown
_HISTORY = 50  # failures, findings and cordons of a node that are counted
_LOOKED = 100  # cases searched for similar failures
_ALIKE = 6
_SYMPTOMS = ("cascade", "teardown")
"""Roles of errors that only follow from a failure elsewhere."""
_OTHERS = 8  # incidents with the same fingerprint


class Alike(NamedTuple):
    """A similar past case. `same` when both have a line in common that names it, else it only had the same reason."""

    case: Confirmation
    same: bool


class FirstRank(NamedTuple):
    """The first rank to report an error, None if unknown, and its label."""

    label: str
    said: int | str | None


class Change(NamedTuple):
    """A verdict of an attempt, and its changes from the one before."""

    stored: StoredVerdict
    changes: list[str]


def verdict_content(
    service: Service,
    caller: Caller,
    stored: StoredVerdict,
    incident: Incident | None,
    others: Sequence[StoredVerdict] = (),
) -> dict[str, Any]:
    """Return the content of a verdict's page for a caller who may see its job. `others` are verdicts on other attempts
    of its incident, which may have actions under way."""
    return {
        "stored": stored,
        "verdict": stored.verdict,
        "incident": incident,
        "remark": remark,
        **_proof(service, stored),
        **_next_steps(service, caller, stored, others),
        **_job(service, stored),
        **_nodes(service, caller, stored.verdict),
        **_progress(service, stored.verdict),
        **_decision(service, caller, stored),
        **_likes(service, caller, stored, incident),
        "runbooks": runbooks(service, stored.verdict),
    }


def runbooks(service: Service, verdict: Verdict) -> list[str]:
    """Return the URLs of runbooks, the most specific first: fingerprint, rule, the rule's file, reason."""
    if verdict.outcome != "failed":
        return []
    rule = verdict.decided_by.rule
    kept = service.desk.runbooks_for(verdict.reason, rule, verdict.fingerprint)
    urls = [one.url for one in kept if one.kind != "reason"]
    named = next((one.runbook for one in service.scanner.book.diagnoses if one.id == rule), "")
    return list(dict.fromkeys(url for url in (*urls, named, *(one.url for one in kept)) if url))


def _proof(service: Service, stored: StoredVerdict) -> dict[str, Any]:
    """Return the evidence, or the end of a log without any."""
    streams, proof = service.streams(stored.job, stored.attempt), proofs(service, stored)
    attempt = service.records.attempt(stored.job, stored.attempt)
    return {
        "viewer": Viewer(stored.job, stored.attempt, streams),
        "streams": streams,
        "proofs": proof,
        "decisive": decisive(service, stored, proof),
        "ending": ending(service, stored, attempt, streams) if _is_unproven(stored.verdict) else None,
        "first_rank": first_rank(stored.verdict),
    }


def _next_steps(
    service: Service, caller: Caller, stored: StoredVerdict, others: Sequence[StoredVerdict]
) -> dict[str, Any]:
    """Return the advice, the actions under way, and what the caller may do."""
    verdict, later = stored.verdict, later_attempt(service, stored)
    failed = service.incidents.failed_at(list({(one.job, one.attempt) for one in (stored, *others)}))
    failed_at = failed.get((stored.job, stored.attempt))
    known = underway.underway(service, caller, stored, failed_at)
    if later:
        known = underway.without_restarts(known)
        again = Restart(why_not=later.why_no_restart)
    else:
        again = restart(stored.job, _facts(service, stored), verdict, known.faulty)
    may_decide_on_it = may_decide(caller) and stored.current and verdict.outcome == "failed"
    may_act = service.actor is not None and may_decide_on_it
    return {
        "restart": again,
        "later": later,
        "failed_at": stored.at if failed_at is None else failed_at,
        "failed": failed,
        "headline": underway.headline(stored, known, later),
        "underway": known,
        "beside": underway.beside(service, caller, stored, others),
        "tested": underway.outcome,
        "does": node_wording.act,
        "may_decide": may_decide_on_it,
        "may_ask": stored.current and is_open(verdict) and caller.may("operate", stored.job),
        "may_act": may_act,
        "may_test": may_act and verdict.fault not in ("user", "nobody") and not known.is_decided,
        "testable": may_act and service.actor is not None and bool(service.actor.nodes_of(stored)),
    }


def _facts(service: Service, stored: StoredVerdict) -> JobFacts | None:
    """Return the reported facts about the job; None without any."""
    job = service.records.job(stored.job)
    return job.facts if job and msgspec.structs.replace(job.facts, like=None) != JobFacts() else None


def _job(service: Service, stored: StoredVerdict) -> dict[str, Any]:
    """Return the job, the attempt and the verdicts on it."""
    attempt = service.records.attempt(stored.job, stored.attempt)
    return {
        "facts": _facts(service, stored),
        "attempt": attempt,
        "ends": _ends(attempt),
        "history": history(service.records.history(stored.job, stored.attempt)),
    }


def _nodes(service: Service, caller: Caller, verdict: Verdict) -> dict[str, Any]:
    """Return the records of the suspected nodes."""
    nodes = _suspected(service, caller, verdict)
    return {
        "nodes": {name: node_line(known, time.time()) for name, known in nodes.items()},
        "held": {name: held for name, known in nodes.items() if (held := standing(known))},
        "is_node": is_node,
    }


def _progress(service: Service, verdict: Verdict) -> dict[str, Any]:
    """Return the progress of the job, and the rules that filtered its lines."""
    return {
        "by_step": _by_step(verdict.progress),
        "losses": _readings(verdict.progress, "loss"),
        "rates": _readings(verdict.progress, "rate"),
        "unit": units.throughput(verdict.compression, service.scanner.book),
        "rules": sorted(verdict.compression.rules.items(), key=lambda item: -item[1].lines)[:_RULES],
    }


def _decision(service: Service, caller: Caller, stored: StoredVerdict) -> dict[str, Any]:
    """Return who decided, what people said about it, and the model calls."""
    live = service.casework.confirmed.live(stored.job, stored.attempt)
    calls = calls_about(service, caller, stored)
    return {
        "confirmed": live,
        "agrees": live is not None and _agrees(live, stored.verdict),
        "correction": corrected(service, live) if live else "",
        "decider": _decider(service, caller, stored),
        "calls": calls[-_CALLS:],
        "calls_in_all": len(calls),
    }


def _likes(service: Service, caller: Caller, stored: StoredVerdict, incident: Incident | None) -> dict[str, Any]:
    """Return past cases and other incidents similar to this failure."""
    alike = _alike(service, caller, stored) if stored.verdict.outcome == "failed" else []
    others = _others(service, caller, stored, incident)
    return {
        "alike": alike,
        "before": _before(alike, stored.verdict),
        "called_otherwise": _called_otherwise(alike, stored.verdict),
        "others": others,
        "fixed": next((one for one in others if one.state == "resolved" and one.by != BY_US and one.note), None),
    }


def remark(incident: Incident) -> str:
    """Return the note on an incident's state with its author, or "". An open one may have none. Automatic steps are
    marked as such."""
    if incident.by in ("", BY_US):
        return f"closed automatically: {incident.note}" if incident.state == "resolved" and incident.note else ""
    if incident.state == "resolved":
        return f"{incident.by}: {incident.note}" if incident.note else f"{incident.by} resolved it without a note"
    return f"{incident.by}: {incident.note}" if incident.note else ""


def _is_unproven(verdict: Verdict) -> bool:
    """Return whether a failure has no evidence, only the end of its log."""
    return verdict.outcome == "failed" and not verdict.evidence


def first_rank(verdict: Verdict) -> FirstRank:
    """Return the first rank, labelled as one that failed or one that reported a failure."""
    own = [one for one in verdict.ranks if one.rank == verdict.first_rank and one.rank is not None]
    if not own or any(one.role not in _SYMPTOMS for one in own):
        return FirstRank("First rank to fail", verdict.first_rank)
    alike = sum(one.count for one in verdict.ranks if (one.reason, one.role) == (own[0].reason, own[0].role))
    reported = f" ({alike:,} ranks reported)" if alike > 1 else ""
    return FirstRank("First rank to report", f"{verdict.first_rank}{reported}")


def is_node(name: str | None) -> bool:
    """Return whether a name from a log is valid for a node with a page."""
    return bool(name and NAME.fullmatch(name))


def history(verdicts: Sequence[StoredVerdict]) -> list[Change]:
    """Return the verdicts on an attempt, newest first, each with its changes."""
    former = [*verdicts[1:], None]
    return [Change(one, changes(before, one) if before else []) for one, before in zip(verdicts, former, strict=True)]


def changes(before: StoredVerdict, after: StoredVerdict) -> list[str]:
    """Return the changes from one verdict to another, in words."""
    old, new = before.verdict, after.verdict
    found = []
    for name, say in _SAID.items():
        if (was := say(old)) != (now := say(new)):
            found.append(f"{name}: {was or 'none'}, now {now or 'none'}")
    if len(old.evidence) != len(new.evidence):
        found.append(f"lines of evidence: {len(old.evidence)}, now {len(new.evidence)}")
    elif {(one.stream, one.line) for one in old.evidence} != {(one.stream, one.line) for one in new.evidence}:
        found.append("other lines of evidence")
    return found or ["the same verdict from more of the log" if old.compression != new.compression else "details"]


def _said_suspects(verdict: Verdict) -> str:
    named = [phrases.suspect(one) for one in phrases.suspects(verdict)]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")


_SAID: dict[str, Callable[[Verdict], str]] = {
    "reason": phrases.title,
    "what to do": lambda verdict: taxonomy.advice(verdict.recovery, names_node(verdict)),
    "decided by": phrases.decided,
    "suspects": _said_suspects,
    "outcome": lambda verdict: verdict.outcome,
}


def _suspected(service: Service, caller: Caller, verdict: Verdict) -> dict[str, NodeHistory]:
    """Return the history of each suspected node. {} for a token that is bound to jobs. Nodes are shared by all jobs."""
    names = list(dict.fromkeys(one.node for one in verdict.suspects if one.node and is_node(one.node)))[:_SUSPECTS]
    if caller.prefixes or not names:
        return {}
    histories = NodeRecords(service.records.database).histories(names, _HISTORY)
    return {name: histories[name] for name in names}


def standing(known: NodeHistory) -> PastCordon | None:
    """Return our cordon that holds a node, or is being made."""
    return next((one for one in known.cordons if one.state in ("wanted", "standing")), None)


def node_line(known: NodeHistory, now: float) -> str:
    """Return the records of a node in one line."""
    failures = len(known.failures)
    parts = [f"{failures}+ failures" if failures >= _HISTORY else phrases.count(failures, "failure")]
    if known.findings:
        last = known.findings[0]
        parts.append(f"last test: {last.standing}, {phrases.age(now - last.at)}")
    else:
        parts.append("never tested")
    if held := standing(known):
        parts.append(f"cordoned by {held.by}, {phrases.age(now - held.at)}")
    return "; ".join(parts)


def _readings(progress: Progress, name: str) -> list[tuple[float, float | None]]:
    """Return a quantity over steps (lines without steps), if it was read at least twice."""
    by_step = _by_step(progress)
    found = [(float((point.step if by_step else point.line) or 0), getattr(point, name)) for point in progress.curve]
    return found if sum(value is not None for _, value in found) > 1 else []


def _by_step(progress: Progress) -> bool:
    return all(point.step is not None for point in progress.curve)


def _alike(service: Service, caller: Caller, stored: StoredVerdict) -> list[Alike]:
    """Return similar past cases, first those with a line in common, each group newest first."""
    confirmed, reason = service.casework.confirmed, stored.verdict.reason
    digest = confirmed.digest(stored.job, stored.attempt)
    newest = confirmed.page(limit=_LOOKED).items
    cases = {one.id: one for one in newest}
    if reason != "Unknown" and len(newest) == _LOOKED:
        cases |= {one.id: one for one in confirmed.page(limit=_LOOKED, reason=reason).items}
    found = []
    for one in cases.values():
        own = (one.job, one.attempt) == (stored.job, stored.attempt)
        same = bool(digest) and digest in one.digests
        if not own and (same or one.reason == reason) and caller.may("read", one.job):
            found.append(Alike(one, same))
    return sorted(found, key=lambda alike: (not alike.same, -alike.case.id))[:_ALIKE]


def _before(alike: Sequence[Alike], verdict: Verdict) -> Confirmation | None:
    """Return the newest case with the same line, the same cause and a known fix. For a failure of unknown cause, the
    same line suffices."""
    same = (one.case for one in alike if one.same and one.case.fix)
    return next((case for case in same if verdict.reason in (case.reason, "Unknown")), None)


def _called_otherwise(alike: Sequence[Alike], verdict: Verdict) -> Confirmation | None:
    """Return the newest case where a person gave the same line another cause. There is none if this verdict's cause is
    Unknown."""
    same = (one.case for one in alike if one.same and one.case.by != AGREEMENT)
    return next((case for case in same if verdict.reason not in (case.reason, "Unknown")), None)


def _others(service: Service, caller: Caller, stored: StoredVerdict, incident: Incident | None) -> list[Incident]:
    """Return other incidents with the same fingerprint, resolved or not. There are none when nothing is known of a
    failure."""
    if _is_unproven(stored.verdict) and stored.verdict.reason == "Unknown":
        return []
    if stored.verdict.outcome != "failed" or not stored.verdict.fingerprint:
        return []
    wanted = WantedIncidents(
        states=("new", "acknowledged", "resolved"), fingerprint=stored.verdict.fingerprint, prefixes=caller.prefixes
    )
    found = service.incidents.search(wanted, limit=_OTHERS + 1).items
    return [one for one in found if incident is None or one.id != incident.id][:_OTHERS]


def _decider(service: Service, caller: Caller, stored: StoredVerdict) -> Confirmation | None:
    """Return the case that decided, if the caller may see it."""
    number = phrases.case_of(stored.verdict.decided_by)
    try:
        return None if number is None else visible_case(service, caller, number)
    except RequestRefused:
        return None


def _agrees(said: Confirmation, verdict: Verdict) -> bool:
    """Return whether a verdict agrees with the confirmation of its attempt."""
    recovery = said.recovery or taxonomy.REASONS[said.reason].recovery
    return (said.reason, recovery) == (verdict.reason, verdict.recovery)


def _ends(attempt: Attempt | None) -> list[End]:
    """Return how the attempt and its processes ended: the attempt first, then those that failed."""
    ends = attempt.ends if attempt else ()
    return sorted(ends, key=lambda end: (end.stream != "", not (end.exit_code or end.signal), end.at))[:_ENDS]
