"""Tests of nodes: what was requested, how each world ended, and what was found."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from logdoctor.errors import InputError, NodeTestRefused
from logdoctor.store.database import Database
from logdoctor.store.fit import below, finite, fit, fit_id, fit_limit
from logdoctor.store.keeping.audit import MAX_WHO, MAX_WORDS, enter
from logdoctor.store.schema import node_findings, node_tests, tested_nodes, world_results
from logdoctor.types.nodes import Conclusion, Finding, Node, Reading, Result, World, checked_name

MAX_NODES = 20_000
"""Nodes of a test, at most."""

_MAX_NAME = 300
_MAX_OPTIONS = 64 << 10
_MAX_STATES = 50
_MAX_SIZES = 64
_MAX_GPUS = 1 << 20


class StoredTest(msgspec.Struct, frozen=True):
    """A test of nodes. `why` says why it was aborted, `conclusion` what a finished one found; `at` and `ended` are
    seconds since the epoch."""

    id: int
    at: float
    by: str
    launcher: str
    verdict: int | None
    state: Literal["running", "finished", "aborted"]
    ended: float | None
    why: str
    nodes: tuple[Node, ...]
    options: dict[str, Any]
    conclusion: Conclusion | None


class TestPage(msgspec.Struct, frozen=True):
    """A page of tests, newest first, and the cursor of the next page, if any."""

    items: list[StoredTest]
    next: str | None


Claim = Callable[[int, list[StoredTest]], None]
_encode = msgspec.json.Encoder().encode
_nodes = msgspec.json.Decoder(tuple[Node, ...])
_options = msgspec.json.Decoder(dict[str, Any])
_conclusion = msgspec.json.Decoder(Conclusion)
_result = msgspec.json.Decoder(Result)
_c = node_tests.c


class NodeTests:
    """The tests of one database; thread-safe. Every change is durable when its call returns.

    All calls raise `StoreError` when the database fails, and those that change a test `NodeTestRefused` for one that
    does not exist or is not running.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin_test(
        self,
        launcher: str,
        nodes: Sequence[Node],
        options: dict[str, Any],
        by: str,
        verdict: int | None,
        at: float,
        claim: Claim = lambda id, running: None,
    ) -> int:
        """Record a new test as running and return its id. `NodeTestRefused` for no nodes, too many, or one twice;
        `InputError` for invalid node names and for options that are not JSON.

        Calls `claim` with that id and the running tests, while nobody else can begin one; if it raises, nothing is
        begun.
        """
        nodes = _sound_nodes(nodes)
        if not by.strip():
            raise NodeTestRefused("a test of nodes", "names nobody who requests it", "Say who you are.")
        values = {
            "at": at,
            "by": fit(by, MAX_WHO),
            "launcher": fit(launcher, MAX_WHO),
            "verdict": verdict,
            "state": "running",
            "why": "",
            "nodes": _encode(nodes).decode(),
            "options": _options_text(options),
            "followed": False,
        }
        with self._database.writing() as connection:
            running = _all_running(connection)
            values["seen"] = self._database.now(connection)
            id = int(connection.execute(sa.insert(node_tests).values(values).returning(_c.id)).scalar_one())
            connection.execute(sa.insert(tested_nodes), [{"node": node.name, "test": id} for node in nodes])
            because = "" if verdict is None else f" after verdict {verdict}"
            enter(connection, "test", id, "begun", by, f"{len(nodes)} nodes by {launcher}{because}", at)
            claim(id, running)
        return id

    def add_result(self, test: int, result: Result) -> None:
        """Store how a world ended. The first result of a world stays; long texts are cut."""
        body = _encode(_sound_result(result)).decode()
        with self._database.writing() as connection:
            _running(connection, test)
            mine = (world_results.c.test == test, world_results.c.world == result.world.number)
            if connection.scalar(sa.select(world_results.c.world).where(*mine)) is None:
                count = connection.scalar(sa.select(sa.func.count()).where(world_results.c.test == test)) or 0
                row = {"test": test, "world": result.world.number, "place": count + 1, "body": body}
                connection.execute(sa.insert(world_results).values(row))

    def finish_test(self, test: int, conclusion: Conclusion, at: float) -> None:
        """End a test with its conclusion, whose findings join the history of its nodes.

        Also `NodeTestRefused` for a finding about a node that was not in the test, and for two about one.
        """
        with self._database.writing() as connection:
            row = _running(connection, test)
            conclusion = _sound_conclusion(conclusion)
            _check_findings(test, conclusion.findings, {node.name for node in _nodes.decode(row.nodes)})
            boots = _boots(_results(connection, test))
            found = [
                {
                    "node": finding.node,
                    "test": test,
                    "at": at,
                    "standing": finding.standing,
                    "fault": finding.fault,
                    "why": finding.why,
                    "boot": boots.get(finding.node, ""),
                }
                for finding in conclusion.findings
            ]
            if found:
                connection.execute(sa.insert(node_findings), found)
            _end(connection, test, "finished", "", at, _encode(conclusion).decode())
            enter(connection, "test", test, "finished", row.by, _summary(conclusion), at)
            for finding in conclusion.findings:
                if finding.standing != "healthy":
                    enter(connection, "test", test, finding.standing, row.by, finding.why, at, finding.node)

    def abort_test(self, test: int, why: str, at: float, by: str | None = None) -> None:
        """End a test that found nothing; its results stay. Without `by` the audit names who began it."""
        with self._database.writing() as connection:
            row = _running(connection, test)
            _end(connection, test, "aborted", fit(why, MAX_WORDS), at, None)
            enter(connection, "test", test, "aborted", by or row.by, why, at)

    def note_test(self, test: int, step: str, by: str, why: str, at: float) -> None:
        """Audit an event of a running test."""
        with self._database.writing() as connection:
            _running(connection, test)
            enter(connection, "test", test, fit(step, MAX_WHO), by, why, at)

    def follow_test(self, test: int) -> None:
        """Record that everything that follows from the end of a test is done."""
        with self._database.writing() as connection:
            ended = (_c.id == fit_id(test), _c.state != "running")
            connection.execute(sa.update(node_tests).where(*ended).values(followed=True))

    def unfollowed(self) -> list[int]:
        """Return the ended tests whose follow-up may be incomplete, oldest first."""
        wanted = sa.select(_c.id).where(_c.followed.is_(False), _c.state != "running").order_by(_c.id)
        with self._database.reading() as connection:
            return list(connection.scalars(wanted))

    def test(self, id: int) -> StoredTest | None:
        """Return the test with this id."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(node_tests).where(_c.id == fit_id(id))).first()
        return None if row is None else _read(row)

    def tests(self, cursor: str | None = None, limit: int = 50, node: str | None = None) -> TestPage:
        """Return a page of tests, of all nodes or of one, newest first; `CursorError` for a bad cursor."""
        query = sa.select(node_tests).where(_c.id < below(cursor)).order_by(_c.id.desc())
        if node is not None:
            mine = sa.select(tested_nodes.c.test).where(tested_nodes.c.node == fit(node, _MAX_NAME))
            query = query.where(_c.id.in_(mine))
        limit = fit_limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query.limit(limit + 1)).all()
        items = [_read(row) for row in rows[:limit]]
        return TestPage(items, str(items[-1].id) if len(rows) > limit else None)

    def tests_after(self, verdicts: Sequence[int], limit: int = 50) -> list[StoredTest]:
        """Return the tests begun because of these verdicts (at most 500), newest first."""
        mine = sa.select(node_tests).where(_c.verdict.in_(list(verdicts)[:500])).order_by(_c.id.desc())
        with self._database.reading() as connection:
            return [_read(row) for row in connection.execute(mine.limit(fit_limit(limit)))]

    def results(self, test: int, after: int = 0) -> list[Result]:
        """Return the results of a test's worlds in order of ending, skipping `after` of them."""
        with self._database.reading() as connection:
            return _results(connection, fit_id(test), fit_id(after))

    def worlds(self, test: int, numbers: Sequence[int]) -> list[Result]:
        """Return the results of these worlds of a test (at most 500), by number."""
        c = world_results.c
        mine = (c.test == fit_id(test), c.world.in_(list(numbers)[:500]))
        with self._database.reading() as connection:
            bodies = connection.scalars(sa.select(c.body).where(*mine).order_by(c.world))
            return [_result.decode(body) for body in bodies]

    def tested(self) -> list[str]:
        """Return the names of all nodes that were ever in a test."""
        with self._database.reading() as connection:
            return list(connection.scalars(sa.select(tested_nodes.c.node).distinct().order_by(tested_nodes.c.node)))

    def keep(self, tests: Collection[int]) -> None:
        """Record a sign of life for running tests of this process."""
        with self._database.writing() as connection:
            seen = self._database.now(connection)
            connection.execute(sa.update(node_tests).where(_c.id.in_(tests), _c.state == "running").values(seen=seen))

    def silent(self, seconds: float) -> dict[int, float]:
        """Return running tests silent for `seconds`, with seconds since their last sign of life."""
        with self._database.reading() as connection:
            now = self._database.now(connection)
            query = sa.select(_c.id, _c.seen).where(_c.state == "running", _c.seen < now - seconds)
            return {test: now - seen for test, seen in connection.execute(query)}

    def running(self) -> list[StoredTest]:
        """Return the running tests, oldest first, for a restart."""
        with self._database.reading() as connection:
            return _all_running(connection)


