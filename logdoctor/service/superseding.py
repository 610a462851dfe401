"""Whether an action is still needed, given newer verdicts, tests and attempts."""

from logdoctor.store.jobs.records import Records
from logdoctor.store.nodes.records import NodeRecords, StoredAction
from logdoctor.types.nodes import RESTARTS, Action


def superseded(action: Action, verdicts: Records, nodes: NodeRecords) -> str:
    """Return why an action is obsolete; "" when it is still needed.

    What a test proved of a node stands without the verdict that led to it; anything else that follows from a superseded
    verdict does not. A later test that found the node healthy supersedes actions on it; an indeterminate one does not.
    """
    if action.nodes and action.test is not None:
        return _found_since(action.nodes, action.test, nodes)
    return verdict_superseded(action.verdict, verdicts)


def displaced(stored: StoredAction, nodes: NodeRecords) -> str:
    """Return why a waiting action is obsolete: a newer one asks for the same, after another attempt of the same
    incident; "" if none does."""
    newer = nodes.newer(stored)
    return f"action {newer.id} asks for the same after {newer.job} / {newer.attempt}" if newer else ""


def resumed(stored: StoredAction, verdicts: Records) -> str:
    """Return why a waiting restart is obsolete: a later attempt of the job began, which a restart might end; "" if none
    did."""
    if stored.job is None or stored.attempt is None or not is_restart(stored):
        return ""
    later = verdicts.later_attempt(stored.job, stored.attempt)
    return f"attempt {later.number} of {stored.job} started after it" if later else ""


def is_restart(stored: StoredAction) -> bool:
    """Return whether an action restarts its job."""
    return stored.action.kind in RESTARTS


def verdict_superseded(verdict: int | None, verdicts: Records) -> str:
    """Return why a verdict is no longer current; "" if it is current or unknown."""
    stored = None if verdict is None else verdicts.verdict(verdict)
    if stored is None or stored.current:
        return ""
    return f"verdict {stored.id} was superseded by verdict {stored.superseded_by}"


def _found_since(names: tuple[str, ...], test: int, nodes: NodeRecords) -> str:
    """Return which tests after this one found all nodes healthy, "" unless all are."""
    said = []
    for name in names:
        last = next((past for past in nodes.history(name, 20).findings if past.standing != "indeterminate"), None)
        if last is None or last.test <= test or last.standing != "healthy":
            return ""
        said.append(f"test {last.test} found {name} healthy")
    return ", ".join(said)
