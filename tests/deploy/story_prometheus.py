"""Alerts and panels, as a real Prometheus answers them over the figures of a real service."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests import waiting
from tests.deploy.files import tool
from tests.deploy.test_prometheus import ALERTS, FOLDER, PANELS
from tests.ports import free_port
from tests.web.conftest import FAILED, bearer, running_in

_VARIABLES = {"$job": ".*", "$__rate_interval": "1m"}


def expressions() -> list[tuple[str, str]]:
    """Every expression, with the alert or the panel that it belongs to."""
    found = [(rule["alert"], rule["expr"]) for rule in ALERTS] + PANELS
    for name, value in _VARIABLES.items():
        found = [(place, expression.replace(name, value)) for place, expression in found]
    return found


def selectors(expression: str) -> set[str]:
    """The series that an expression asks for, without their ranges."""
    return {
        name + (labels or "")
        for name, labels in re.findall(r"\b([a-z][a-z0-9_]+)\b(\{[^}]*\})?(?!\s*\()", _without_labels(expression))
        if name == "up" or name.startswith(("logdoctor_", "process_"))
    }


def _without_labels(expression: str) -> str:
    return re.sub(r"\b(by|without|on)\s*\([^)]*\)", "", expression)


class Ask(NamedTuple):
    """Asks a Prometheus what an expression gives."""

    url: str

    def __call__(self, expression: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=300).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def evaluations(self) -> list[str]:
        """When it last evaluated each group of rules."""
        told = httpx.get(f"{self.url}/api/v1/rules", timeout=300).json()
        return [group["lastEvaluation"] for group in told["data"]["groups"]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Asks a real Prometheus, with our configuration, that scrapes a service with a log and a target for messages."""
    folder = tmp_path_factory.mktemp("prometheus")
    hook = f"ops=http://127.0.0.1:{free_port()}/hook"
    with running_in(folder / "data", LOGDOCTOR_AUTH="on", LOGDOCTOR_NOTIFY_SLACK=hook) as running:
        token = running.start_with_token()
        for n, body in enumerate((FAILED, FAILED)):
            log = f"/v1/jobs/job-{n}/attempts/1/streams/main/log"
            assert running.client.post(log, params={"offset": 0}, content=body, headers=token).status_code == 200
        running.client.post("/v1/jobs/job-0/attempts/1/end", json={"exit_code": 1}, headers=token)
        waiting.until(lambda: running.client.get("/v1/jobs/job-0/attempts/1/verdict", headers=token).status_code == 200)
        (folder / "token").write_text(running.command("tokens", "create", "prometheus", "--scope", "read"))
        assert running.client.get("/metrics", headers=bearer((folder / "token").read_text().strip())).status_code == 200
        with prometheus(folder, [f"127.0.0.1:{running.port}"], folder / "token") as url:
            yield asking(url)


def configured(targets: list[str], token: Path, rules: Path) -> str:
    """Our configuration, with other places, and in a hurry."""
    text = (FOLDER / "prometheus.yml").read_text()
    for mine, theirs in (
        ('["web-1:8080", "web-2:8080"]', json.dumps(targets)),
        ("/run/logdoctor-metrics/token", str(token)),
        ("[alerts.yml]", json.dumps([str(rules)])),
        ("15s", "1s"),
    ):
        assert mine in text
        text = text.replace(mine, theirs)
    return text


class prometheus:
    """A real Prometheus over these targets; within `with` its URL."""

    def __init__(self, folder: Path, targets: list[str], token: Path) -> None:
        file = folder / "prometheus.yml"
        file.write_text(configured(targets, token, FOLDER / "alerts.yml"))
        place = f"127.0.0.1:{free_port()}"
        self.url = f"http://{place}"
        data = f"--storage.tsdb.path={folder}/tsdb"
        self._command = [tool("prometheus"), f"--config.file={file}", data, f"--web.listen-address={place}"]
        self._log = folder / "prometheus.log"

    def __enter__(self) -> str:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            waiting.until(self._is_ready)
        except BaseException:
            self.__exit__()
            raise
        return self.url

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            return httpx.get(f"{self.url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False


def asking(url: str) -> Ask:
    """What asks a Prometheus, once that has figures of a service."""
    ask = Ask(url)
    waiting.until(lambda: ask("logdoctor_bytes_in_total"))
    return ask


@pytest.mark.parametrize(("place", "expression"), expressions(), ids=lambda one: one.replace(" ", "-")[:40])
def test_it_asks_for_what_there_is(ask: Ask, place: str, expression: str) -> None:
    asked = selectors(expression)
    assert asked, expression
    labels = {word for _, words in re.findall(r"\b(by|on) \(([^)]*)\)", expression) for word in words.split(", ")}
    for selector in asked:
        found = waiting.until(lambda selector=selector: ask(selector), f"a series {selector}")  # type: ignore[misc]
        missing = [label for label in labels if not any(label in series["metric"] for series in found)]
        assert missing == [], f"{selector} has no label {missing}"
    ask(expression)


def test_panels_show_something(ask: Ask) -> None:
    waiting.until(lambda: all(ask(_replaced(expression)) for _, expression in PANELS), "all panels show something")


def _replaced(expression: str) -> str:
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_a_healthy_service_raises_no_alert(ask: Ask) -> None:
    before = ask.evaluations()
    waiting.until(lambda: all(one != other for one, other in zip(before, ask.evaluations(), strict=True)))
    raised = {series["metric"]["alertname"] for series in ask('ALERTS{alertstate="firing"}')}
    # the message to a target that does not answer is not late yet; the disk of this machine may be full
    assert raised <= {"LogdoctorDiskLow", "LogdoctorDiskFull"}


def test_names_that_do_not_exist_would_be_found(ask: Ask) -> None:
    assert ask("logdoctor_bytes_in") == [] and ask('logdoctor_model_calls_total{result="good"}') == []
    assert selectors('sum by (job) (rate(logdoctor_x_total{a="b"}[5m])) > up') == {'logdoctor_x_total{a="b"}', "up"}
