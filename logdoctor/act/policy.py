"""What is to be done after a verdict and after a test of nodes: tables of rules over what is known. Pure.

Words in a log lead to a test at most (law 4): a cordon that is made at once follows from a test alone, and no node
outside the job is ever named. Reboots, inspections and restarts are advice to people.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from logdoctor.nodes import NAME, Action, ActionKind, Conclusion, Finding, Mode, NodeHistory
from logdoctor.types import Verdict

REPEATED = 2
"""Failures and faults on record that make a node one to test first."""
REBOOTS = 2
"""Reboots that left the same fault, after which another one is no use."""
NAMED = 4
"""Culprits that a log may name at once to be believed; more are no bad node."""


class Modes(NamedTuple):
    """Whether what is called for is done at once (`auto`), waits for a person (`ask`) or is left out (`never`)."""

    test: Mode = "ask"
    cordon: Mode = "ask"
    reboot: Mode = "ask"
    inspect: Mode = "ask"
    restart: Mode = "ask"


class _Failed(NamedTuple):
    """A job that failed: its nodes, those to test first, and those of them that the evidence names."""

    verdict: Verdict
    nodes: tuple[str, ...]
    first: tuple[str, ...]
    named: tuple[str, ...]
    modes: Modes

    @property
    def by_machines(self) -> bool:
        """Whether machines are at fault, not the program."""
        return self.verdict.fault == "infrastructure" or self.verdict.recovery == "isolate_and_restart"

    @property
    def why(self) -> str:
        return f"The job failed of {self.verdict.reason} ({self.verdict.fault})"


class _Found(NamedTuple):
    """A node that a test found to be not healthy, and the reboots that left this fault."""

    finding: Finding
    cordoned: bool
    reboots: int

    @property
    def proven(self) -> bool:
        return self.finding.standing == "faulty" and bool(self.finding.worlds)

    @property
    def doubtful(self) -> bool:
        return self.finding.standing == "slow" or (self.finding.standing == "faulty" and not self.finding.worlds)


class _Tested(NamedTuple):
    """A test as a whole, and the verdict that it followed."""

    conclusion: Conclusion
    verdict: int | None

    @property
    def faulty(self) -> tuple[str, ...]:
        return self.conclusion.named("faulty")

    @property
    def clean(self) -> bool:
        """Whether all that was tested is good."""
        all_healthy = all(finding.standing == "healthy" for finding in self.conclusion.findings)
        return all_healthy and bool(self.conclusion.findings) and not self.conclusion.links and not self.conclusion.open


_Case = TypeVar("_Case")
_Groups = Iterable[tuple[str, ...]]


class _Rule(NamedTuple, Generic[_Case]):
    """Where it `holds`: an action for each group of nodes, at most in the mode `most`, whatever is set."""

    kind: ActionKind
    most: Mode
    holds: Callable[[_Case], bool]
    groups: Callable[[_Case], _Groups]
    why: Callable[[_Case], str]


_SETTING: dict[ActionKind, str] = {
    "test_nodes": "test",
    "cordon": "cordon",
    "reboot": "reboot",
    "inspect_hardware": "inspect",
    "restart": "restart",
    "rollback_and_skip": "restart",
}
_WEAKEST_FIRST: tuple[Mode, ...] = ("never", "ask", "auto")

_AFTER_FAILURE: tuple[_Rule[_Failed], ...] = (
    _Rule(
        "test_nodes",
        "auto",
        lambda case: case.by_machines and bool(case.nodes),
        lambda case: [case.first + tuple(name for name in case.nodes if name not in case.first)],
        lambda case: f"{case.why}: find the node, if it is one{_listed('; suspected first: ', case.first)}.",
    ),
    _Rule(
        "cordon",
        "ask",
        lambda case: case.by_machines and case.modes.test == "never" and len(case.named) <= NAMED,
        lambda case: [(name,) for name in case.named],
        lambda case: f"{case.why}, its log names this node, and tests are switched off: look at it first.",
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
        lambda case: f"{case.why}: go on from an earlier checkpoint and skip the data that followed.",
    ),
)
_AFTER_FINDING: tuple[_Rule[_Found], ...] = (
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
        lambda case: f"{case.reboots} reboots left the same fault ({case.finding.fault}): another one is no use.",
    ),
)
_AFTER_TEST: tuple[_Rule[_Tested], ...] = (
    _Rule(
        "inspect_hardware",
        "ask",
        lambda case: any(link.between == "nodes" for link in case.conclusion.links),
        lambda case: [link.ends for link in case.conclusion.links if link.between == "nodes"],
        lambda case: "Each of the two nodes is good, and they cannot work together: inspect what joins them.",
    ),
    _Rule(
        "inspect_hardware",
        "ask",
        lambda case: any(link.between == "groups" for link in case.conclusion.links),
        lambda case: [()],
        lambda case: "Inspect what joins the groups " + "; ".join(_joined(case.conclusion)) + ".",
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
        lambda case: case.verdict is not None and case.clean,
        lambda case: [()],
        lambda case: "All nodes that were tested are healthy: restart the job; if it fails again, look elsewhere.",
    ),
)


def after_verdict(
    verdict: Verdict, id: int, job_nodes: Sequence[str], histories: Mapping[str, NodeHistory], modes: Modes
) -> tuple[Action, ...]:
    """What is to be done about a final verdict; nothing for a job that did not fail.

    `job_nodes` are the nodes of the attempt as the scheduler knows them: no other is named, and none that cannot be
    called so. What the settings leave out is left out.
    """
    if verdict.outcome != "failed":
        return ()
    nodes = tuple(dict.fromkeys(name for name in job_nodes if NAME.fullmatch(name)))
    said = [suspect.node for suspect in verdict.suspects if suspect.node is not None]
    first = first_to_test(said, histories, nodes)
    case = _Failed(verdict, nodes, first, _known(said, nodes), modes)
    return tuple(_actions(_AFTER_FAILURE, case, modes, id, None))


def after_test(
    conclusion: Conclusion, test: int, verdict: int | None, histories: Mapping[str, NodeHistory], modes: Modes
) -> tuple[Action, ...]:
    """What is to be done about a finished test, whose findings are in the histories already.

    A faulty node is cordoned by the setting; one that is slow, or convicted without a world that failed, waits for a
    person. Nothing follows for nodes that the test could not decide on.
    """
    actions: list[Action] = []
    for finding in conclusion.findings:
        if finding.standing in ("faulty", "slow") and NAME.fullmatch(finding.node):
            history = histories.get(finding.node, NodeHistory(finding.node))
            held = any(cordon.state in ("wanted", "standing") for cordon in history.cordons if cordon.how != _REHEARSED)
            case = _Found(finding, held, reboots(history, finding.fault))
            actions += _actions(_AFTER_FINDING, case, modes, verdict, test)
    return (*actions, *_actions(_AFTER_TEST, _Tested(conclusion, verdict), modes, verdict, test))


def first_to_test(
    suspects: Sequence[str], histories: Mapping[str, NodeHistory], nodes: Sequence[str]
) -> tuple[str, ...]:
    """Those of the nodes that are worth testing first: named by the evidence, then the most frequent offenders.

    A suspect may be named by its host name alone where a node has that with a domain, and the other way round.
    """
    named = _known(suspects, nodes)
    offences = {name: _offences(histories[name]) for name in nodes if name in histories and name not in named}
    repeated = [name for name, count in offences.items() if count >= REPEATED]
    return named + tuple(sorted(repeated, key=lambda name: -offences[name]))


def reboots(history: NodeHistory, fault: str) -> int:
    """How many reboots left a node with the same fault: it was found in one more boots of the kernel."""
    found = (past for past in history.findings if past.standing == "faulty" and past.fault == fault)
    return max(len({past.boot for past in found if past.boot}) - 1, 0)


_REHEARSED = "dry-run"  # the cordoner that touches no node


def _actions(
    rules: Iterable[_Rule[_Case]], case: _Case, modes: Modes, verdict: int | None, test: int | None
) -> Iterable[Action]:
    """What the rules call for and the settings leave in, in the order of the rules."""
    for rule in rules:
        mode = min(getattr(modes, _SETTING[rule.kind]), rule.most, key=_WEAKEST_FIRST.index)
        if mode != "never" and rule.holds(case):
            for nodes in rule.groups(case):
                yield Action(rule.kind, nodes, mode, rule.why(case), verdict, test)


def _known(suspects: Iterable[str], nodes: Sequence[str]) -> tuple[str, ...]:
    """The nodes that the suspects are, in the order of these."""
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
    """The name without its domain; an address is whole."""
    host = name.partition(".")[0]
    return name if host.isdigit() else host


def _offences(history: NodeHistory) -> int:
    return len(history.failures) + sum(past.standing == "faulty" for past in history.findings)


def _joined(conclusion: Conclusion) -> Iterable[str]:
    return (" and ".join(link.ends) for link in conclusion.links if link.between == "groups")


def _listed(before: str, names: Sequence[str]) -> str:
    """The names after these words; nothing where there are none."""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{before}{', '.join(names[:8])}{more}" if names else ""
