"""What an installation without extras can do, what each extra adds, and what is said where one is missing.

Each runs in an environment that is made of links to the installed distributions that its requirements name, and to
theirs, and holds nothing else: `python -S` sees no other site-packages.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

from tests.test_extras import closure, required

ROOT = Path(__file__).parents[1]
LOG = str(ROOT / "eval/corpus/failures/inf-028.log")
Command = Callable[..., subprocess.CompletedProcess[str]]


def link(installed: Distribution, folder: Path) -> None:
    """Link the files of a distribution, and whole packages where no other distribution shares them."""
    files = [file for file in installed.files or () if ".." not in file.parts and "__pycache__" not in file.parts]
    packages = {file.parts[0] for file in files if len(file.parts) == 2 and file.name == "__init__.py"}
    for parts in {file.parts[:1] if file.parts[0] in packages else file.parts for file in files}:
        (folder / Path(*parts)).parent.mkdir(parents=True, exist_ok=True)
        source = Path(str(installed.locate_file(Path(*parts))))
        if not (folder / Path(*parts)).exists() and source.exists():
            (folder / Path(*parts)).symlink_to(source)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Command]:
    """Runs Python code, or commands of logdoctor, in an installation with one extra; "" for none."""
    made: dict[str, Path] = {}

    def with_extra(extra: str) -> Command:
        if extra not in made:
            made[extra] = tmp_path_factory.mktemp(extra or "bare")
            needed = closure(required() + (required(extra) if extra else []))
            for installed in (*needed.values(), distribution("logdoctor")):  # its code is that of the checkout
                link(installed, made[extra])
        data = tmp_path_factory.mktemp("data")
        own = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CACHE_HOME") if name in os.environ}
        own |= {"LOGDOCTOR_DATA_DIR": str(data), "PYTHONPATH": f"{made[extra]}:{ROOT}"}

        def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-S", "-s", *arguments]
            return subprocess.run(command, capture_output=True, text=True, cwd=data, env=own | settings)

        return run

    return with_extra


CLI = ("-m", "logdoctor.cli")


@pytest.mark.parametrize(
    "arguments",
    [
        ("diagnose", "--explain", LOG),
        ("eval", str(ROOT / "eval/corpus/healthy")),
        ("rules", "list"),
        ("run", "--help"),
        ("checkpoints", "list", str(ROOT / "eval")),
    ],
    ids=lambda arguments: arguments[0],
)
def test_works_without_extras(environment: Callable[[str], Command], arguments: tuple[str, ...]) -> None:
    done = environment("")(*CLI, *arguments)
    assert done.returncode == (1 if arguments[0] == "diagnose" else 0), done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve",),
        ("diagnose", "--ask", LOG),
        *((noun, "list") for noun in ("cases", "incidents", "nodes", "tokens")),
        ("report",),
    ],
    ids=" ".join,
)
def test_a_missing_extra_is_named(environment: Callable[[str], Command], arguments: tuple[str, ...]) -> None:
    done = environment("")(*CLI, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("logdoctor: the extra 'service' is not installed (no library ")
    assert done.stderr.endswith(f"Run `pip install -e '{ROOT}[service]'`.\n")
    assert done.stderr.count("\n") == 1


def test_other_agents_need_one_extra(environment: Callable[[str], Command]) -> None:
    refused = environment("service")(*CLI, "mcp")
    assert refused.returncode == 2 and refused.stderr.endswith(f"Run `pip install -e '{ROOT}[mcp]'`.\n")
    done = environment("mcp")(*CLI, "mcp")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_archives_need_one_extra_and_name_the_others(environment: Callable[[str], Command]) -> None:
    command = (*CLI, "batch", LOG, "--out", "v.parquet")
    refused = environment("")(*command)
    assert refused.returncode == 2 and refused.stderr.endswith(f"Run `pip install -e '{ROOT}[batch]'`.\n")
    archives = environment("batch")
    assert "Diagnosed 1 attempt" in archives(*command).stderr
    for more, extra in ((("--ask",), "service"), (("--ray", "auto"), "ray")):
        refused = archives(*command, *more)
        assert refused.returncode == 2 and f"'{ROOT}[{extra}]'" in refused.stderr and "Traceback" not in refused.stderr


MODEL = {"LOGDOCTOR_LLM_BASE_URL": "http://127.0.0.1:9/v1", "LOGDOCTOR_LLM_MODEL": "none"}


@pytest.mark.parametrize(
    ("extra", "arguments", "settings"),
    [
        ("agents", ("serve", "--port", "0"), MODEL),
        ("cluster", ("serve", "--port", "0"), {"LOGDOCTOR_DATABASE_URL": "postgresql+psycopg://u@127.0.0.1/x"}),
        ("nodes", ("serve", "--port", "0"), {"LOGDOCTOR_CORDON_WITH": "kubernetes"}),
        ("tracing", ("serve", "--port", "0"), {"LOGDOCTOR_OTLP_URL": "http://127.0.0.1:9"}),
        ("nodes", ("nodes", "test", "--launcher", "ssh", "--nodes", "a,b"), {}),
    ],
    ids=["model", "database", "cordon", "traces", "ssh"],
)
def test_the_service_names_the_extra_that_it_lacks(
    environment: Callable[[str], Command], extra: str, arguments: tuple[str, ...], settings: dict[str, str]
) -> None:
    done = environment("service")(*CLI, *arguments, **settings)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"Run `pip install -e '{ROOT}[{extra}]'`.")


def test_the_service_answers(environment: Callable[[str], Command]) -> None:
    run = environment("service")
    done = run("-c", SERVED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ok", "200"]


SERVED = """
import json, signal, subprocess, sys, urllib.request
serve = subprocess.Popen([sys.executable, "-S", "-s", "-m", "logdoctor.cli", "serve", "--port", "0"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    url = next(one["url"] for one in map(json.loads, serve.stdout) if one["event"] == "listening")
    print(json.load(urllib.request.urlopen(url + "/healthz"))["status"], urllib.request.urlopen(url + "/").status)
finally:
    serve.send_signal(signal.SIGTERM)
sys.exit(serve.wait())
"""


def test_agents_have_their_libraries(environment: Callable[[str], Command]) -> None:
    done = environment("agents")("-c", ASKED)
    assert done.returncode == 0, done.stderr


ASKED = """
from logdoctor.failure_agent.cases.embedding import SentenceEmbedder
from logdoctor.failure_agent.cases.vectors import warm
from logdoctor.llm.langchain import _clients
warm(SentenceEmbedder())
_clients()
"""


def test_training_programs_need_one_extra(environment: Callable[[str], Command]) -> None:
    refused = environment("")("-c", "import logdoctor.checkpoint")
    assert refused.stderr.endswith(f"Run `pip install -e '{ROOT}[checkpoint]'`.\n")
    done = environment("checkpoint")("-W", "ignore", "-c", SAVED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["verified", "[]"]


SAVED = """
import sys, torch
from logdoctor.checkpoint import Checkpointer, load
with Checkpointer("checkpoints") as checkpoints:
    save = checkpoints.save({"weight": torch.ones(100_000)}, step=1)
state = {"weight": torch.zeros(100_000)}
assert load("checkpoints", state) and state["weight"].min() == 1
print(save.state, [name for name in ("fastapi", "sqlalchemy", "click", "transformers") if name in sys.modules])
"""


def test_nodes_have_their_libraries(environment: Callable[[str], Command]) -> None:
    done = environment("nodes")("-c", REACHED)
    assert done.returncode == 0, done.stderr


def test_traces_have_their_libraries(environment: Callable[[str], Command]) -> None:
    done = environment("tracing")("-c", TRACED)
    assert done.returncode == 0, done.stderr


TRACED = """
import logdoctor.wiring.tracing
from logdoctor.settings import Settings
logdoctor.wiring.tracing.tracer(Settings(otlp_url="http://127.0.0.1:9"))
"""

REACHED = """
import logdoctor.nodes.cordon.kubernetes, logdoctor.nodes.launch.kubernetes, logdoctor.nodes.launch.ssh
import logdoctor.nodes.launch.slurm, logdoctor.words.nodesets, logdoctor.wiring.nodes
from logdoctor.settings import read_settings
logdoctor.wiring.nodes.actor(read_settings())
"""
