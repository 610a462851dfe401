"""What a connection does with services that are away, not ours, of another version, or hostile."""

import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from logdoctor.cli.client import connection
from logdoctor.cli.client.connection import Connection, Refused, path
from logdoctor.errors import InputError, LogdoctorError, ServiceAway, ServiceError
from logdoctor.store.incidents.table import Incident, IncidentPage
from logdoctor.web.incidents.answers import EXAMPLES
from tests.notify.receivers import Receiver, receiving
from tests.test_cli import Ran, assert_refused, program, run

__all__ = ["run"]  # fixtures

TOKEN = "ldt_a-token-that-nobody-else-may-see"
PAGE = msgspec.json.encode(IncidentPage([], None))


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiving() as receiver:
        receiver.always(200, body=PAGE)
        yield receiver


@pytest.fixture
def listed(run: Callable[..., Ran], server: Receiver) -> Callable[..., Ran]:
    """Lists the incidents of the server."""

    def ask(*words: str) -> Ran:
        return run("incidents", *(words or ("list",)), url=server.url, token=TOKEN, data_dir="/nowhere")

    return ask


def problem(code: str, thing: str = "the thing", cause: str = "did not work", next_step: str = "Stop.") -> bytes:
    """An error as a service tells it."""
    return json.dumps({"error": {"code": code, "thing": thing, "cause": cause, "next_step": next_step}}).encode()


def test_what_is_sent(listed: Callable[..., Ran], server: Receiver) -> None:
    assert listed().out == "no incidents\n"
    (got,) = server.got
    assert got.headers["authorization"] == f"Bearer {TOKEN}"
    assert got.headers["accept-encoding"] == "identity" and got.headers["user-agent"].startswith("logdoctor/")
    assert got.path.startswith("/v1/incidents?state=new&state=acknowledged&limit=500")


def test_an_option_goes_before_the_environment(run: Callable[..., Ran], server: Receiver, tmp_path: Path) -> None:
    assert run("incidents", "list", "--url", server.url, url="http://127.0.0.1:1").code == 0
    assert len(server.got) == 1
    assert_refused(run("incidents", "list", "--data-dir", tmp_path, url=server.url), "holds no records")
    ran = run("incidents", "list", "--data-dir", tmp_path, "--url", server.url)
    assert ran.code == 2 and "cannot be combined" in ran.err and len(server.got) == 1


@pytest.mark.parametrize("url", ["logdoctor", "ftp://x", "http://", "http://u:p@host", "http://h?x=1", "http://h:0"])
def test_what_is_no_url(run: Callable[..., Ran], url: str) -> None:
    assert_refused(run("incidents", "list", "--url", url), "--url")


def test_what_is_no_token(run: Callable[..., Ran], server: Receiver) -> None:
    ran = run("incidents", "list", url=server.url, token="two\nlines")
    assert_refused(ran, "LOGDOCTOR_TOKEN", "is not a token")
    assert not server.got and "two" not in ran.err


def test_a_service_below_a_path_of_a_proxy(run: Callable[..., Ran], server: Receiver) -> None:
    assert run("incidents", "list", "--url", f"{server.url}/logdoctor/").code == 0
    assert server.got[0].path.startswith("/logdoctor/v1/incidents?")


# --- away