# validation of input


def _sound_nodes(nodes: Sequence[Node]) -> tuple[Node, ...]:
    if not 0 < len(nodes) <= MAX_NODES:
        raise NodeTestRefused("a test of nodes", f"has {len(nodes)} nodes", f"Name 1 to {MAX_NODES}.")
    names = [checked_name(node.name) for node in nodes]
    if twice := next((name for place, name in enumerate(sorted(names)[1:]) if name == sorted(names)[place]), None):
        raise NodeTestRefused("a test of nodes", f"names {twice} twice", "Name each node once.")
    return tuple(
        Node(node.name, fit(node.address, _MAX_NAME), fit(node.group, _MAX_NAME), fit(node.gpu, _MAX_NAME))
        for node in nodes
    )


def _options_text(options: dict[str, Any]) -> str:
    try:
        text = _encode(options).decode()
        _options.decode(text)
    except (TypeError, ValueError) as error:
        raise InputError("the options of a test", f"are not JSON ({error})", "Use texts and numbers.") from error
    if len(text) > _MAX_OPTIONS or "\\u0000" in text:
        raise InputError(
            "the options of a test", "are too long or contain NUL", f"Use up to {_MAX_OPTIONS} characters."
        )
    return text


def _sound_result(result: Result) -> Result:
    """Return the result as it will be stored: texts of nodes are cut, numbers made finite."""
    world = result.world
    return Result(
        World(
            world.number,
            world.round,
            tuple(fit(name, _MAX_NAME) for name in world.nodes[:MAX_NODES]),
            fit(world.purpose, MAX_WORDS),
            world.repeats,
        ),
        result.ended,
        fit(result.why, MAX_WORDS),
        tuple(fit(name, _MAX_NAME) for name in result.unreached[:MAX_NODES]),
        tuple(_sound_reading(reading) for reading in result.readings[:MAX_NODES]),
        finite(result.seconds),
    )


