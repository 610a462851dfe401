"""Lines without an offset, as plain HTTP sinks of log shippers send them, are appended: whole, once, in order."""

import gzip
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from tests.at_once import at_once
from tests.web.conftest import ALLOWED, Guarded, Served, local_client, new_service, options

LOG = "/v1/jobs/j/attempts/1/streams/main/log"
DOWNLOAD = LOG.replace("/log", "/download")


def kept(client: TestClient) -> bytes:
    return client.get(DOWNLOAD).content


def test_bodies_follow_each_other_and_their_last_lines_end(client: TestClient) -> None:
    for body, ends in ((b"a\nb\n", 4), (b"c", 6), (b"", 6), (b"  d\r\n\ne\n", 14)):
        answer = client.post(LOG, content=body)
        assert (answer.status_code, answer.json()["next_offset"]) == (200, ends), answer.text
    assert kept(client) == b"a\nb\nc\n  d\r\n\ne\n"


def test_what_is_sent_with_an_offset_goes_on_behind_it(client: TestClient) -> None:
    client.post(LOG, content=b"a")
    assert client.post(LOG, params={"offset": 2}, content=b"b").status_code == 200
    assert client.post(LOG, params={"offset": 2}, content=b"b").status_code == 409
    client.post(LOG, content=b"c")
    assert kept(client) == b"a\nbc\n"


def test_a_repetition_with_its_key_is_taken_once(client: TestClient) -> None:
    for key, body in (("1", b"a\n"), ("1", b"a\n"), ("2", b"a\n"), ("", b"a\n"), ("", b"a\n"), ("1", b"other\n")):
        answer = client.post(LOG, content=body, headers={"Idempotency-Key": key} if key else {})
        assert answer.status_code == 200
    assert kept(client) == b"a\n" * 4 + b"other\n", "without a key, the same lines are other lines; so are other lines"
    other = LOG.replace("/main/", "/other/")
    assert client.post(other, content=b"a\n", headers={"Idempotency-Key": "1"}).json()["next_offset"] == 2


def test_a_repetition_is_known_after_a_restart(tmp_path: Path, scanner: Scanner) -> None:
    for _ in range(2):
        with local_client(new_service(tmp_path, scanner)) as client:
            client.post(LOG, content=b"a\n", headers={"Idempotency-Key": "batch-7"})
            assert kept(client) == b"a\n"


def test_records_of_logging_libraries_are_text_unless_they_are_to_be_kept(client: TestClient) -> None:
    record = b'{"level":"info","msg":"a"}\n'
    assert client.post(LOG, content=record).json()["next_offset"] == len(b"INFO: a\n")
    client.post(LOG, params={"json": "keep"}, content=record)
    client.post(LOG, content=b'{"step": 1, "loss": 2.5}\n')
    client.post(LOG, content=gzip.compress(record), headers={"Content-Encoding": "gzip"})
    assert kept(client) == b'INFO: a\n' + record + b'{"step": 1, "loss": 2.5}\nINFO: a\n'  # fmt: skip


def test_what_fluent_bit_posts_as_json_lines_is_the_lines(client: TestClient) -> None:
    """`format json_lines`, as plugins/out_http of Fluent Bit 3 writes them."""
    body = b'{"date":1795517320.857,"log":"Traceback (most recent call last):"}\n{"date":1795517320.9,"log":"  File"}\n'
    assert client.post(LOG, content=body, headers={"Content-Type": "application/x-ndjson"}).status_code == 200
    assert kept(client) == b"Traceback (most recent call last):\n  File\n"


def test_what_cannot_be_taken_is_refused_as_a_whole(tmp_path: Path, scanner: Scanner) -> None:
    chosen = options(allowed=ALLOWED._replace(sent=4 << 20, unpacked=2 << 20))
    with local_client(new_service(tmp_path, scanner), chosen) as client:
        many = b"line\n" * 500_000
        for body, encoding, status in ((many, "", 413), (gzip.compress(many), "gzip", 413), (b"x", "br", 415)):
            answer = client.post(LOG, content=body, headers={"Content-Encoding": encoding} if encoding else {})
            assert answer.status_code == status and answer.json()["error"]["next_step"]
        assert (
            client.post(LOG, content=gzip.compress(b"line\n")[:-4], headers={"Content-Encoding": "gzip"}).status_code
            == 400
        )
        assert client.post(LOG, params={"offset": ""}, content=b"x").status_code == 422
        assert client.post(LOG, content=b"x", headers={"Idempotency-Key": "k" * 201}).status_code == 422
        assert client.post(LOG, params={"json": "yes"}, content=b"x").status_code == 422
        assert client.get(LOG.replace("/log", "")).status_code == 404, "nothing was kept"


@pytest.mark.parametrize(("scopes", "status"), [(("ingest",), 200), (("read",), 403)])
def test_who_may_append_is_who_may_send(lasting_guarded: Guarded, scopes: tuple[str, ...], status: int) -> None:
    token = lasting_guarded.token(*scopes)
    assert lasting_guarded.client.post(LOG, content=b"a\n", headers=token).status_code == status
    assert lasting_guarded.client.post(LOG, content=b"a\n").status_code == 401


def test_lines_of_many_at_once_stay_whole(served: Served) -> None:
    def send(letter: str) -> None:
        with served.client() as client:
            for number in range(10):
                body = f"{letter}{number} {letter * 100_000}\n".encode() * 3
                for _ in range(2):  # as a client that did not see the answer
                    headers = {"Idempotency-Key": f"{letter}{number}"}
                    assert client.post(LOG, content=body, headers=headers).status_code == 200

    at_once(send, "abcd")
    lines = httpx.get(served.url + DOWNLOAD, timeout=None).content.decode().splitlines()
    for letter in "abcd":
        wanted = [f"{letter}{number} {letter * 100_000}" for number in range(10) for _ in range(3)]
        assert [line for line in lines if line.startswith(letter)] == wanted
    assert len(lines) == 120
