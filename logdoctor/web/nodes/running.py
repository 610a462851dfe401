"""The jobs that run on a node, as far as known."""

from collections.abc import Sequence
from typing import NamedTuple

from logdoctor.errors import LogdoctorError
from logdoctor.service.service import Service
from logdoctor.store.jobs.records import Attempt, Job
from logdoctor.store.nodes.records import NodeRecords

_LOOKED_AT = 200  # running attempts, the newest


class Running(NamedTuple):
    """The running attempts whose node list, or one of whose streams, names a node. `all_seen` is False when there are
    more running attempts than were searched."""

    attempts: tuple[Attempt, ...]
    all_seen: bool


def running_on(service: Service, node: str) -> Running:
    """Return the attempts that run on a node, as far as senders report it."""
    running = [one for one in service.records.unsettled() if one.ended is None and one.deleted is None]
    newest = sorted(running, key=lambda one: -one.started)[:_LOOKED_AT]
    lists: dict[str, bool] = {}

    def named(job: str) -> bool:
        if job not in lists:
            lists[job] = _names(service, job, node)
        return lists[job]

    found = tuple(one for one in newest if named(one.job) or node in service.streams(one.job, one.number))
    return Running(found, len(running) <= _LOOKED_AT)


class Seen(NamedTuple):
    """What is known about a node without tests. It has the jobs that failed on it, latest first, the attempts that run
    there, and when it was last heard of, in seconds since the epoch (None: never)."""

    jobs: tuple[str, ...]
    running: tuple[Attempt, ...]
    last: float | None


def seen(service: Service, kept: NodeRecords, names: Sequence[str], now: float) -> dict[str, Seen]:
    """Return what is known about each of these nodes."""
    running = [one for one in service.records.unsettled() if one.ended is None and one.deleted is None]
    there: dict[str, list[Attempt]] = {}
    nodes: dict[str, list[str]] = {}
    for one in sorted(running, key=lambda one: -one.started)[:_LOOKED_AT]:
        if one.job not in nodes:
            nodes[one.job] = service.watch.nodes_of(one.job)
        for node in nodes[one.job]:
            there.setdefault(node, []).append(one)
    found = {}
    for name, history in kept.histories(names).items():
        times = [one.at for some in (history.failures, history.findings, history.cordons) for one in some]
        runs = tuple(there.get(name, ()))
        jobs = tuple(dict.fromkeys(one.job for one in history.failures))
        found[name] = Seen(jobs, runs, now if runs else max(times, default=None))
    return found


def listed_by(service: Service, kept: NodeRecords, node: str, verdict: int | None) -> Job | None:
    """Return the verdict's job, if its node list names the node; else None. Without a verdict, the last failure on the
    node counts."""
    if verdict is None:
        failures = kept.histories([node], 1)[node].failures
        verdict = failures[0].verdict if failures else None
    stored = None if verdict is None else service.records.verdict(verdict)
    return service.records.job(stored.job) if stored and _names(service, stored.job, node) else None


def _names(service: Service, job: str, node: str) -> bool:
    """Return whether the scheduler's list of a job's nodes names this one."""
    known = service.records.job(job)
    if known is None or not known.facts.nodelist or service.actor is None:
        return False
    try:
        return node in service.actor.expand(known.facts.nodelist)
    except LogdoctorError:
        return False
