"""Vectors in a folder, and a server that fails: the contract, then what each may suffer."""

import gc
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from logdoctor.errors import RecallError, VectorsDamaged
from logdoctor.failure_agent.cases.vectors import ChromaVectors, Chunk, LogQuery, VectorRow, warm
from tests.failure_agent.cases.chroma import WordEmbedder
from tests.failure_agent.cases.vectors import ROWS, Opened, VectorsContract


class TestFolder(VectorsContract):
    """A folder keeps the contract."""

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Opened]:
        made: list[ChromaVectors] = []

        def open_(name: str = "cases") -> ChromaVectors:
            made.append(ChromaVectors(tmp_path / "vectors", "", name, WordEmbedder(), seconds=300))
            return made[-1]

        yield open_
        for vectors in made:
            vectors.close()


# --- a folder


def test_a_folder_that_others_hold_is_an_error_in_time(tmp_path: Path) -> None:
    import fcntl

    vectors = ChromaVectors(tmp_path, "", "cases", WordEmbedder(), seconds=0.2)
    vectors.add(ROWS)
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RecallError, match="another process"):
            vectors.count()
    assert vectors.count() == 3
    vectors.close()


MANY = [VectorRow(str(number), f"word{number} here", {}) for number in range(1100)]  # enough that the index is written


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with many rows."""
    folder = tmp_path_factory.mktemp("filled") / "v"
    with closing(ChromaVectors(folder, "", "cases", WordEmbedder())) as vectors:
        vectors.add(MANY)
        assert vectors.search("word7 here", 1)
    return folder


@pytest.mark.parametrize("damage", ["garbage", "cut", "empty", "gone", "index garbage", "index gone"])
def test_a_damaged_folder_is_told_or_harmless_and_can_be_cleared(tmp_path: Path, filled: Path, damage: str) -> None:
    folder = shutil.copytree(filled, tmp_path / "v")
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
        vectors.add(ROWS)
        assert vectors.search("word7 here", 1) and vectors.count() == len(ROWS)


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


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot JSON!", b"drip", b"endless"])
def test_a_server_that_talks_nonsense_is_an_error_in_time(answer: bytes) -> None:
    over = threading.Event()

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
                        while not over.wait(0 if answer == b"endless" else 0.05):
                            connection.sendall(b"x" * (1 << 20) if answer == b"endless" else b" ")
                    connection.sendall(answer)
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        vectors = ChromaVectors(
            None, f"http://127.0.0.1:{listening.getsockname()[1]}", "c", WordEmbedder(), seconds=0.5
        )
        with pytest.raises(RecallError):
            vectors.count()
        assert not over.is_set(), "the server has not ended its answer"
        over.set()
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
            ChromaVectors(None, url, "c", WordEmbedder(), seconds=300).count()
        thread.join()
    assert b"authorization: basic YW5uOnNAY3JldA==" in heard[0].replace(
        b"Authorization: Basic", b"authorization: basic"
    )
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://host", "host:8000", "http://", "http://host:99999", "http://host/?a=b"])
def test_a_url_that_cannot_be_used_is_an_error(url: str) -> None:
    with pytest.raises(RecallError, match="LOGDOCTOR_CHROMA_URL"):
        ChromaVectors(None, url, "c", WordEmbedder())


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
