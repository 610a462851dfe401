"""The conclusion of a node test: what is proven about each node; nothing is guessed."""

from collections.abc import Iterable

from logdoctor.nodes.board import Board
from logdoctor.nodes.evidence import Link
from logdoctor.nodes.probe import KINDS
from logdoctor.types.nodes import Conclusion, Finding, LinkFault, Reading, Result

NO_PASS = "no world has passed, so there is no proven-good node to test with: the probe itself may be at fault"
_COMPARED = 3  # pairs of nodes needed to know the usual speed
PARTED = "the network looks partitioned"
SILENT, UNSTEADY, SLOW_LINK, SLOW_GPU = "no answer", "comes and goes", "slow network", "slow GPU"


def judge(board: Board) -> Conclusion:
    """Return what the results so far prove about each node: healthy, faulty, slow, or indeterminate with the reason."""
    findings = tuple(_finding(board, node) for node in range(len(board.nodes)))
    links = tuple(_link(board, link, False) for link in board.works.links)
    if board.slow_worlds:
        links += tuple(_link(board, link, True) for link in board.fast.links)
    return Conclusion(findings, links, board.round, _open(board, findings))


def _finding(board: Board, node: int) -> Finding:
    name, works = board.nodes[node].name, board.works
    warnings = _warnings(board, node)
    if node in works.guilty:
        return _faulty(board, node, warnings)
    if node in works.sound:
        return _speed(board, node, warnings)
    worlds = tuple(number for number in board.worlds_of[node] if board.results[number].ended != "void")
    return Finding(name, "indeterminate", _undecided(board, node, worlds), worlds, warnings=warnings)


def _faulty(board: Board, node: int, warnings: tuple[str, ...]) -> Finding:
    """Return the finding for a guilty node: it fails with partners that work with others."""
    name, worlds = board.nodes[node].name, board.works.guilty[node]
    partners = _partners(board, name, worlds)
    passed = _passed(board, node)
    fault = _fault(board, name, worlds)
    if passed:
        why = (
            f"failed with {_listed(partners)}, which fail with no other node, and passed in {len(passed)} other worlds"
        )
        return Finding(name, "faulty", f"{why}: {fault}, {UNSTEADY}", worlds, partners, UNSTEADY, warnings)
    why = f"{fault}: failed with {_listed(partners)}, which work with others, and passed with no node"
    return Finding(name, "faulty", why, worlds, partners, fault, warnings)


def _speed(board: Board, node: int, warnings: tuple[str, ...]) -> Finding:
    """Return the finding for a node that works: healthy or slow."""
    name = board.nodes[node].name
    passed = _passed(board, node)
    partners = _partners(board, name, passed)
    if node in board.slow_gpus:
        why = f"{SLOW_GPU}: {board.slow_gpus[node]} of the others' speed in its own matrix product"
        return Finding(name, "slow", why, passed, (), SLOW_GPU, warnings)
    if board.slow_worlds:
        fast = board.fast
        if node in fast.guilty:
            worlds = fast.guilty[node]
            slow_with = _partners(board, name, worlds)
            why = f"{SLOW_LINK}: slow with {_listed(slow_with)}, which are fast with others ({_figures(board, worlds)})"
            return Finding(name, "slow", why, worlds, slow_with, SLOW_LINK, warnings)
        slow = tuple(number for number in passed if number in board.slow_worlds)
        if slow and node not in fast.sound:
            why = f"works, but slowly ({_figures(board, slow)}), and it is not proven that this node is the cause"
            return Finding(name, "indeterminate", why, passed, partners, "", warnings)
    figures = _figures(board, passed)
    few = ", too few worlds to judge the speed" if len(board.pairs) < _COMPARED else ""
    why = f"passed with {_listed(partners)}{f' ({figures}{few})' if figures else ''}"
    return Finding(name, "healthy", why, passed, partners, "", warnings)


def _undecided(board: Board, node: int, worlds: tuple[int, ...]) -> str:
    """Return why a node cannot be judged."""
    name, works = board.nodes[node].name, board.works
    if not board.tried[node]:
        tries = (board.results[number] for number in board.worlds_of[node])
        voids = [result for result in tries if name in (result.unreached or result.world.nodes)]
        return f"not tested: {voids[-1].why if voids else 'the test ended before its turn'}"
    if not board.has_passed:
        alone = len(board.nodes) == 1
        return f"{'it has no partner' if alone else NO_PASS} ({_last_reports(board, worlds)})"
    if node in works.doubtful:
        others = _listed(_partners(board, name, works.doubtful[node]))
        return f"failed with {others} and later did not, though both work with others: an intermittent fault"
    if node in works.parted:
        others = _listed(_partners(board, name, works.parted[node]))
        works_with = _listed(_partners(board, name, _passed(board, node)))
        return f"fails with {others}, and works with {works_with}: its own link, or the connection between these nodes"
    if node in works.wanting:
        accused = works.wanting[node]
        if works.is_parted and accused.enough:
            return f"failed, but good nodes also fail with each other: {PARTED} ({_last_reports(board, worlds)})"
        met = len(accused.witnesses)
        if board.groups[node] and met and not accused.enough:
            group = board.groups[node]
            return f"failed, but the connection of {group} to the rest may be at fault ({_last_reports(board, worlds)})"
        return f"failed, but {met} proven-good partners alone do not prove it ({_last_reports(board, worlds)})"
    last = _last_reports(board, worlds)
    return f"works with some nodes and not with others, and the test ended before it was clear why ({last})"


