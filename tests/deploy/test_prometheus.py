"""Alerts and panels, as promtool reads them; story_prometheus.py asks a real Prometheus."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import DEPLOY, ran, tool
from tests.soak import SOAKING

FOLDER = DEPLOY / "prometheus"
ALERTS = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "logdoctor.json").read_text())
PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]


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


@pytest.mark.more_in_soak
@pytest.mark.parametrize("name", [rule["alert"] for rule in (ALERTS if SOAKING else ALERTS[::7])])
def test_the_tests_of_alerts_notice_one_that_never_fires(name: str, tmp_path: Path) -> None:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    (rule,) = (rule for group in groups["groups"] for rule in group["rules"] if rule["alert"] == name)
    rule["expr"] = f"vector(1) == 2 and ({rule['expr']})"
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(groups, width=10_000))
    (tmp_path / "alerts_test.yml").write_text((FOLDER / "alerts_test.yml").read_text())
    done = ran(tool("promtool"), "test", "rules", tmp_path / "alerts_test.yml")
    assert done.returncode == 1 and name in done.stdout + done.stderr


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
