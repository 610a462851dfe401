"""Who may do what, on every route there is."""

import base64
import http.client
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import itsdangerous
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.store import schema
from logdoctor.store.keeping.tokens import SCOPES
from logdoctor.web import gate
from logdoctor.web.app import application
from tests import waiting
from tests.web.conftest import FAILED, Guarded, bearer, local_client, new_service, options, serving

OPEN = {("GET", "/healthz"), ("GET", "/readyz")}
"""What anybody may ask."""
NEEDED = {
    "ingest": ("ingest", "ingest"),
    "push": ("ingest", "ingest"),
    "operations": ("read", "operate"),
    **dict.fromkeys(("jobs", "incidents", "rules", "cases", "nodes", "report", "notifications"), ("read", "operate")),
}
"""The scopes that the routes of a tag need: to read, and to change something."""
ENDLESS = ("/v1/events", "/v1/incidents/stream")
"""Streams; see test_events and test_incidents."""
JOB_BODIES = {
    "/v1/jobs/{job}": {},
    "/v1/jobs/{job}/attempts": {"key": "k"},
    "/v1/jobs/{job}/attempts/{attempt}/end": {},
}
LOKI = "/loki/api/v1/push"


def call(client: Any, method: str, path: str, job: str = "job", **more: Any) -> Any:
    """The answer of an operation whose parameters are filled in; of an endless one its head."""
    body = JOB_BODIES.get(path) if method in ("PUT", "POST") else None
    names = {"job": job, "attempt": "1", "stream": "main", "id": "1", "node": "gpu-1"}
    url = re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: names[found[1]], path)
    params = {"offset": "0", "line": "1-2"} if path.endswith("/log") else {}
    return client.request(method, url, params=params, json=body, **more)


def operations(client: TestClient) -> list[tuple[str, str, str]]:
    """(method, path, tag) of all that the service can be asked to do."""
    paths = client.get("/openapi.json").json()["paths"]
    found = [(method.upper(), path, what["tags"][0]) for path, item in paths.items() for method, what in item.items()]
    assert len(found) >= 19
    return found


def test_every_operation_is_of_a_known_kind(guarded: Guarded) -> None:
    for method, path, tag in operations(guarded.client):
        assert tag in NEEDED, f"{method} {path}: say here which scope it needs"


def test_every_route_of_the_application_is_in_the_document_or_a_page(service: Service) -> None:
    app = application(service, options())
    paths = {path for _, path in ways_of(app.routes)}
    assert len(paths) > 20
    hidden = {path for path in paths if path.startswith(("/v1", "/loki"))} - app.openapi()["paths"].keys()
    assert not hidden


def ways_of(routes: list[Any]) -> set[tuple[str, str]]:
    """(method, path) of routes, those of included routers too."""
    found: set[tuple[str, str]] = set()
    for route in routes:
        inner = getattr(route, "original_router", None)
        methods = (getattr(route, "methods", None) or {"GET"}) - {"HEAD"}
        found |= ways_of(inner.routes) if inner else {(one, route.path.replace(":path}", "}")) for one in methods}
    return found


OPEN_PAGES = {
    "/login",
    "/logout",
    "/openapi.json",
    "/docs",
    "/static",
    "/slack/actions",
}  # the last one wants a signature
PLACES = {
    "id": "1",
    "node": "gpu-1",
    "name": "j",
    "attempt": "1",
    "stream": "main",
    "key": "AAAAAAAAAAAAAAAA",
    "step": "resolve",
}


def test_pages_are_for_those_who_signed_in(guarded: Guarded) -> None:
    """Pages are in no document: each is asked for by a stranger, by who may only send, by who may only read, and by who
    may act, but with a form that is not ours."""
    described = guarded.client.get("/openapi.json").json()["paths"].keys()
    pages = {one for one in ways_of(guarded.client.app.routes) if one[1] not in described | OPEN_PAGES}  # type: ignore[attr-defined]
    assert len(pages) > 40
    sender, reader, operator = (
        cookie(session_of(guarded, *scopes)) for scopes in (["ingest"], ["read"], ["read", "operate"])
    )

    def asked(method: str, path: str, who: dict[str, str]) -> httpx.Response:
        guarded.client.cookies.clear()
        places = PLACES | ({"id": "learned/filter/1"} if re.match("/rules/(?!override/)", path) else {})
        if path == "/rules/{id}/override":
            places |= {"id": "diagnosis/infrastructure/cuda-error"}  # only shipped rules are overruled
        return guarded.client.request(method, path.format(**places), headers=who, follow_redirects=False)

    for method, path in sorted(pages):
        answer = asked(method, path, {})
        assert answer.status_code == 303 and answer.headers["location"].startswith("/login"), (method, path)
        assert asked(method, path, sender).status_code == 403, (method, path)
        if method == "GET":
            assert asked(method, path, operator).status_code < 500, (method, path)
        else:
            assert asked(method, path, reader).status_code == 403, (method, path)
            assert asked(method, path, operator).status_code == 403, (method, path)
            assert "form" in asked(method, path, operator).text, (method, path)
        assert asked(method, path, guarded.token("operate")).status_code == 403, (method, path)
    for method, path in (("GET", "/login"), ("GET", "/openapi.json"), ("GET", "/static/style.css")):
        assert asked(method, path, {}).status_code == 200


