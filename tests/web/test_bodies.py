"""Hostile bodies: bombs, damage, wrong lengths, slowness. Memory stays small and what was whole is kept."""

import gzip
import random
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.web import bodies
from logdoctor.web.bodies import Allowed
from logdoctor.web.jobs.ingest import Shares
from tests import waiting
from tests.unpacking import fed_to_zlib
from tests.web.conftest import Served, dripped, local_client, new_service, options, serving
from tests.web.test_ingest import log_of

LOG = "/v1/jobs/j/attempts/1/streams/main/log"
STREAM = "/v1/jobs/j/attempts/1/streams/main"
SMALL = Allowed(sent=100_000, unpacked=1_000_000, seconds=300.0)
TEXT = b"".join(b"%d a line that is like others\n" % n for n in range(60_000))


def rle_bomb(blocks: int, window_log: int = 17) -> bytes:
    """A Zstandard frame of blocks that each repeat one byte 128 KiB times: 4 bytes become 131,072."""
    assert 10 <= window_log <= 31
    head = b"\x28\xb5\x2f\xfd" + bytes([0, (window_log - 10) << 3])
    size = 128 << 10
    block = (size << 3 | 1 << 1).to_bytes(3, "little") + b"x"
    last = (size << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
    return head + block * (blocks - 1) + last


def gzip_bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def post(client: Any, data: Any, encoding: str = "identity", offset: Any = 0, path: str = LOG, **headers: str) -> Any:
    everything = {"Content-Encoding": encoding, **headers}
    return client.post(path, params={"offset": offset}, content=data, headers=everything)


def offset_of(client: Any) -> int:
    answer = client.get(STREAM)
    return int(answer.json()["next_offset"]) if answer.status_code == 200 else 0


@pytest.fixture
def small(tmp_path: Path, scanner: Scanner) -> Iterator[TestClient]:
    """A client of an application that takes little."""
    with local_client(new_service(tmp_path / "data", scanner), options(allowed=SMALL)) as client:
        yield client


def test_the_bomb_is_one() -> None:
    unpacked = zstandard.ZstdDecompressor().decompressobj().decompress(rle_bomb(3))
    assert unpacked == b"x" * (3 << 17)


@pytest.mark.parametrize(
    ("bomb", "encoding"),
    [
        (gzip_bomb(64 << 20), "gzip"),
        (zstandard.compress(bytes(64 << 20), 19), "zstd"),
        (rle_bomb(10_000), "zstd"),
        (gzip_bomb(1 << 20) * 50, "gzip"),
    ],
    ids=["gzip", "zstd", "run-length", "members"],
)
def test_a_bomb_is_refused(small: TestClient, bomb: bytes, encoding: str) -> None:
    assert len(bomb) < SMALL.sent
    answer = post(small, bomb, encoding)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert offset_of(small) <= SMALL.unpacked
    assert post(small, b"more", offset=offset_of(small)).status_code == 200


def test_what_follows_each_of_many_members_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"x") * 4000
    fed = fed_to_zlib(monkeypatch, bodies)
    assert b"".join(bodies._Gunzip().unpack(packed)) == b"x" * 4000
    assert len(packed) <= sum(fed) < 50 * len(packed)


@pytest.mark.parametrize("path", ["/v1/logs", "/loki/api/v1/push", "/v1/diagnose"])
def test_a_bomb_is_refused_wherever_it_is_sent(small: TestClient, path: str) -> None:
    for bomb, encoding in ((gzip_bomb(80 << 20), "gzip"), (rle_bomb(10_000), "zstd")):
        answer = small.post(path, content=bomb, headers={"Content-Encoding": encoding})
        assert 400 <= answer.status_code < 500, answer.text


