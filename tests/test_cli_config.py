"""What is in force, and where it comes from, in an environment that the test chooses."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.programs import here


def logdoctor(*words: str, cwd: Path | None = None, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    return here(cwd or Path.cwd(), environment | variables, *words)


def settings(*words: str, **variables: str) -> dict[str, dict[str, Any]]:
    done = logdoctor(*words, "config", "--json", **variables)
    assert done.returncode == 0, done.stderr
    return {one["name"]: one for one in json.loads(done.stdout)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "logdoctor.env"
    path.write_text("LOGDOCTOR_PORT=9001\nLOGDOCTOR_HOST='0.0.0.0'\nLOGDOCTOR_LLM_KEY=sesame\n# no setting\nOTHER=1\n")
    return path


def test_each_value_has_its_source(file: Path) -> None:
    for found in (
        settings("--env-file", str(file), LOGDOCTOR_PORT="9002"),
        settings(LOGDOCTOR_ENV_FILE=str(file), LOGDOCTOR_PORT="9002"),
    ):
        told = {name: (one["value"], one["source"]) for name, one in found.items()}
        assert told["LOGDOCTOR_PORT"] == ("9002", "environment")
        assert told["LOGDOCTOR_HOST"] == ("0.0.0.0", "env file")
        assert told["LOGDOCTOR_LLM_KEY"] == (None, "env file")
        assert told["LOGDOCTOR_ROLE"] == ("all", "default")
        assert told["LOGDOCTOR_DATA_DIR"][0].endswith("/logdoctor")
        assert "sesame" not in json.dumps(found) and found["LOGDOCTOR_PORT"]["default"] == "8080"
        assert all(one["meaning"] for one in found.values())


def test_the_table_shows_no_secret(file: Path) -> None:
    url = "http://user:sesame@models.example/v1"
    done = logdoctor("config", "--set", LOGDOCTOR_ENV_FILE=str(file), LOGDOCTOR_LLM_BASE_URL=url)
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["LOGDOCTOR_LLM_KEY"].split() == ["env", "file", "(secret)"]
    assert lines["LOGDOCTOR_LLM_BASE_URL"].split() == ["environment", "http://***@models.example/v1"]
    assert set(lines) == {f"LOGDOCTOR_{name}" for name in ("PORT", "HOST", "LLM_KEY", "LLM_BASE_URL", "ENV_FILE")}
    assert "sesame" not in done.stdout


def test_all_switches_are_on_or_off_and_values_stand_in_one_column() -> None:
    for said, shown in (("on", "on"), ("Off", "off"), ("true", "on"), ("0", "off")):
        assert settings(LOGDOCTOR_MASK_HOSTS=said)["LOGDOCTOR_MASK_HOSTS"]["value"] == shown
    told = {name: (one["value"], one["default"]) for name, one in settings().items()}
    assert told["LOGDOCTOR_MASK"] == ("on", "on") and told["LOGDOCTOR_MASK_HOSTS"] == ("off", "off")
    lines = [line for line in logdoctor("config").stdout.splitlines() if not line.startswith("#")]
    assert len({line.index(" default ") for line in lines}) == 1, "the longest name broke the column"


def test_what_is_wrong_is_named_with_its_place(file: Path) -> None:
    done = logdoctor("config", LOGDOCTOR_WORKER="1", LOGDOCTOR_PORT="many")
    assert done.returncode == 2 and "LOGDOCTOR_ROLE" in done.stdout
    assert "LOGDOCTOR_WORKER is not a setting" in done.stderr and "LOGDOCTOR_PORT has the value 'many'" in done.stderr
    file.write_text("LOGDOCTOR_PRT=1\n")
    for words in (("config",), ("serve",), ("rules", "list")):
        done = logdoctor("--env-file", str(file), *words)
        assert done.returncode == 2 and f"LOGDOCTOR_PRT ({file}, line 1) is not a setting" in done.stderr
    assert logdoctor("config", LOGDOCTOR_ENV_FILE=str(file.parent / "none")).returncode == 2


def test_an_empty_path_is_not_this_folder(tmp_path: Path, file: Path) -> None:
    home = tmp_path / "home"
    empty = {"LOGDOCTOR_DATA_DIR": "", "LOGDOCTOR_RULES": "", "HOME": str(home), "XDG_DATA_HOME": ""}
    found = settings(**empty)
    assert (found["LOGDOCTOR_DATA_DIR"]["value"], found["LOGDOCTOR_DATA_DIR"]["source"]) == (
        str(home / ".local/share/logdoctor"),
        "default",
    )
    file.write_text(f"LOGDOCTOR_DATA_DIR={tmp_path}\n")
    assert settings("--env-file", str(file), **empty)["LOGDOCTOR_DATA_DIR"]["value"] == str(tmp_path)
    here = tmp_path / "here"
    here.mkdir()
    made = logdoctor("tokens", "create", "a", "--scope", "read", cwd=here, **empty)
    assert made.returncode == 0 and list(here.iterdir()) == []
    assert (home / ".local/share/logdoctor/logdoctor.db").exists()
    refused = logdoctor("tokens", "list", "--data-dir", "", cwd=here)
    assert refused.returncode == 2 and "it is empty" in refused.stderr and list(here.iterdir()) == []


def test_serve_says_where_the_other_settings_are() -> None:
    said = " ".join(logdoctor("serve", "--help").stdout.split())
    assert "docs/settings.md" in said and "`logdoctor config`" in said and "--env-file" in said