def _sound_reading(reading: Reading) -> Reading:
    sizes = list(reading.bandwidth.items())[:_MAX_SIZES]
    return Reading(
        node=fit(reading.node, _MAX_NAME),
        ok=reading.ok,
        stage=fit(reading.stage, _MAX_NAME),
        why=fit(reading.why, MAX_WORDS),
        tool=fit(reading.tool, _MAX_NAME),
        gpus=min(max(reading.gpus, 0), _MAX_GPUS),
        gpu=fit(reading.gpu, _MAX_NAME),
        bandwidth={fit(size, _MAX_NAME): finite(value) for size, value in sizes},
        tflops=None if reading.tflops is None else finite(reading.tflops),
        state=tuple(fit(text, MAX_WORDS) for text in reading.state[:_MAX_STATES]),
        boot=fit(reading.boot, _MAX_NAME),
        seconds=finite(reading.seconds),
    )


def _sound_conclusion(conclusion: Conclusion) -> Conclusion:
    findings = (
        msgspec.structs.replace(
            finding,
            node=fit(finding.node, _MAX_NAME),
            why=fit(finding.why, MAX_WORDS),
            fault=fit(finding.fault, _MAX_NAME),
            warnings=tuple(fit(text, MAX_WORDS) for text in finding.warnings[:_MAX_STATES]),
        )
        for finding in conclusion.findings
    )
    links = (msgspec.structs.replace(link, why=fit(link.why, MAX_WORDS)) for link in conclusion.links)
    return Conclusion(tuple(findings), tuple(links), conclusion.rounds, fit(conclusion.open, MAX_WORDS))


