"""Nothing that a log or a person says breaks Slack's limits or becomes a mark of Slack's."""

import re
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from logdoctor.service.notify import messages, slack
from logdoctor.types import Evidence, Suspect
from tests.notify.stories import AT, VERDICT, untold

LINK = "https://logdoctor.example"
HOSTILE = (
    "<!channel> <@U123> <https://evil.example|click> @here *bold* _it_ ~no~ `code` ```fence``` &amp; &lt;!here&gt;"
    " :boom: http://evil.example \n> quoted\n• \u202e\0\ud83d"
)
texts = st.one_of(
    st.text(max_size=60),
    st.sampled_from([HOSTILE, "&" * 9000, "<" * 4000, "`" * 3000, "\U0001f600" * 5000, "", " ", "\n" * 500]),
    st.text(alphabet="<>&`*_~@!|:\U0001f600a", max_size=5000),
)


def blocks(payload: dict[str, Any]) -> list[dict[str, Any]]:
    return list(payload["blocks"])


def texts_of(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """All text objects of a message."""
    found = []
    for block in blocks(payload):
        found += [block["text"]] if "text" in block else []
        found += block.get("fields", [])
        found += [one["text"] if one["type"] == "button" else one for one in block.get("elements", [])]
    return found


def units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def check(payload: dict[str, Any]) -> None:
    """The limits of Slack's reference, and that nothing from outside is a mark."""
    assert set(payload) == {"text", "blocks", "parse", "link_names", "unfurl_links", "unfurl_media"}
    assert 0 < units(payload["text"]) <= 3000 and payload["parse"] == "none" and payload["link_names"] is False
    assert 0 < len(blocks(payload)) <= 50
    for block in blocks(payload):
        if block["type"] == "header":
            assert block["text"]["type"] == "plain_text" and units(block["text"]["text"]) <= 150
        elif block["type"] == "section":
            assert ("text" in block) != ("fields" in block)
            assert units(block.get("text", {}).get("text", "")) <= 3000
            assert 0 < len(block.get("fields", [1])) <= 10
            assert all(units(field["text"]) <= 2000 for field in block.get("fields", []))
        elif block["type"] == "actions":
            assert len(block["elements"]) <= 25
            assert all(units(one["text"]["text"]) <= 75 and units(one["url"]) <= 3000 for one in block["elements"])
        else:
            assert block["type"] == "context" and len(block["elements"]) <= 10
    for text in texts_of(payload):
        assert text["text"], "Slack refuses empty texts"
        assert text.get("verbatim") is True or (text["type"] == "plain_text" and text["emoji"] is False)
    for text in [*texts_of(payload), {"text": payload["text"], "type": "mrkdwn"}]:
        bare = re.sub(r"&(?:amp|lt|gt);", "", text["text"])
        assert not set("<>&") & set(bare), "a mark of Slack's could be made of it"
        if text["type"] == "mrkdwn":
            assert_tame(text["text"])


def assert_tame(text: str) -> None:
    """Outside of code there are only words and marks of ours: none of what the tests say."""
    fences = text.count("```")
    assert fences in (0, 2)
    outside = re.sub(r"`[^`\n]*`", "", re.sub(r"```[^`]*```", "", text))
    assert "`" not in outside
    outside = outside.replace(LINK, "")
    assert "@" not in outside and "evil" not in outside and "http" not in outside and "\U0001f600" not in outside
    for line in outside.split("\n"):
        assert line.count("*") in (0, 2) and "~" not in line


@given(texts, texts, texts, texts, st.integers(0, 10), st.sampled_from(["", LINK]), st.booleans())
@example(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 10, LINK, True)
@example(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 10, LINK, False)
@example("", "", "", "", 0, "", False)
@example("", "", "", "&" * 9000, 0, "", False)
def test_every_limit_holds_for_hostile_incidents(
    job: str, quote: str, name: str, words: str, suspects: int, link: str, final: bool
) -> None:
    verdict = msgspec.structs.replace(
        VERDICT,
        evidence=(Evidence("f", name, 2**53, quote, "r"),),
        suggestion=words,
        suspects=tuple(Suspect(name, 2**31, name, words) for _ in range(suspects)),
        detail=words,
        reason="Unknown" if final else VERDICT.reason,
    )
    opened = messages.opened(untold(verdict, job=job, user=name, final=final), link, AT)
    gone = messages.resolved(opened, name, words, AT)
    assert gone is not None
    for message in (opened, gone, messages.trial(name, link, AT)):
        check(slack.payload(message))
        check(slack.payload(messages.decode(messages.encode(message))))


@given(st.lists(st.tuples(texts, st.sampled_from(["new", "resolved"])), min_size=1, max_size=12))
@example([("&" * 9000, "new")] * 40)
@example([(HOSTILE, "new")])
def test_every_limit_holds_for_many_incidents(told: list[tuple[str, str]]) -> None:
    found = []
    for number, (job, state) in enumerate(told):
        unknown = msgspec.structs.replace(VERDICT, reason="Unknown", detail=job)
        opened = messages.opened(untold(unknown, id=number, job=job), LINK, AT)
        gone = messages.resolved(opened, job, job, AT)
        assert gone is not None
        found.append(gone if state == "resolved" else opened)
    check(slack.payload(messages.summary(found, LINK, AT)))


def test_a_category_never_stands_against_the_fault() -> None:
    users = msgspec.structs.replace(VERDICT, fault="user")
    told = " ".join(text["text"] for text in texts_of(slack.payload(messages.opened(untold(users), LINK, AT))))
    assert "the user's code, data or quota" in told and "*Category*\nusually Infrastructure" in told


def test_what_a_person_sees_of_an_incident() -> None:
    payload = slack.payload(messages.opened(untold(), LINK, AT))
    assert [block["type"] for block in blocks(payload)] == [
        "header", "section", "section", "section", "section", "actions", "context"
    ]  # fmt: skip
    header, lead, fields, proof, suggestion, actions, _ = blocks(payload)
    assert header["text"]["text"] == "ECC Error on gpu-12"
    assert lead["text"]["text"] == "*Cordon the node, then restart*"
    assert [field["text"] for field in fields["fields"]] == [
        "*Job*\n`llama-7b`, attempt 1",
        "*Fault*\nthe infrastructure",
        "*Suspects*\n`gpu-12, rank 96`",
        "*Attempts*\n1",
        "*Category*\nInfrastructure",
        "*User*\n`u17`",
    ]
    assert proof["text"]["text"] == "Line 126 of `gpu-12`:\n```Cuda failure 'uncorrectable ECC error'```"
    assert suggestion["text"]["text"].startswith("Cordon the node and reset")
    assert actions["elements"][0]["url"] == "https://logdoctor.example/incidents/12"
    assert payload["text"] == (
        "ECC Error on `gpu-12`: *Cordon the node, then restart*\nJob `llama-7b`, attempt 1\n"
        "`Cuda failure 'uncorrectable ECC error'`\nhttps://logdoctor.example/incidents/12"
    )


def test_what_a_person_sees_of_many() -> None:
    opened = [messages.opened(untold(id=number), LINK, AT) for number in range(1, 15)]
    payload = slack.payload(messages.summary(opened, LINK, AT))
    header, counted, lines, actions = blocks(payload)
    assert header["text"]["text"] == "14 incidents" and counted["text"]["text"] == "14 new"
    assert lines["text"]["text"].count("\n") == 10 and lines["text"]["text"].endswith("and 4 more")
    assert actions["elements"][0]["url"] == "https://logdoctor.example/"


def test_without_an_address_there_is_no_button() -> None:
    for link in ("", "javascript:alert(1)", "https://logdoctor.example/" + "x" * 3000):
        payload = slack.payload(messages.opened(untold(), link, AT))
        assert "actions" not in {block["type"] for block in blocks(payload)}
