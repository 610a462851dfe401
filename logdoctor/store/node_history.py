"""What is on record of nodes: verdicts that suspect them, what tests found, cordons."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from logdoctor.nodes import NodeHistory, PastCordon, PastFailure, PastFinding
from logdoctor.store.cordons import read_cordon
from logdoctor.store.fit import fit
from logdoctor.store.schema import OPEN_CORDON, Database, node_cordons, node_findings, verdicts
from logdoctor.store.schema import nodes as suspected

_MAX_NAME = 300
_CHUNK = 500  # names in one question: databases bound their parameters
_suspicions = suspected.join(verdicts, verdicts.c.id == suspected.c.verdict)
_SUSPICION = (suspected.c.node, suspected.c.at, verdicts.c.id, verdicts.c.job, verdicts.c.attempt, verdicts.c.reason)


class NodeSummary(msgspec.Struct, frozen=True):
    """A node in a few words: how many current verdicts suspect it (`failures`), how many tests found it `faulty`, the
    last of each, what the last test found, and the cordon of ours that stands or is being made."""

    node: str
    failures: int = 0
    last_failure: PastFailure | None = None
    faulty: int = 0
    last_finding: PastFinding | None = None
    cordon: PastCordon | None = None


class NodeHistories:
    """The history of nodes in one database; any thread may call. `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def history(self, node: str, limit: int = 50) -> NodeHistory:
        """What is on record of one node, the newest `limit` of each sort; all empty for a node that nobody knows."""
        return self.histories([node], limit)[node]

    def histories(self, nodes: Sequence[str], limit: int = 50) -> dict[str, NodeHistory]:
        """The history of each of these nodes."""
        failures: dict[str, list[PastFailure]] = {}
        findings: dict[str, list[PastFinding]] = {}
        cordons: dict[str, list[PastCordon]] = {}
        with self._database.reading() as connection:
            for names in _chunks(sorted({fit(node, _MAX_NAME) for node in nodes})):
                for row in _newest(connection, _SUSPICION, _suspicions, suspected.c.at, names, limit):
                    failures.setdefault(row.node, []).append(_failure(row))
                for row in _newest(connection, node_findings.c, node_findings, node_findings.c.test, names, limit):
                    findings.setdefault(row.node, []).append(_finding(row))
                for row in _newest(connection, node_cordons.c, node_cordons, node_cordons.c.id, names, limit):
                    cordons.setdefault(row.node, []).append(read_cordon(row))

        def of(node: str) -> NodeHistory:
            name = fit(node, _MAX_NAME)
            kept = (failures.get(name, ()), findings.get(name, ()), cordons.get(name, ()))
            return NodeHistory(node, tuple(kept[0]), tuple(kept[1]), tuple(kept[2]))

        return {node: of(node) for node in nodes}

    def nodes(self, limit: int = 1000) -> list[NodeSummary]:
        """Every node on record, up to `limit`: those that failed and were found faulty most often first, of these the
        last to fail."""
        with self._database.reading() as connection:
            failed = {row.node: (row.failures, _failure(row)) for row in connection.execute(_FAILED)}
            faulty = {row.node: row.faulty for row in connection.execute(_FAULTY)}
            found = {row.node: row for row in connection.execute(_FOUND)}
            held = {row.node: row for row in connection.execute(_HELD)}

        def summary(name: str) -> NodeSummary:
            failures, last_failure = failed.get(name, (0, None))
            finding = _finding(found[name]) if name in found else None
            cordon = read_cordon(held[name]) if name in held else None
            return NodeSummary(name, failures, last_failure, faulty.get(name, 0), finding, cordon)

        def place(node: NodeSummary) -> tuple[float, float, str]:
            return -node.failures - node.faulty, -node.last_failure.at if node.last_failure else 0.0, node.node

        names = failed.keys() | found.keys() | held.keys()
        return sorted((summary(name) for name in names), key=place)[: max(limit, 1)]


def _chunks(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), _CHUNK):
        yield names[start : start + _CHUNK]


def _newest(
    connection: sa.Connection,
    columns: Any,
    source: sa.FromClause,
    order: sa.ColumnElement[Any],
    names: list[str],
    limit: int,
) -> sa.CursorResult[Any]:
    """The newest rows of each name, a name after the other."""
    node = order.table.c.node
    place = sa.func.row_number().over(partition_by=node, order_by=order.desc()).label("place")
    ranked = sa.select(*columns, place).select_from(source).where(node.in_(names)).subquery()
    return connection.execute(sa.select(ranked).where(ranked.c.place <= max(limit, 1)).order_by("node", "place"))


def _failure(row: sa.Row[Any]) -> PastFailure:
    return PastFailure(row.id, row.job, row.attempt, row.at, row.reason)


def _finding(row: sa.Row[Any]) -> PastFinding:
    return PastFinding(row.test, row.at, row.standing, row.fault, row.why, row.boot)


def _failed() -> sa.Select[Any]:
    """Each suspected node, how often it is, and its last failure (of two at one time both, the later one last)."""
    counted = sa.select(
        suspected.c.node, sa.func.count().label("failures"), sa.func.max(suspected.c.at).label("last")
    ).group_by(suspected.c.node)
    c = (counts := counted.subquery()).c
    last = sa.and_(suspected.c.node == c.node, suspected.c.at == c.last)
    source = counts.join(suspected, last).join(verdicts, verdicts.c.id == suspected.c.verdict)
    return sa.select(*_SUSPICION, c.failures).select_from(source).order_by(verdicts.c.id)


def _found() -> sa.Select[Any]:
    """The last finding of each node."""
    c = node_findings.c
    last = sa.select(c.node, sa.func.max(c.test).label("test")).group_by(c.node).subquery()
    return sa.select(node_findings).join(last, sa.and_(c.node == last.c.node, c.test == last.c.test))


_FAILED = _failed()
_FOUND = _found()
_FAULTY = (
    sa.select(node_findings.c.node, sa.func.count().label("faulty"))
    .where(node_findings.c.standing == "faulty")
    .group_by(node_findings.c.node)
)
_HELD = sa.select(node_cordons).where(OPEN_CORDON).order_by(node_cordons.c.id)