def test_nobody_listens(run: Callable[..., Ran]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ran = run("incidents", "list", "--url", f"http://127.0.0.1:{port}")
    assert_refused(
        ran, f"http://127.0.0.1:{port}", "cannot be reached (Connection refused)", "whether the service runs"
    )


def test_a_name_that_nobody_knows(run: Callable[..., Ran]) -> None:
    assert_refused(
        run("incidents", "list", "--url", "http://no-such-host.invalid"), "no-such-host.invalid", "reached ("
    )


@pytest.mark.parametrize("how", ["hang", "drip", "continue"])
def test_an_answer_takes_no_longer_than_it_may(server: Receiver, how: str) -> None:
    server.answers = lambda got, number: how
    with pytest.raises(ServiceAway, match=r"gave no answer within 0\.5 s"):
        Connection(server.url, TOKEN, seconds=0.5).get(IncidentPage, path("incidents"))


@pytest.mark.parametrize("how", ["reset", "rubbish", "header"])
def test_an_answer_that_breaks_off_is_none(listed: Callable[..., Ran], server: Receiver, how: str) -> None:
    server.answers = lambda got, number: how
    assert_refused(listed(), server.url)


def test_an_answer_is_read_as_far_as_it_may_be_long(
    listed: Callable[..., Ran], server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_ANSWER", 1 << 20)
    server.answers = lambda got, number: "flood"
    assert_refused(listed(), "answered with more than 1048576 bytes")


def test_a_service_that_is_busy(listed: Callable[..., Ran], server: Receiver) -> None:
    server.always(503, body=problem("busy", cause="it is stopping"))
    assert_refused(listed(), "cannot answer now (it is stopping)", "Try again later.")
    server.always(502, body=b"<html>Bad Gateway")
    assert_refused(listed(), "cannot answer now (HTTP 502)")


def test_one_that_wants_to_be_asked_less_often_is_waited_for(listed: Callable[..., Ran], server: Receiver) -> None:
    busy = (429, {"Retry-After": "1"}, problem("too_many"))
    server.answers = lambda got, number: busy if number == 1 else (200, {}, PAGE)
    assert listed().code == 0 and len(server.got) == 2


# --- refusals


def test_a_token_that_counts_nothing(listed: Callable[..., Ran], run: Callable[..., Ran], server: Receiver) -> None:
    server.always(401, body=problem("unauthorized"))
    ran = listed()
    assert_refused(ran, "does not accept the token", "LOGDOCTOR_TOKEN", "logdoctor tokens create")
    assert TOKEN not in ran.err
    assert_refused(run("incidents", "list", url=server.url, token=""), "wants a token")


def test_a_refusal_is_told_as_the_service_tells_it(listed: Callable[..., Ran], server: Receiver) -> None:
    server.always(403, body=problem("forbidden", "token 'oncall'", "it does not allow 'operate'", "Use another token."))
    assert_refused(listed(), "token 'oncall' does not allow 'operate'. Use another token.")
    server.always(422, body=problem("invalid", "body.note", "is too long"))
    assert_refused(listed("resolve", "1"), "body.note is too long")


def test_a_refusal_steers_no_terminal_and_fills_none(server: Receiver) -> None:
    evil = "\x1b[31m" + "x" * 1_000_000
    server.always(409, body=problem("refused", evil, evil, evil))
    ran = program("incidents", "resolve", "1", "--url", server.url)
    assert ran.code == 2 and "\x1b" not in ran.err and len(ran.err) < 10_000


# --- not ours, or of another version


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>hello"),
        (200, b""),
        (200, b"\xff\xfe{}"),
        (404, b"<html>not found"),
        (403, b"{}"),
        (500, b'{"detail": "x"}'),
        (418, b"[]"),
    ],
)
def test_what_is_no_logdoctor(listed: Callable[..., Ran], server: Receiver, status: int, body: bytes) -> None:
    server.always(status, body=body)
    assert_refused(listed(), server.url, "does not answer as logdoctor does", "Check --url or LOGDOCTOR_URL.")


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"1", b'{"items": 7, "next": null}', b'{"items": [{"id": "x"}], "next": null}']
)
def test_an_answer_of_another_version(listed: Callable[..., Ran], server: Receiver, body: bytes) -> None:
    server.always(200, body=body)
    assert_refused(listed(), "answers in a form that logdoctor 0.1.0 does not know", "the version of logdoctor that")


def test_a_service_without_an_endpoint_is_older(listed: Callable[..., Ran], server: Receiver) -> None:
    server.always(404, body=problem("not_found", "/v1/incidents", "Not Found"))
    assert_refused(listed(), "it has no /v1/incidents", "the version of logdoctor that the service runs")


def test_a_newer_service_may_tell_more(listed: Callable[..., Ran], server: Receiver) -> None:
    one = msgspec.to_builtins(next(one for one in EXAMPLES if isinstance(one, Incident)))
    server.always(200, body=json.dumps({"items": [one | {"mood": "calm"}], "next": None, "total": 1}).encode())
    assert listed().code == 0


def test_numbers_of_a_hostile_service_are_shown_or_refused(listed: Callable[..., Ran], server: Receiver) -> None:
    one = msgspec.to_builtins(next(one for one in EXAMPLES if isinstance(one, Incident)))
    for number in (1e300, -1e18, 10**30):
        server.always(200, body=json.dumps({"items": [one | {"last": number}], "next": None}).encode())
        ran = listed()
        assert (ran.code, ran.out.count("last ? UTC") + ran.out.count("to ? UTC")) == (0, 1)


@pytest.mark.parametrize("command", [["incidents", "list"], ["cases", "list"], ["rules", "list", "--learned"]])
def test_a_page_that_leads_to_itself_is_not_followed(
    run: Callable[..., Ran], server: Receiver, command: list[str]
) -> None:
    server.always(200, body=b'{"items": [], "next": "again"}')
    ran = run(*command, url=server.url)
    assert ran.code == 2 and "the next page of a list is the same page" in ran.err and len(server.got) == 2


def test_an_answer_that_is_nested_too_deeply(server: Receiver) -> None:
    server.always(200, body=b'{"a":' * 100_000)
    with pytest.raises(ServiceError, match="does not answer as logdoctor does"):
        Connection(server.url).get(dict, path("x"))


# --- redirects, TLS


def test_a_redirect_takes_the_token_nowhere(listed: Callable[..., Ran], server: Receiver) -> None:
    with receiving() as other:
        for status in (301, 302, 303, 307, 308):
            server.always(status, {"Location": f"{other.url}/v1/incidents"})
            assert_refused(listed(), "redirects to", other.url, "is not followed")
        assert not other.got


