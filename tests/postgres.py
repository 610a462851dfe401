"""PostgreSQL servers for tests: on a Unix socket, in a folder that goes with them."""

import contextlib
import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from logdoctor.store.database import Database

_QUICK = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
_EACH = ("listen_addresses=", "max_connections=300", "shared_buffers=32MB", "autovacuum=off", "jit=off")
_EMPTY = "empty"  # a database with all tables and no rows: others are copies of it
_OWNER = "postgres"
_FORGET = """
CREATE FUNCTION form() RETURNS text LANGUAGE sql AS $$
  SELECT md5(string_agg(name, ',' ORDER BY name)) FROM (
    SELECT relname::text || relkind::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT attrelid || '.' || attname FROM pg_attribute WHERE attrelid >= 16384
    UNION ALL SELECT tgname FROM pg_trigger
    UNION ALL SELECT conname FROM pg_constraint
    UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT version_num FROM alembic_version
  ) AS things (name)
$$;
CREATE FUNCTION forget_all() RETURNS void LANGUAGE plpgsql AS $$
DECLARE one record;
BEGIN
  PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
  SET LOCAL session_replication_role = replica; -- neither triggers nor foreign keys
  FOR one IN SELECT oid::regclass AS place FROM pg_class WHERE relnamespace = 'public'::regnamespace
      AND relkind = 'r' AND relname NOT IN ('alembic_version', 'counters', 'identity', 'leaders', 'shards')
      AND pg_relation_size(oid) > 0 LOOP
    IF pg_relation_size(one.place) > 1000000 THEN
      EXECUTE format('TRUNCATE %s CASCADE', one.place);
    ELSE
      EXECUTE format('DELETE FROM %s', one.place);
    END IF;
  END LOOP;
  PERFORM setval(oid, 1, false) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'S';
  DELETE FROM counters WHERE name NOT IN ('event', 'learned', 'confirmed'); -- those of a new database
  UPDATE counters SET value = 0 WHERE value > 0;
  UPDATE identity SET id = md5(random()::text), archive = '';
  UPDATE leaders SET process = '', until = 0;
  UPDATE shards SET owner = '', epoch = 0, until = 0, head = 0, asked = 0, bytes = 0, rulebook = ''
    WHERE epoch > 0 OR head > 0;
END $$
"""
"""Makes a database as new, which takes a hundredth of the time of a new one, and tells the form of its tables."""

_PLACE = tempfile.gettempdir()  # before a test names another: those of pytest are closed to other accounts
_ENDING = """
import os, shutil, signal, sys, time
owner, folder = int(sys.argv[1]), sys.argv[2]
while os.path.exists(folder) and os.path.exists(f"/proc/{owner}"):
    time.sleep(1)
try:
    os.kill(int(open(f"{folder}/data/postmaster.pid").readline()), signal.SIGQUIT)
except OSError:
    pass
shutil.rmtree(folder, ignore_errors=True)
"""


def program(name: str) -> str:
    """Return the path of a program of the newest PostgreSQL there is; Debian keeps them off the PATH."""
    found = [path for path in Path("/usr/lib/postgresql").glob(f"*/bin/{name}") if path.parts[-3].isdigit()]
    newest = max(found, key=lambda path: int(path.parts[-3]), default=None)
    path = str(newest) if newest else shutil.which(name)
    assert path, f"PostgreSQL is missing (no program {name}): install the package postgresql"
    return path


def _run(*command: str) -> None:
    """Run a program as somebody whom PostgreSQL does not refuse."""
    owner = {"user": _OWNER, "group": _OWNER, "extra_groups": ()} if os.geteuid() == 0 else {}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/", **owner)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


