"""LangChainModel against a real server on loopback, which behaves well and badly."""

import contextlib
import gzip
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.errors import ModelError, ModelNonsense, ModelUnavailable
from logdoctor.learning.filters.model import Patterns
from logdoctor.llm.answers import parse, schema
from logdoctor.llm.chat import Message, Reply, Tool, ToolCall
from logdoctor.llm.langchain import LangChainModel, Output
from tests import waiting
from tests.at_once import at_once
from tests.llm import server as ways
from tests.llm.server import Behave, ModelServer, model_server

KEY = "sk-test-0123456789abcdefghij"
ASKED = [Message("user", "Write the JSON object.")]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def model(server: ModelServer, output: Output = "auto", seconds: float = 300.0, key: str = KEY) -> LangChainModel:
    return LangChainModel(server.url, "tiny-7b", key, output, seconds)


def ask(model: LangChainModel, with_schema: bool = True) -> Reply:
    form = schema(Patterns) if with_schema else None
    return model.ask(ASKED, temperature=0.3, schema=form, max_tokens=77)


@pytest.mark.parametrize("output", ["json_schema", "json", "tools", "text"])
def test_each_mode_asks_in_its_way_and_gets_the_same_text(server: ModelServer, output: Output) -> None:
    assert parse(ask(model(server, output)).text, Patterns).value.patterns[0].pattern == r"^step \d+/\d+$"
    (body,) = server.bodies
    assert body["max_tokens"] == 77 and body["temperature"] == 0.3 and body["model"] == "tiny-7b"
    assert body["messages"] == [{"role": "user", "content": "Write the JSON object."}]
    assert body.get("response_format", {}).get("type") == {"json_schema": "json_schema", "json": "json_object"}.get(
        output
    )
    assert ("tools" in body) == (output == "tools")


def test_without_a_schema_no_form_is_asked_for(server: ModelServer) -> None:
    ask(model(server), with_schema=False)
    assert not {"response_format", "tools"} & set(server.bodies[0])


@pytest.mark.parametrize("code", [400, 404, 422])
def test_auto_remembers_the_strictest_mode_that_the_server_takes(server: ModelServer, code: int) -> None:
    server.behave(ways.without("json_schema", "json_object", code=code))
    one = model(server)
    assert ask(one) and ask(one)
    assert ["tools" in body for body in server.bodies] == [False, False, True, True]


def test_auto_ends_with_plain_text(server: ModelServer) -> None:
    server.behave(ways.without("response_format", "tools"))
    one = model(server)
    ask(one)
    server.got.clear()
    ask(one)
    assert len(server.bodies) == 1 and not {"response_format", "tools"} & set(server.bodies[0])


def test_auto_forgets_when_no_mode_is_taken(server: ModelServer) -> None:
    server.behave(ways.status(404, "no such model"))
    one = model(server)
    with pytest.raises(ModelUnavailable, match=r"404.*no such model.*LOGDOCTOR_LLM_MODEL"):
        ask(one)
    server.behave(ways.saying())
    ask(one)
    assert server.bodies[-1]["response_format"]["type"] == "json_schema"


def test_a_set_mode_is_kept(server: ModelServer) -> None:
    server.behave(ways.without("tools"))
    with pytest.raises(ModelUnavailable, match="400"):
        ask(model(server, "tools"))
    assert len(server.got) == 1


