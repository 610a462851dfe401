"""Alerts and panels: as promtool and a real Prometheus read them, over the figures of a real service."""

import json
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.files import DEPLOY, ran, tool
from tests.web.conftest import FAILED, bearer, running_in, wait_for

FOLDER = DEPLOY / "prometheus"
ALERTS = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "logdoctor.json").read_text())
PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
_VARIABLES = {"$job": ".*", "$__rate_interval": "1m"}
_WORDS = frozenset("and or unless by without on ignoring offset bool".split())


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


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_promtool_takes_the_files_and_every_alert_has_a_test() -> None:
    for command in (
        ("check", "config", "--syntax-only", FOLDER / "prometheus.yml"),
        ("check", "rules", FOLDER / "alerts.yml"),
        ("test", "rules", FOLDER / "alerts_test.yml"),
    ):
        done = ran(tool("promtool"), *command)
        assert done.returncode == 0, done.stdout + done.stderr
    tests = (FOLDER / "alerts_test.yml").read_text()
    assert [rule["alert"] for rule in ALERTS if rule["alert"] not in tests] == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_the_tests_of_alerts_notice_one_that_never_fires(rule: dict[str, Any], tmp_path: Path) -> None:
    text = (FOLDER / "alerts.yml").read_text()
    head, found, tail = text.partition(f"      - alert: {rule['alert']}\n")
    assert found
    expression = yaml.safe_dump({"expr": f"vector(1) == 2 and ({rule['expr']})"}, width=10_000)
    begin, end = re.search(r"        expr: .*\n(?:          .*\n)*", tail).span()  # type: ignore[union-attr]
    (tmp_path / "alerts.yml").write_text(head + found + tail[:begin] + f"        {expression}" + tail[end:])
    (tmp_path / "alerts_test.yml").write_text((FOLDER / "alerts_test.yml").read_text())
    assert ran(tool("promtool"), "test", "rules", tmp_path / "alerts_test.yml").returncode == 1


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"].endswith(".") and rule["annotations"]["runbook"].endswith(".")


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) > 20
    assert all(panel["description"] and panel["title"] for panel in DASHBOARD["panels"])
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    used = {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]}
    assert used == {source["uid"] for source in sources}
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/logdoctor.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"


Ask = Callable[[str], list[dict[str, Any]]]


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
        wait_for(lambda: running.client.get("/v1/jobs/job-0/attempts/1/verdict", headers=token).status_code == 200)
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
            wait_for(self._is_ready)
        except BaseException:
            self.__exit__()
            raise
        return self.url

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            return httpx.get(f"{self.url}/-/ready").status_code == 200
        except httpx.TransportError:
            return False


def asking(url: str) -> Ask:
    """A function that asks a Prometheus what an expression gives."""

    def ask(expression: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{url}/api/v1/query", params={"query": expression}, timeout=30).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    wait_for(lambda: ask("logdoctor_bytes_in_total"))
    return ask


@pytest.mark.parametrize(("place", "expression"), expressions(), ids=lambda one: one.replace(" ", "-")[:40])
def test_it_asks_for_what_there_is(ask: Ask, place: str, expression: str) -> None:
    asked = selectors(expression)
    assert asked, expression
    labels = {word for _, words in re.findall(r"\b(by|on) \(([^)]*)\)", expression) for word in words.split(", ")}
    for selector in asked:
        found = ask(selector)
        assert found, f"no series {selector}"
        missing = [label for label in labels if not any(label in series["metric"] for series in found)]
        assert missing == [], f"{selector} has no label {missing}"
    ask(expression)


def test_panels_show_something(ask: Ask) -> None:
    wait_for(lambda: ask("rate(logdoctor_bytes_in_total[1m])"))
    shown = [title for title, expression in PANELS if ask(_replaced(expression))]
    assert shown == [title for title, _ in PANELS]


def _replaced(expression: str) -> str:
    for name, value in _VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def test_a_healthy_service_raises_no_alert(ask: Ask) -> None:
    time.sleep(3)  # rules are evaluated every second
    raised = {series["metric"]["alertname"] for series in ask('ALERTS{alertstate="firing"}')}
    # the message to a target that does not answer is not late yet; the disk of this machine may be full
    assert raised <= {"LogdoctorDiskLow", "LogdoctorDiskFull"}


def test_names_that_do_not_exist_would_be_found(ask: Ask) -> None:
    assert ask("logdoctor_bytes_in") == [] and ask('logdoctor_model_calls_total{result="good"}') == []
    assert selectors('sum by (job) (rate(logdoctor_x_total{a="b"}[5m])) > up') == {'logdoctor_x_total{a="b"}', "up"}