def test_a_wrong_body_without_a_token_is_no_concern(lasting_guarded: Guarded) -> None:
    for method, path in (("PUT", "/v1/jobs/j"), ("POST", "/v1/jobs/j/attempts"), ("POST", "/v1/jobs/j/attempts/1/end")):
        for body in (b"", b'{"unknown": 1}', b"x" * (32 << 20)):
            answer = lasting_guarded.client.request(
                method, path, content=body, headers={"Content-Type": "application/json"}
            )
            assert answer.status_code in (401, 413), f"{method} {path}: the body is judged before the token"


def test_without_a_token_nothing_is_open_but_health(lasting_guarded: Guarded) -> None:
    for method, path, _ in operations(lasting_guarded.client):
        answer = call(lasting_guarded.client, method, path)
        if (method, path) in OPEN:
            assert answer.status_code == 200
        else:
            assert answer.status_code == 401, f"{method} {path}: {answer.status_code}"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "unauthorized"


@pytest.mark.parametrize("scope", SCOPES)
def test_every_operation_wants_its_scope_and_no_other(guarded: Guarded, scope: str) -> None:
    headers = guarded.token(scope)
    for method, path, tag in operations(guarded.client):
        if path in ENDLESS and scope in ("read", "admin"):
            continue
        status = call(guarded.client, method, path, headers=headers).status_code
        fits = scope in (NEEDED[tag][method != "GET"], "admin") or (method, path) in OPEN
        if (method, path) == ("GET", "/v1/jobs/{job}/attempts/{attempt}/streams/{stream}"):
            fits = scope in ("ingest", "admin")  # a sender asks where to go on
        if (method, path) == ("POST", "/v1/jobs/{job}/scores"):
            fits = scope in ("ingest", "admin")  # what evaluates a checkpoint is a job, too
        assert (status != 403) == fits, f"{method} {path} with {scope}: {status}"
        assert status != 401 and status < 500


def test_a_token_bound_to_jobs_reaches_no_other(guarded: Guarded) -> None:
    headers = guarded.token("admin", prefixes=("team-a-",))
    for method, path, _ in operations(guarded.client):
        if "{job}" in path:
            for other in ("team-b-1", "team-a", "Team-a-1", "x", "team-a\u2010", "%74eam-b"):
                answer = call(guarded.client, method, path, other, headers=headers)
                assert answer.status_code == 403, f"{method} {path} for {other}"
            assert call(guarded.client, method, path, "team-a-1", headers=headers).status_code != 403


def test_a_token_bound_to_jobs_reaches_no_node(lasting_guarded: Guarded) -> None:
    headers = lasting_guarded.token("admin", prefixes=("job",))
    found = [(method, path) for method, path, tag in operations(lasting_guarded.client) if tag == "nodes"]
    assert len(found) >= 13
    for method, path in found:
        answer = call(lasting_guarded.client, method, path, headers=headers)
        assert answer.status_code == 403, f"{method} {path}: nodes are shared by all jobs"


def verdict_of(guarded: Guarded, job: str) -> int:
    """The id of the verdict on a job that failed."""
    ingest, read = guarded.token("ingest"), guarded.token("read")
    guarded.client.post(
        f"/v1/jobs/{job}/attempts/1/streams/main/log", params={"offset": 0}, content=FAILED, headers=ingest
    )
    guarded.client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1}, headers=ingest)

    def ask() -> int:
        answer = guarded.client.get(f"/v1/jobs/{job}/attempts/1/verdict", headers=read)
        return int(answer.json()["id"]) if answer.status_code == 200 and answer.json()["final"] else 0

    return int(waiting.until(ask))


