"""SECURITY.md says what the code does."""

import re
from collections.abc import Iterator
from typing import Any

from logdoctor.store.keeping.tokens import SCOPES
from tests.deploy.files import ROOT
from tests.web.conftest import Guarded

TEXT = (ROOT / "SECURITY.md").read_text()
_OPEN = {"/healthz", "/readyz", "/openapi.json", "/static", "/docs", "/slack/actions", "/login", "/logout"}


def routes(app: Any) -> Iterator[tuple[str, str]]:
    """Every method and path that the application answers, with something in place of what varies."""
    for route in app.routes:
        for method in sorted(getattr(route, "methods", None) or {"GET"}):
            if method != "HEAD":
                yield method, re.sub(r"\{[^}]*\}", "1", route.path)


def test_without_a_token_only_what_it_names_is_open(guarded: Guarded) -> None:
    asked, opened = 0, set()
    for method, path in routes(guarded.client.app):
        answer = guarded.client.request(method, path, follow_redirects=False)
        to_login = answer.status_code == 303 and answer.headers["location"].startswith("/login")
        asked += 1
        if answer.status_code != 401 and not to_login:
            opened.add(path)
    assert asked > 80
    assert opened == _OPEN
    assert all(f"`{path}`" in TEXT for path in opened - {"/login", "/logout"})


def test_every_scope_has_its_row() -> None:
    assert re.findall(r"^\| `([a-z]+)` \|", TEXT, re.M) == list(SCOPES)


def test_tests_and_files_that_it_names_exist() -> None:
    named = re.findall(r"`((?:tests|deploy|docs|logdoctor)/[^` ]*|docker-compose\.yml)`", TEXT)
    assert len(named) > 12
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_bound_tokens_are_refused_what_concerns_all_jobs(guarded: Guarded) -> None:
    bound = guarded.token("read", "operate", prefixes=("a",))
    for path in ("/v1/nodes", "/v1/node-tests", "/v1/actions", "/v1/audit", "/v1/notifications", "/metrics"):
        assert guarded.client.get(path, headers=bound).status_code == 403, path
    for path in ("/v1/notifications/test", "/v1/nodes/n1/uncordon"):
        assert guarded.client.post(path, headers=bound, json={"why": "x"}).status_code == 403, path


def test_admin_cannot_make_tokens_by_a_request(guarded: Guarded) -> None:
    assert not [path for _, path in routes(guarded.client.app) if "token" in path]
