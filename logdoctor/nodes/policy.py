"""Decides what to do after a verdict and after a node test: tables of rules over what is known. Pure.

Words in a log lead to a test at most (law 4): an immediate cordon follows only from a test, and no node outside the job
is ever named. Reboots, inspections and restarts are advice to people.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from logdoctor.types import Verdict
from logdoctor.types.nodes import NAME, Action, ActionKind, Conclusion, Finding, Mode, NodeHistory

REPEATED = 2
"""Failures and faults on record from which a node is tested first."""
REBOOTS = 2
"""Reboots that left the same fault, after which another one will not help."""
NAMED = 4
"""Most culprits of a log that are believed; more are not a bad node."""


class Modes(NamedTuple):
    """Whether each kind of action is performed at once (`auto`), waits for a person (`ask`) or is left out
    (`never`)."""

    test: Mode = "ask"
    cordon: Mode = "ask"
    reboot: Mode = "ask"
    inspect: Mode = "ask"
    restart: Mode = "ask"


_AT_FAULT = {"user": " (a fault of the job itself)", "infrastructure": " (a fault of the infrastructure)"}
"""Whose fault a failure is, in words, where that is worth saying."""


class _Failed(NamedTuple):
    """A job that failed: its nodes, those to test first, and those that the evidence names."""

    verdict: Verdict
    nodes: tuple[str, ...]
    first: tuple[str, ...]
    named: tuple[str, ...]
    modes: Modes

    @property
    def by_machines(self) -> bool:
        """Return whether machines are at fault, not the program."""
        return self.verdict.fault == "infrastructure" or self.verdict.recovery == "isolate_and_restart"

    @property
    def why(self) -> str:
        return f"The job failed with {self.verdict.reason}{_AT_FAULT.get(self.verdict.fault, '')}"


class _BadNode(NamedTuple):
    """A node that a test did not find healthy, and the number of reboots that left its fault."""

    finding: Finding
    cordoned: bool
    reboots: int

    @property
    def proven(self) -> bool:
        return self.finding.standing == "faulty" and bool(self.finding.worlds)

    @property
    def doubtful(self) -> bool:
        return self.finding.standing == "slow" or (self.finding.standing == "faulty" and not self.finding.worlds)


class JobNodes(NamedTuple):
    """The nodes of a job, as far as known by name, and their number; 0 when unknown."""

    names: tuple[str, ...] = ()
    number: int = 0

    @property
    def all_named(self) -> bool:
        return bool(self.names) and len(self.names) >= self.number


class _Tested(NamedTuple):
    """A finished test, the verdict that it followed, and the nodes of that verdict's job."""

    conclusion: Conclusion
    verdict: int | None
    nodes: JobNodes

    @property
    def faulty(self) -> tuple[str, ...]:
        return of_job(self.conclusion.named("faulty"), self.nodes)

    @property
    def proves(self) -> bool:
        """Return whether the test proves the job's nodes to be good."""
        return not unproven(self.conclusion, self.nodes)


_Subject = TypeVar("_Subject")
_Groups = Iterable[tuple[str, ...]]


class _Rule(NamedTuple, Generic[_Subject]):
    """A rule: where it `holds`, one action for each group of nodes, in a mode no stronger than `most`, whatever the
    settings."""

    kind: ActionKind
    most: Mode
    holds: Callable[[_Subject], bool]
    groups: Callable[[_Subject], _Groups]
    why: Callable[[_Subject], str]


_SETTING: dict[ActionKind, str] = {
    "test_nodes": "test",
    "cordon": "cordon",
    "reboot": "reboot",
    "inspect_hardware": "inspect",
    "restart": "restart",
    "rollback_and_skip": "restart",
}
_WEAKEST_FIRST: tuple[Mode, ...] = ("never", "ask", "auto")


def _untested(case: _Failed) -> str:
    """Return why no test can tell whether the node is at fault; "" when one can."""
    if case.modes.test == "never":
        return "tests are switched off"
    return "a test of one node proves nothing" if len(case.nodes) < 2 else ""


