"""Cost of each failure of docs/scale.md, caused in a real cluster on this machine.

    python -m eval.bench_failures [--quick] [--json [FILE]] [FAILURE...]

Two web processes, two workers, a PostgreSQL, a Redis; eight jobs send ten times a second, to the other process when one
does not answer, and retry ten times a second whatever Retry-After says. For each failure: seconds from its cause until
others own the shards, and until bytes of all senders are acknowledged again; refusals; seconds from the end of all jobs
to their last verdict; and acknowledged bytes that are lost, duplicated or changed. Leases have the default length (10
s). Nothing is asserted.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

from eval.bench_scale import Mode, Place, place_of
from eval.bench_service import Row, Running, listening, run
from logdoctor.store.database import Database
from logdoctor.store.log.archive import Archive
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.schema import leaders, parts, shards, workers
from tests.notify.receivers import SECRET, Receiver
from tests.postgres import new_folder
from tests.redis_server import RedisServer
from tests.service.disks import fill, small_disk
from tests.store.logs import Key, data_of

RESULTS = Path(__file__).resolve().parent / "results" / "bench_failures.json"
JOBS = 8
BODY, PAUSE = 4096, 0.1
STEADY = 3.0  # seconds before a failure, and after it
AWAY = 5.0  # seconds of an outage
FAILED = (Path(__file__).resolve().parent / "corpus" / "failures" / "inf-028.log").read_bytes()[-60_000:]
T = TypeVar("T")
_SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
CREATE TRIGGER slow BEFORE INSERT ON log FOR EACH STATEMENT EXECUTE FUNCTION slow();
"""
_AHEAD = "import os, time\n_now = time.time\ntime.time = lambda: _now() + 3600.0 * os.path.exists({flag!r})\n"


class Sender(threading.Thread):
    """Sends the log of one job, as `run` and `ship` do: continues where the service says the stream ends."""

    def __init__(self, webs: list[Running], number: int) -> None:
        super().__init__(daemon=True)
        self.key, self.webs = Key(f"job-{number}", 1, "main"), webs
        self.acknowledged = self.sent = 0
        self.times: list[float] = []
        self.refused: Counter[str] = Counter()
        self.stopping = threading.Event()

    def run(self) -> None:
        place = hash(self.key) % len(self.webs)
        while not self.stopping.wait(PAUSE):
            try:
                status, answer = self._post(self.webs[place % len(self.webs)])
            except (OSError, http.client.HTTPException):
                self.refused["no answer"] += 1
                place += 1
                continue
            if status in (200, 409):
                told = json.loads(answer)
                self.acknowledged = told["next_offset"] if status == 200 else told["error"]["next_offset"]
                self.times.append(time.monotonic())
            else:
                self.refused[str(status)] += 1

    def _post(self, web: Running) -> tuple[int, bytes]:
        begin = self.acknowledged
        self.sent = max(self.sent, begin + BODY)
        with closing(http.client.HTTPConnection("127.0.0.1", web.port, timeout=30)) as connection:
            path = f"/v1/jobs/{self.key.job}/attempts/1/streams/main/log?offset={begin}"
            connection.request("POST", path, data_of(self.key, begin, begin + BODY))
            response = connection.getresponse()
            return response.status, response.read()

    def gap(self, begin: float) -> float:
        """Return the longest time without an acknowledgement since 1 s before `begin`."""
        times = [at for at in self.times if at > begin - 1.0] or [begin]
        return max((later - at for at, later in pairwise(times)), default=0.0)


