"""The compose file, as the real compose reads it: complete, hardened, and clear about what is missing."""

import re
from pathlib import Path

import pytest

from tests.deploy.files import COMPOSE, DEPLOY, ROOT, SECRETS, compose, ran, services, tool

OURS = ("init", "web-1", "web-2", "worker")
ALL = (*OURS, "proxy", "postgres", "redis", "chroma", "prometheus", "grafana")
EXAMPLE = DEPLOY / "compose" / "env.example"


def test_it_has_all_services() -> None:
    assert services().keys() == set(ALL) - {"chroma"}
    assert services(COMPOSE_PROFILES="agents").keys() == set(ALL)
    assert services()["worker"]["deploy"]["replicas"] == 2


@pytest.mark.parametrize("missing", SECRETS)
@pytest.mark.parametrize("value", [None, ""])
def test_a_secret_that_is_missing_is_named_with_what_to_do(missing: str, value: str | None) -> None:
    given = {name: each for name, each in SECRETS.items() if name != missing}
    done = compose(**given, **({missing: value} if value is not None else {}))
    assert done.returncode != 0
    assert f"required variable {missing} is missing a value: set it in the file .env" in done.stderr
    assert "deploy/compose/env.example" in done.stderr and EXAMPLE.exists()


def test_the_example_names_every_variable() -> None:
    used = set(re.findall(r"(?<!\$)\$\{([A-Z_]+)", COMPOSE.read_text()))
    named = set(re.findall(r"^#?([A-Z_]+)=", EXAMPLE.read_text(), re.M)) | {"PROMETHEUS_PORT", "GRAFANA_PORT", "IMAGE"}
    assert used <= named
    assert SECRETS.keys() == set(re.findall(r"^([A-Z_]+)=$", EXAMPLE.read_text(), re.M)), "secrets have no value there"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("service_completed_successfully", "service_completed"),
        ("postgres: {condition: service_healthy}", "postgre: {condition: service_healthy}"),
        ("read_only: true", "readonly: true"),
        ('volumes: ["chroma:/data"]', 'volumes: ["chrome:/data"]'),
    ],
)
def test_compose_finds_what_is_wrong(tmp_path: Path, right: str, wrong: str) -> None:
    text = COMPOSE.read_text()
    assert right in text
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(text.replace(right, wrong, 1))
    assert compose(broken, COMPOSE_PROFILES="agents", **SECRETS).returncode != 0


def test_whoever_is_awaited_has_a_health_check() -> None:
    found = services(COMPOSE_PROFILES="agents")
    checked = {name for name, one in found.items() if one.get("healthcheck", {}).get("test")}
    if "HEALTHCHECK" in (DEPLOY / "Dockerfile").read_text():
        checked |= {name for name in OURS if "healthcheck" not in found[name]}
    for name, one in found.items():
        for awaited, how in one.get("depends_on", {}).items():
            assert how["condition"] != "service_healthy" or awaited in checked, f"{name} waits for {awaited}"
            is_to_end = found[awaited].get("restart") == "no"
            assert (how["condition"] == "service_completed_successfully") == is_to_end
    assert checked == found.keys() - {"init"}


@pytest.mark.parametrize("name", ALL)
def test_every_service_is_hardened_and_bounded(name: str) -> None:
    one = services(COMPOSE_PROFILES="agents")[name]
    assert one["read_only"] and one["cap_drop"] == ["ALL"] and one["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in one and "cap_add" not in one
    assert one["restart"] == ("no" if name == "init" else "unless-stopped")
    assert {"cpus", "memory", "pids"} <= one["deploy"]["resources"]["limits"].keys()
    assert one["logging"]["options"].keys() == {"max-size", "max-file"}
    assert name == "chroma" or one["user"].split(":")[0] != "0"
    assert "docker.sock" not in str(one)
    assert all(port["host_ip"] == "127.0.0.1" for port in one.get("ports", []))
    if name in ("postgres", "redis", "chroma"):
        assert one["networks"].keys() == {"back"}, "it has no way out"


def test_those_who_serve_have_time_to_stop() -> None:
    assert all(services()[name]["stop_grace_period"] == "1m30s" for name in OURS)


def test_no_secret_is_in_the_file() -> None:
    text = COMPOSE.read_text()
    assert not re.search(r"(?i)(password|secret|key|token)[\"']?: *[\"']?[A-Za-z0-9]", re.sub(r"\$\{[^}]*\}", "", text))


def test_mounted_files_are_there() -> None:
    sources = [
        Path(volume["source"])
        for one in services().values()
        for volume in one.get("volumes", [])
        if volume["type"] == "bind"
    ]
    assert len(sources) == 5
    assert all(source.exists() and ROOT in source.parents for source in sources)


def test_each_web_process_has_a_folder_of_its_own() -> None:
    found = services()
    folders = [
        next(volume.get("source") for volume in found[name]["volumes"] if volume["target"] == "/var/lib/logdoctor")
        for name in OURS
    ]
    assert folders == [None, "web-1", "web-2", None]  # None: one for each container


def test_a_linter_finds_nothing_but_tags() -> None:
    """Images are named by tags: their digests are the choice of who deploys them."""
    done = ran(tool("compose-lint"), "check", "--no-env", "--fail-on", "low", "--format", "json", COMPOSE)
    rules = set(re.findall(r"CL-\d{4}", done.stdout))
    assert rules <= {"CL-0019"}, done.stdout


def test_the_proxy_takes_its_file() -> None:
    done = ran(tool("haproxy"), "-c", "-f", DEPLOY / "haproxy" / "haproxy.cfg")
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"^    server (\S+) \1:8080 ", (DEPLOY / "haproxy" / "haproxy.cfg").read_text(), re.M)) == {
        "web-1",
        "web-2",
    }
