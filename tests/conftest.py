"""Shared by all tests: the real rules, a way to write logs, and no way out to the network."""

import gc
import ipaddress
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce, wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy.util import LRUCache
from xdist.scheduler import LoadScopeScheduling

from logdoctor import wiring
from logdoctor.pipeline import ReadLimits
from logdoctor.rules import match
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings
from logdoctor.store import database
from logdoctor.store.keeping import identity
from tests.databases import KINDS, databases
from tests.postgres import SharedServer, new_folder

HERE = Path(__file__).parent
_COMMON: dict[str, Any] = {
    "deadline": None,  # a slow machine is no failure
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
settings.register_profile("quick", max_examples=25, derandomize=True, **_COMMON)  # `make soak` draws at random
settings.register_profile("soak", max_examples=3000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

WORLDS = {
    "nodes/story_slurm.py": "slurm",
    "nodes/story_slurm_cordon.py": "slurm",
    "nodes/story_ssh_namespaces.py": "namespaces",
    "nodes/story_faults.py": "namespaces",
    "eval/replay/test_": "replay",
}
"""What only one at a time should make, or one alone, by the beginnings of the paths of the tests that do. The story of
Slurm waits for most of its minutes, and has a cluster of its own."""

SLOWEST = (
    "nodes/story_slurm_faults.py",
    "crash/story_crash.py",
    "web/story_service_process.py",
    "browser/story_triage.py",
    "namespaces",
    "slurm",
    "nodes/story_kubernetes.py",
    "nodes/story_ssh.py",
    "recovery/story_supervisor.py",
    "send/story_shipping.py",
    "send/story_run.py",
    "web/story_workers.py",
    "web/story_senders.py",
    "web/story_traces.py",
    "web/story_worker_metrics.py",
    "web/story_roles.py",
    "web/story_database_faults.py",
    "browser/story_pages.py",
    "browser/story_scale.py",
    "deploy/story_running.py",
    "deploy/story_prometheus.py",
    "checkpoint/story_killing.py",
    "checkpoint/story_ranks.py",
    "wiring/story_ray_trials.py",
    "wiring/story_ray_batch.py",
    "crash/story_node_tests.py",
    "story_cli_batch.py",
    "story_extras.py",
    "story_cli_endings.py",
    "service/test_learning.py",
    "service/test_consulting.py",
    "service/test_delivering.py",
    "service/test_recheck.py",
    "service/test_model_faults.py",
    "service/test_restart.py",
    "web/test_correcting.py",
    "web/test_openapi.py",
    "web/test_pages.py",
    "web/test_incident_pages.py",
    "replay",
    "eval/test_model_score.py",
    "llm/test_langchain.py",
    "test_laws.py",
)
"""The groups that take longest, so that none of them begins when all others are done."""


def group_of(place: str) -> str:
    """Return the group that a test belongs to, by its path below tests/: the world it uses, or else its file."""
    return next((world for begin, world in WORLDS.items() if place.startswith(begin)), place)


class ByGroup(LoadScopeScheduling):
    """Run the tests of a group in one process, which makes once what they share.

    Not xdist's own `loadgroup`: version 3.8 loses the groups under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0].removeprefix(f"{HERE.name}/"))


def pytest_configure(config: pytest.Config) -> None:
    # what tests start inherits it; a shell that begins `make test &` has Ctrl-C ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    config.option.loadscopereorder = False  # the order of groups is that of `pytest_collection_modifyitems`
    given = getattr(config, "workerinput", None)
    folder = Path(given["postgres"]) if given else new_folder()
    databases.shared = SharedServer(folder, given["owner"] if given else os.getpid())
    # taken out of the environment: logdoctor refuses settings that it does not know
    databases.kind = given["database"] if given else os.environ.pop("LOGDOCTOR_TEST_DATABASE", KINDS[0])
    assert databases.kind in KINDS, f"LOGDOCTOR_TEST_DATABASE is none of {', '.join(KINDS)}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process that runs tests what all of them share."""
    assert databases.shared is not None
    node.workerinput |= {"postgres": str(databases.shared.folder), "database": databases.kind, "owner": os.getpid()}


def pytest_unconfigure(config: pytest.Config) -> None:
    if databases.shared is not None and not hasattr(config, "workerinput"):
        databases.shared.end()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest groups."""
    rank = {group: place for place, group in enumerate(SLOWEST)}
    items.sort(key=lambda item: rank.get(group_of(item.path.relative_to(HERE).as_posix()), len(SLOWEST)))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later search for garbage: it stays to the end."""
    gc.collect()
    gc.freeze()


HOSTS_OF_TESTS = ipaddress.ip_network("198.18.0.0/15")
"""Addresses of hosts that tests make themselves, as network namespaces of this machine (RFC 2544)."""


def _is_local(address: Any) -> bool:
    """Whether an address is a Unix socket or loopback."""
    if not isinstance(address, tuple):
        return True
    try:
        given = ipaddress.ip_address(address[0])
        return given.is_loopback or given in HOSTS_OF_TESTS
    except ValueError:
        return address[0] == "localhost"


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    """A connection to anything but this machine fails the test that opens it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            real = getattr(socket.socket, name)

            def guarded(self: socket.socket, address: Any, real: Callable[..., Any] = real) -> Any:
                if not _is_local(address):
                    raise AssertionError(f"a test tried to connect to {address!r}")
                return real(self, address)

            patch.setattr(socket.socket, name, guarded)
        yield


@pytest.fixture(autouse=True, scope="session")
def _disk_waits_for_nothing() -> Iterator[None]:
    """Nothing that is written in this process need outlive the machine, so nobody waits until it is on the disk."""
    prepare = database._prepare

    @wraps(prepare)
    def prepared(connection: Any, record: object) -> None:
        prepare(connection, record)
        connection.execute("PRAGMA synchronous=OFF").close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_prepare", prepared)
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _prepared_databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A new database of SQLite begins as a copy of one that this session made, with ids of its own: to make all tables
    anew takes five times as long."""
    file = tmp_path_factory.mktemp("new") / "x.db"
    keep_private, one_at_a_time = database._keep_private, threading.Lock()
    made = database.Database(f"sqlite:///{file}")
    ids = identity.of_database(made), identity.session_key(made)
    made.close()
    tables = file.read_bytes()

    def prepared(file: Path) -> None:
        keep_private(file)
        with one_at_a_time, suppress(OSError):
            if file.stat().st_size == 0:
                own = ((id.encode(), secrets.token_hex(len(id) // 2).encode()) for id in ids)
                file.write_bytes(reduce(lambda found, both: found.replace(*both), own, tables))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_keep_private", prepared)
        yield


class Statements(LRUCache[Any, Any]):
    """Statements as SQL, whichever database asks: the first part of a key is the dialect of one."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


@pytest.fixture(autouse=True, scope="session")
def _statements_once() -> Iterator[None]:
    """Statements become SQL once, not anew for each database of SQLite."""
    engine, statements = database._engine, Statements(5000)

    def sharing(url: str) -> Any:
        made = engine(url)
        if made.dialect.name == "sqlite":
            made._compiled_cache = statements
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_engine", sharing)
        yield


@pytest.fixture(autouse=True, scope="session")
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is compiled without a cache, as learned patterns are, has one that all processes of this session share."""
    own, init = tmp_path_factory.getbasetemp(), match.Compiled.__init__
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "patterns"
    shared.mkdir(exist_ok=True)

    def cached(self: match.Compiled, expressions: Any, cache: Path | None = None, literal: bool = False) -> None:
        init(self, expressions, cache or shared, literal)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(match.Compiled, "__init__", cached)
        yield


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new database, one of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/records.sqlite"
        return
    name = databases.pool.lend()
    yield databases.server.url(name)
    databases.pool.take_back(name)


@pytest.fixture(params=KINDS)
def each_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data folders have their database in SQLite, and again in PostgreSQL."""
    monkeypatch.setattr(databases, "kind", request.param)


@pytest.fixture(autouse=True)
def _databases_end() -> Iterator[None]:
    """What a test leaves in databases of PostgreSQL goes with its folders."""
    before = set(databases.lent)
    yield
    databases.forget(databases.lent.keys() - before)


@pytest.fixture(scope="session")
def scanner() -> Scanner:
    """The shipped rules, compiled."""
    return wiring.scanner(Settings())


@pytest.fixture(scope="session")
def book(scanner: Scanner) -> RuleBook:
    """The shipped rules."""
    return scanner.book


@pytest.fixture(scope="session")
def limits() -> ReadLimits:
    """How logs are read when nothing is set, in this process alone."""
    return wiring.limits(Settings(workers=1))


class BookLines(list[bytes]):
    """Example lines that do not drown a failure report."""

    def __repr__(self) -> str:
        return f"<{len(self)} example lines>"


@pytest.fixture(scope="session")
def book_lines(book: RuleBook) -> list[bytes]:
    """Every example line of the rule book: what real logs are made of."""
    texts = {text for rule in book.filters for text in (*rule.must_match, *rule.must_not_match)}
    texts |= {e.text for rule in book.diagnoses for e in (*rule.must_match, *rule.must_not_match)}
    return BookLines(sorted(text.encode() for text in texts if "\n" not in text))


@pytest.fixture
def write_log(tmp_path: Path) -> Callable[..., Path]:
    """Writes a log below the test's folder: `write_log(bytes or text, name="train.log")`."""

    def write(content: bytes | str, name: str = "train.log") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
