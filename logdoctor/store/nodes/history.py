"""The records of nodes: verdicts that suspect them, findings of tests, cordons."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from logdoctor.store.database import Database
from logdoctor.store.fit import fit
from logdoctor.store.nodes.cordons import read_cordon
from logdoctor.store.nodes.places import NodePage, NodePlace, NodeSummary, WantedNodes, listed, place_after
from logdoctor.store.schema import (
    OPEN_CORDON,
    incident_attempts,
    node_cordons,
    node_findings,
    node_tests,
    tested_nodes,
    verdicts,
)
from logdoctor.store.schema import nodes as suspected
from logdoctor.types.nodes import NodeHistory, PastCordon, PastFailure, PastFinding

__all__ = ["NodeHistories", "NodePage", "NodeSummary", "WantedNodes"]

MONTH = 30 * 86_400.0
"""Seconds for which a failure or a fault counts as recent."""

_MAX_NAME = 300
_CHUNK = 500  # names in one query: databases limit their parameters
_FAILED = sa.func.coalesce(incident_attempts.c.at, suspected.c.at).label("at")
"""When the attempt failed, which a replacing verdict does not change."""
_dated = suspected.outerjoin(incident_attempts, incident_attempts.c.verdict == suspected.c.verdict)
_suspicions = _dated.join(verdicts, verdicts.c.id == suspected.c.verdict)
_SUSPICION = (suspected.c.node, _FAILED, verdicts.c.id, verdicts.c.job, verdicts.c.attempt, verdicts.c.reason)
_LAST = (_FAILED, suspected.c.verdict)  # of two at the same time the later verdict is the last


class NodeHistories:
    """The histories of nodes in one database; thread-safe. `StoreError` when the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def history(self, node: str, limit: int = 50) -> NodeHistory:
        """Return the history of one node, the newest `limit` of each sort; empty for an unknown node."""
        return self.histories([node], limit)[node]

    def histories(self, nodes: Sequence[str], limit: int = 50) -> dict[str, NodeHistory]:
        """Return the history of each of these nodes."""
        failures: dict[str, list[PastFailure]] = {}
        findings: dict[str, list[PastFinding]] = {}
        cordons: dict[str, list[PastCordon]] = {}
        with self._database.reading() as connection:
            for names in _chunks(sorted({fit(node, _MAX_NAME) for node in nodes})):
                for row in _newest(connection, _SUSPICION, _suspicions, _LAST, names, limit):
                    failures.setdefault(row.node, []).append(_failure(row))
                for row in _newest(connection, node_findings.c, node_findings, (node_findings.c.test,), names, limit):
                    findings.setdefault(row.node, []).append(_finding(row))
                for row in _newest(connection, node_cordons.c, node_cordons, (node_cordons.c.id,), names, limit):
                    cordons.setdefault(row.node, []).append(read_cordon(row))

        def of(node: str) -> NodeHistory:
            name = fit(node, _MAX_NAME)
            kept = (failures.get(name, ()), findings.get(name, ()), cordons.get(name, ()))
            return NodeHistory(node, tuple(kept[0]), tuple(kept[1]), tuple(kept[2]))

        return {node: of(node) for node in nodes}

    def nodes(self, limit: int = 1000) -> list[NodeSummary]:
        """Return all nodes on record, up to `limit`: most failures and faults first, then the last to fail."""
        return self.node_page(limit=limit).items

    def node_page(
        self,
        wanted: WantedNodes | None = None,
        cursor: str | None = None,
        limit: int = 1000,
        now: float | None = None,
    ) -> NodePage:
        """Return a page of the wanted nodes on record, repeat offenders first; `CursorError` for a bad cursor.

        On record are those that a current verdict suspects, that have a test's finding or a running test, and that were
        ever cordoned. Details are looked up for the page alone, so that a large fleet is quick.
        """
        wanted = wanted or WantedNodes()
        begin = place_after(cursor)
        since = (time.time() if now is None else now) - MONTH
        with self._database.reading() as connection:
            places = _places(connection, since)
            found = listed(places, wanted, begin, limit)
            names = [place.node for place in found.items]
            failures: dict[str, PastFailure] = {}
            findings: dict[str, PastFinding] = {}
            cordons: dict[str, PastCordon] = {}
            for chunk in _chunks(names):
                for row in _newest(connection, _SUSPICION, _suspicions, _LAST, chunk, 1):
                    failures[row.node] = _failure(row)
                for row in _newest(connection, node_findings.c, node_findings, (node_findings.c.test,), chunk, 1):
                    findings[row.node] = _finding(row)
                for row in connection.execute(_HELD.where(node_cordons.c.node.in_(chunk))):
                    cordons[row.node] = read_cordon(row)

        def summary(place: NodePlace) -> NodeSummary:
            name = place.node
            return NodeSummary(
                name,
                place.failures,
                failures.get(name),
                place.faulty,
                findings.get(name),
                cordons.get(name),
                place.recent_failures,
                place.recent_faulty,
                place.test,
            )

        return NodePage([summary(place) for place in found.items], found.next, found.counts)

    def suspicions(self, node: str) -> tuple[int, int]:
        """Return how many current verdicts suspect a node: in the last 30 days, and in all."""
        name, since = fit(node, _MAX_NAME), time.time() - MONTH
        with self._database.reading() as connection:
            row = connection.execute(_suspected_since(since).where(suspected.c.node == name)).first()
        return (0, 0) if row is None else (int(row.recent), int(row.failures))