def test_lists_and_ids_show_only_jobs_of_the_prefix(guarded: Guarded) -> None:
    ours, theirs, tricky = (verdict_of(guarded, job) for job in ("team_a-1", "team-b-1", "teamXa-1"))
    headers = guarded.token("read", prefixes=("team_a-", "none"))  # `_` is a wild card in SQL
    client = guarded.client
    assert [item["id"] for item in client.get("/v1/verdicts", headers=headers).json()["items"]] == [ours]
    assert client.get("/v1/verdicts", params={"job": "team-b-1"}, headers=headers).json()["items"] == []
    assert [job["job"] for job in client.get("/v1/jobs", headers=headers).json()["items"]] == ["team_a-1"]
    assert client.get(f"/v1/verdicts/{ours}", headers=headers).status_code == 200
    unknown = client.get("/v1/verdicts/999999", headers=headers)
    for hidden in (theirs, tricky):
        answer = client.get(f"/v1/verdicts/{hidden}", headers=headers)
        assert answer.status_code == 404
        assert answer.text.replace(str(hidden), "999999") == unknown.text  # it does not tell that there is one


def test_pushes_reach_only_jobs_of_the_prefix(guarded: Guarded) -> None:
    headers = guarded.token("ingest", prefixes=("team-a-",))

    def push(*jobs: str) -> Any:
        values = [["1700000000000000000", "x"]]
        streams = [{"stream": {"slurm_job_id": job}, "values": values} for job in jobs]
        return guarded.client.post(LOKI, json={"streams": streams}, headers=headers)

    assert push("team-a-1").status_code == 204
    assert push("team-b-1").status_code == 403
    assert push("team-a-2", "team-b-2").status_code == 403
    everything = guarded.client.get("/v1/jobs", headers=guarded.token("read")).json()["items"]
    assert [job["job"] for job in everything] == ["team-a-1"]


def test_a_token_ends_within_five_seconds(service: Service) -> None:
    now = [0.0]
    with local_client(service, options(wants_token=True)._replace(clock=lambda: now[0])) as client:
        guarded = Guarded(client, service)
        expires, revoked = guarded.token("read", expires=time.time() + 3600.0), guarded.secret("read", name="to revoke")

        def statuses() -> set[int]:
            return {client.get("/v1/jobs", headers=headers).status_code for headers in (expires, bearer(revoked))}

        assert statuses() == {200}
        service.tokens.revoke("to revoke")
        with service.records.database.writing() as connection:  # as if the hour were over
            table = schema.tokens
            connection.execute(sa.update(table).where(table.c.expires.is_not(None)).values(expires=time.time() - 1.0))
        now[0] += 5.0
        assert statuses() == {401}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic dXNlcjpwYXNz",
        "Bearer ldr_",
        "Bearer ldr_" + "x" * 10_000,
        "Bearer \u00e9".encode("latin-1"),
        "Bearer ' OR 1=1 --",
        "bearer\tx",
    ],
)
def test_what_is_no_token_is_refused(lasting_guarded: Guarded, header: str | bytes) -> None:
    assert lasting_guarded.client.get("/v1/jobs", headers={"Authorization": header}).status_code == 401


def test_a_token_is_taken_however_the_scheme_is_spelt(lasting_guarded: Guarded) -> None:
    secret = lasting_guarded.secret("read")
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert (
            lasting_guarded.client.get("/v1/jobs", headers={"Authorization": f"{scheme} {secret}"}).status_code == 200
        )
    assert lasting_guarded.client.get("/v1/jobs", params={"token": secret}).status_code == 401
    assert lasting_guarded.client.get("/v1/jobs", headers={"Authorization": f"Bearer {secret}x"}).status_code == 401
    assert (
        lasting_guarded.client.get("/v1/jobs", headers={"Authorization": f"Bearer {secret.upper()}"}).status_code == 401
    )


def test_wrong_tokens_are_counted(service: Service) -> None:
    with local_client(service, options(wants_token=True)._replace(clock=lambda: 0.0)) as client:
        _check_that_wrong_tokens_are_counted(Guarded(client, service))


def _check_that_wrong_tokens_are_counted(guarded: Guarded) -> None:
    good = guarded.token("read")
    statuses = [guarded.client.get("/v1/jobs", headers=bearer(f"ldr_{n}")).status_code for n in range(40)]
    assert statuses == [401] * 30 + [429] * 10
    answer = guarded.client.get("/v1/jobs", headers=bearer("ldr_more"))
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "too_many"
    assert guarded.client.get("/v1/jobs", headers=good).status_code == 200


