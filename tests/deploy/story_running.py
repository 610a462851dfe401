"""The processes of the compose file, outside of containers: with the commands and variables that compose gives them,
where only addresses and folders are others, and a real PostgreSQL, Redis, HAProxy and Prometheus."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from logdoctor.settings import Settings, cache_folder
from tests import waiting
from tests.databases import databases
from tests.deploy.files import DEPLOY, image_environment, services, tool
from tests.deploy.story_prometheus import asking, prometheus
from tests.ports import free_port
from tests.web.conftest import FAILED, Running, bearer


class Deployed:
    """All processes, and a client of the proxy."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.parts = folder, services()
        self.database, self.redis_port = "", 0
        self.tokens = folder / "token"
        self.environments: dict[str, dict[str, str]] = {}
        self.webs: dict[str, Running] = {}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.client = httpx.Client()

    def environment(self, name: str, instance: str) -> dict[str, str]:
        """The variables of a service, with addresses and folders of this machine."""
        given = image_environment() | self.parts[name]["environment"]
        data = self.folder / instance
        places = {
            "LOGDOCTOR_DATABASE_URL": databases.server.url(self.database, "p1"),
            "LOGDOCTOR_REDIS_URL": given["LOGDOCTOR_REDIS_URL"].replace("redis:6379", f"127.0.0.1:{self.redis_port}"),
            "LOGDOCTOR_ARCHIVE_URL": str(self.folder / "archive"),
            "LOGDOCTOR_DATA_DIR": str(data),
            "LOGDOCTOR_CACHE_DIR": str(cache_folder(Settings())),  # the image has the rules compiled, too
        }
        assert places.keys() <= given.keys()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        plain = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
        return plain | given | places | {"PATH": path}

    def start_redis(self, stack: ExitStack) -> None:
        """Start Redis with the command of the compose file."""
        self.redis_port = free_port()
        command = [tool("redis-server"), *self.parts["redis"]["command"][1:]]
        place = ["--bind", "127.0.0.1", "--port", str(self.redis_port), "--dir", str(self.folder)]
        stack.enter_context(process([*command, *place], self.folder / "redis.log"))

    def prepare(self) -> str:
        """Run the service `init`; what it says."""
        command = [str(DEPLOY / "first-token"), str(self.tokens)]
        done = subprocess.run(command, env=self.environment("init", "init"), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_web(self, name: str) -> None:
        """Start a web process, and wait until it listens."""
        running = Running(self.folder / name, self.environment(name, name))
        self.webs[name] = running
        role = self.parts[name]["command"][1:]
        running.start(*role, "--port", "0")

    def start_worker(self, number: int) -> None:
        """Start a worker, and wait until it works."""
        folder = f"worker-{number}"
        messages = self.folder / f"{folder}.log"
        log = messages.open("ab")
        begin = log.tell()
        words = [str(Path(sys.executable).with_name("logdoctor")), *self.parts["worker"]["command"]]
        environment = self.environment("worker", folder)
        self.workers.append(subprocess.Popen(words, stdout=log, stderr=log, env=environment))
        waiting.until(lambda: b'"shards taken"' in messages.read_bytes()[begin:])

    def start_proxy(self, stack: ExitStack) -> None:
        """Start HAProxy with our file, and other addresses."""
        text, port = (DEPLOY / "haproxy" / "haproxy.cfg").read_text(), free_port()
        for name, web in self.webs.items():
            text = text.replace(f" {name}:8080 ", f" 127.0.0.1:{web.port} ")
        text = text.replace("bind :8080", f"bind 127.0.0.1:{port}")
        (self.folder / "haproxy.cfg").write_text(text)
        command = [tool("haproxy"), "-db", "-f", str(self.folder / "haproxy.cfg")]
        stack.enter_context(process(command, self.folder / "haproxy.log"))
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300)
        waiting.until(lambda: answers(self.client))

    def command(self, *words: str) -> str:
        """What `docker compose run --rm worker ...` prints."""
        line = [str(Path(sys.executable).with_name("logdoctor")), *words]
        environment = self.environment("worker", "command")
        return subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout

    def stop(self) -> None:
        """Leave nothing behind."""
        self.client.close()
        for web in self.webs.values():
            web.close()
        for worker in self.workers:
            worker.kill()
            worker.wait()