_AFTER_FAILURE: tuple[_Rule[_Failed], ...] = (
    _Rule(
        "test_nodes",
        "auto",
        lambda case: case.by_machines and len(case.nodes) > 1,  # a node by itself stays undecided
        lambda case: [case.first + tuple(name for name in case.nodes if name not in case.first)],
        lambda case: f"{case.why}: find out whether a node is at fault{_listed('; suspected first: ', case.first)}.",
    ),
    _Rule(
        "cordon",
        "ask",
        lambda case: case.by_machines and bool(_untested(case)) and len(case.named) <= NAMED,
        lambda case: [(name,) for name in case.named],
        lambda case: f"{case.why}, its log names this node, and {_untested(case)}: check it first.",
    ),
    _Rule(
        "restart",
        "ask",
        lambda case: case.verdict.recovery == "restart" and case.verdict.reason != "Unknown",
        lambda case: [()],
        lambda case: f"{case.why}, which passes: restart it from the last good checkpoint.",
    ),
    _Rule(
        "rollback_and_skip",
        "ask",
        lambda case: case.verdict.recovery == "rollback_and_skip",
        lambda case: [()],
        lambda case: f"{case.why}: resume from an earlier checkpoint and skip the data after it.",
    ),
)
_AFTER_FINDING: tuple[_Rule[_BadNode], ...] = (
    _Rule(
        "cordon",
        "auto",
        lambda case: case.proven and not case.cordoned,
        lambda case: [(case.finding.node,)],
        lambda case: f"The test found it faulty: {case.finding.why}",
    ),
    _Rule(
        "cordon",
        "ask",
        lambda case: case.doubtful and not case.cordoned,
        lambda case: [(case.finding.node,)],
        lambda case: f"The test found it {case.finding.standing}: {case.finding.why}",
    ),
    _Rule(
        "reboot",
        "ask",
        lambda case: case.finding.standing == "faulty" and case.reboots < REBOOTS,
        lambda case: [(case.finding.node,)],
        lambda case: f"Reboot it and test it again: {case.finding.fault or case.finding.why}.",
    ),
    _Rule(
        "inspect_hardware",
        "ask",
        lambda case: case.finding.standing == "faulty" and case.reboots >= REBOOTS,
        lambda case: [(case.finding.node,)],
        lambda case: (
            f"{case.reboots} reboots left the same fault ({case.finding.fault}): another reboot will not help."
        ),
    ),
)
_AFTER_TEST: tuple[_Rule[_Tested], ...] = (
    _Rule(
        "inspect_hardware",
        "ask",
        lambda case: any(link.between == "nodes" for link in case.conclusion.links),
        lambda case: [link.ends for link in case.conclusion.links if link.between == "nodes"],
        lambda case: "Both nodes are healthy, but they cannot work together: inspect the connection between them.",
    ),
    _Rule(
        "inspect_hardware",
        "ask",
        lambda case: any(link.between == "groups" for link in case.conclusion.links),
        lambda case: [()],
        lambda case: "Inspect the connection between the groups " + "; ".join(_joined(case.conclusion)) + ".",
    ),
    _Rule(
        "restart",
        "ask",
        lambda case: case.verdict is not None and bool(case.faulty),
        lambda case: [()],
        lambda case: f"Restart the job without{_listed(' ', case.faulty)}, once they are out.",
    ),
    _Rule(
        "restart",
        "ask",
        lambda case: case.verdict is not None and case.proves,
        lambda case: [()],
        lambda case: (
            "All nodes of the job were tested and are healthy: restart it; if it fails again, the cause is elsewhere."
        ),
    ),
)


def after_verdict(
    verdict: Verdict, id: int, job_nodes: Sequence[str], histories: Mapping[str, NodeHistory], modes: Modes
) -> tuple[Action, ...]:
    """Return the actions after a final verdict; none for a job that did not fail.

    `job_nodes` are the attempt's nodes according to the scheduler: no other node is named, and none with an invalid
    name. Actions that the settings leave out are left out.
    """
    if verdict.outcome != "failed":
        return ()
    nodes = tuple(dict.fromkeys(name for name in job_nodes if NAME.fullmatch(name)))
    suspects = [suspect.node for suspect in verdict.suspects if suspect.node is not None]
    first = first_to_test(suspects, histories, nodes)
    case = _Failed(verdict, nodes, first, _known(suspects, nodes), modes)
    return tuple(_actions(_AFTER_FAILURE, case, modes, id, None))


def after_test(
    conclusion: Conclusion,
    test: int,
    verdict: int | None,
    histories: Mapping[str, NodeHistory],
    modes: Modes,
    job_nodes: JobNodes,
) -> tuple[Action, ...]:
    """Return the actions after a finished test, whose findings are already in the histories; `job_nodes` are those of
    the verdict's job.

    A faulty node is cordoned as the settings say; a slow one, or one convicted without a failed world, waits for a
    person. Nothing follows for undecided nodes, and no restart from a test that does not prove the job's nodes to be
    good (see `unproven`).
    """
    actions: list[Action] = []
    for finding in conclusion.findings:
        if finding.standing in ("faulty", "slow") and NAME.fullmatch(finding.node):
            history = histories.get(finding.node, NodeHistory(finding.node))
            held = any(cordon.state in ("wanted", "standing") for cordon in history.cordons if cordon.how != _REHEARSED)
            case = _BadNode(finding, held, reboots(history, finding.fault))
            actions += _actions(_AFTER_FINDING, case, modes, verdict, test)
    return (*actions, *_actions(_AFTER_TEST, _Tested(conclusion, verdict, job_nodes), modes, verdict, test))