def test_a_bomb_is_noticed_by_its_ratio(tmp_path: Path, scanner: Scanner) -> None:
    allowed = Allowed(sent=100_000, unpacked=4 << 30, seconds=300.0, expansion=500)
    with local_client(new_service(tmp_path / "data", scanner), options(allowed=allowed)) as client:
        again = b"NCCL WARN the same line again and again\n" * (2 << 20 >> 5)
        said = zstandard.compress(again, 3)
        assert len(again) > 500 * len(said)  # but not so much in all
        assert post(client, said, "zstd").json()["next_offset"] == len(again)
        answer = post(client, rle_bomb(8192), "zstd", path=LOG.replace("main", "other"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert "more than 500 times its size" in answer.json()["error"]["cause"]
        assert client.get(STREAM.replace("main", "other")).json()["next_offset"] <= 17 << 20


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_others_are_answered_while_a_body_is_unpacked(
    served: Served, monkeypatch: pytest.MonkeyPatch, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    unpack, begun, goes_on = bodies._piece, threading.Event(), threading.Event()

    def slowly(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
        begun.set()
        goes_on.wait()
        return unpack(pieces)

    monkeypatch.setattr(bodies, "_piece", slowly)
    with served.client() as client, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(post, client, pack(TEXT), encoding)
        begun.wait()
        assert httpx.get(f"{served.url}/healthz", timeout=None).status_code == 200
        assert not sent.done()
        goes_on.set()
        assert sent.result().json()["next_offset"] == len(TEXT)


def test_large_bodies_of_one_caller_share_what_may_be_under_way(service: Service) -> None:
    with local_client(service) as client:
        shares = Shares(client.app.state.logdoctor)  # type: ignore[attr-defined]
    with shares.of("a") as first, shares.of("a") as second, shares.of("b") as other:
        whole = first(1)
        assert (first(9 << 20), second(1 << 20), other(9 << 20)) == (whole, whole, whole)
        assert (second(2 << 20), first(9 << 20), other(9 << 20)) == (whole // 2, whole // 2, whole)
    with shares.of("a") as alone:
        assert alone(9 << 20) == whole


def test_large_bodies_at_once_are_taken_whole(served: Served) -> None:
    with served.client() as client, ThreadPoolExecutor(6) as pool:
        paths = [LOG.replace("main", f"s{number}") for number in range(6)]
        sent = pool.map(lambda path: post(client, zstandard.compress(TEXT * 3), "zstd", path=path), paths)
        assert [answer.json()["next_offset"] for answer in sent] == [3 * len(TEXT)] * 6


def test_a_window_that_is_too_large_is_refused(client: TestClient) -> None:
    for log in (24, 27, 31):
        assert post(client, rle_bomb(2, log), "zstd").status_code == 400
    assert post(client, rle_bomb(2, 23), "zstd").status_code == 200


def test_what_is_sent_has_a_bound(small: TestClient) -> None:
    big = random.Random(1).randbytes(SMALL.sent + 1)
    answer = post(small, big)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert answer.headers["connection"] == "close"
    assert post(small, iter([big[:50_000], big[50_000:]])).status_code == 413  # without Content-Length
    assert post(small, b"", **{"Content-Length": "9" * 30}).status_code in (400, 413)
    assert offset_of(small) <= SMALL.sent


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
@pytest.mark.parametrize("where", ["cut", "flipped", "garbage", "trailing garbage"])
def test_of_a_damaged_body_the_beginning_is_kept(client: TestClient, encoding: str, where: str) -> None:
    zstd = zstandard.ZstdCompressor(1, write_checksum=True).compress
    pack = {"gzip": lambda data: gzip.compress(data, 1), "zstd": zstd}[encoding]
    packed = pack(TEXT[:600_000]) + pack(TEXT[600_000:])
    middle = len(pack(TEXT[:600_000])) + len(pack(TEXT[600_000:])) // 2
    damaged = {
        "cut": packed[:middle],
        "flipped": packed[:middle]
        + bytes(byte ^ 0xFF for byte in packed[middle : middle + 50])
        + packed[middle + 50 :],
        "garbage": packed[:middle] + random.Random(2).randbytes(5000),
        "trailing garbage": packed + b"garbage",
    }[where]
    answer = post(client, damaged, encoding)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_input")
    reached = post(client, b"", offset=1 << 40).json()["error"]["next_offset"]
    assert reached == offset_of(client) > 256 << 10
    if where not in ("flipped", "garbage"):  # which only the checksum at the end may find
        assert log_of(client) == TEXT[:reached] + (b"" if TEXT[:reached].endswith(b"\n") else b"\n")
    assert post(client, pack(TEXT[reached:]), encoding, offset=reached).json()["next_offset"] == len(TEXT)


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "gzip;q=1", "\x7f", "x" * 5000, "snappy"])
def test_an_unknown_encoding_is_refused(lasting: TestClient, encoding: str) -> None:
    answer = post(lasting, b"x", encoding)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unknown_encoding")
    assert len(answer.text) < 500
    assert post(lasting, b"x", " GZIP ").status_code == 400  # known, but x is no gzip


@pytest.mark.parametrize("offset", [-1, "", "x", "NaN", "inf", "1e3", "0x10", 1.5, 1 << 63, 10**30, "9" * 5000])
def test_an_offset_must_be_one(lasting: TestClient, offset: object) -> None:
    answer = post(lasting, b"x", offset=offset)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
    assert offset_of(lasting) == 0


def test_an_empty_offset_does_not_mean_none(lasting: TestClient) -> None:
    assert lasting.post(f"{LOG}?offset=", content=b"x").status_code == 422
    assert offset_of(lasting) == 0
    assert lasting.post(LOG, content=b"x").json()["next_offset"] == 2, "without one it is a line, appended"


@given(data=st.binary(max_size=400), encoding=st.sampled_from(["gzip", "zstd"]), real=st.booleans(), at=st.integers(0))
def test_no_body_fuzz_breaks_the_service(fuzzed: TestClient, data: bytes, encoding: str, real: bool, at: int) -> None:
    if real:
        packed = gzip.compress(data) if encoding == "gzip" else zstandard.compress(data)
        place = at % len(packed)
        data = packed[:place] + bytes([packed[place] ^ (1 + at % 255)]) + packed[place + 1 :]
    before = offset_of(fuzzed)
    answer = post(fuzzed, data, encoding, offset=before)
    assert answer.status_code in (200, 400)
    if answer.status_code == 200:
        assert answer.json()["next_offset"] == offset_of(fuzzed) >= before


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator[TestClient]:
    with local_client(new_service(tmp_path_factory.mktemp("fuzz"), scanner)) as client:
        yield client


def exchange(served: Served, sent: bytes) -> bytes:
    """What comes back for bytes, until the other side closes the connection."""
    found = b""
    with connect(served) as connection:
        try:
            connection.sendall(sent)
            while part := connection.recv(65536):
                found += part
        except ConnectionError:
            pass
    return found


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port))


def head(length: object, extra: str = "") -> bytes:
    return f"POST {LOG}?offset=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n{extra}\r\n".encode()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator[Served]:
    """A server that waits less than half a second for the bytes of a body."""
    service = new_service(tmp_path_factory.mktemp("hasty"), scanner)
    with serving(service, options(allowed=SMALL._replace(sent=1 << 20, seconds=0.4)), slow=0.4) as served:
        yield served


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator[Served]:
    """A server that all tests share, which keep nothing there."""
    with serving(new_service(tmp_path_factory.mktemp("standing"), scanner)) as served:
        yield served


def test_a_body_that_stops_coming_is_given_up(hasty: Served) -> None:
    answer = exchange(hasty, head(1000) + b"x" * 500)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"too_slow" in answer and b"connection: close" in answer.lower()

    def goes_on() -> bool:  # who is slow, on a slow machine, is given up again
        with suppress(httpx.HTTPError), hasty.client() as client:
            assert offset_of(client) in (0, 500)
            return bool(post(client, b"y", offset=offset_of(client)).status_code == 200)
        return False

    waiting.until(goes_on)


def test_a_body_that_drips_is_given_up(hasty: Served) -> None:
    with connect(hasty) as connection:
        connection.sendall(head(100_000))
        answer = dripped(connection, b"x")
    assert answer.startswith(b"HTTP/1.1 408 ") or not answer


@pytest.mark.parametrize("path", ["/nothing/here", "/v1/jobs/j", "/v1/taxonomy"])
def test_a_body_that_nobody_reads_does_not_hold_a_connection(hasty: Served, path: str) -> None:
    """The answer is there, and the client goes on to drip its body."""
    request = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n".encode()
    with connect(hasty) as connection:
        connection.sendall(request)
        dripped(connection, b"x")


@pytest.mark.parametrize(
    "request_head",
    [head("x"), head(-5), head("5, 6"), head("5\r\nContent-Length: 6"), head("99999999999999999999999999")],
)
def test_a_wrong_content_length_is_refused(standing: Served, request_head: bytes) -> None:
    answer = exchange(standing, request_head + b"hello")
    assert answer.split(b" ")[1] in (b"400", b"413")
    with standing.client() as client:
        assert offset_of(client) == 0


def test_more_bytes_than_announced_are_another_request(served: Served) -> None:
    answer = exchange(served, head(3) + b"abcGARBAGE\r\n\r\n")
    with served.client() as client:
        if answer.startswith(b"HTTP/1.1 200 "):
            assert offset_of(client) == 3
        else:  # the garbage was answered first
            assert answer.startswith(b"HTTP/1.1 400 ") and offset_of(client) in (0, 3)


@pytest.mark.parametrize(
    "body", [b"zz\r\nabc\r\n0\r\n\r\n", b"-3\r\nabc\r\n0\r\n\r\n", b"3\r\nabcXX0\r\n\r\n", b"fffffffffffffffff\r\nabc"]
)
def test_wrong_chunks_are_refused(standing: Served, body: bytes) -> None:
    request = f"POST {LOG}?offset=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + body
    answer = exchange(standing, request)
    assert not answer.startswith(b"HTTP/1.1 200 ")
    with standing.client() as client:
        assert client.get("/healthz").status_code == 200


def test_length_and_chunks_together_are_refused(standing: Served) -> None:
    """What one proxy takes for a body, another takes for a request."""
    answer = exchange(standing, head(3, "Transfer-Encoding: chunked\r\n") + b"0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1


def test_who_asks_first_is_told_to_go_on(served: Served) -> None:
    with connect(served) as connection:
        connection.sendall(head(3, "Expect: 100-continue\r\n"))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(b"abc")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
    with connect(served) as connection:
        connection.sendall(head(3, "Expect: 100-continue\r\n"))  # now at the wrong offset
        assert connection.recv(1000).startswith(b"HTTP/1.1 409 ")