@pytest.mark.parametrize("wants_token", [False, True])
def test_requests_are_counted(service: Service, wants_token: bool) -> None:
    now = [0.0]
    with local_client(service, options(wants_token, rate=4)._replace(clock=lambda: now[0])) as client:
        one, other = (bearer(service.tokens.create(name, ["read"])[1]) for name in ("one", "other"))
        statuses = [client.get("/v1/jobs", headers=one).status_code for _ in range(10)]
        assert statuses == [200] * 8 + [429] * 2
        answer = client.get("/v1/jobs", headers=one)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert client.get("/v1/jobs", headers=other).status_code == (200 if wants_token else 429)
        now[0] += 0.25
        assert [client.get("/v1/jobs", headers=one).status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "[", "[::1", "a@evil", "10.0.0.1", "::1"],
)
def test_without_tokens_only_local_names_are_answered(lasting: TestClient, host: str) -> None:
    """Another site may let its own name point to 127.0.0.1 (DNS rebinding)."""
    for method, path, _ in operations(lasting) if host == "evil.example" else [("GET", "/v1/jobs", "")]:
        if (method, path) not in OPEN:
            answer = call(lasting, method, path, headers={"Host": host})
            assert answer.status_code == 403, f"{method} {path}"
            assert answer.json()["error"]["code"] == "wrong_host"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080"])
def test_local_names_are_answered(lasting: TestClient, host: str) -> None:
    assert lasting.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "http://127.0.0.1.evil.example",
        "http://127.0.0.1:9",
        "file://",
        "http://[",
        "x",
    ],
)
def test_other_sites_pages_change_nothing(lasting: TestClient, lasting_guarded: Guarded, origin: str) -> None:
    headers = {"Origin": origin}
    for tested, more in ((lasting, {}), (lasting_guarded.client, lasting_guarded.token("admin"))):
        for method, path, _ in operations(lasting) if origin == "null" else [("POST", "/v1/diagnose", "")]:
            if method != "GET":
                answer = call(tested, method, path, headers=headers | more)
                assert answer.status_code == 403, f"{method} {path}: {answer.status_code} {answer.text}"
                assert answer.json()["error"]["code"] == "wrong_origin"
        assert tested.get("/v1/jobs", headers=headers | more).status_code == 200
        assert "access-control-allow-origin" not in tested.get("/v1/jobs", headers=headers | more).headers
    assert lasting.get("/v1/jobs").json()["items"] == []


def test_our_own_pages_may_change_things(client: TestClient) -> None:
    assert client.put("/v1/jobs/j", json={}, headers={"Origin": "http://127.0.0.1"}).status_code == 200


def session_of(guarded: Guarded, *scopes: str, prefixes: Sequence[str] = ()) -> str:
    """The id of a session of somebody who signed in with a new token."""
    token, _ = guarded.service.tokens.create(f"token {len(guarded.service.tokens.list())}", scopes, prefixes)
    return guarded.service.sessions.begin(token)


def cookie(session: str, key: str = "0" * 64) -> dict[str, str]:
    """The cookie of a browser that has signed in."""
    data = base64.b64encode(json.dumps({gate.SESSION: session}).encode())
    return {"Cookie": f"logdoctor={itsdangerous.TimestampSigner(key).sign(data).decode()}"}


def test_a_session_may_look_but_change_nothing(guarded: Guarded) -> None:
    headers = cookie(session_of(guarded, "admin"))
    for method, path, _ in operations(guarded.client):
        if path in ENDLESS:
            continue
        answer = call(guarded.client, method, path, headers=headers)
        if method == "GET":
            assert answer.status_code not in (401, 403), f"{method} {path}"
        else:
            assert answer.status_code == 401, f"{method} {path}"


def test_a_forged_session_is_none(lasting_guarded: Guarded) -> None:
    session = session_of(lasting_guarded, "admin")
    assert lasting_guarded.client.get("/v1/jobs", headers=cookie(session)).status_code == 200
    forged = (cookie(session, "1" * 64), {"Cookie": "logdoctor=x"}, {"Cookie": "logdoctor=" + "e30=." * 50})
    secret = lasting_guarded.secret("admin")  # neither does one stand for the other
    for bad in (*forged, cookie(secret), cookie("\u00e9" * 300), cookie(""), bearer(session)):
        assert lasting_guarded.client.get("/v1/jobs", headers=bad).status_code == 401


HOSTILE = [
    "..",
    ".",
    "%2e%2e",
    "%2e",
    "..%2f..%2fetc",
    "%2fetc%2fpasswd",
    "a%2fb",
    "..%5c..%5cx",
    "a%5cb",
    "%00",
    "a%00b",
    "%ff",
    "%c0%ae%c0%ae",
    "%ed%a0%80",
    "%f4%90%80%80",
    "a%0ab",
    "a%0d%0ab",
    "%e2%80%ae",
    "a%e2%80%aeb",
    "%20a",
    "a%20",
    "%c2%a0",
    "x" * 201,
    "%e4%b8%ad" * 100,
    "x" * 20_000,
    "%7f",
    "%1b%5b2J",
    "%09",
]


