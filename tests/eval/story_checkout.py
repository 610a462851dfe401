"""The wheel has all of the package, the rules and the prompts, and no code that measures; the commands that need it
find it in a checkout, or say what to do."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = (["eval", "eval/corpus"], ["eval", "--help"], ["nodes", "simulate", "--nodes", "4", "--faulty", "1"])
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs, and nothing else."""
    made = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-c", BUILD, str(made)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = made.glob("*.whl")
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(package: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "logdoctor.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_contains_every_module_rule_and_prompt(installed: Path) -> None:
    there = {path.relative_to(installed / "logdoctor") for path in (installed / "logdoctor").rglob("*")}
    files = {path for path in (ROOT / "logdoctor").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.relative_to(ROOT / "logdoctor") for path in files} <= there
    for folder in ("rules", "prompts"):
        assert {"data" / path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()} <= there


def test_the_wheel_has_no_code_that_measures(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"logdoctor"}
    assert not [*installed.rglob("biglog.py"), *installed.rglob("*_curve.py"), *installed.rglob("table3.py")]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_without_a_checkout_the_command_says_where_to_run_it(
    installed: Path, tmp_path: Path, arguments: list[str]
) -> None:
    done = run(installed, tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("logdoctor: command ") and done.stderr.count("\n") == 1
    assert "Clone the repository" in done.stderr


def test_help_lists_the_commands_everywhere(installed: Path, tmp_path: Path) -> None:
    for package in (installed, ROOT):
        assert "\n  eval " in run(package, tmp_path, "--help").stdout
        assert "\n  simulate " in run(package, tmp_path, "nodes", "--help").stdout


def test_a_checkout_is_found_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "eval").mkdir()  # a folder of that name is not taken for it
    assert "learn-filters" in run(ROOT, tmp_path, "eval", "--help").stdout
    done = run(ROOT, tmp_path, "nodes", "simulate", "--nodes", "4", "--faulty", "1", "--trials", "5")
    assert done.returncode == 0 and "DLRover" in done.stdout
