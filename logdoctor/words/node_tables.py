"""Print nodes in a terminal: worlds as they end, test results, histories, actions.

Names and reasons come from clusters, probes and people: all of them are made harmless here.
"""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import regex
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from logdoctor.types.nodes import Conclusion, Finding, NodeHistory, NodeState, PastCordon, Result, Standing
from logdoctor.words.nodesets import folded
from logdoctor.words.show import day, each, safe

if TYPE_CHECKING:
    from logdoctor.store.keeping.audit import AuditEvent
    from logdoctor.store.nodes.actions import StoredAction
    from logdoctor.store.nodes.history import NodeSummary
    from logdoctor.store.nodes.tests import StoredTest

_WORDS = 1000  # characters of what a probe, a cluster or a person says
_NAMES = 400  # characters of a set of nodes
_COLOURS = {
    "healthy": "green",
    "faulty": "red",
    "slow": "yellow",
    "indeterminate": "yellow",
    "passed": "green",
    "failed": "red",
    "void": "yellow",
    "standing": "red",
    "waiting": "yellow",
    "running": "yellow",
    "aborted": "red",
}
_CORDON_STATES = {"wanted": "requested", "standing": "in effect", "undone": "removed"}
_WORD = regex.compile(r"[A-Za-z0-9._-]*[A-Za-z0-9]|\S")
_BAD: tuple[Standing, ...] = ("faulty", "slow", "indeterminate")


def begun_line(test: "StoredTest", grace: float) -> str:
    """Return a line about a started test, with the longest time of a world."""
    nodes = f"{len(test.nodes)} node{'' if len(test.nodes) == 1 else 's'}"
    line = f"test {test.id}: {nodes} through {safe(test.launcher, 50)}"
    seconds = test.options.get("seconds")
    return f"{line}; a world takes at most {seconds + grace:.0f} s" if isinstance(seconds, int | float) else line


def world_line(result: Result) -> str:
    """Return the result of a world on one line."""
    world = result.world
    nodes = safe(" ".join(world.nodes), _NAMES)
    line = f"round {world.round}  world {world.number}  {nodes}  {result.ended}  {result.seconds:.1f} s"
    if (speed := bus_bandwidth(result)) is not None:
        line += f"  {speed:.3g} GB/s"
    return f"{line}  {safe(result.why, _WORDS)}" if result.why else line


def bus_bandwidth(result: Result) -> float | None:
    """Return the GB/s of a passed world's largest gather at its slowest node, or None."""
    if result.ended != "passed":
        return None
    speeds = [reading.bandwidth[max(reading.bandwidth, key=int)] for reading in result.readings if reading.bandwidth]
    return min(speeds, default=None)


def conclusion(number: int, found: Conclusion) -> None:
    """Print a test's conclusion: unhealthy nodes with the proof, healthy ones as a node set."""
    console = Console(highlight=False)
    rounds = f"{found.rounds} round{'' if found.rounds == 1 else 's'}"
    table = Table(
        box=None, header_style="dim", padding=(0, 2, 0, 0), title=f"test {number}, {rounds}", title_justify="left"
    )
    for name in ("node", "found", "why"):
        table.add_column(name, overflow="fold")
    for finding, others in _alike(found.findings):
        nodes = safe(folded([finding.node, *others]), _NAMES)
        table.add_row(nodes, _standing(finding.standing), _why(finding, len(others)))
    for link in found.links:
        ends = safe(" - ".join(link.ends), _NAMES)
        proof = f"{safe(link.why, _WORDS)} {_worlds(link.worlds)}"
        table.add_row(Text(ends), Text(f"link of {link.between}", style="red"), Text(proof))
    if healthy := [one.node for one in found.findings if one.standing == "healthy" and not one.warnings]:
        table.add_row(safe(folded(healthy), _NAMES), _standing("healthy"), f"{len(healthy)} in all")
    console.print(table)
    if found.open:
        console.print(Text(f"open: {safe(found.open, _WORDS)}", style="yellow"))
    if faulty := found.named("faulty"):
        console.print(f"next: logdoctor nodes cordon {safe(faulty[0], 255)} --test {number}", style="yellow")


def _alike(findings: Sequence[Finding]) -> Iterator[tuple[Finding, list[str]]]:
    """Yield the findings that get a row, healthy ones last, with other nodes in it. Undecided nodes share a row when
    their reasons differ only in node names and world numbers."""
    names = {one.node for one in findings}
    rows: dict[object, tuple[Finding, list[str]]] = {}
    for place, one in enumerate(findings):
        if one.standing == "healthy" and not one.warnings:
            continue
        key: object = place
        if one.standing == "indeterminate" and not one.warnings:
            words = (word for word in _WORD.findall(one.why) if word not in names and not word.isdigit())
            key = " ".join(words)
        rows.setdefault(key, (one, []))[1].append(one.node)
    for one, nodes in sorted(rows.values(), key=lambda row: row[0].standing == "healthy"):
        yield one, nodes[1:]


