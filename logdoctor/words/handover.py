"""An incident in one paragraph for whoever takes it over, with the nodes to leave out ready to paste."""

from collections import Counter
from collections.abc import Sequence

from logdoctor import taxonomy
from logdoctor.llm.masking import mask
from logdoctor.store.incidents.table import Incident, IncidentEvent
from logdoctor.store.jobs.records import StoredVerdict
from logdoctor.types import Evidence, Verdict, names_node
from logdoctor.types.nodes import NAME
from logdoctor.words.nodesets import folded
from logdoctor.words.show import day, safe
from logdoctor.words.sources import coverage

MOST = 3000
"""Characters of a hand-over."""
_LEFT_OUT = 600  # of the characters of each list of nodes
_QUOTES, _QUOTE, _TEXT, _NOTES = 2, 300, 300, 3
_AFFINITY = (
    "nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: "
    "[{key: kubernetes.io/hostname, operator: NotIn, values: [%s]}]}]}}"
)


def handover(one: Incident, members: Sequence[StoredVerdict], events: Sequence[IncidentEvent] = ()) -> str:
    """Return a paragraph and the exclude lists, 3,000 characters at most; secrets in quotes are masked.

    Excluded are the nodes that verdicts on its newest attempts want to isolate, the most suspected first.
    """
    nodes = Counter(node for stored in members for node in _suspected(stored.verdict))
    left_out = _exclude([node for node, _ in nodes.most_common()])
    told = " ".join(_sentences(one, members[0] if members else one.newest, nodes, events))
    room = MOST - len(left_out)
    return (told if len(told) <= room else f"{told[: room - 1]}…") + left_out


def _sentences(
    one: Incident, newest: StoredVerdict | None, nodes: Counter[str], events: Sequence[IncidentEvent]
) -> list[str]:
    said = [f"Incident {one.id} ({one.state}{f', with {_plain(one.assignee)}' if one.assignee else ''}):"]
    if newest is None:
        return [*said, "no attempts are left in it."]
    verdict = newest.verdict
    where = f" on {one.node}" if one.node else ""
    said.append(f"{_plain(taxonomy.title(verdict.reason, verdict.outcome, verdict.detail))}{where}.")
    said.append(f"Failed attempts: {one.attempts} of {one.jobs} jobs, from {day(one.opened)} to {day(one.last)} UTC;")
    step = "" if verdict.progress.step is None else f" at step {verdict.progress.step}"
    said.append(f"the newest is {_plain(newest.job)}/{newest.attempt}{step}.")
    said.append(f"Fault: {taxonomy.FAULT_WORDS[verdict.fault]}, {verdict.confidence:.0%} sure. {_plain(verdict.why)}")
    said += [_proof(proof) for proof in verdict.evidence[:_QUOTES]]
    said.append(f"Advice: {taxonomy.advice(verdict.recovery, names_node(verdict))}. {_plain(verdict.suggestion)}")
    if nodes:
        said.append(f"Suspects: {', '.join(f'{node} ({count})' for node, count in nodes.most_common(5))}.")
    if verdict.coverage:
        said.append(f"Sources besides the log: {_plain(coverage(verdict.coverage))}.")
    noted = [event for event in events if event.by and event.step not in ("joined", "left", "opened")][:_NOTES]
    said += [f"{day(event.at)} {_plain(event.by)} {event.step}: {_plain(event.note) or '-'}." for event in noted]
    return [" ".join(part.split()) for part in said if part.strip()]


def _proof(proof: Evidence) -> str:
    return f'Proof ({proof.stream}, line {proof.line}): "{safe(mask(proof.quote), _QUOTE)}".'


def _plain(text: str) -> str:
    return safe(mask(text), _TEXT)


def _suspected(verdict: Verdict) -> set[str]:
    if verdict.recovery != "isolate_and_restart":
        return set()
    return {one.node for one in verdict.suspects if one.node and NAME.fullmatch(one.node)}


def _exclude(nodes: Sequence[str]) -> str:
    """Return the lists for Slurm and Kubernetes, of as many nodes as fit."""
    fitting = list(nodes)
    while fitting and len(", ".join(fitting)) > _LEFT_OUT:
        fitting.pop()
    if not fitting:
        return ""
    more = f"\n# and {len(nodes) - len(fitting)} more" if len(fitting) < len(nodes) else ""
    return f"\n\n#SBATCH --exclude={folded(fitting)}\n{_AFFINITY % ', '.join(fitting)}{more}"
