"""Whether an action still follows from what is known: verdicts are superseded, nodes are tested again, and a job that
is started again fails again."""

from logdoctor.store.jobs.records import Records
from logdoctor.store.nodes.records import NodeRecords, StoredAction
from logdoctor.types.nodes import RESTARTS, Action


def superseded(action: Action, verdicts: Records, nodes: NodeRecords) -> str:
    """Why an action is to be done no more; "" when it still follows.

    What a test proved of a node stands without the verdict that led to it; what else follows from a superseded verdict
    does not. A test that found a node healthy since supersedes what was to be done about it; one that could not decide
    does not.
    """
    if action.nodes and action.test is not None:
        return _found_since(action.nodes, action.test, nodes)
    return verdict_superseded(action.verdict, verdicts)


def displaced(stored: StoredAction, nodes: NodeRecords) -> str:
    """Why an action that waits need not be decided on: a newer one asks for the same, after another attempt of the same
    incident; "" when none does."""
    newer = nodes.newer(stored)
    return f"action {newer.id} asks for the same after {newer.job} / {newer.attempt}" if newer else ""


def resumed(stored: StoredAction, verdicts: Records) -> str:
    """Why a restart that waits is needed no more: a later attempt of the job began, which a restart may end; "" when
    none did."""
    if stored.job is None or stored.attempt is None or not is_restart(stored):
        return ""
    later = verdicts.later_attempt(stored.job, stored.attempt)
    return f"attempt {later.number} of {stored.job} started after it" if later else ""


def is_restart(stored: StoredAction) -> bool:
    """Whether an action starts its job again."""
    return stored.action.kind in RESTARTS


def verdict_superseded(verdict: int | None, verdicts: Records) -> str:
    """Why a verdict counts no more; "" when it does, and for one that is not on record."""
    stored = None if verdict is None else verdicts.verdict(verdict)
    if stored is None or stored.current:
        return ""
    return f"verdict {stored.id} was superseded by verdict {stored.superseded_by}"


def _found_since(names: tuple[str, ...], test: int, nodes: NodeRecords) -> str:
    """The tests after this one whose last word on the nodes is that all are healthy, "" when it is not."""
    said = []
    for name in names:
        last = next((past for past in nodes.history(name, 20).findings if past.standing != "indeterminate"), None)
        if last is None or last.test <= test or last.standing != "healthy":
            return ""
        said.append(f"test {last.test} found {name} healthy")
    return ", ".join(said)
