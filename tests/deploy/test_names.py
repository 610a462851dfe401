"""Settings and commands that the files name are those of the program."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from logdoctor.cli import cli
from logdoctor.settings import Settings, read_settings
from tests.deploy.files import TEXTS, image_environment, objects, services

NAMES = {f"LOGDOCTOR_{name.upper()}" for name in Settings.__struct_fields__}


def environment(name: str) -> dict[str, str]:
    """What a process is started with: a service of compose, or a pod."""
    if name != "kubernetes":
        return image_environment() | services()[name]["environment"]
    given = [one.get("data", {}) | one.get("stringData", {}) for _, one in objects()]
    return image_environment() | {name: text for each in given for name, text in each.items()}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_setting_that_is_named_is_one(path: Path) -> None:
    for name in set(re.findall(r"\bLOGDOCTOR_[A-Z0-9_]*", path.read_text())):
        is_group = name.endswith("_") and any(one.startswith(name) for one in NAMES)  # LOGDOCTOR_LLM_*
        assert name in NAMES or is_group, name


@pytest.mark.parametrize("name", ["init", "web-1", "web-2", "worker", "kubernetes"])
def test_settings_that_are_given_are_valid(name: str) -> None:
    given = {variable: value for variable, value in environment(name).items() if variable.startswith("LOGDOCTOR_")}
    assert {"LOGDOCTOR_DATABASE_URL", "LOGDOCTOR_REDIS_URL", "LOGDOCTOR_ARCHIVE_URL"} <= given.keys()
    settings = read_settings(given)
    assert settings.host == "0.0.0.0" and settings.database_url.startswith("postgresql+psycopg://logdoctor:")


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every call of logdoctor in the files, with where it stands."""
    for name in ("web-1", "web-2", "worker"):
        yield f"compose {name}", services()[name]["command"]
    for path, one in objects():
        if one["kind"] == "Deployment":
            yield path.name, one["spec"]["template"]["spec"]["containers"][0]["args"]
    for path in TEXTS:
        if path.suffix == ".json" or path.name in ("Dockerfile",):
            continue
        text = path.read_text().replace("\\\n", " ")
        for line in re.findall(r"(?:^|[`/ ])logdoctor ((?:[a-z]+ |[a-z]+$)[^`#\n|>&;]*)", text, re.M):
            if line.split()[0] in cli.commands:
                yield path.name, _words(line)
        for line in re.findall(r"run --rm worker ([^`#\n|>&;]+)", text):
            yield path.name, _words(line)


def _words(line: str) -> list[str]:
    """The words of a command line; it may end where its sentence does."""
    filled = re.sub(r"\$\(date[^)]*\)|\{\{[^}]*\}\}|\bNAME\b", "x", re.sub(r"\bID\b", "7", line))
    return shlex.split(filled.strip().rstrip(".,:)'"))


def parse(words: list[str]) -> None:
    """Read the words as the program does, without doing what they say; `UsageError` when they are wrong."""
    command: click.Command = cli
    name, parent = "logdoctor", None
    while True:
        context = command.make_context(name, list(words), parent=parent)
        if not isinstance(command, click.Group):
            return
        rest = [*context._protected_args, *context.args]
        found, inner, words = command.resolve_command(context, rest)
        assert inner is not None and found is not None, rest
        name, command, parent = found, inner, context


def test_there_are_command_lines_in_all_kinds_of_files() -> None:
    places = {place for place, _ in command_lines()}
    assert places >= {
        *("compose web-1", "compose worker", "web.yaml", "worker.yaml", "first-token", "alerts.yml", "deploy.md"),
        *("logdoctor.service", "logdoctor-worker@.service"),
    }


def test_every_command_line_is_one() -> None:
    wrong = []
    for place, words in command_lines():
        try:
            parse(words)
        except click.UsageError as error:
            wrong.append(f"{place}: {' '.join(words)}: {error.message}")
    assert wrong == []


@pytest.mark.parametrize("line", ["serve --rolle web", "tokens create", "notify list --state lost", "worker --port 1"])
def test_a_wrong_command_line_is_found(line: str) -> None:
    with pytest.raises(click.UsageError):
        parse(line.split())
