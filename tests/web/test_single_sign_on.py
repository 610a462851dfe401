"""People whom a proxy names are believed when the proxy is, and only then."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from logdoctor.errors import SettingsError
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings
from logdoctor.web.single_sign_on import single_sign_on
from tests.web.conftest import Served, bearer, new_service, options, serving
from tests.web.test_pages import publish

EMAIL = "X-Forwarded-Email"
GROUPS = "X-Forwarded-Groups"
SETTINGS = Settings(
    sso_user_header=EMAIL,
    sso_proxies="127.0.0.2 10.0.0.0/24",
    sso_groups_header=GROUPS,
    sso_groups="oncall=operate platform=operate,admin",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, scanner: Scanner) -> Iterator[Served]:
    service = new_service(tmp_path_factory.mktemp("sso"), scanner)
    with serving(service, options(wants_token=True)._replace(sign_on=single_sign_on(SETTINGS))) as served:
        yield served


@contextmanager
def coming_from(address: str, served: Served) -> Iterator[httpx.Client]:
    """A client whose connections come from an address of this machine."""
    with served.client(transport=httpx.HTTPTransport(local_address=address)) as client:
        yield client


@pytest.fixture
def proxy(served: Served) -> Iterator[httpx.Client]:
    """A proxy that is believed."""
    with coming_from("127.0.0.2", served) as client:
        yield client


def test_who_is_named_by_a_proxy_sees_the_pages_under_their_name(proxy: httpx.Client) -> None:
    page = proxy.get("/", headers={EMAIL: "z\u00f6e@example.com".encode()})
    assert page.status_code == 200 and "z\u00f6e@example.com" in page.text and "Sign out" not in page.text
    assert proxy.get("/v1/incidents", headers={EMAIL: "ann@example.com"}).status_code == 200
    assert proxy.get("/login", headers={EMAIL: "ann@example.com"}).headers["location"] == "/"


def test_anybody_else_who_says_so_is_not_believed(served: Served) -> None:
    for address in ("127.0.0.1", "127.0.0.3"):
        with coming_from(address, served) as client:
            claim = {
                EMAIL: "ann@example.com",
                GROUPS: "platform",
                "X-Forwarded-For": "127.0.0.2",
                "X-Real-Ip": "127.0.0.2",
            }
            assert client.get("/v1/incidents", headers=claim).status_code == 401
            assert client.get("/", headers=claim).headers["location"] == "/login"


def test_without_a_name_a_token_is_wanted(proxy: httpx.Client, served: Served) -> None:
    assert proxy.get("/v1/incidents").status_code == 401
    assert proxy.get("/v1/incidents", headers={EMAIL: ""}).status_code == 401
    secret = served.service.tokens.create("reader", ("read",))[1]
    assert proxy.get("/v1/incidents", headers=bearer(secret)).status_code == 200
    both = {EMAIL: "ann@example.com"} | bearer("ldr_wrong")
    assert proxy.get("/v1/incidents", headers=both).status_code == 401, "a token is tried whoever sends it"


@pytest.mark.parametrize(
    ("groups", "status"),
    [("", 403), ("others", 403), ("others, oncall", 200), ("platform", 200), ("on,call", 403)]
    + [
        (f"eu{mark}platform", status) for mark, status in ((",", 200), (";", 403), ("|", 403), (" ", 403), ("%2C", 403))
    ],
)
def test_what_people_may_do_comes_from_their_groups(proxy: httpx.Client, groups: str, status: int) -> None:
    headers = {EMAIL: "ann@example.com", GROUPS: groups}
    answer = proxy.get("/nodes/gpu-1/cordon", headers=headers)
    assert (200 if answer.status_code == 404 else answer.status_code) == status
    if status == 403:
        assert "groups do not allow &#39;operate&#39;" in answer.text


def test_a_list_of_groups_that_is_too_long_is_refused_as_a_whole(proxy: httpx.Client) -> None:
    """Cut off, it would end in a part of a name, which may be that of another group."""
    for groups in ("a" * 9_991 + ",platform-guests", "platform," + "a" * 10_000):
        answer = proxy.get("/v1/incidents", headers={EMAIL: "ann@example.com", GROUPS: groups})
        said = answer.json()["error"]
        assert answer.status_code == 400 and said["code"] == "bad_identity"
        assert "10,000 are read" in said["cause"] and "LOGDOCTOR_SSO_GROUPS" in said["next_step"]
        assert proxy.get("/nodes/gpu-1/cordon", headers={EMAIL: "ann@example.com", GROUPS: groups}).status_code == 400
    most = "platform," + "a" * 9_991
    assert proxy.get("/nodes/gpu-1/cordon", headers={EMAIL: "ann@example.com", GROUPS: most}).status_code in (200, 404)


def test_a_form_needs_its_key_and_is_recorded_under_the_name(proxy: httpx.Client, served: Served) -> None:
    headers = {EMAIL: "ann@example.com", GROUPS: "oncall"}
    page = proxy.get("/notifications", headers=headers)
    assert page.status_code == 200
    assert proxy.post("/logout", data={"key": "none"}, headers=headers).status_code == 403
    # a page of another site can let a browser send this, with what signs it in at the proxy
    assert proxy.post("/v1/nodes/gpu-1/cordon", json={"why": "x"}, headers=headers).status_code == 401


@pytest.mark.parametrize("name", ["poster", "logdoctor"])
def test_a_person_is_told_from_a_token_of_the_same_name(proxy: httpx.Client, served: Served, name: str) -> None:
    stored = publish(served.service, f"job-of-{name}")
    incident = served.service.incidents.of(stored.job, 1)
    assert incident is not None
    headers = {EMAIL: name, GROUPS: "oncall"}
    page = proxy.get(f"/incidents/{incident}", headers=headers)
    key = re.search(r'name="key" value="([^"]+)"', page.text)
    assert key is not None
    fields = {"key": key[1], "deed": "comment", "note": "mine"}
    done = proxy.post(f"/incidents/{incident}/work", data=fields, headers=headers)
    assert done.status_code < 400
    assert served.service.incidents.events(incident)[0].by == f"{name} (single sign-on)"


@pytest.mark.parametrize("name", [b"a" * 201, b"a\xff", "a\u202eb".encode()])
def test_a_name_that_cannot_be_one_is_refused(proxy: httpx.Client, name: bytes) -> None:
    answer = proxy.get("/v1/incidents", headers=[(EMAIL.encode(), name)])
    assert answer.status_code == 400 and "EMAIL" in answer.text.upper()


def test_a_header_that_comes_twice_is_refused(proxy: httpx.Client) -> None:
    for name, more in ((EMAIL, ""), (GROUPS, "x")):
        twice = [(EMAIL, "ann@example.com"), (name, more or "root@example.com"), (name, "platform")]
        answer = proxy.get("/v1/incidents", headers=twice)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "bad_identity"


@pytest.mark.parametrize(
    ("changed", "variable"),
    [
        ({"sso_proxies": ""}, "SSO_PROXIES"),
        ({"sso_proxies": "proxy.example"}, "SSO_PROXIES"),
        ({"sso_proxies": "10.0.0.1/8"}, "SSO_PROXIES"),
        ({"sso_scopes": "read,write"}, "SSO_SCOPES"),
        ({"sso_groups": "oncall"}, "SSO_GROUPS"),
        ({"sso_groups": "oncall=fly"}, "SSO_GROUPS"),
        ({"sso_groups": "CN=oncall,OU=ops=operate"}, "SSO_GROUPS"),
        ({"sso_groups_header": ""}, "SSO_GROUPS"),
    ],
)
def test_a_setting_that_is_wrong_is_named(changed: dict[str, str], variable: str) -> None:
    with pytest.raises(SettingsError, match=f"LOGDOCTOR_{variable}"):
        single_sign_on(msgspec.structs.replace(SETTINGS, **changed))


def test_nobody_is_believed_until_a_header_is_set() -> None:
    assert single_sign_on(Settings(sso_proxies="127.0.0.1")) is None


def test_addresses_in_their_ipv6_form_are_the_same(served: Served) -> None:
    believed = single_sign_on(SETTINGS)
    assert believed is not None
    found = [believed._is_believed(one) for one in ("::ffff:10.0.0.9", "10.0.0.9", "10.0.1.9", "::1", "", "x")]
    assert found == [True, True, False, False, False, False]


def test_the_path_of_the_file_is_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    assert "deploy/haproxy/single-sign-on.cfg" in text and "LOGDOCTOR_SSO_PROXIES" in text