def test_nothing_is_taken_from_the_environment(
    listed: Callable[..., Ran], server: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would see the token."""
    with receiving() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        assert listed().code == 0 and not proxy.got


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for localhost that it signs itself, with its key in the same file."""
    file = tmp_path / "both.pem"
    made = ["-keyout", str(file), "-out", str(tmp_path / "cert.pem"), "-subj", "/CN=localhost", "-days", "2"]
    named = ["-addext", "subjectAltName=DNS:localhost"]
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made, *named]
    subprocess.run(request, check=True, capture_output=True)
    file.write_text(file.read_text() + (tmp_path / "cert.pem").read_text())
    return file


def test_a_certificate_that_nobody_vouches_for(
    run: Callable[..., Ran], server: Receiver, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    server._server.socket = tls.wrap_socket(server._server.socket, server_side=True)
    url = f"https://localhost:{server.port}"
    ran = run("incidents", "list", "--url", url, token=TOKEN)
    assert_refused(ran, url, "cannot be asked over TLS (self", "SSL_CERT_FILE")
    assert not server.got
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert run("incidents", "list", "--url", url, token=TOKEN).code == 0
    assert_refused(run("incidents", "list", "--url", f"https://127.0.0.1:{server.port}"), "cannot be asked over TLS (")


def test_a_service_that_speaks_no_tls(run: Callable[..., Ran], server: Receiver) -> None:
    ran = run("incidents", "list", "--url", server.url.replace("http:", "https:"))
    assert_refused(ran, "cannot be asked over TLS (")


# --- parts


def test_no_part_of_a_path_names_another() -> None:
    assert path("jobs", "a/../b?x#y", 1) == "/v1/jobs/a%2F..%2Fb%3Fx%23y/1"
    for odd in ("", ".", ".."):
        with pytest.raises(InputError, match="not a name that a resource can have"):
            path("jobs", odd, "attempts", 1)


def test_a_refusal_keeps_its_answer(server: Receiver) -> None:
    server.always(409, body=problem("refused"))
    with pytest.raises(Refused) as caught:
        Connection(server.url).post(IncidentPage, path("incidents"), {"a": 1})
    assert caught.value.body == problem("refused") and isinstance(caught.value, LogdoctorError)
    assert server.got[0].json == {"a": 1} and server.got[0].headers["content-type"] == "application/json"


def test_a_log_is_written_to_a_file(server: Receiver, tmp_path: Path) -> None:
    place = tmp_path / "log"
    server.always(200, body=b"a line\n" * 100_000)
    with place.open("wb") as file:
        Connection(server.url, TOKEN).save(path("jobs", "a b"), file)
    assert place.read_bytes() == b"a line\n" * 100_000
    (got,) = server.got
    assert got.path == "/v1/jobs/a%20b" and got.headers["authorization"] == f"Bearer {TOKEN}"
    server.always(404, body=problem("not_found", "stream a"))
    with pytest.raises(Refused, match="stream a"), place.open("wb") as file:
        Connection(server.url).save(path("jobs"), file)
    with pytest.raises(ServiceAway), place.open("wb") as file:
        Connection("http://127.0.0.1:1").save(path("jobs"), file)
    assert place.read_bytes() == b""


@pytest.mark.parametrize("status", [429, 503])
def test_a_log_is_waited_for_where_the_service_is_busy(server: Receiver, tmp_path: Path, status: int) -> None:
    busy = (status, {"Retry-After": "0"}, problem("busy"))
    server.answers = lambda got, number: busy if number < 3 else (200, {}, b"a line\n")
    with (tmp_path / "log").open("wb") as file:
        Connection(server.url).save(path("jobs"), file)
    assert (tmp_path / "log").read_bytes() == b"a line\n" and len(server.got) == 3


def test_a_log_is_not_waited_for_longer_than_a_request_may_take(
    server: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_PAUSE", 1e6)
    server.always(429, {"Retry-After": "9999"}, problem("too_many"))
    with pytest.raises(Refused, match="did not work"), (tmp_path / "log").open("wb") as file:
        Connection(server.url, seconds=600.0).save(path("jobs"), file)
    with pytest.raises(ServiceError, match="its URL cannot be used"), (tmp_path / "log").open("wb") as file:
        Connection("http://h:x").save(path("jobs"), file)


@pytest.mark.parametrize(
    "command",
    [
        ["serve"],
        ["worker"],
        ["doctor"],
        ["backup", "x"],
        ["restore", "."],
        ["tokens", "list"],
        ["tokens", "create", "x", "--scope", "read"],
        ["tokens", "revoke", "x"],
        ["rules", "check"],
        ["cases", "reindex"],
        ["diagnose", "x"],
    ],
)
def test_what_works_on_files_takes_no_url(run: Callable[..., Ran], command: list[str]) -> None:
    ran = run(*command, "--url", "http://127.0.0.1:1")
    assert ran.code == 2 and "takes no --url: it " in ran.err


def test_help_names_the_option_where_it_counts(run: Callable[..., Ran]) -> None:
    assert "--url" in run("nodes", "test", "--help").out and "--url" not in run("doctor", "--help").out
