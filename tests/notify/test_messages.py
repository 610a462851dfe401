"""Messages tell what is known, without secrets, in bounded texts."""

import json

import msgspec

from logdoctor.service.notify import messages
from logdoctor.types import Evidence
from tests.notify.stories import AT, VERDICT, untold

LINK = "https://logdoctor.example"


def test_what_is_told_of_an_incident() -> None:
    message = messages.opened(untold(), LINK, AT + 2)
    assert json.loads(messages.encode(message)) == {
        "type": "incident.opened",
        "timestamp": "2026-11-21T10:05:07Z",
        "data": {
            "incident": 12,
            "state": "new",
            "opened": "2026-11-21T10:05:05Z",
            "reason": "ECC Error",
            "category": "Infrastructure",
            "fault": "infrastructure",
            "recovery": "isolate_and_restart",
            "advice": "cordon the node, then restart",
            "provisional": False,
            "confidence": 0.95,
            "suspects": [
                {"node": "gpu-12", "rank": 96, "gpu": None, "why": "GPU memory has an uncorrectable error (line 126)"}
            ],
            "job": "llama-7b",
            "attempt": 1,
            "attempts": 1,
            "jobs": 1,
            "user": "u17",
            "verdict": 7,
            "decided_by": "rule",
            "evidence": {"stream": "gpu-12", "line": 126, "quote": "Cuda failure 'uncorrectable ECC error'"},
            "suggestion": "Cordon the node and reset the GPU, so that the row is remapped.",
            "by": "",
            "note": "",
            "link": "https://logdoctor.example/incidents/12",
            "detail": "",
        },
    }
    assert messages.decode(messages.encode(message)) == message
    assert messages.kind_of(message) == "incident.opened"


def test_secrets_are_masked_before_texts_are_cut() -> None:
    secret = "hf_" + "aB3" * 12
    quote = "x" * (messages.MAX_QUOTE - 10) + " " + secret  # cut in the middle it would look like no secret
    verdict = msgspec.structs.replace(
        VERDICT,
        evidence=(Evidence("f", f"s {secret}", 3, quote, "r"),),
        suggestion=f"export HF_TOKEN={secret}\nthen restart",
        suspects=tuple(
            msgspec.structs.replace(VERDICT.suspects[0], node=f"n {secret}", why=f"password={secret}")
            for _ in range(20)
        ),
    )
    message = messages.opened(untold(verdict, job=f"job {secret}", user=secret), LINK, AT)
    told = messages.encode(message).decode()
    assert "aB3aB3" not in told and "<secret>" in told
    assert message.data.evidence is not None and len(message.data.evidence.quote) <= messages.MAX_QUOTE
    assert len(message.data.suspects) == messages.MAX_SUSPECTS
    assert message.data.suggestion == "export HF_TOKEN=<secret> then restart"
    gone = messages.resolved(message, "u1", f"token={secret}", AT)
    assert gone is not None and "aB3" not in messages.encode(gone).decode()


def test_what_steers_a_terminal_is_taken_out() -> None:
    coloured = "\x1b[31mpass\x1b[0mword=hunter2secret \u202e\0 \ud800"
    verdict = msgspec.structs.replace(VERDICT, evidence=(Evidence("f", "s", 3, coloured, "r"),))
    quote = messages.opened(untold(verdict), "", AT).data.evidence
    assert quote is not None and "\x1b" not in quote.quote and "\u202e" not in quote.quote
    assert "hunter2" not in quote.quote
    messages.encode(messages.opened(untold(verdict), "", AT)).decode()


def test_without_an_address_there_is_no_link() -> None:
    assert messages.opened(untold(), "", AT).data.link == ""
    assert messages.trial("u1", "", AT).data.link == ""


def test_a_summary_counts_each_incident_once() -> None:
    opened = [messages.opened(untold(id=number), LINK, AT) for number in range(1, 31)]
    gone = messages.resolved(opened[4], "u1", "restarted", AT)
    assert gone is not None
    found = messages.summary([*opened, gone], LINK, AT).data
    assert (found.opened, found.resolved, len(found.incidents)) == (29, 1, messages.LISTED)
    assert found.numbers == tuple(range(1, 31))
    assert [one.state for one in found.incidents[3:6]] == ["new", "resolved", "new"]
    assert len(messages.encode(messages.summary(opened, LINK, AT))) < 20_000, "receivers want small messages"
    assert messages.describe(messages.summary(opened, LINK, AT)) == "30 incidents"


def test_a_message_of_another_version_is_none() -> None:
    message = messages.opened(untold(), LINK, AT)
    body = messages.encode(message).decode()
    assert messages.read(body) == message
    assert messages.read(body.replace('"data":{', '"data":{"new":[1],')) == message, "what was added is left out"
    for other in (body.replace('"incident":12,', ""), '{"type":"other"}', "", "x", "[]", "1" * 5000, "[" * 5000):
        assert messages.read(other) is None
    assert messages.numbers(None) == [] and "another version" in messages.describe(None)


def test_only_an_opened_incident_is_resolved() -> None:
    assert messages.resolved(messages.trial("u", "", AT), "u", "", AT) is None
    assert messages.recoveries(messages.trial("u", "", AT)) == set()
    assert messages.recoveries(messages.opened(untold(), "", AT)) == {"isolate_and_restart"}