def _standing(standing: str) -> Text:
    return Text(standing, style=_COLOURS[standing])


def _why(finding: Finding, others: int) -> Text:
    text = Text(safe(finding.why, _WORDS))
    if others:
        text.append(f"\nthe same for {'one other node' if others == 1 else f'{others} other nodes'}", style="dim")
    elif finding.standing != "healthy" and finding.worlds and "(world" not in finding.why:
        text.append(f" {_worlds(finding.worlds)}", style="dim")
    if finding.partners and not others:
        text.append(f"\nwith {safe(folded(finding.partners), _NAMES)}", style="dim")
    for warning in finding.warnings[:8]:
        text.append(f"\n! {safe(warning, 300)}", style="yellow")
    return text


def _worlds(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:12]))
    return f"(world{'' if len(numbers) == 1 else 's'} {shown}{', ...' if len(numbers) > 12 else ''})"


def tests(every: "Iterable[StoredTest]") -> None:
    """Print some lines for each test."""
    console = Console(highlight=False)
    for one in each(every, "no tests"):
        console.print(_head(one), soft_wrap=True)
        console.print(Padding(Text(_outcome(one)), (0, 0, 0, 6)))


def _head(one: "StoredTest") -> Text:
    nodes = safe(folded([node.name for node in one.nodes]), _NAMES)
    head = Text(f"{one.id:>5}  ").append(one.state, style=_COLOURS.get(one.state, "bold"))
    head.append(f"  {nodes}")
    verdict = f", because of verdict {one.verdict}" if one.verdict else ""
    return head.append(f"  {day(one.at)} UTC by {safe(one.by, 200)}, {safe(one.launcher, 50)}{verdict}", style="dim")


def _outcome(one: "StoredTest") -> str:
    """Return the result of a test, on one line."""
    if one.conclusion is None:
        return safe(one.why, _WORDS)
    found = one.conclusion
    parts = [f"{name}: {safe(folded(named), _NAMES)}" for name in _BAD if (named := found.named(name))]
    parts += [f"link: {safe(' - '.join(link.ends), _NAMES)}" for link in found.links]
    return "; ".join(parts) or f"all {len(found.findings)} healthy"


def test(one: "StoredTest", worlds: Sequence[Result]) -> None:
    """Print a test with the worlds that prove its findings."""
    console = Console(highlight=False)
    console.print(_head(one), soft_wrap=True)
    if one.why:
        console.print(Text(safe(one.why, _WORDS)))
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("world", "round"):
        table.add_column(name, justify="right")
    for name in ("nodes", "ended"):
        table.add_column(name, overflow="fold")
    for name in ("s", "GB/s"):
        table.add_column(name, justify="right")
    table.add_column("purpose and result", overflow="fold")
    for result in sorted(worlds, key=lambda result: result.world.number):
        table.add_row(*_world_cells(result))
    console.print(table)
    if one.conclusion is not None:
        conclusion(one.id, one.conclusion)


def _world_cells(result: Result) -> tuple[str | Text, ...]:
    world, speed = result.world, bus_bandwidth(result)
    words = Text(safe(world.purpose, _WORDS))
    if result.why:
        words.append(f"\n{safe(result.why, _WORDS)}")
    return (
        str(world.number),
        str(world.round),
        safe(" ".join(world.nodes), _NAMES),
        Text(result.ended, style=_COLOURS[result.ended]),
        f"{result.seconds:.1f}",
        "" if speed is None else f"{speed:.3g}",
        words,
    )


def nodes(every: "Sequence[NodeSummary]", cluster: Sequence[NodeState]) -> None:
    """Print a row for each recorded node, with its state in the cluster if known."""
    console = Console(highlight=False)
    states = {state.name: state for state in cluster}
    if not every and not states:
        console.print("no nodes recorded")
        return
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("node", overflow="fold")
    for name in ("failures", "found faulty"):
        table.add_column(name, justify="right")
    for name in ("last failure", "last test", "cordon", *(["in the cluster"] if states else [])):
        table.add_column(name, overflow="fold")
    for one in every:
        state = states.pop(one.node, None)
        table.add_row(*_summary_cells(one), *([_cluster_cell(state)] if cluster else []))
    for state in states.values():
        table.add_row(safe(state.name, 255), *[""] * 5, _cluster_cell(state))
    console.print(table)


def _summary_cells(one: "NodeSummary") -> tuple[str | Text, ...]:
    failure, finding, cordon = one.last_failure, one.last_finding, one.cordon
    failed = (
        f"{safe(failure.reason, 100)}, {safe(failure.job, 300)}/{failure.attempt}\n{day(failure.at)}" if failure else ""
    )
    found = Text("")
    if finding:
        found = Text(finding.standing, style=_COLOURS[finding.standing])
        found.append(
            f"{f': {safe(finding.fault, 100)}' if finding.fault else ''}, test {finding.test}\n{day(finding.at)}"
        )
    out = f"{cordon.id} ({safe(cordon.how, 30)})\n{day(cordon.at)}" if cordon else ""
    return safe(one.node, 255), f"{one.failures:,}", f"{one.faulty:,}", failed, found, out


