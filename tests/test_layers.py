"""What the contracts of import-linter in pyproject.toml cannot say about imports; `make lint` checks those."""

import ast
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "logdoctor"
EVERYWHERE = {"msgspec", "numpy", "regex", "structlog"}
"""Libraries that any module may import; each other one has its place in a contract."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("logdoctor", include_external_packages=True, cache_dir=None)


def libraries(graph: grimp.ImportGraph, package: str = "logdoctor") -> set[str]:
    """Libraries that a package imports, inside functions too."""
    modules = {package, *graph.find_descendants(package)}
    imported = {found for module in modules for found in graph.find_modules_directly_imported_by(module)}
    return {found for found in imported if found.split(".")[0] != "logdoctor"} - set(sys.stdlib_module_names)


def test_each_library_has_its_place(graph: grimp.ImportGraph) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    protected = {module for contract in contracts for module in contract.get("protected_modules", ())}
    assert libraries(graph) == EVERYWHERE | {module for module in protected if not module.startswith("logdoctor.")}


def test_the_sender_needs_the_standard_library_only(graph: grimp.ImportGraph) -> None:
    assert libraries(graph, "logdoctor.job.send") == set()


def test_the_probe_needs_the_standard_library_and_torch_only(graph: grimp.ImportGraph) -> None:
    assert libraries(graph, "logdoctor.nodes.probe") == {"torch"}
    imported = graph.find_modules_directly_imported_by("logdoctor.nodes.probe")
    assert not {module for module in imported if module.startswith("logdoctor")}


def test_only_settings_reads_the_environment() -> None:
    words = {"environ", "environb", "getenv"}
    readers = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if any(word in text for word in words):
            attributes = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
            readers |= {str(path.relative_to(PACKAGE))} if attributes & words else set()
    assert readers == {
        "settings.py",
        "job/send/environment.py",
        "nodes/probe.py",
        "trials/sandboxing.py",
        "pipeline/batch/rows.py",
    }  # three run alone, the last tells Arrow which allocator to take