class Site:
    """A cluster and its senders."""

    def __init__(self, place: Place, stack: ExitStack, redis: RedisServer) -> None:
        self.place, self.redis, self._stack = place, redis, stack
        self.database = Database(place.url)
        stack.callback(self.database.close)
        self.webs: list[Running] = []
        self.workers: list[tuple[int, str]] = []
        """Process id and name of each."""
        self.senders: list[Sender] = []

    def serve(self) -> None:
        """Start another web process."""
        data = f"web-{len(self.webs)}"
        words = ("serve", "--port", "0", "--role", "web")
        self.webs.append(listening(self._stack.enter_context(self.place.process(*words, data=data))))

    def work(self, **environment: str) -> None:
        """Start another worker, with settings of its own."""
        before, shared = self._names(), self.place.environment
        self.place.environment = shared | environment
        process = self._stack.enter_context(
            self.place.process("worker", "--workers", "1", data=f"worker-{len(self.workers)}")
        )
        self.place.environment = shared
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        (name,) = until(lambda: self._names() - before)
        self.workers.append((process.pid, name))

    def _names(self) -> set[str]:
        with self.database.reading() as connection:
            return set(connection.scalars(sa.select(workers.c.worker)))

    def owned(self, name: str) -> int:
        """Count the shards that a worker owns."""
        with self.database.reading() as connection:
            mine = shards.c.owner == name
            return int(connection.scalar(sa.select(sa.func.count()).select_from(shards).where(mine)) or 0)

    def taken_over(self, number: int) -> Row:
        """Wait until the other worker owns all shards; return the seconds."""
        begun = time.monotonic()
        until(lambda: self.owned(self.workers[1 - number][1]) == 64)
        return {"taken_over": time.monotonic() - begun}

    def through(self, cause: Callable[[], Row], mend: Callable[[], object] = lambda: None, away: float = 0.0) -> Row:
        """Send before, during and after a failure; return its cost."""
        time.sleep(STEADY)
        begun = time.monotonic()
        found = cause()
        time.sleep(away)
        mend()
        mended = time.monotonic()
        until(lambda: all(sender.times and sender.times[-1] > mended for sender in self.senders))
        time.sleep(STEADY)
        refused: Counter[str] = Counter()
        for sender in self.senders:
            sender.stopping.set()
        for sender in self.senders:
            sender.join()
            refused += sender.refused
        found["longest_without_acknowledgement"] = max(sender.gap(begun) for sender in self.senders)
        found["refused"] = dict(refused) or "none"
        return found | self._ended()

    def _ended(self) -> Row:
        """End all jobs, wait for their verdicts, and compare the stored bytes with the sent ones."""
        web, begun, lost, wrong, size = self.webs[-1], time.monotonic(), 0, 0, 0
        paths = [f"/v1/jobs/{sender.key.job}/attempts/1" for sender in self.senders]
        for path in paths:
            until(lambda path=path: web.post(f"{path}/end", {"exit_code": 0})[0] == 202)  # type: ignore[misc]
        for path in paths:
            until(lambda path=path: is_final(web, path))  # type: ignore[misc]
        seconds = time.monotonic() - begun
        for sender, path in zip(self.senders, paths, strict=True):
            kept = web.get(f"{path}/streams/main/download")[1]
            size += len(kept)
            lost += max(sender.acknowledged - len(kept), 0)
            sent = data_of(sender.key, 0, sender.sent)
            wrong += sum(a != b for a, b in zip(kept, sent, strict=False)) + max(len(kept) - len(sent), 0)
        return {"verdicts_after_the_end": seconds, "bytes": size, "lost": lost, "doubled_or_changed": wrong}

    def verdict(self, name: str) -> float:
        """Return the seconds from the end of another job to its verdict."""
        path, web = f"/v1/jobs/{name}/attempts/1", self.webs[-1]
        self.failing(name)
        begun = time.monotonic()
        until(lambda: is_final(web, path))
        return time.monotonic() - begun

    def failing(self, name: str) -> None:
        """Send the log and the end of a job that failed."""
        path, web = f"/v1/jobs/{name}/attempts/1", self.webs[-1]
        with closing(http.client.HTTPConnection("127.0.0.1", web.port)) as connection:
            connection.request("POST", f"{path}/streams/main/log?offset=0", FAILED)
            assert connection.getresponse().status == 200
        assert web.post(f"{path}/end", {"exit_code": 1})[0] == 202


def is_final(web: Running, path: str) -> bool:
    """Return whether an attempt has a final verdict."""
    status, body = web.get(f"{path}/verdict")
    return status == 200 and bool(json.loads(body)["final"])


