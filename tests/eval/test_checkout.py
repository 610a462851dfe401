"""The wheel has no code that measures; the commands that need it find it in a checkout, or say what to do."""

import ast
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


def test_the_wheel_has_no_code_that_measures(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"logdoctor"}
    assert (installed / "logdoctor" / "data" / "rules").is_dir() and (
        installed / "logdoctor" / "data" / "prompts"
    ).is_dir()
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


def test_only_the_loader_knows_of_the_package_that_measures() -> None:
    known = set()
    for path in sorted((ROOT / "logdoctor").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
                names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            else:
                continue
            if any(name.split(".")[0] == "eval" for name in names):
                known.add(str(path.relative_to(ROOT)))
    assert known == {"logdoctor/cli/checkout.py"}
