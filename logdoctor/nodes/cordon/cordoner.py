"""The cordoner protocol: what a cluster must offer to cordon its nodes, and the mark on a cordoned node."""

from typing import Protocol

import regex

from logdoctor.errors import CordonError
from logdoctor.types.nodes import Mark, NodeState

MAX_TEXT = 200
"""The longest mark as text, in characters."""
MAX_NUMBER = 10**18
"""Upper limit of cordon and verdict numbers."""

_OWNER = regex.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,38}[A-Za-z0-9])?")
_MARK = regex.compile(
    r"(?P<owner>[A-Za-z0-9._-]{1,40}) cordon (?P<cordon>[0-9]{1,18})(?: verdict (?P<verdict>[0-9]{1,18}))?"
    r"(?:: (?P<reason>[ -~]{1,200}))?"
)
_QUOTES = {ord(sign): None for sign in "\"'`\\"}
_BLANKS = regex.compile(r"\s+")
_ODD = regex.compile(r"[^ -~]")


def unknown(name: str, how: str) -> CordonError:
    """Return the refusal of a node that is not among those of the cluster, or of the list where there is no cluster."""
    if how not in ("file", "dry-run"):
        return CordonError(f"node {name[:80]}", "is unknown to the cluster", "Check the name.")
    next_step = "Name all nodes in LOGDOCTOR_FLEET; without it only those that were ever tested are known."
    return CordonError(f"node {name[:80]}", "is in no list of nodes, and no cluster is asked", next_step)


class Cordoner(Protocol):
    """A cluster whose nodes can be cordoned. All calls block, for a bounded time, and may come from any thread.

    They raise `CordonError` when the cluster does not answer, does not know the node, or fails to change it; and
    `CordonRefused`, having changed nothing, where the cordon belongs to others.
    """

    @property
    def how(self) -> str:
        """Return slurm, kubernetes, file or dry-run."""

    def nodes(self) -> list[NodeState]:
        """Return the whole fleet: the share that may be cordoned is a share of it."""

    def node(self, name: str) -> NodeState | None:
        """Return one node's current state; None when the cluster does not know it."""

    def cordon(self, name: str, mark: Mark) -> None:
        """Cordon the node and write the mark on it; do nothing if it `carries` the mark already.

        `CordonRefused` for a node cordoned by others, checked as late as possible.
        """

    def uncordon(self, name: str, mark: Mark) -> None:
        """Remove the cordon and the mark from the node; `CordonRefused` unless it `carries` exactly this mark."""


def reason_text(mark: Mark) -> str:
    """Return the mark as one line of printable ASCII without quotes: `OWNER cordon 45 verdict 123: why`.

    A long reason is cut. `CordonError` for an invalid owner or number.
    """
    numbers = (mark.cordon,) if mark.verdict is None else (mark.cordon, mark.verdict)
    if not all(0 <= number < MAX_NUMBER for number in numbers):
        raise CordonError("a cordon", "its number or its verdict's is out of range", "Report this as a bug.")
    verdict = "" if mark.verdict is None else f" verdict {mark.verdict}"
    head = f"{checked_owner(mark.owner)} cordon {mark.cordon}{verdict}"
    reason = plain_reason(mark.reason)[: MAX_TEXT - len(head) - 2].strip()
    return f"{head}: {reason}" if reason else head


def mark_of(text: str) -> Mark | None:
    """Parse a mark written by `reason_text`, of any owner; None for any other text.

    If others have added to the reason it is another mark: `carries` distinguishes them.
    """
    if len(text) > MAX_TEXT or (found := _MARK.fullmatch(text)) is None:
        return None
    verdict = None if found["verdict"] is None else int(found["verdict"])
    mark = Mark(found["owner"], int(found["cordon"]), verdict, found["reason"] or "")
    return mark if _OWNER.fullmatch(mark.owner) and reason_text(mark) == text else None


def carries(state: NodeState | None, mark: Mark) -> bool:
    """Return whether the node is cordoned with exactly this mark, as text (long reasons are cut)."""
    if state is None or not state.cordoned or state.mark is None:
        return False
    return reason_text(state.mark) == reason_text(mark)


def plain_reason(reason: str) -> str:
    """Return the reason as one line of printable ASCII without quotes and backslashes; other characters become `?`."""
    blanks = _BLANKS.sub(" ", reason[: 4 * MAX_TEXT].translate(_QUOTES))
    return _BLANKS.sub(" ", _ODD.sub("?", blanks)).strip()


def checked_owner(owner: str) -> str:
    """Return an owner that fits into a mark; `CordonError` otherwise."""
    if not _OWNER.fullmatch(owner):
        cause = "cannot be written on a node"
        raise CordonError(f"the owner {owner[:60]!r}", cause, "Use 1 to 40 letters, digits, '.', '_' and '-'.")
    return owner