def until(look: Callable[[], T], seconds: float = 180.0) -> T:
    """Wait until `look` returns something true; return it."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError, http.client.HTTPException):
            if found := look():
                return found
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        time.sleep(0.02)


@contextmanager
def site_of(folder: Path, postgresql: str = "", **settings: str) -> Iterator[Site]:
    """Yield a cluster over a new database, its log table in the folder `postgresql` if named."""
    with place_of(Mode("failures", True, 2)) as place, ExitStack() as stack:
        redis = RedisServer(folder).start()
        stack.callback(redis.kill)
        place.environment |= {"LOGDOCTOR_REDIS_URL": redis.url, "LOGDOCTOR_SCAN_SECONDS": "0.2"} | settings
        if postgresql:
            assert place.server is not None
            with place.server.connected("bench") as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{postgresql}'".encode())
                connection.execute("ALTER TABLE log SET TABLESPACE small")
        site = Site(place, stack, redis)
        for _ in range(2):
            site.serve()
        site.work()
        yield site


@contextmanager
def sending_to(site: Site, **other: str) -> Iterator[None]:
    """Add a second worker with settings of its own, and let jobs send within the block."""
    site.work(**other)
    until(lambda: all(site.owned(name) == 32 for _, name in site.workers))
    site.senders = [Sender(site.webs, number) for number in range(JOBS)]
    for sender in site.senders:
        sender.start()
    try:
        yield
    finally:
        for sender in site.senders:
            sender.stopping.set()
        for pid in [*(pid for pid, _ in site.workers), *(web.pid for web in site.webs)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def sending(folder: Path, postgresql: str = "", **settings: str) -> Iterator[Site]:
    """Yield a cluster with these settings while jobs send."""
    with site_of(folder, postgresql, **settings) as site, sending_to(site):
        yield site


# ---- processes


def web_killed(folder: Path, _quick: bool) -> Row:
    """Kill one of two web processes."""
    with sending(folder) as site:
        return site.through(lambda: _kill(site.webs[0].pid))


def worker_killed(folder: Path, _quick: bool) -> Row:
    """Kill one of two workers."""
    with sending(folder) as site:
        return site.through(lambda: _kill(site.workers[1][0]) | site.taken_over(1))


def worker_stopped(folder: Path, _quick: bool) -> Row:
    """Stop a worker until the other has taken over, then wake it."""
    with sending(folder) as site:
        pid = site.workers[1][0]
        return site.through(lambda: _stop(pid) | site.taken_over(1), lambda: os.kill(pid, signal.SIGCONT), AWAY)


def worker_cut_off(folder: Path, _quick: bool) -> Row:
    """Cut a worker off from the database for a while."""
    with site_of(folder) as site, _Line(site) as line, sending_to(site, LOGDOCTOR_DATABASE_URL=line.url):
        return site.through(lambda: line.cut() | site.taken_over(1), line.mend, AWAY)


def clock_jumps(folder: Path, _quick: bool) -> Row:
    """Set a worker's clock an hour ahead; none of its shards may move."""
    flag = folder / "ahead"
    (folder / "sitecustomize.py").write_text(_AHEAD.format(flag=str(flag)))
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    with site_of(folder) as site, sending_to(site, PYTHONPATH=path):
        found = site.through(lambda: (flag.touch(), {})[1], away=15.0)
        return found | {"shards_that_stayed": site.owned(site.workers[1][1])}


def death_before_commit(folder: Path, _quick: bool) -> Row:
    """Kill both workers after they wrote objects and before these are listed; two others take over."""
    with sending(folder, LOGDOCTOR_LOG_BYTES=str(2 << 20)) as site:
        archive = Archive(site.database, FolderObjects(site.place.folder / "archive"))

        def cause() -> Row:
            with site.database.appending() as connection:  # no object can be listed now
                connection.execute(sa.text("LOCK TABLE parts IN SHARE ROW EXCLUSIVE MODE"))
                until(lambda: _orphans(site))
                for pid, _ in site.workers:
                    os.kill(pid, signal.SIGKILL)
            begun = time.monotonic()
            site.work()
            until(lambda: site.owned(site.workers[2][1]) == 64)
            return {"taken_over": time.monotonic() - begun}

        found = site.through(cause)
        found["orphans"] = len(_orphans(site))
        found["swept_after_an_hour"] = archive.sweep(time.time() + 7200)
        return found | {"orphans_left": len(_orphans(site))}


def leader_stopped(folder: Path, _quick: bool) -> Row:
    """Stop the leader until another leads, then wake it; notifications still go out."""
    with closing(Receiver()) as receiver:
        hooks = {
            "LOGDOCTOR_NOTIFY_WEBHOOKS": f"ops={receiver.url}",
            "LOGDOCTOR_NOTIFY_WEBHOOK_SECRETS": f"ops={SECRET}",
        }
        with sending(folder, **hooks) as site:
            pid, before = site.webs[0].pid, _leader(site)

            def cause() -> Row:
                begun = time.monotonic()
                _stop(pid)
                site.failing("failed")
                until(lambda: _leader(site) not in (before, ""))
                led = time.monotonic() - begun
                until(lambda: receiver.got)
                return {"another_leads": led, "told": time.monotonic() - begun}

            found = site.through(cause, lambda: os.kill(pid, signal.SIGCONT), AWAY)
            ids = [got.id for got in receiver.got]
            return found | {"messages": len(ids), "messages_twice": len(ids) - len(set(ids))}


# ---- what they share


def database_killed(folder: Path, _quick: bool) -> Row:
    """Crash PostgreSQL, and start it again after a while."""
    with sending(folder) as site:
        assert site.place.server is not None
        server = site.place.server
        return site.through(lambda: (server.stop("immediate"), {})[1], server.start, AWAY)


