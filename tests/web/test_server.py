"""The server stands whatever comes over the wire, and all its answers have one shape."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from logdoctor.errors import LogdoctorError, StoreDamaged, StoreError
from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.web import rendering
from logdoctor.web.app import application
from logdoctor.web.rendering import prepare_others
from tests import waiting
from tests.web.conftest import FAILED, LOCAL, Served, dripped, new_service, options, serving


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator[Served]:
    """A server that waits half a second for a head."""
    with serving(new_service(tmp_path_factory.mktemp("hasty"), scanner), slow=0.5) as served:
        yield served


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator[Served]:
    """A server that all tests share."""
    with serving(new_service(tmp_path_factory.mktemp("standing"), scanner)) as served:
        yield served


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port))


def rest(connection: socket.socket) -> bytes:
    """What still comes until the other side closes; fails when it does not."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def alive(served: Served) -> bool:
    """Whether a server answers; one that is hasty may cut off who is slow."""
    try:
        with served.client() as client:
            return client.get("/healthz").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize(
    "first", [b"", b"GET /x", b"GET / HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "]
)
def test_a_head_that_drips_is_cut_off(hasty: Served, first: bytes) -> None:
    with connect(hasty) as connection:
        connection.sendall(first)
        assert dripped(connection, b"x" if first else b"") == b""
    waiting.until(lambda: alive(hasty))


def test_a_head_that_drips_behind_a_whole_request_is_cut_off(hasty: Served) -> None:
    with connect(hasty) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /he")
        assert dripped(connection, b"a").count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * (1 << 20),
        b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * (1 << 20),
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200_000,
    ],
    ids=["path", "header", "headers"],
)
def test_too_long_heads_are_cut_off(standing: Served, head: bytes) -> None:
    with connect(standing) as connection:
        try:
            connection.sendall(head)
        except ConnectionError:
            pass
        found = rest(connection)
        assert not found or found.split(b" ")[1] in (b"400", b"413", b"414", b"431")
    assert alive(standing)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\0" * 1000,
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nBad Name: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\nHost: 127.0.0.1\n\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://evil.example/v1/jobs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET //v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\n\r\n",
        b"GET /v1/jobs?%zz=%&a[]=1&&= HTTP/1.1\r\nHost: [\r\n\r\n",
        b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Last-Event-ID: x\r\n\r\n",
        b"BREW /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
    ids=range(18),
)
def test_garbage_is_refused(standing: Served, garbage: bytes) -> None:
    with connect(standing) as connection:
        connection.sendall(garbage)
        found = connection.recv(65536)
    assert 400 <= int(found.split(b" ")[1]) < 500, found[:300]
    assert b"\r\ncontent-type: application/json\r\n" in found, found
    assert alive(standing)


def test_idle_connections_keep_nobody_waiting(service: Service) -> None:
    with serving(service) as served, ExitStack() as stack:
        for number in range(200):
            connection = stack.enter_context(connect(served))
            if number % 2:
                connection.sendall(b"GET /healthz HT")
        client = stack.enter_context(served.client())
        for number in range(20):
            log = f"/v1/jobs/j/attempts/1/streams/s{number}/log"
            assert client.post(log, params={"offset": 0}, content=b"x\n").status_code == 200


