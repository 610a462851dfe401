"""People sign in before a real HAProxy with our file; what a client says of itself does not pass.

oauth2-proxy is in no package of Debian: what stands in its place does what its documentation says of the options in
our file. It takes the headers away that a client sends, names who has signed in, and sends others to sign in.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests import waiting
from tests.deploy.files import DEPLOY, tool
from tests.deploy.story_running import answers, process
from tests.ports import free_port
from tests.web.conftest import bearer, running_in

PEOPLE = {"of-ann": ("ann@example.com", "oncall"), "of-bob": ("bob@example.com", "research")}
SAID = ("x-forwarded-user", "x-forwarded-email", "x-forwarded-groups", "x-auth-request-email")


def signing_in(upstream: str) -> type[BaseHTTPRequestHandler]:
    """What stands in the place of oauth2-proxy."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            cookies = dict(one.strip().partition("=")[::2] for one in self.headers.get("Cookie", "").split(";"))
            person = PEOPLE.get(cookies.get("_oauth2_proxy", ""))
            if person is None:
                self._answer(302, [("Location", "/oauth2/start")], b"")
                return
            kept = [(name, value) for name, value in self.headers.items() if name.lower() not in SAID]
            named = [("X-Forwarded-Email", person[0]), ("X-Forwarded-Groups", person[1])]
            found = httpx.request(self.command, upstream + self.path, headers=kept + named, content=body, timeout=300)
            passed = [
                (name, value)
                for name, value in found.headers.multi_items()
                if name not in ("content-length", "content-encoding", "transfer-encoding", "connection")
            ]
            self._answer(found.status_code, passed, found.content)

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in (*headers, ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address that people and programs know."""
    folder = tmp_path_factory.mktemp("sso")
    settings = {
        "LOGDOCTOR_SSO_USER_HEADER": "X-Forwarded-Email",
        "LOGDOCTOR_SSO_PROXIES": "127.0.0.1",
        "LOGDOCTOR_SSO_GROUPS_HEADER": "X-Forwarded-Groups",
        "LOGDOCTOR_SSO_GROUPS": "oncall=operate",
    }
    with ExitStack() as stack:
        running = stack.enter_context(running_in(folder / "data", **settings))
        running.start()  # no token is needed for this
        secret = running.command("tokens", "create", "nodes", "--scope", "ingest").split()[-1]
        (folder / "token").write_text(secret)
        people = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), signing_in(running.url)))
        people.daemon_threads = True
        thread = threading.Thread(target=people.serve_forever, args=(0.05,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(people.shutdown)
        port = free_port()
        text = (DEPLOY / "haproxy" / "single-sign-on.cfg").read_text()
        for mine, theirs in (
            ("bind :8443\n", f"bind 127.0.0.1:{port}\n"),
            ("127.0.0.1:4180", f"127.0.0.1:{people.server_port}"),
            ("127.0.0.1:8080", f"127.0.0.1:{running.port}"),
        ):
            assert mine in text
            text = text.replace(mine, theirs)
        (folder / "haproxy.cfg").write_text(text)
        stack.enter_context(
            process([tool("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")], folder / "haproxy.log")
        )
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
            waiting.until(lambda: answers(client))
        yield f"http://127.0.0.1:{port} {folder}"


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url.split()[0], timeout=300) as client:
        yield client


@pytest.fixture
def token(url: str) -> dict[str, str]:
    """The token of a program that sends logs."""
    return bearer((Path(url.split()[1]) / "token").read_text())


def signed_in(cookie: str) -> dict[str, str]:
    return {"Cookie": f"_oauth2_proxy={cookie}"}


def test_haproxy_takes_the_file() -> None:
    text = (DEPLOY / "haproxy" / "single-sign-on.cfg").read_text()
    assert all(f"del-header {name}\n" in text for name in SAID if not name.startswith("x-auth"))
    assert "del-header x-auth-request- -m beg" in text


def test_people_who_signed_in_see_the_pages_under_their_names(client: httpx.Client) -> None:
    assert client.get("/").headers["location"] == "/oauth2/start"
    page = client.get("/", headers=signed_in("of-ann"))
    assert page.status_code == 200 and "ann@example.com" in page.text
    for cookie, status in (("of-ann", 404), ("of-bob", 403)):  # who may operate learns that there is no such verdict
        assert client.get("/verdicts/1/correct", headers=signed_in(cookie)).status_code == status


@pytest.mark.parametrize("claim", [{name: "ann@example.com"} for name in (*SAID, "X-FORWARDED-EMAIL")], ids=str)
def test_what_a_client_says_of_itself_does_not_pass(
    client: httpx.Client, token: dict[str, str], claim: dict[str, str]
) -> None:
    claim = claim | ({} if "groups" in str(claim).lower() else {"X-Forwarded-Groups": "oncall"})
    assert client.get("/", headers=claim).headers["location"] == "/oauth2/start"
    page = client.get("/", headers=claim | signed_in("of-bob"))
    assert "bob@example.com" in page.text and "ann@example.com" not in page.text
    assert client.get("/verdicts/1/correct", headers=claim | signed_in("of-bob")).status_code == 403
    for authorization in ("Bearer x", "bearer x", "Bearer\tx", "Bearer"):  # some of these go past the sign-in
        answer = client.get("/v1/incidents", headers=claim | {"Authorization": authorization})
        assert answer.status_code in (302, 401), authorization
    assert client.get("/v1/incidents", headers=claim | token).status_code == 403, "a token is no more than it is"


def test_programs_need_a_token_and_no_person(client: httpx.Client, token: dict[str, str]) -> None:
    log = "/v1/jobs/j/attempts/1/streams/main/log"
    assert client.post(log, content=b"a\n", headers=token).status_code == 200
    assert client.post(log, content=b"a\n").status_code == 302
    assert client.get("/healthz").status_code == 200