def tree(folder: Path) -> set[str]:
    """All paths below a folder but those of the database."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if ".db" not in p.name}


def test_no_name_leaves_the_data_folder(tmp_path: Path, scanner: Scanner) -> None:
    service = new_service(tmp_path / "deep" / "er" / "data", scanner)
    with serving(service) as served, served.client() as client:
        ok = "/v1/jobs/ok/attempts/1/streams/main/log?offset=0"
        assert client.post(ok, content=b"x\n").status_code == 200
        before = tree(tmp_path)
        paths = []
        for name in HOSTILE:
            paths += [
                ("POST", f"/v1/jobs/{name}/attempts/1/streams/main/log?offset=0", b"x"),
                ("POST", f"/v1/jobs/ok/attempts/1/streams/{name}/log?offset=0", b"x"),
                ("POST", f"/v1/jobs/{name}/attempts/1/end", b"{}"),
                ("POST", f"/v1/jobs/{name}/attempts", b'{"key": "k"}'),
                ("PUT", f"/v1/jobs/{name}", b"{}"),
                ("GET", f"/v1/jobs/{name}", b""),
                ("GET", f"/v1/jobs/{name}/attempts/1/streams/{name}/log?line=1-9", b""),
                ("GET", f"/v1/jobs/ok/attempts/1/streams/{name}/log?line=1-9", b""),
                ("GET", f"/v1/jobs/{name}/attempts/1/streams/{name}", b""),
                ("GET", f"/static/{name}", b""),
                ("GET", f"/static/{name}/{name}/etc/passwd", b""),
            ]
        for bad in ("-1", "1000000", "1e3", "%2e%2e", "x", "0x1", "99999999999999999999", "1.0", "%c2%b2"):
            paths.append(("POST", f"/v1/jobs/ok/attempts/{bad}/streams/main/log?offset=0", b"x"))
        for method, path, body in paths:
            answer = raw(served.port, method, path, body)
            assert 400 <= answer.status_code < 500, f"{method} {path[:100]}: {answer.status_code} {answer.text[:300]}"
            if path.startswith("/v1"):
                assert answer.json()["error"]["next_step"], path
        assert tree(tmp_path) == before
        end = client.post("/v1/jobs/ok/attempts/1/end", json={"stream": "../../x"})
        assert end.status_code == 400
        push = {"streams": [{"stream": {"slurm_job_id": "../..", "host": "../../x"}, "values": [["1", "x"]]}]}
        assert client.post(LOKI, json=push).status_code < 500
    for path in tree(tmp_path):
        assert path.startswith("deep/er/data") or path in ("deep", "deep/er"), path


def raw(port: int, method: str, path: str, body: bytes) -> httpx.Response:
    """The answer to a request whose path is sent just so."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        if method != "GET":
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        return httpx.Response(answer.status, content=answer.read())
    finally:
        connection.close()


def test_names_in_any_script_are_names(client: TestClient) -> None:
    for name in ("\u4e2d\u6587", "caf\u00e9", "a b", "~", "...", "...a", "-rf", "\U0001f525", "CON", "a:b", "*"):
        quoted = httpx.URL(path=f"/v1/jobs/{name}").raw_path.decode()
        assert client.put(quoted, json={}).status_code == 200, name
        path = f"{quoted}/attempts/1/streams/{quoted.rsplit('/', 1)[1]}/log"
        assert client.post(path, params={"offset": 0}, content=b"x\n").status_code == 200, name
        assert client.get(quoted).json()["job"] == name
        assert client.get(f"{quoted}/attempts/1").json()["streams"] == [name]


@pytest.mark.parametrize(
    ("over_https", "headers", "is_secure"),
    [
        (False, {}, False),
        (True, {}, True),
        (False, {"X-Forwarded-Proto": "https"}, True),
        (False, {"Forwarded": 'for=10.0.0.1;Proto="https"'}, True),
        (False, {"X-Forwarded-Proto": "http"}, False),
        (True, {"X-Forwarded-Proto": "http"}, True),
    ],
)
def test_a_session_of_pages_over_https_is_sent_over_https_alone(
    lasting_guarded: Guarded, over_https: bool, headers: dict[str, str], is_secure: bool
) -> None:
    client = local_client(lasting_guarded.service, options(wants_token=True)._replace(over_https=over_https))
    session = client.get("/login", headers=headers).headers["set-cookie"].lower()
    assert ("; secure" in session) == is_secure and "httponly" in session and "samesite=lax" in session
