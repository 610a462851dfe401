"""The files to deploy with, and the programs that check them."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = ROOT / "docker-compose.yml"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SECRETS = {"POSTGRES_PASSWORD": "p1", "REDIS_PASSWORD": "r1", "GRAFANA_PASSWORD": "g1"}
TEXTS = sorted(
    path
    for path in (COMPOSE, *DEPLOY.rglob("*"), ROOT / "docs" / "deploy.md", ROOT / "SECURITY.md")
    if path.is_file() and path.suffix != ".lock"
)
"""All files that an operator works with."""

_TOOLS = ROOT / "build" / "deploy-tools" / "bin"


def tool(name: str) -> str:
    """The path of a program that checks; those from PyPI are in an environment of their own."""
    path = _TOOLS / name
    found = str(path) if path.exists() else shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    assert found, f"{name} is missing: run `make test`, which installs it"
    return found


def ran(*command: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    """A program that has ended, in an environment without settings and secrets of ours."""
    ours = ("LOGDOCTOR_", "COMPOSE_", *SECRETS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    line = [str(word) for word in command]
    return subprocess.run(line, capture_output=True, text=True, env=kept | environment)


def compose(path: Path = COMPOSE, **environment: str) -> "subprocess.CompletedProcess[str]":
    """What the real compose makes of a file."""
    command = (tool("docker-compose"), "--env-file", "/dev/null", "--project-directory", ROOT, "-f", path)
    return ran(*command, "config", "--format", "json", **environment)


def services(**environment: str) -> dict[str, dict[str, Any]]:
    """The services of the compose file, with its secrets and these variables."""
    found: dict[str, dict[str, Any]] = json.loads(_composed(**environment))["services"]
    return found


@cache
def _composed(**environment: str) -> str:
    """What compose makes of its file, which takes a second."""
    done = compose(**SECRETS, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects() -> Iterator[tuple[Path, dict[str, Any]]]:
    """The objects for Kubernetes, each with its file."""
    for path in KUBERNETES:
        for found in yaml.safe_load_all(path.read_text()):
            yield path, found


def image_environment() -> dict[str, str]:
    """The variables that the image sets."""
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if line.startswith("ENV ")]
    return dict(word.split("=", 1) for word in line.removeprefix("ENV ").split())