def test_a_server_that_knows_other_parameters_is_asked_with_these(server: ModelServer) -> None:
    server.behave(
        ways.status(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
        ways.status(400, "Unsupported value: 'temperature' does not support 0.3"),
        ways.saying(),
    )
    ask(model(server, "json_schema"))
    assert server.bodies[-1]["max_completion_tokens"] == 77
    assert not {"max_tokens", "temperature"} & set(server.bodies[-1])


GREP = Tool("grep", "Looks for a pattern.", {"type": "object", "properties": {"pattern": {"type": "string"}}})
CALL = ToolCall("call00001", "grep", {"pattern": "x"})
LOOKED = [*ASKED, Message("assistant", "", (CALL,)), Message("tool", "line 7: x", answers="call00001")]


def look(model: LangChainModel, messages: list[Message] = ASKED) -> Reply:
    return model.ask(messages, temperature=0.3, schema=schema(Patterns), max_tokens=77, tools=[GREP])


@pytest.mark.parametrize("output", ["json_schema", "json", "tools", "text"])
def test_tools_are_offered_and_called_in_each_mode(server: ModelServer, output: Output) -> None:
    server.behave(ways.calling("grep", {"pattern": "x"}, id="theirs"))
    one = model(server, output)
    assert look(one).calls == (ToolCall("theirs", "grep", {"pattern": "x"}),)
    answer = look(one, LOOKED)
    assert parse(answer.text, Patterns).value.patterns and not answer.calls
    first, second = server.bodies
    names = ["grep", "Patterns"] if output == "tools" else ["grep"]
    assert [tool["function"]["name"] for tool in first["tools"]] == names and first["tool_choice"] == "auto"
    assert first["tools"][0]["function"]["parameters"] == GREP.schema
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    assert second["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"pattern": "x"}'
    assert second["messages"][2]["tool_call_id"] == second["messages"][1]["tool_calls"][0]["id"] == "call00001"


def test_the_form_may_be_called_beside_tools(server: ModelServer) -> None:
    server.behave(ways.calling("Patterns", ways.GOOD))
    answer = look(model(server, "tools"))
    assert parse(answer.text, Patterns).value.patterns and not answer.calls


@pytest.mark.parametrize(
    ("written", "arguments"),
    [('{"pattern": "a\\d",}', {"pattern": "a\\d"}), ("", {}), ("not JSON", {}), ("{" * 5000, {}),
     ('{"pattern": "' + "x" * 300_000 + '"', {})],
)  # fmt: skip
def test_arguments_are_read_leniently(server: ModelServer, written: str, arguments: dict[str, str]) -> None:
    server.behave(ways.calling("grep", written))
    assert look(model(server)).calls == (ToolCall("c", "grep", arguments),)


REFUSALS = {
    "in general": ("bad request", 400),
    "by its key": ("Extra inputs are not permitted: tools", 422),
    "as vLLM": ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', 400),
    "as llama.cpp": ("tools param requires --jinja flag", 500),
    "as Ollama": ("registry.example/library/tiny does not support tools", 400),
}


@pytest.mark.parametrize("way", REFUSALS)
@pytest.mark.parametrize("output", ["auto", "json_schema", "text"])
def test_a_server_that_refuses_tools_is_asked_without(server: ModelServer, way: str, output: Output) -> None:
    server.behave(ways.without_tools(*REFUSALS[way]))
    one = model(server, output)
    assert parse(look(one).text, Patterns).value.patterns
    server.got.clear()
    assert parse(look(one).text, Patterns).value.patterns and ask(one).text
    assert len(server.bodies) == 2 and not any("tools" in body for body in server.bodies)
    mode = server.bodies[0].get("response_format", {}).get("type")
    assert mode == (None if output == "text" else "json_schema"), "tools are no reason for a weaker mode"


def test_a_server_that_refuses_what_came_of_tools_is_told_in_words(server: ModelServer) -> None:
    server.behave(ways.without_tools())
    look(model(server), LOOKED)
    assert server.bodies[-1]["messages"] == [
        {"role": "user", "content": "Write the JSON object."},
        {"role": "assistant", "content": 'grep({"pattern": "x"})'},
        {"role": "user", "content": "line 7: x"},
    ]


def test_tools_and_a_strict_form_that_exclude_each_other(server: ModelServer) -> None:
    either = ways.without("json_schema", "json_object", then=ways.calling("grep", {"pattern": "x"}))
    said = ways.status(400, "response_format json_schema cannot be combined with tool calling")
    server.behave(lambda handler, body: (said if "json_schema" in str(body.get("response_format")) else either)(
        handler, body) if "tools" in body else ways.saying()(handler, body))  # fmt: skip
    one = model(server)
    assert look(one).calls and ask(one).text
    assert server.bodies[-1]["response_format"]["type"] == "json_schema", "without tools it is as strict as before"


def test_a_server_that_is_down_has_not_refused_tools(server: ModelServer) -> None:
    one = model(server)
    for way in (ways.status(500), ways.status(429, "too many tools"), ways.half):
        server.behave(way)
        with pytest.raises(ModelUnavailable):
            look(one)
    server.behave(ways.calling("grep", {"pattern": "x"}))
    assert look(one).calls


def test_a_context_that_is_too_long_is_told(server: ModelServer) -> None:
    server.behave(ways.status(400, "This model's maximum context length is 4096 tokens"))
    with pytest.raises(ModelUnavailable, match="maximum context length"):
        look(model(server))
    assert len(server.bodies) <= 8


def test_tokens_are_those_of_the_server_or_an_estimate(server: ModelServer) -> None:
    server.behave(
        ways.saying(usage={"prompt_tokens": 123, "completion_tokens": 45, "total_tokens": 168}),
        ways.saying(usage={"prompt_tokens": -5, "completion_tokens": 10**15, "total_tokens": 0}),
        ways.saying("word"),
    )
    assert ask(model(server))[1:3] == (123, 45)
    assert 0 < ask(model(server)).tokens_out < 200
    assert ask(model(server)).tokens_out == 1


SLOW: dict[str, Behave] = {
    "hanging": ways.hanging,
    "dripping body": ways.dripping,
    "dripping head": ways.dripping_head,
    "endless": ways.endless,
}


@pytest.mark.parametrize("way", SLOW)
def test_a_call_ends_at_its_deadline(server: ModelServer, way: str) -> None:
    server.behave(SLOW[way])
    with pytest.raises(ModelUnavailable, match=r"within 0\.5 s"):
        ask(model(server, seconds=0.5))
    assert not server.over.is_set(), "the server has not ended its answer"
    assert len(server.got) <= 1, "nothing is tried again on its own; the request may come late"


BROKEN: dict[str, tuple[Behave, str]] = {
    "500": (ways.status(500), "answers 500"),
    "401": (ways.status(401), "LOGDOCTOR_LLM_KEY"),
    "half a JSON": (ways.half, "broke off"),
    "closed at once": (ways.raw(b""), "broke off"),
    "not HTTP": (ways.raw(b"SSH-2.0-OpenSSH\r\n\r\n"), "broke off"),
    "huge": (ways.huge, "more than 1048576 bytes"),
    "bomb": (ways.body(gzip.compress(b" " * (64 << 20)), content_encoding="gzip"), "compressed"),
    "not JSON": (ways.body(b"<html>busy</html>"), "not one of a chat model"),
    "cut JSON": (ways.body(b'{"choices": [{"message": {"role": "assist'), "not one of a chat model"),
    "deep": (ways.body(b"[" * 500_000), "not one of a chat model"),
    "other JSON": (ways.body(b'{"result": 1}'), "not one of a chat model"),
    "a list": (ways.body(b"[1, 2]"), "not one of a chat model"),
    "a number": (ways.body(b"7"), "not one of a chat model"),
    "no choices": (ways.body(b'{"choices": []}'), "not one of a chat model"),
    "null choices": (ways.body(b'{"choices": null}'), "not one of a chat model"),
    "odd choices": (ways.body(b'{"choices": [7]}'), "not one of a chat model"),
    "odd message": (ways.body(b'{"choices": [{"message": "hello"}]}'), "not one of a chat model"),
    "error in 200": (ways.body(b'{"error": {"message": "overloaded"}}'), "not one of a chat model"),
}


@pytest.mark.parametrize("way", BROKEN)
def test_what_is_no_answer_is_unavailable(server: ModelServer, way: str) -> None:
    behave, cause = BROKEN[way]
    server.behave(behave)
    with pytest.raises(ModelUnavailable, match=cause):
        ask(model(server, "text"))
    assert len(server.got) == 1


@pytest.mark.parametrize(
    "content",
    [b'{"role": "assistant", "content": 7}', b'{"role": "assistant", "content": [{"x": 1}]}', b'{"role": "assistant"}',
     b'{"role": "assistant", "content": null, "tool_calls": [{"function": {}}]}',
     b'{"role": "assistant", "content": null, "tool_calls": [{"id": 7, "function": {"name": 8, "arguments": 9}}]}',
     b'{"role": "assistant", "content": null, "tool_calls": 3}', b'{"role": "tool", "content": "x"}'],
)  # fmt: skip
def test_an_odd_message_is_a_model_error_and_nothing_else(server: ModelServer, content: bytes) -> None:
    server.behave(ways.body(b'{"choices": [{"message": ' + content + b"}]}"))
    with pytest.raises(ModelError):
        parse(ask(model(server, "text")).text, Patterns)
    with pytest.raises(ModelError):
        parse(look(model(server, "text")).text, Patterns)


def test_no_server_is_unavailable() -> None:
    with model_server() as server:
        gone = model(server)
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        ask(gone)


def test_a_certificate_that_nobody_vouches_for_is_refused(server: ModelServer, tmp_path: Path) -> None:
    made = ["-keyout", tmp_path / "key", "-out", tmp_path / "cert", "-days", "1", "-subj", "/CN=localhost"]
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made]
    subprocess.run(request, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        ask(LangChainModel(server.url.replace("http:", "https:"), "m", KEY))
    assert server.got == []


def test_a_redirect_is_not_followed(server: ModelServer) -> None:
    with model_server() as other:
        server.behave(ways.status(307, location=f"{other.url}/chat/completions"))
        with pytest.raises(ModelUnavailable, match="redirect"):
            ask(model(server))
        assert other.got == []


def test_a_refusal_and_an_empty_answer_are_nonsense(server: ModelServer) -> None:
    server.behave(ways.refusal)
    with pytest.raises(ModelNonsense, match="refusal"):
        ask(model(server, "text"))
    server.behave(ways.saying(" "))
    with pytest.raises(ModelNonsense, match="empty"):
        ask(model(server, "text"))


def test_half_written_arguments_of_a_tool_come_as_text(server: ModelServer) -> None:
    server.behave(ways.saying('{"patterns": [{"pattern": "^a$"}, {"patt'))
    parsed = parse(ask(model(server, "tools")).text, Patterns)
    assert parsed.cut and [one.pattern for one in parsed.value.patterns] == ["^a$"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("1.5", 1.5), ("Fri, 02 Jan 2026 00:01:30 GMT", 90), ("soon", None),
     ("-4", None), ("inf", None), ("nan", None), ("Mon, 99 Foo 2026", None)],
)  # fmt: skip
def test_retry_after(server: ModelServer, header: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways.Handler, "date_time_string", lambda _: "Fri, 02 Jan 2026 00:00:00 GMT")
    server.behave(ways.status(429, retry_after=header))
    with pytest.raises(ModelUnavailable, match="429") as caught:
        ask(model(server))
    assert caught.value.retry_after == seconds


def test_the_environment_has_no_say(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with model_server() as other:
        elsewhere = other.url.removesuffix("/v1")
        for name in (
            "HTTP_PROXY",
            "HTTPS_PROXY",
            "ALL_PROXY",
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "OPENAI_PROXY",
        ):
            monkeypatch.setenv(name, elsewhere)
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("no_proxy", "")
        for name in (
            "OPENAI_BASE_URL",
            "OPENAI_API_BASE",
            "LANGSMITH_GATEWAY",
            "LANGSMITH_ENDPOINT",
            "LANGCHAIN_ENDPOINT",
        ):
            monkeypatch.setenv(name, elsewhere)
        for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2", "LANGCHAIN_HANDLER"):
            monkeypatch.setenv(name, "true")
        for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "OPENAI_API_KEY", "LANGSMITH_API_KEY"):
            monkeypatch.setenv(name, "from-the-environment")
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Leak: from-the-environment")
        before = set(threading.enumerate())
        ask(model(server))
        for thread in set(threading.enumerate()) - before:
            thread.join()  # a tracer would send from a thread of its own
        assert other.got == []
    ((headers, _),) = server.got
    assert {name.lower() for name in headers} == {
        "host", "content-type", "content-length", "accept", "accept-encoding", "user-agent", "authorization"
    }  # fmt: skip
    assert headers["authorization"] == f"Bearer {KEY}"
    assert "from-the-environment" not in str(server.got)


def test_without_a_key_none_is_sent(server: ModelServer) -> None:
    ask(model(server, key=""))
    assert "authorization" not in {name.lower() for name in server.got[0][0]}


def test_the_key_is_told_to_nobody(server: ModelServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    one = model(server)
    assert KEY not in repr(one)
    ask(one)
    said = f"Incorrect API key provided: {KEY}, or password=hunter2"
    server.behave(ways.status(401, said))
    with pytest.raises(ModelUnavailable) as caught:
        ask(one)
    error: BaseException | None = caught.value
    assert "Incorrect API key" in str(error) and "hunter2" not in str(error)
    assert KEY not in str(error) and error is not None and error.__suppress_context__
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000", "ftp://x/v1", "http://", "http://u:p@h/v1", "http://h/v1?key=1", "http://h:99999/v1"]
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ModelError, match="LOGDOCTOR_LLM_BASE_URL"):
        LangChainModel(url, "m", KEY)


@pytest.mark.parametrize("key", ["Zq\n", " Zq", "Zq\x00", "Zqü"])
def test_a_key_that_is_none_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ModelError, match="LOGDOCTOR_LLM_KEY") as caught:
        LangChainModel("http://127.0.0.1:1/v1", "m", key)
    assert "Zq" not in str(caught.value)