def _chunks(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), _CHUNK):
        yield names[start : start + _CHUNK]


def _newest(
    connection: sa.Connection,
    columns: Any,
    source: sa.FromClause,
    order: Sequence[sa.ColumnElement[Any]],
    names: list[str],
    limit: int,
) -> sa.CursorResult[Any]:
    """Return the newest rows of each name, one name after another."""
    node = order[-1].table.c.node
    newest = [column.desc() for column in order]
    place = sa.func.row_number().over(partition_by=node, order_by=newest).label("place")
    ranked = sa.select(*columns, place).select_from(source).where(node.in_(names)).subquery()
    return connection.execute(sa.select(ranked).where(ranked.c.place <= max(limit, 1)).order_by("node", "place"))


def _failure(row: sa.Row[Any]) -> PastFailure:
    return PastFailure(row.id, row.job, row.attempt, row.at, row.reason)


def _finding(row: sa.Row[Any]) -> PastFinding:
    return PastFinding(row.test, row.at, row.standing, row.fault, row.why, row.boot)


def _places(connection: sa.Connection, since: float) -> list[NodePlace]:
    """Return every node on record, with the numbers used for filtering and sorting."""
    failed = {node: counts for node, *counts in connection.execute(_suspected_since(since))}
    faulty = {node: counts for node, *counts in connection.execute(_faulty_since(since))}
    found = {node: standing for node, standing in connection.execute(_FOUND)}
    held = {row.node: row.how for row in connection.execute(_HELD)}
    tested = {node: test for node, test in connection.execute(_TESTED)}
    out = set(connection.scalars(_EVER_OUT))

    def place(name: str) -> NodePlace:
        failures, recent_failures, last = failed.get(name, (0, 0, 0.0))
        faults, recent_faults = faulty.get(name, (0, 0))
        known = (found.get(name, ""), held.get(name, ""), tested.get(name))
        return NodePlace(name, failures, int(recent_failures), last, faults, int(recent_faults), *known)

    return [place(name) for name in failed.keys() | found.keys() | held.keys() | tested.keys() | out]


def _suspected_since(since: float) -> sa.Select[Any]:
    """Return the query for suspected nodes: how often in all, how often since, and when last."""
    node, failed = suspected.c.node, _FAILED.element
    recent = sa.func.sum(sa.case((failed >= since, 1), else_=0)).label("recent")
    counted = (node, sa.func.count().label("failures"), recent, sa.func.max(failed).label("last"))
    return sa.select(*counted).select_from(_dated).group_by(node)


def _faulty_since(since: float) -> sa.Select[Any]:
    """Return the query for nodes that tests found faulty: how often in all, and how often since."""
    c = node_findings.c
    recent = sa.func.sum(sa.case((c.at >= since, 1), else_=0)).label("recent")
    counted = sa.select(c.node, sa.func.count().label("faulty"), recent)
    return counted.where(c.standing == "faulty").group_by(c.node)


def _found() -> sa.Select[Any]:
    """Return the query for the last finding on each node."""
    c = node_findings.c
    last = sa.select(c.node, sa.func.max(c.test).label("test")).group_by(c.node).subquery()
    return sa.select(c.node, c.standing).join(last, sa.and_(c.node == last.c.node, c.test == last.c.test))


_FOUND = _found()
_REHEARSED_FIRST = sa.case((node_cordons.c.how == "dry-run", 0), else_=1)  # so that the last one read is real
_HELD = sa.select(node_cordons).where(OPEN_CORDON).order_by(_REHEARSED_FIRST, node_cordons.c.id)
_EVER_OUT = sa.select(node_cordons.c.node).where(node_cordons.c.state == "undone").distinct()
_TESTED = (
    sa.select(tested_nodes.c.node, tested_nodes.c.test)
    .join(node_tests, node_tests.c.id == tested_nodes.c.test)
    .where(node_tests.c.state == "running")
    .order_by(tested_nodes.c.test)
)