def _check_findings(test: int, findings: Iterable[Finding], nodes: set[str]) -> None:
    seen: set[str] = set()
    for finding in findings:
        if finding.node not in nodes or finding.node in seen:
            cause = f"finds {finding.node[:80]!r}, which it does not test, or twice"
            raise NodeTestRefused(f"test {test}", cause, "Report this as a bug.")
        seen.add(finding.node)


def _boots(results: Iterable[Result]) -> dict[str, str]:
    """Return each node's last reported boot id."""
    return {reading.node: reading.boot for result in results for reading in result.readings if reading.boot}


def _summary(conclusion: Conclusion) -> str:
    counts: dict[str, int] = {}
    for finding in conclusion.findings:
        counts[finding.standing] = counts.get(finding.standing, 0) + 1
    said = ", ".join(f"{count} {standing}" for standing, count in sorted(counts.items())) or "nothing found"
    return f"{said}, {len(conclusion.links)} faulty links, {conclusion.rounds} rounds"


# rows


def _running(connection: sa.Connection, test: int) -> sa.Row[Any]:
    row = connection.execute(sa.select(node_tests).where(_c.id == fit_id(test))).first()
    if row is None:
        raise NodeTestRefused(f"test {test}", "does not exist", "List the tests.")
    if row.state != "running":
        raise NodeTestRefused(f"test {test}", f"is {row.state} already", "Start another test.")
    return row


def _all_running(connection: sa.Connection) -> list[StoredTest]:
    rows = connection.execute(sa.select(node_tests).where(_c.state == "running").order_by(_c.id))
    return [_read(row) for row in rows]


def _end(connection: sa.Connection, test: int, state: str, why: str, at: float, conclusion: str | None) -> None:
    values = {"state": state, "why": why, "ended": at, "conclusion": conclusion}
    connection.execute(sa.update(node_tests).where(_c.id == test).values(values))


def _results(connection: sa.Connection, test: int, after: int = 0) -> list[Result]:
    mine = sa.select(world_results.c.body).where(world_results.c.test == test).order_by(world_results.c.place)
    mine = mine.where(world_results.c.place > after) if after else mine
    return [_result.decode(body) for body in connection.scalars(mine)]


def _read(row: sa.Row[Any]) -> StoredTest:
    values = {**row._mapping}
    del values["followed"], values["seen"]
    values["nodes"] = _nodes.decode(row.nodes)
    values["options"] = _options.decode(row.options)
    values["conclusion"] = None if row.conclusion is None else _conclusion.decode(row.conclusion)
    return StoredTest(**values)