def test_requests_may_be_sent_without_waiting_for_answers(served: Served) -> None:
    log = b"POST /v1/jobs/j/attempts/1/streams/main/log?offset=%d HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    requests = b"".join(log % (2 * n) + b"Content-Length: 2\r\n\r\n%d\n" % n for n in range(10))
    with connect(served) as connection:
        connection.sendall(requests + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = rest(connection)
    assert answers.count(b"HTTP/1.1 200 OK") == 11
    with served.client() as client:
        kept = client.get("/v1/jobs/j/attempts/1/streams/main/log", params={"line": "1-20"})
        assert kept.content == b"".join(b"%d\n" % n for n in range(10))


def test_a_connection_is_kept_for_more_requests(served: Served) -> None:
    with closing(HTTPConnection("127.0.0.1", served.port)) as connection:
        connection.connect()
        kept = connection.sock
        for path, status in (*[("/healthz", 200)] * 3, ("/v1/jobs/none", 404)):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == status and answer.read()
        assert connection.sock is kept
        kept.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert rest(kept).startswith(b"HTTP/1.1 200 ")


def test_a_reader_that_does_not_read_keeps_nobody_waiting(served: Served) -> None:
    log = "/v1/jobs/j/attempts/1/streams/main/log"
    with served.client() as client:
        for n in range(8):
            client.post(log, params={"offset": n << 20}, content=b"x" * (1 << 20))
        with ExitStack() as stack:
            for _ in range(20):
                connection = stack.enter_context(connect(served))
                connection.sendall(b"GET %s?line=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % log.encode())
            assert client.get("/healthz").status_code == 200
            assert client.get("/v1/jobs").status_code == 200


HEADERS = {
    "content-security-policy",
    "x-content-type-options",
    "referrer-policy",
    "x-frame-options",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
}


class Broken(LogdoctorError):
    """An error that the table of statuses does not know."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator[TestClient]:
    """A client of an application that also has routes that fail."""
    app: FastAPI = application(new_service(tmp_path_factory.mktemp("broken"), scanner), options())

    @app.get("/v1/boom")
    def boom() -> None:
        raise ZeroDivisionError("the secret of the house")

    @app.get("/v1/store")
    def store() -> None:
        cause = "it is damaged (see sqlite:////srv/my/logdoctor.db)"
        raise StoreDamaged("/srv/my/archive/job/1/000001.zst", cause, "Restore it.")

    @app.get("/v1/away")
    def away() -> None:
        raise StoreError("the database", "fails", "Wait.")

    @app.get("/v1/other")
    def other() -> None:
        raise Broken("a thing", "it is broken", "Mend it.")

    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        yield client


CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    ("GET", "/nothing", 404, {}),
    ("GET", "/v1/nothing", 404, {}),
    ("GET", "/v1/jobs/", 404, {}),
    ("GET", "/v1//jobs", 404, {}),
    ("GET", "/v1/jobs/none", 404, {}),
    ("GET", "/v1/verdicts/1", 404, {}),
    ("GET", "/static/../pages.py", 404, {}),
    ("GET", "/static/none", 404, {}),
    ("POST", "/static/style.css", 405, {}),
    ("DELETE", "/v1/jobs/j", 405, {}),
    ("POST", "/v1/jobs", 405, {}),
    ("OPTIONS", "/v1/jobs", 405, {}),
    ("PATCH", "/healthz", 405, {}),
    ("GET", "/v1/verdicts?limit=x", 422, {}),
    ("GET", "/v1/verdicts?limit=501", 422, {}),
    ("GET", "/v1/verdicts?since=nan", 422, {}),
    ("GET", "/v1/verdicts?since=inf", 422, {}),
    ("GET", "/v1/verdicts/0", 422, {}),
    ("GET", "/v1/verdicts/x", 422, {}),
    ("GET", "/v1/verdicts?cursor=x", 400, {}),
    ("PUT", "/v1/jobs/j", 422, {"json": {"no": 1}}),
    ("PUT", "/v1/jobs/j", 422, {"content": b"{}", "headers": {"Content-Type": "text/plain"}}),
    ("PUT", "/v1/jobs/j", 413, {"content": bytes(2 << 20)}),
    ("POST", "/login", 413, {"content": bytes(2 << 20)}),
    ("GET", "/v1/boom", 500, {}),
    ("GET", "/v1/store", 500, {}),
    ("GET", "/v1/away", 503, {}),
    ("GET", "/v1/other", 500, {}),
    ("GET", "/v1/jobs", 403, {"headers": {"Host": "evil.example"}}),
]


@pytest.mark.parametrize(("method", "path", "status", "more"), CASES)
def test_every_error_has_one_shape(
    broken: TestClient, method: str, path: str, status: int, more: dict[str, Any]
) -> None:
    answer = broken.request(method, path, follow_redirects=False, **more)
    assert answer.status_code == status, answer.text
    assert answer.headers.keys() >= HEADERS
    assert answer.headers["content-type"] == "application/json"
    if method != "HEAD":
        error = answer.json()["error"]
        assert error.keys() >= {"code", "thing", "cause", "next_step"}
        assert all(isinstance(error[name], str) and error[name] for name in ("code", "thing", "cause", "next_step"))
        assert "secret of the house" not in answer.text and "Traceback" not in answer.text
        assert "/srv" not in answer.text
        assert path != "/v1/store" or (error["thing"], error["cause"]) == (
            "000001.zst",
            "it is damaged (see logdoctor.db)",
        )
    if status == 405:
        assert answer.headers["allow"]


def test_a_next_step_leads_somewhere(broken: TestClient) -> None:
    for path in ("/v1/nothing", "/v1/verdicts?limit=x"):
        step = broken.get(path).json()["error"]["next_step"]
        for word in step.replace(",", " ").split():
            if word.startswith("/"):
                assert broken.get(word.rstrip(".")).status_code == 200, f"{word} is named but is not there"


def test_every_answer_has_the_headers_that_browsers_heed(client: TestClient) -> None:
    client.post("/v1/jobs/j/attempts/1/streams/main/log", params={"offset": 0}, content=b"<script>alert(1)</script>\n")
    for path in ("/", "/healthz", "/metrics", "/v1/jobs", "/openapi.json", "/static/style.css"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.headers.keys() >= HEADERS, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "server" not in answer.headers
    log = client.get("/v1/jobs/j/attempts/1/streams/main/log", params={"line": "1"})
    assert log.headers["content-type"].startswith("text/plain")
    assert log.headers["x-content-type-options"] == "nosniff"


def test_all_templates_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = rendering._templates()
    monkeypatch.setattr(rendering, "_TEMPLATES", templates)
    monkeypatch.setattr(rendering, "_BETWEEN", 0.0)
    prepare_others()
    assert templates.cache is not None
    assert {name for _, name in templates.cache.keys()} == set(templates.list_templates())


COOKIE = {"set-cookie"}  # which the first page with a form gives


def test_head_is_answered_like_a_page_without_its_body(served: Served) -> None:
    with served.client() as client:
        client.post("/v1/jobs/j/attempts/1/streams/main/log", params={"offset": 0}, content=FAILED)
        client.post("/v1/jobs/j/attempts/1/end", json={"exit_code": 1})
        waiting.until(lambda: client.get("/v1/jobs/j/attempts/1/verdict").status_code == 200)
        log = "/jobs/j/attempts/1/streams/main?line=1"
        for path in ("/", "/?state=none", "/incidents/1", "/incidents/99", log, "/rules", "/login", "/nothing"):
            whole = client.get(path, headers={"Accept": "text/html"})
            head = client.head(path, headers={"Accept": "text/html"})
            assert head.status_code == whole.status_code, path
            assert head.content == b"" and head.headers.keys() - COOKIE == whole.headers.keys() - COOKIE, path
            assert head.headers.get("content-type") == whole.headers.get("content-type"), path
        assert client.head("/rules").status_code == 200
    with connect(served) as connection:
        connection.sendall(b"HEAD / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        head, _, after = rest(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and after.startswith(b"HTTP/1.1 200 ")


def test_a_stop_lets_requests_end(service: Service) -> None:
    with serving(service) as served, connect(served) as connection:
        log = b"POST /v1/jobs/j/attempts/1/streams/main/log?offset=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        connection.sendall(log + b"Content-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")  # it reads the body
        connection.sendall(b"ab")
        stopper = threading.Thread(target=served.stop)
        stopper.start()
        waiting.until(lambda: not alive(served), "nobody else is let in")
        connection.sendall(b"c\n")
        answer = rest(connection)
        assert answer.startswith(b"HTTP/1.1 200 ") and b'"next_offset":4' in answer
        stopper.join()
