"""Vectors in a real server, and in a folder that several processes use."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from logdoctor.errors import RecallError
from logdoctor.failure_agent.cases.vectors import ChromaVectors, VectorRow
from tests.failure_agent.cases.chroma import WordEmbedder, chroma_server
from tests.failure_agent.cases.vectors import ROWS, Opened, VectorsContract


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chroma_server(tmp_path_factory.mktemp("server") / "chroma") as url:
        yield url


class TestServer(VectorsContract):
    """A server keeps the contract."""

    @pytest.fixture
    def opened(self, server: str) -> Iterator[Opened]:
        space, made = f"t{uuid4().hex}", []

        def open_(name: str = "cases") -> ChromaVectors:
            made.append(ChromaVectors(None, server, f"{space}-{name}", WordEmbedder(), seconds=300))
            return made[-1]

        yield open_
        for vectors in made:
            vectors.close()


def test_a_server_that_is_away_and_comes_back(tmp_path: Path) -> None:
    with chroma_server(tmp_path / "c") as url:
        vectors = ChromaVectors(None, url, "cases", WordEmbedder(), seconds=300)
        vectors.add(ROWS)
    with pytest.raises(RecallError, match=r"Chroma server http://127.0.0.1:\d+ does not answer"):
        vectors.count()


def _write(folder: Path, number: int) -> None:
    """What one of several processes does; a process of its own, because Chroma is not made to be forked."""
    with closing(ChromaVectors(folder, "", "cases", WordEmbedder(), seconds=300)) as vectors:
        for part in range(8):
            vectors.add([VectorRow(f"{number}-{part}", f"word{number} part{part}", {})])
            assert vectors.search(f"word{number} part{part}", 1)[0].id == f"{number}-{part}"
            vectors.count()


def test_processes_share_a_folder(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_write, args=(tmp_path / "v", number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with closing(ChromaVectors(tmp_path / "v", "", "cases", WordEmbedder())) as vectors:
        assert len(vectors.search("word1", 100)) == vectors.count() == 24


def test_a_killed_writer_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from logdoctor.failure_agent.cases.vectors import ChromaVectors, VectorRow\n"
        "from tests.failure_agent.cases.chroma import WordEmbedder\n"
        "vectors = ChromaVectors(pathlib.Path(sys.argv[1]), '', 'cases', WordEmbedder())\n"
        "for number in range(10**6):\n"
        "    vectors.add([VectorRow(f'{number}-{part}', f'word{number}', {}) for part in range(40)])\n"
        "    print(number, flush=True)\n"
    )
    folder = tmp_path / "v"
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        done = [int(process.stdout.readline()) for _ in range(12)][-1]
        process.kill()
    with closing(ChromaVectors(folder, "", "cases", WordEmbedder(), seconds=300)) as vectors:
        assert vectors.count() >= 40 * (done + 1)
        assert vectors.search("word3", 1)[0].text == "word3"


def test_neither_the_environment_nor_the_network_is_used(tmp_path: Path) -> None:
    """In a process that may not open a connection, with an environment and a .env that would mislead Chroma."""
    program = (
        "import socket, sys, pathlib\n"
        "def refused(*_): raise SystemExit('a connection was tried')\n"
        "socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refused\n"
        "from logdoctor.failure_agent.cases.embedding import SentenceEmbedder\n"
        "from logdoctor.failure_agent.cases.vectors import *\n"
        "embedder = SentenceEmbedder(); warm(embedder)\n"
        "vectors = ChromaVectors(pathlib.Path('v'), '', 'cases', embedder)\n"
        "vectors.add([VectorRow('1', 'disk quota exceeded', {})])\n"
        "assert vectors.search('no space left on device', 1)[0].id == '1'\n"
        "assert LogQuery([Chunk('1', 'disk full'), Chunk('2', 'loss 3')], embedder).search('quota', 1)[0].id == '1'\n"
    )
    (tmp_path / ".env").write_text("PERSIST_DIRECTORY=elsewhere\nIS_PERSISTENT=FALSE\n")
    misleading = {
        "CHROMA_API_IMPL": "chromadb.api.fastapi.FastAPI",
        "CHROMA_SERVER_HOST": "192.0.2.1",
        "PERSIST_DIRECTORY": str(tmp_path / "elsewhere"),
        "ANONYMIZED_TELEMETRY": "True",
        "CHROMA_OTEL_COLLECTION_ENDPOINT": "http://192.0.2.1:4317",
        "CHROMA_OTEL_GRANULARITY": "all",
        "HTTPS_PROXY": "http://192.0.2.1:3128",
        "HOME": "/proc",  # nothing can be written there
    }
    environment = {**os.environ, **misleading, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "v" / "chroma.sqlite3").exists() and not (tmp_path / "elsewhere").exists()
    assert done.stdout == ""
