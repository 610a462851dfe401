"""Only one module knows of the package that measures."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_only_the_loader_knows_of_the_package_that_measures() -> None:
    known = set()
    for path in sorted((ROOT / "logdoctor").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search(r"\beval\b", text) else ():
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