class Server:
    """A server over a folder; `durable` when what it has acknowledged must outlive the machine. It ends with its owner,
    a process, this one by default, also when that is killed."""

    def __init__(self, folder: Path, durable: bool = False, owner: int | None = None) -> None:
        self.folder, self._data, self._owner = folder, folder / "data", owner
        self._settings = [f"unix_socket_directories={folder}", *_EACH, *(() if durable else _QUICK)]

    def start(self) -> None:
        """Start it, over a new cluster the first time. Its collation is none of code points, as most are."""
        if not self._data.exists():
            if os.geteuid() == 0:
                account = pwd.getpwnam(_OWNER)
                os.chown(self.folder, account.pw_uid, account.pw_gid)
            locale = ("--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US")
            where = ("-D", str(self._data), "-U", _OWNER, "--auth=trust", "--no-sync")
            _run(program("initdb"), *where, *locale)
            self._end_with(os.getpid() if self._owner is None else self._owner)
        options = " ".join(f"-c {setting}" for setting in self._settings)
        log = str(self.folder / "log")
        _run(program("pg_ctl"), "start", "-w", "-s", "-D", str(self._data), "-l", log, "-o", options)

    def _end_with(self, owner: int) -> None:
        """Let a process of its own end the server once its owner is gone."""
        command = [sys.executable, "-S", "-c", _ENDING, str(owner), str(self.folder)]
        subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return (self._data / "postmaster.pid").exists()

    def stop(self, mode: str = "fast") -> None:
        """Stop it; the mode `immediate` ends it as a crash does."""
        _run(program("pg_ctl"), "stop", "-w", "-s", "-D", str(self._data), "-m", mode)

    def url(self, name: str, password: str = "") -> str:
        """Return the URL of one of its databases. It takes any password."""
        return f"postgresql+psycopg://{_OWNER}{password and ':' + password}@/{name}?host={self.folder}&port=5432"

    def connected(self, name: str) -> "psycopg.Connection[Any]":
        """Return a connection to a database, each of whose statements is a transaction."""
        place = f"host={self.folder} port=5432 user={_OWNER} dbname={name}"
        return psycopg.connect(place, autocommit=True)

    def execute(self, *statements: str) -> None:
        """Execute statements that no transaction may hold, such as those that create databases."""
        with self.connected("postgres") as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def make_template(self) -> None:
        """Create the empty database that others are copies of."""
        self.execute(f"CREATE DATABASE {_EMPTY}")
        Database(self.url(_EMPTY)).close()
        with self.connected(_EMPTY) as connection:
            connection.execute(_FORGET)

    def create(self, name: str) -> None:
        """Create a database with all tables and no rows."""
        self.execute(f"CREATE DATABASE {name} TEMPLATE {_EMPTY} STRATEGY file_copy")

    def drop(self, name: str) -> None:
        """Remove a database, whoever uses it."""
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def copy(self, name: str, to: str) -> None:
        """Let an empty database hold what another one holds at this moment, whoever uses that."""
        place = ("-h", str(self.folder), "-p", "5432", "-U", _OWNER)
        with tempfile.NamedTemporaryFile(dir=self.folder) as dump:
            os.chmod(dump.name, 0o666)
            _run(program("pg_dump"), *place, "--data-only", "-T", "alembic_version", "-f", dump.name, name)
            with self.connected(to) as connection:
                connection.execute("DELETE FROM counters")
                connection.execute("DELETE FROM shards")
                connection.execute("DELETE FROM identity")
                connection.execute("DELETE FROM leaders")
            options = ("-q", "-o", "/dev/null", "-v", "ON_ERROR_STOP=1", "-c", "SET session_replication_role = replica")
            _run(program("psql"), *place, *options, "-f", dump.name, to)


class SharedServer:
    """The server that all processes of a test session share: the first test that needs it starts it. It ends with the
    process that began the session, the `owner`."""

    def __init__(self, folder: Path, owner: int) -> None:
        self.folder, self._owner = folder, owner
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        """The server, which runs."""
        if self._server is None:
            server = Server(self.folder, owner=self._owner)
            with (self.folder.parent / f"{self.folder.name}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not server.is_running():
                    server.start()
                    server.make_template()
            self._server = server
        return self._server

    def end(self) -> None:
        """Stop it if it runs, and remove its folder."""
        server = Server(self.folder)
        if server.is_running():
            server.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder.parent / f"{self.folder.name}.lock").unlink(missing_ok=True)


class Pool:
    """Empty databases of one process, each lent to one user at a time."""

    def __init__(self, shared: SharedServer) -> None:
        self._shared, self._begin = shared, f"t{uuid.uuid4().hex[:12]}_"
        self._count = 0
        self._free: list[str] = []
        self._form: object = None
        self._open: dict[str, psycopg.Connection[Any]] = {}

    def lend(self) -> str:
        """Return the name of a database with all tables and no rows."""
        if self._free:
            return self._free.pop()
        self._count += 1
        name = f"{self._begin}{self._count}"
        self._shared.server.create(name)
        self._form = self._form or self._ask(name, "SELECT form()")
        return name

    def take_back(self, name: str) -> None:
        """Make a database as new, whoever uses it; remove one whose tables were changed."""
        if self._ask(name, "SELECT form()") == self._form:
            self._ask(name, "SELECT forget_all()")
            self._free.append(name)
            return
        self._open.pop(name).close()
        self._shared.server.drop(name)

    def _ask(self, name: str, query: LiteralString) -> object:
        """Ask a database over a connection that is kept, which is quicker."""
        if name not in self._open:
            self._open[name] = self._shared.server.connected(name)
        found = self._open[name].execute(query).fetchone()
        return found and found[0]


def new_folder() -> Path:
    """Return a new folder for a server: its path is short, as of sockets must be, and its account may enter it."""
    return Path(tempfile.mkdtemp(prefix="logdoctor-pg-", dir=_PLACE))


@contextlib.contextmanager
def own_server() -> Iterator[Server]:
    """Yield a durable server that nobody else uses: it may be stopped and killed."""
    server = Server(new_folder(), durable=True)
    server.start()
    server.make_template()
    try:
        yield server
    finally:
        if server.is_running():
            server.stop("immediate")
        shutil.rmtree(server.folder, ignore_errors=True)
