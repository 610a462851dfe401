"""Vectors in a real folder and a real server: the same contract, then what each may suffer."""

import gc
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from logdoctor.errors import RecallError, VectorsDamaged
from logdoctor.failure_agent.cases.vectors import ChromaVectors, Chunk, LogQuery, VectorRow, warm
from tests.failure_agent.cases.chroma import WordEmbedder, chroma_server

ROWS = [
    VectorRow("1", "disk quota exceeded on volume", {"reason": "OS Error"}),
    VectorRow("2", "illegal memory access in kernel", {"reason": "CUDA Error"}),
    VectorRow("3", "disk full on volume", {"reason": "OS Error"}),
]
Opened = Callable[..., ChromaVectors]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chroma_server(tmp_path_factory.mktemp("server") / "chroma") as url:
        yield url


@pytest.fixture(params=["folder", "server"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens vectors of a name, which only this test has; any number of times."""
    url = request.getfixturevalue("server") if request.param == "server" else ""
    space, made = f"t{abs(hash(request.node.name))}", []

    def open_(name: str = "cases") -> ChromaVectors:
        folder = None if url else tmp_path / "vectors"
        made.append(ChromaVectors(folder, url, f"{space}-{name}", WordEmbedder()))
        return made[-1]

    yield open_
    for vectors in made:
        vectors.close()


class TestVectors:
    def test_the_nearest_comes_first_with_its_cosine(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add(ROWS)
        hits = vectors.search("disk quota exceeded on volume", 2)
        assert [hit.id for hit in hits] == ["1", "3"]
        assert hits[0].score == pytest.approx(1.0, abs=1e-5) and hits[0][2:] == ROWS[0][1:]
        one, other = WordEmbedder().embed([ROWS[0].text, ROWS[2].text])
        assert hits[1].score == pytest.approx(float(one @ other), abs=1e-4)

    def test_facts_select(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add([*ROWS, VectorRow("4", "disk", {"reason": "OS Error", "case": "4"})])
        assert [hit.id for hit in vectors.search("disk", 9, {"reason": "CUDA Error"})] == ["2"]
        assert [hit.id for hit in vectors.search("disk", 9, {"reason": "OS Error", "case": "4"})] == ["4"]

    def test_rows_are_added_once_removed_and_counted(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add(ROWS)
        vectors.add([VectorRow("1", "other words", {})])
        assert (vectors.ids(), vectors.count()) == ({"1", "2", "3"}, 3)
        assert vectors.search("other words", 1)[0].text != "other words"
        vectors.remove(["1", "unheard of"])
        vectors.remove([])
        assert vectors.ids() == {"2", "3"}

    def test_nothing_is_found_among_nothing(self, opened: Opened) -> None:
        vectors = opened()
        assert (vectors.search("disk", 3), vectors.ids(), vectors.count()) == ([], set(), 0)

    def test_cleared_is_empty_and_usable(self, opened: Opened) -> None:
        vectors, other = opened(), opened()
        vectors.add(ROWS)
        assert other.count() == 3
        vectors.clear()
        assert (vectors.count(), other.count(), other.search("disk", 3)) == (0, 0, [])
        other.add(ROWS[:1])
        assert vectors.ids() == {"1"}

    def test_names_are_apart(self, opened: Opened) -> None:
        opened("one").add(ROWS)
        assert opened("two").count() == 0

    def test_odd_texts(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add(
            [
                VectorRow("nul", "a\0b \udc80", {"reason": "\udcff\0"}),
                VectorRow("long", "x y " * 300_000, {}),
                VectorRow("", "", {}),
            ][:2]
        )
        assert {hit.id for hit in vectors.search("\udc80 \0", 5)} == {"nul", "long"}
        assert max(len(hit.text) for hit in vectors.search("x", 5)) < 5000

    def test_more_than_are_there_may_be_asked_for(self, opened: Opened) -> None:
        vectors = opened()
        vectors.add(ROWS)
        assert len(vectors.search("disk", 10**9)) == 3

    def test_one_sees_what_another_wrote(self, opened: Opened) -> None:
        vectors, other = opened(), opened()
        for number in range(3):
            (vectors if number % 2 else other).add([VectorRow(str(number), f"word{number} here", {})])
            assert {hit.id for hit in vectors.search("here", 9)} == {str(n) for n in range(number + 1)}
            assert {hit.id for hit in other.search("here", 9)} == {str(n) for n in range(number + 1)}
        vectors.remove(["0"])
        assert {hit.id for hit in other.search("here", 9)} == {"1", "2"}

    def test_threads_share_one(self, opened: Opened) -> None:
        vectors = opened()

        def found(number: int) -> list[str]:
            for part in range(4):
                vectors.add([VectorRow(f"{number}-{part}", f"word{number} part{part}", {})])
            return [vectors.search(f"word{number} part{part}", 1)[0].id for part in range(4)]

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(found, range(6))) == [[f"{n}-{part}" for part in range(4)] for n in range(6)]
        assert vectors.count() == 24


# --- a folder


def _write(folder: Path, number: int) -> None:
    """What one of several processes does; a process of its own, because Chroma is not made to be forked."""
    with closing(ChromaVectors(folder, "", "cases", WordEmbedder(), seconds=60)) as vectors:
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
        process.join(120)
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
    with closing(ChromaVectors(folder, "", "cases", WordEmbedder(), seconds=1)) as vectors:
        assert vectors.count() >= 40 * (done + 1)
        assert vectors.search("word3", 1)[0].text == "word3"


def test_a_folder_that_others_hold_is_an_error_in_time(tmp_path: Path) -> None:
    import fcntl

    vectors = ChromaVectors(tmp_path, "", "cases", WordEmbedder(), seconds=0.2)
    vectors.add(ROWS)
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begin = time.monotonic()
        with pytest.raises(RecallError, match="another process"):
            vectors.count()
        assert time.monotonic() - begin < 60
    assert vectors.count() == 3
    vectors.close()


@pytest.mark.parametrize("damage", ["garbage", "cut", "empty", "gone", "index garbage", "index gone"])
def test_a_damaged_folder_is_told_or_harmless_and_can_be_cleared(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "v"
    rows = [
        VectorRow(str(number), f"word{number} here", {}) for number in range(1100)
    ]  # enough that the index is written
    with closing(ChromaVectors(folder, "", "cases", WordEmbedder())) as vectors:
        vectors.add(rows)
        assert vectors.search("word7 here", 1)
    database = folder / "chroma.sqlite3"
    index = [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]
    if damage.startswith("index"):
        assert index
        for path in index:
            path.write_bytes(b"\xff" * 300) if damage.endswith("garbage") else path.unlink()
    elif damage == "gone":
        database.unlink()
    else:
        whole = database.read_bytes()
        database.write_bytes({"garbage": os.urandom(len(whole)), "cut": whole[: len(whole) // 2], "empty": b""}[damage])
    with closing(ChromaVectors(folder, "", "cases", WordEmbedder())) as vectors:
        try:
            found = len(vectors.search("word7 here", 3)), vectors.count()
        except VectorsDamaged as error:
            assert "logdoctor cases reindex" in str(error)
        else:
            assert found in ((0, 0), (3, 1100)), found
        vectors.clear()
        assert vectors.count() == 0
        vectors.add(rows)
        assert vectors.search("word7 here", 1) and vectors.count() == 1100


def test_a_place_that_cannot_be_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecallError, match="cannot be used"):
        ChromaVectors(tmp_path / "file" / "v", "", "cases", WordEmbedder()).count()


def holds_open(folder: Path) -> bool:
    """Whether this process has a file of a folder open; what other tests left open may have names of any length."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if str(folder) in os.readlink(f"/proc/self/fd/{number}"):
                return True
    return False


def test_files_are_given_back(tmp_path: Path) -> None:
    vectors = ChromaVectors(tmp_path, "", "cases", WordEmbedder())
    vectors.add(ROWS)
    assert holds_open(tmp_path)
    vectors.close()
    gc.collect()  # the native part lets go when it is freed
    assert not holds_open(tmp_path)
    assert vectors.count() == 3
    vectors.close()


# --- a server


def test_a_server_that_is_away_and_comes_back(tmp_path: Path) -> None:
    with chroma_server(tmp_path / "c") as url:
        vectors = ChromaVectors(None, url, "cases", WordEmbedder())
        vectors.add(ROWS)
    with pytest.raises(RecallError, match=r"Chroma server http://127.0.0.1:\d+ does not answer"):
        vectors.count()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot JSON!", b"drip", b"endless"])
def test_a_server_that_talks_nonsense_is_an_error_in_time(answer: bytes) -> None:
    def serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                try:
                    if answer in (b"drip", b"endless"):
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n")
                        while True:
                            connection.sendall(b"x" * (1 << 20) if answer == b"endless" else b" ")
                            time.sleep(0 if answer == b"endless" else 0.05)
                    connection.sendall(answer)
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        vectors = ChromaVectors(
            None, f"http://127.0.0.1:{listening.getsockname()[1]}", "c", WordEmbedder(), seconds=0.5
        )
        begin = time.monotonic()
        with pytest.raises(RecallError):
            vectors.count()
        assert time.monotonic() - begin < 60
        listening.shutdown(socket.SHUT_RDWR)


def test_the_login_of_the_url_is_sent_and_never_told() -> None:
    heard: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            heard.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        url = f"http://ann:s%40cret@127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(RecallError) as caught:
            ChromaVectors(None, url, "c", WordEmbedder(), seconds=2).count()
        thread.join(5)
    assert b"authorization: basic YW5uOnNAY3JldA==" in heard[0].replace(
        b"Authorization: Basic", b"authorization: basic"
    )
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://host", "host:8000", "http://", "http://host:99999", "http://host/?a=b"])
def test_a_url_that_cannot_be_used_is_an_error(url: str) -> None:
    with pytest.raises(RecallError, match="LOGDOCTOR_CHROMA_URL"):
        ChromaVectors(None, url, "c", WordEmbedder())


# --- what the libraries must not do


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
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "v" / "chroma.sqlite3").exists() and not (tmp_path / "elsewhere").exists()
    assert done.stdout == ""


# --- the parts of one log


def test_the_parts_that_answer_come_first() -> None:
    chunks = [Chunk(str(number), f"iteration {number} loss 3.{number}") for number in range(5)]
    chunks.append(Chunk("cause", "disk quota exceeded while writing"))
    hits = LogQuery(chunks, WordEmbedder()).search("disk quota", 2)
    assert hits[0].id == "cause" and hits[0].text == chunks[-1].text and len(hits) == 2
    assert 0 <= hits[1].score < hits[0].score <= 1


def test_few_of_many_parts_are_embedded() -> None:
    embedder = WordEmbedder()
    chunks = [Chunk(str(number), f"step {number} quota") for number in range(3000)]
    chunks.insert(1700, Chunk("cause", "disk quota exceeded while writing"))
    query = LogQuery(chunks, embedder, most=10)
    assert query.search("exceeded disk quota", 1)[0].id == "cause"
    assert len(embedder.embedded) == 11
    assert query.search("exceeded disk quota", 5) == query.search("exceeded disk quota", 5)


def test_a_log_without_parts_answers_nothing() -> None:
    assert LogQuery([], WordEmbedder()).search("x", 3) == []


def test_warming_an_embedder_that_needs_nothing() -> None:
    embedder = WordEmbedder()
    warm(embedder)
    assert embedder.embedded == [""]
