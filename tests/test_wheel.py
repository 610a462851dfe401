"""A built wheel contains all of the package, the rules and the prompts."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_contains_every_module_rule_and_prompt(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    files = {path for path in (ROOT / "logdoctor").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {str(path.relative_to(ROOT)) for path in files} <= names
    for folder in ("rules", "prompts"):
        carried = {path for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert {f"logdoctor/data/{path.relative_to(ROOT)}" for path in carried} <= names