def _cluster_cell(state: NodeState | None) -> Text:
    if state is None:
        return Text("unknown", style="dim")
    text = Text(safe(state.raw, 100), style="red" if state.cordoned else "")
    if state.cordoned:
        text.append(" by logdoctor" if state.mark else " by others")
    return text.append(f"\n{safe(state.reason, 200)}" if state.reason else "")


def history(one: NodeHistory) -> None:
    """Print all records of a node: the current cordon, then the rest, newest first."""
    console = Console(highlight=False)
    console.print(Text(safe(one.node, 255), style="bold"))
    lines = [*_failure_lines(one), *_finding_lines(one), *_cordon_lines(one.cordons)]
    for _, _, line in sorted(lines, key=lambda dated: dated[:2], reverse=True):
        console.print(Padding(line, (0, 0, 0, 2)), soft_wrap=True)
    if not lines:
        console.print("  no records")


_Dated = tuple[bool, float, Text]
"""A line, whether it comes before all others, and its time."""


def _failure_lines(one: NodeHistory) -> Iterator[_Dated]:
    for past in one.failures:
        where = f"{safe(past.job, 300)}/{past.attempt}"
        words = f"{day(past.at)}  suspected of {safe(past.reason, 100)} in {where} (verdict {past.verdict})"
        yield False, past.at, Text(words)


def _finding_lines(one: NodeHistory) -> Iterator[_Dated]:
    for past in one.findings:
        line = Text(f"{day(past.at)}  test {past.test}: ").append(past.standing, style=_COLOURS[past.standing])
        fault = f" ({safe(past.fault, 100)})" if past.fault and not past.why.startswith(past.fault) else ""
        boot = f", boot {safe(past.boot, 8)}" if past.boot else ""
        yield False, past.at, line.append(f"{fault} {safe(past.why, _WORDS)}{boot}")


def _cordon_lines(cordons: Iterable[PastCordon]) -> Iterator[_Dated]:
    for past in cordons:
        line = Text(f"{day(past.at)}  cordon {past.id} ({safe(past.how, 30)}) ")
        line.append(_CORDON_STATES.get(past.state, past.state), style=_COLOURS.get(past.state, ""))
        line.append(f" by {safe(past.by, 200)}: {safe(past.reason, _WORDS)}")
        if past.why and past.why != past.reason:
            line.append(f" - {safe(past.why, _WORDS)}", style="dim")
        yield past.state == "standing", past.at, line


def cordoned(one: PastCordon) -> None:
    """Print the state of a cordon."""
    done = {"standing": "cordoned", "undone": "uncordoned"}.get(one.state, one.state)
    words = f"{safe(one.node, 255)}: {done} (cordon {one.id}, {safe(one.how, 30)})"
    if one.how == "dry-run":
        words += "; no node was changed: set LOGDOCTOR_CORDON_WITH to cordon for real"
    print(words)


def actions(every: "Iterable[StoredAction]") -> None:
    """Print some lines for each action."""
    console = Console(highlight=False)
    for one in each(every, "no actions"):
        nodes = safe(folded(one.action.nodes), _NAMES)
        head = Text(f"{one.id:>5}  ").append(one.state, style=_COLOURS.get(one.state, "bold"))
        head.append(f"  {one.action.kind.replace('_', ' ')} {nodes}", style="bold")
        job = f"  {safe(one.job, 300)}/{one.attempt}" if one.job else ""
        head.append(f"{job}  {day(one.at)} UTC", style="dim")
        console.print(head, soft_wrap=True)
        console.print(Padding(Text(safe(one.action.why, _WORDS)), (0, 0, 0, 7)))
        if one.by or one.why:
            by = f" by {safe(one.by, 200)}" if one.by else ""
            status = Text(f"{one.state}{by}: {safe(one.why, _WORDS)}", style="dim")
            console.print(Padding(status, (0, 0, 0, 7)))


def audit(every: "Iterable[AuditEvent]") -> None:
    """Print a line for each audited step."""
    console = Console(highlight=False)
    for one in each(every, "no entries"):
        when = datetime.datetime.fromtimestamp(one.at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
        line = Text(f"{one.id:>6}  {when}  ").append(f"{one.what} {one.subject}", style="bold")
        line.append(
            f" {safe(_CORDON_STATES.get(one.step, one.step), 50)}{f' {safe(one.node, 255)}' if one.node else ''}"
        )
        line.append(f"  by {safe(one.by, 200)}", style="dim")
        console.print(line, soft_wrap=True)
        if one.why:
            console.print(Padding(Text(safe(one.why, _WORDS)), (0, 0, 0, 8)))