def unproven(conclusion: Conclusion, job_nodes: JobNodes) -> str:
    """Return why a test does not prove a job's nodes good, after "the test".

    "" when it does: all of them were tested, and everything tested is good.
    """
    if reason := trouble(conclusion):
        return reason
    tested = [finding.node for finding in conclusion.findings]
    many = f"{len(tested):,} node{'s' if len(tested) > 1 else ''}"
    if not job_nodes.names:
        of = f" {job_nodes.number:,}" if job_nodes.number else ""
        return f"found no fault in {many}, and it is not known which{of} nodes the job had"
    met, count = len(_known(job_nodes.names, tested)), max(job_nodes.number, len(job_nodes.names))
    if not met:
        return f"found no fault in {many}, none of which the job had"
    return f"found no fault, but tested only {met:,} of the job's {count:,} nodes" if met < count else ""


def trouble(conclusion: Conclusion) -> str:
    """Return what a finished test found bad or left open, in words after "the test"; "" when everything tested is
    good."""
    faulty, slow, unclear = (conclusion.named(name) for name in ("faulty", "slow", "indeterminate"))
    if faulty:
        return f"found{_listed(' ', faulty)} faulty"
    if conclusion.links:
        link = conclusion.links[0]
        others = len(conclusion.links) - 1
        more = f", and {others:,} more such link{'s' if others > 1 else ''}" if others else ""
        return f"found the connection between {link.ends[0]} and {link.ends[1]} faulty, and both nodes healthy{more}"
    if slow:
        return f"found{_listed(' ', slow)} slow"
    if unclear or conclusion.open:
        return f"could not decide: {conclusion.open or _listed('', unclear)}"
    return "" if conclusion.findings else "found nothing"


def of_job(names: Sequence[str], job_nodes: JobNodes) -> tuple[str, ...]:
    """Return those of the nodes that a job had; all of them unless the job's nodes are all known by name."""
    if not job_nodes.all_named:
        return tuple(names)
    known = set(_known(job_nodes.names, names))
    return tuple(name for name in names if name in known)


def first_to_test(
    suspects: Sequence[str], histories: Mapping[str, NodeHistory], nodes: Sequence[str]
) -> tuple[str, ...]:
    """Return the nodes worth testing first: those that the evidence names, then the most frequent offenders.

    A suspect may be given by its host name without the domain, or the other way round.
    """
    named = _known(suspects, nodes)
    offences = {name: _offences(histories[name]) for name in nodes if name in histories and name not in named}
    repeated = [name for name, count in offences.items() if count >= REPEATED]
    return named + tuple(sorted(repeated, key=lambda name: -offences[name]))


def reboots(history: NodeHistory, fault: str) -> int:
    """Return how many reboots left a node with the same fault: one less than the kernel boots it was found in."""
    found = (past for past in history.findings if past.standing == "faulty" and past.fault == fault)
    return max(len({past.boot for past in found if past.boot}) - 1, 0)


_REHEARSED = "dry-run"  # the cordoner that touches no node


def _actions(
    rules: Iterable[_Rule[_Subject]], case: _Subject, modes: Modes, verdict: int | None, test: int | None
) -> Iterable[Action]:
    """Yield the actions that the rules call for and the settings allow, in rule order."""
    for rule in rules:
        mode = min(getattr(modes, _SETTING[rule.kind]), rule.most, key=_WEAKEST_FIRST.index)
        if mode != "never" and rule.holds(case):
            for nodes in rule.groups(case):
                yield Action(rule.kind, nodes, mode, rule.why(case), verdict, test)


def _known(suspects: Iterable[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that the suspects denote, in the order of the suspects."""
    hosts: dict[str, list[str]] = {}
    for name in nodes:
        hosts.setdefault(_host(name), []).append(name)
    known = set(nodes)

    def meant(name: str) -> str | None:
        if name in known:
            return name
        alike = hosts.get(_host(name), [])
        return alike[0] if len(alike) == 1 and (name == _host(name) or alike[0] == _host(name)) else None

    return tuple(dict.fromkeys(node for name in suspects if (node := meant(name)) is not None))


def _host(name: str) -> str:
    """Return the name without its domain; an address is kept whole."""
    host = name.partition(".")[0]
    return name if host.isdigit() else host


def _offences(history: NodeHistory) -> int:
    return len(history.failures) + sum(past.standing == "faulty" for past in history.findings)


def _joined(conclusion: Conclusion) -> Iterable[str]:
    return (" and ".join(link.ends) for link in conclusion.links if link.between == "groups")


def _listed(before: str, names: Sequence[str]) -> str:
    """Return the names after the given words; "" without names."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{before}{', '.join(names[:8])}{more}" if names else ""
