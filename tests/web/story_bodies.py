"""Hostile bodies for a real process: its memory stays small, and it goes on."""

import random
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import waiting
from tests.web.conftest import Running, running_in
from tests.web.test_bodies import TEXT, gzip_bomb, head, post, rle_bomb


def test_memory_stays_small_whatever_bombs_come(tmp_path: Path) -> None:
    """Six at a time: each could unpack to 1 GiB at once."""
    with running_in(tmp_path / "data", LOGDOCTOR_MAX_BODY_BYTES=str(4 << 20)) as running:
        running.start()
        post(running.client, TEXT)
        before = running.resident()
        bombs = [(rle_bomb(32_000), "zstd"), (gzip_bomb(256 << 20), "gzip")] * 3

        def send(number: int) -> int:
            data, encoding = bombs[number]
            path = f"/v1/jobs/j/attempts/1/streams/s{number}/log"
            return int(post(running.client, data, encoding, path=path).status_code)

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(send, range(6))) == [413] * 6
        grown = running.resident(peak=True) - before
        assert grown < 400 << 20, f"{grown >> 20} MiB"


def test_json_bodies_are_bounded_before_they_are_read(tmp_path: Path) -> None:
    """Nobody has shown a token yet."""
    with running_in(tmp_path / "data", LOGDOCTOR_AUTH="on") as running:
        running.start_with_token()
        before = running.resident()
        for path in ("PUT /v1/jobs/j", "POST /v1/jobs/j/attempts", "POST /v1/jobs/j/attempts/1/end", "POST /login"):
            head = (
                f"{path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {100 << 20}\r\n\r\n"
            )
            with socket.create_connection(("127.0.0.1", running.port)) as connection:
                connection.sendall(head.encode())
                try:
                    for _ in range(100):
                        connection.sendall(bytes(1 << 20))
                    status = connection.recv(100).split(b" ")[1]
                    assert status in (b"401", b"413"), status
                except (ConnectionError, TimeoutError):
                    pass  # it was cut off
        grown = running.resident(peak=True) - before
        assert grown < 50 << 20, f"{grown >> 20} MiB"


def test_a_running_service_survives_it_all(running: Running) -> None:
    chance = random.Random(3)
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(head(chance.choice((5, 1 << 20))) + chance.randbytes(chance.randrange(2000)))
    assert running.client.get("/healthz").status_code == 200
    waiting.until(lambda: running.client.get("/readyz").json()["status"] == "ready")