def database_slow(folder: Path, _quick: bool) -> Row:
    """Slow each append down by half a second for a while."""
    with sending(folder) as site:
        assert site.place.server is not None
        with site.place.server.connected("bench") as connection:
            slow = lambda: (connection.execute(_SLOW), {})[1]  # noqa: E731
            return site.through(slow, lambda: connection.execute("DROP TRIGGER slow ON log"), AWAY)


def database_disk_full(folder: Path, _quick: bool) -> Row:
    """Fill the disk of the log for a while."""
    place = new_folder()
    try:
        with small_disk(place / "disk", 8 << 20) as disk:
            for one in (place, disk):
                shutil.chown(one, "postgres", "postgres")
            with sending(folder, postgresql=str(disk)) as site:
                full: list[Path] = []
                ballast = lambda: (full.append(fill(disk)), {})[1]  # noqa: E731
                return site.through(ballast, lambda: full[0].unlink(), AWAY)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def redis_away(folder: Path, _quick: bool) -> Row:
    """Flush, fill, hang and kill Redis; measure the latency of a verdict in each state."""
    found: Row = {}
    with sending(folder) as site:
        verdicts: Row = {"before": site.verdict("before")}

        def cause() -> Row:
            with site.redis.client() as client:
                client.flushall()
                verdicts["flushed"] = site.verdict("flushed")
                client.config_set("maxmemory", "1")
                verdicts["full"] = site.verdict("full")
            site.redis.pause()
            verdicts["hanging"] = site.verdict("hanging")
            site.redis.kill()
            verdicts["killed"] = site.verdict("killed")
            return {"end_to_verdict": verdicts}

        found = site.through(cause, site.redis.start)
        verdicts["after"] = site.verdict("after")
    return found


def archive_away(folder: Path, _quick: bool) -> Row:
    """Break the archive until the log is full."""
    with sending(folder, LOGDOCTOR_LOG_BYTES=str(2 << 20)) as site:
        archive = site.place.folder / "archive"

        def cause() -> Row:
            begun = time.monotonic()
            archive.rename(archive.with_name("away"))
            archive.touch()
            verdict = site.verdict("meanwhile")
            until(lambda: any(sender.refused["503"] for sender in site.senders))
            return {"end_to_verdict_meanwhile": verdict, "refused_after": time.monotonic() - begun}

        def mend() -> None:
            archive.unlink()
            archive.with_name("away").rename(archive)

        return site.through(cause, mend)


def _kill(pid: int) -> Row:
    os.kill(pid, signal.SIGKILL)
    return {}


def _stop(pid: int) -> Row:
    os.kill(pid, signal.SIGSTOP)
    return {}


def _leader(site: Site) -> str:
    with site.database.reading() as connection:
        return str(connection.scalar(sa.select(leaders.c.process)) or "")


def _orphans(site: Site) -> list[str]:
    """Return the objects of streams that are not listed."""
    with site.database.reading() as connection:
        listed = set(connection.scalars(sa.select(parts.c.object)))
    return [
        one.name
        for one in FolderObjects(site.place.folder / "archive").walk()
        if one.name.endswith(".zst") and one.name not in listed
    ]


class _Line:
    """A worker's connection to PostgreSQL that can be cut silently: nothing passes, and neither end notices."""

    def __init__(self, site: Site) -> None:
        assert site.place.server is not None
        self._there = str(site.place.server.folder / ".s.PGSQL.5432")
        self._folder = Path(tempfile.mkdtemp(prefix="logdoctor-line-", dir="/tmp"))
        self.url = site.place.url.replace(str(site.place.server.folder), str(self._folder))
        self._open = threading.Event()
        self._open.set()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._folder / ".s.PGSQL.5432"))
        self._socket.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *_: object) -> None:
        self.mend()
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def cut(self) -> Row:
        """Let nothing through."""
        self._open.clear()
        return {}

    def mend(self) -> None:
        """Let everything through again."""
        self._open.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, far = self._socket.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(self._there)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self._open.wait()
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


FAILURES = {
    "web_killed": web_killed,
    "worker_killed": worker_killed,
    "worker_stopped": worker_stopped,
    "worker_cut_off": worker_cut_off,
    "clock_jumps": clock_jumps,
    "death_before_commit": death_before_commit,
    "leader_stopped": leader_stopped,
    "database_killed": database_killed,
    "database_slow": database_slow,
    "database_disk_full": database_disk_full,
    "redis_away": redis_away,
    "archive_away": archive_away,
}


def main() -> None:
    """Cause the named failures, or all, and print their cost."""
    run(FAILURES, "Measure what failures cost in a cluster on this machine.", RESULTS)


if __name__ == "__main__":
    main()