def _open(board: Board, findings: Iterable[Finding]) -> str:
    """Return what is left open, and what to do about it; "" when nothing is."""
    unclear = [finding for finding in findings if finding.standing == "indeterminate"]
    if not unclear:
        return ""
    if board.results and all(result.ended == "void" for result in board.results.values()):
        return f"Nothing could be launched: {_last_reports(board, tuple(board.results))}. Fix that and test again."
    if not board.has_passed and len(board.nodes) == 1:
        return "A single node proves nothing: test it together with nodes that are known to work."
    unreached = [finding for finding in unclear if not board.tried[board.place[finding.node]]]
    undecided = _listed([finding.node for finding in unclear if finding not in unreached])
    parts = [f"Not reached: {_listed([one.node for one in unreached])}. Fix that and test again."] if unreached else []
    if not board.has_passed:
        parts.append(
            "No world has passed. Test these nodes together with some that are known to work, or pair them anew "
            "(--regroup), and check how the probe starts."
        )
    elif len(unreached) < len(unclear) and board.works.is_parted:
        known = any(board.groups)
        what = "check the switches between the nodes" if known else "name the switch of each node (--topology)"
        parts.append(
            f"Undecided: {undecided}. Good nodes fail with each other, so {PARTED}: {what}, and cordon nothing."
        )
    elif len(unreached) < len(unclear):
        again = "Test again with more repeats, or a longer deadline; do not cordon nodes because of this alone."
        parts.append(f"Undecided: {undecided}. {again}")
    return " ".join(parts)


def _link(board: Board, link: Link, is_slow: bool) -> LinkFault:
    a, b = (board.nodes[node].name for node in link.pair)
    what = "are slow together" if is_slow else "fail together"
    count = f"{len(link.worlds)} worlds"
    if link.groups:
        why = f"all nodes tried between {link.groups[0]} and {link.groups[1]} {what} ({count}), and work within"
        return LinkFault(link.groups, "groups", why, link.worlds)
    return LinkFault((a, b), "nodes", f"{a} and {b} {what} ({count}), and both work with others", link.worlds)


def _partners(board: Board, name: str, worlds: Iterable[int]) -> tuple[str, ...]:
    """Return the other nodes in these worlds, without duplicates."""
    return tuple(
        dict.fromkeys(other for number in worlds for other in board.results[number].world.nodes if other != name)
    )


def _fault(board: Board, name: str, worlds: Iterable[int]) -> str:
    """Return the kind of fault that a node shows: the most telling one reported by the probe in the worlds that
    count."""
    readings = [reading for number in worlds for reading in board.results[number].readings if not reading.ok]
    concerned = [
        one for one in readings if one.node == name or f"({name})" in one.why
    ]  # partners name the node whose data is wrong
    kinds = {reading.why.partition(":")[0] for reading in concerned}
    return next((kind for kind in KINDS if kind in kinds), SILENT)


def _own(result: Result, name: str) -> Reading | None:
    return next((reading for reading in result.readings if reading.node == name), None)


def _passed(board: Board, node: int) -> tuple[int, ...]:
    """Return the worlds in which a node passed."""
    return tuple(number for number in board.worlds_of[node] if board.results[number].ended == "passed")


def _warnings(board: Board, node: int) -> tuple[str, ...]:
    """Return the warnings of a node's driver, without duplicates."""
    readings = (_own(board.results[number], board.nodes[node].name) for number in board.worlds_of[node])
    return tuple(dict.fromkeys(warning for reading in readings if reading is not None for warning in reading.state))


def _figures(board: Board, worlds: Iterable[int]) -> str:
    """Return the bandwidths of worlds in GB/s: largest size, slowest node."""
    found = []
    for number in worlds:
        readings = [reading.bandwidth for reading in board.results[number].readings if reading.bandwidth]
        if readings:
            found.append(f"{min(one[max(one, key=int)] for one in readings):.3g} GB/s")
    return ", ".join(found[:6])


def _last_reports(board: Board, worlds: tuple[int, ...]) -> str:
    """Return the report of the last of these worlds."""
    return (
        f"world {worlds[-1]}: {board.results[worlds[-1]].why or board.results[worlds[-1]].ended}"
        if worlds
        else "no world"
    )


def _listed(names: Iterable[str]) -> str:
    """Format names for people, the first few of many."""
    found = list(names)
    more = f" and {len(found) - 6} more" if len(found) > 6 else ""
    return (", ".join(found[:6]) or "nobody") + more
