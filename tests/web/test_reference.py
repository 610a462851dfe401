"""The page of the API has all of the document, needs nothing of another site, and no token."""

import re

from starlette.testclient import TestClient

from tests.web.conftest import Guarded


def test_every_operation_is_on_the_page_with_its_parameters(lasting: TestClient) -> None:
    document, page = lasting.get("/openapi.json").json(), lasting.get("/docs")
    assert page.status_code == 200 and "\N{REPLACEMENT CHARACTER}" not in page.text
    text = page.text.replace("&#39;", "'")
    for path, item in document["paths"].items():
        for method, operation in item.items():
            begin = text.index(f'id="{operation["operationId"]}"')
            part = text[begin : text.index("</details>", begin)]
            assert f">{method.upper()} {path}</code>" in part
            assert all(f"<code>{one['name']}</code>" in part for one in operation.get("parameters", ()))
            assert all(f"<li>{status}:" in part for status in operation["responses"])
    assert all(f'<h2 id="{tag["name"]}">' in text for tag in document["tags"])


def test_examples_are_on_the_page(lasting: TestClient) -> None:
    text = lasting.get("/docs").text
    assert "lm loss: 6.81E+00" in text and "&#34;next_offset&#34;: 4096" in text


def test_the_page_asks_for_nothing_of_other_sites(lasting: TestClient) -> None:
    page = lasting.get("/docs")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page.text) and "<script" not in page.text


def test_whoever_has_no_token_may_read_it_as_the_document(lasting_guarded: Guarded) -> None:
    assert lasting_guarded.client.get("/docs").status_code == 200
    assert lasting_guarded.client.get("/openapi.json").status_code == 200


def test_operations_are_called_as_people_say(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    summaries = {
        f"{method} {path}": one["summary"] for path, item in document["paths"].items() for method, one in item.items()
    }
    assert summaries["get /v1/incidents/{id}"] == "Return one incident with the verdict of its newest attempt"
    assert not [one for one in summaries.values() if "\n" in one or one.endswith(".") or " " not in one]
    shown = client.get("/docs").text
    assert '<h2 id="incidents">Incidents</h2>' in shown
    assert "<b>Acknowledge an incident: somebody is working on it</b>" in shown