def test_a_name_that_does_not_resolve_does_not_hold_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def stalled(*_: object, **__: object) -> list[object]:
        over.wait()
        raise socket.gaierror("no name server")

    monkeypatch.setattr(socket, "getaddrinfo", stalled)
    one = LangChainModel("http://model.example/v1", "m", "", seconds=0.3)
    try:
        with pytest.raises(ModelUnavailable, match="within"):
            ask(one)
    finally:
        over.set()


def test_calls_leave_no_open_files(server: ModelServer) -> None:
    ask(model(server))
    one = model(server, seconds=0.2)
    before = len(os.listdir("/proc/self/fd"))
    for way in (ways.saying(), ways.half, ways.hanging, ways.huge, ways.status(500)) * 3:
        server.behave(way)
        with contextlib.suppress(ModelError):
            ask(one)
    server.over.set()
    waiting.until(lambda: len(os.listdir("/proc/self/fd")) <= before + 5, "the files are closed")


def test_many_threads_may_ask_one_model(server: ModelServer) -> None:
    replies = at_once(ask, [model(server)] * 8)
    assert [reply.text for reply in replies] == [json.dumps(ways.GOOD)] * 8


def test_the_libraries_are_imported_late() -> None:
    code = (
        "import sys, logdoctor.llm.langchain, logdoctor.llm.spending, logdoctor.learning.filters.model;"
        "print([m for m in ('openai', 'langchain_core', 'langchain_openai', 'langsmith') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