@contextmanager
def process(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that ends with the block."""
    with log.open("wb") as file:
        running = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


def answers(client: httpx.Client) -> bool:
    """Whether the service behind the proxy takes requests."""
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Everything runs, in the order in which compose starts it."""
    found = Deployed(tmp_path_factory.mktemp("deployed"))
    found.database = databases.pool.lend()
    with ExitStack() as stack:
        stack.callback(found.stop)
        found.start_redis(stack)
        assert "created a token" in found.prepare()
        assert found.prepare() == "", "the second time there is nothing to do"
        for name in ("web-1", "web-2"):
            found.start_web(name)
        for number in (1, 2):
            found.start_worker(number)
        found.start_proxy(stack)
        yield found


@pytest.fixture(scope="module")
def admin(deployed: Deployed) -> dict[str, str]:
    """The headers of the first person, as docs/deploy.md makes their token."""
    return bearer(deployed.command("tokens", "create", "ops", "--scope", "admin").strip())


def judged(deployed: Deployed, admin: dict[str, str], job: str) -> dict[str, Any]:
    """The verdict on a log that fails, posted through the proxy."""
    log = f"/v1/jobs/{job}/attempts/1/streams/main/log"
    posted = deployed.client.post(log, params={"offset": 0}, content=FAILED, headers=admin)
    assert posted.status_code == 200, posted.text
    assert deployed.client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1}, headers=admin).is_success

    def final() -> dict[str, Any] | None:
        answer = deployed.client.get(f"/v1/jobs/{job}/attempts/1/verdict", headers=admin)
        return answer.json() if answer.status_code == 200 and answer.json()["final"] else None

    found: dict[str, Any] = waiting.until(final)["verdict"]
    return found


def test_a_log_that_is_posted_is_judged(deployed: Deployed, admin: dict[str, str]) -> None:
    assert deployed.client.get("/v1/verdicts").status_code == 401
    assert judged(deployed, admin, "first")["reason"] == "Out of Memory Error"
    for web in deployed.webs.values():
        answer = web.client.get("/v1/jobs/first/attempts/1/verdict", headers=admin)
        assert answer.json()["verdict"]["reason"] == "Out of Memory Error"


def test_workers_say_that_they_live_where_their_check_looks(deployed: Deployed) -> None:
    check = deployed.parts["worker"]["healthcheck"]["test"]
    assert check[:3] == ["CMD", "sh", "-c"]
    for number in (1, 2):
        script = check[3].replace("$$", "$").replace("/var/lib/logdoctor/", f"{deployed.folder}/worker-{number}/")
        waiting.until(lambda script=script: subprocess.run(["sh", "-c", script], check=False).returncode == 0)  # type: ignore[misc]
    gone = check[3].replace("$$", "$").replace("/var/lib/logdoctor/", f"{deployed.folder}/no-worker/")
    assert subprocess.run(["sh", "-c", gone], check=False, capture_output=True).returncode != 0


def test_the_check_of_the_image_asks_a_web_process(deployed: Deployed) -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    command = json.loads(text.split("HEALTHCHECK", 1)[1].split("CMD ", 1)[1].splitlines()[0])
    port = deployed.webs["web-1"].port
    for chosen, code in ((port, 0), (free_port(), 1)):
        environment = os.environ | {"LOGDOCTOR_PORT": str(chosen)}
        done = subprocess.run([sys.executable, *command[1:]], env=environment, capture_output=True)
        assert done.returncode == code, done.stderr


def test_prometheus_reads_both_with_the_token_that_was_made(deployed: Deployed, tmp_path: Path) -> None:
    targets = [f"127.0.0.1:{web.port}" for web in deployed.webs.values()]
    with prometheus(tmp_path, targets, deployed.tokens) as url:
        ask = asking(url)
        waiting.until(lambda: [one["value"][1] for one in ask('up{job="logdoctor"}')] == ["1", "1"])
        waiting.until(lambda: [one["value"][1] for one in ask("max(logdoctor_workers)")] == ["2"])
    token = bearer(deployed.tokens.read_text().strip())
    assert deployed.client.get("/v1/verdicts", headers=token).status_code == 200
    assert deployed.client.post("/v1/jobs/x/attempts/1/end", json={}, headers=token).status_code == 403


def test_a_browser_that_signed_in_is_known_to_both(deployed: Deployed, admin: dict[str, str]) -> None:
    secret = admin["Authorization"].removeprefix("Bearer ")
    with httpx.Client(base_url=deployed.client.base_url, timeout=300) as browser:
        key = browser.get("/login").text.split('name="key" value="')[1].split('"')[0]
        answer = browser.post("/login", data={"token": secret, "key": key})
        assert answer.status_code == 303, answer.text
        session = {"Cookie": f"logdoctor={browser.cookies['logdoctor']}"}
    for web in deployed.webs.values():
        assert web.client.get("/attempts", headers=session | {"Accept": "text/html"}).status_code == 200


def test_one_of_each_may_die(deployed: Deployed, admin: dict[str, str]) -> None:
    deployed.webs["web-1"].kill()
    deployed.workers[0].kill()
    assert judged(deployed, admin, "second")["reason"] == "Out of Memory Error"
    deployed.start_web("web-1")
    deployed.start_worker(1)


def test_they_stop_when_they_are_told(deployed: Deployed) -> None:
    processes = [*[web.process for web in deployed.webs.values()], *deployed.workers[1:]]
    for running in processes:
        running.send_signal(signal.SIGTERM)
    assert [running.wait() for running in processes] == [0, 0, 0, 0]
