"""Any OpenAI-compatible server, asked through LangChain; the only module that knows these libraries.

They are imported when a model is made: it takes seconds, which a command that asks no model must not pay.
LangChain and the OpenAI client also look into the environment: for proxies, other servers, headers, tracing. None of
it is to have a say here, so the client below sends what it was built with and nothing else.
"""

import asyncio
import json
import re
import ssl
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, cast
from urllib.parse import urlsplit

from logdoctor.errors import ModelError, ModelNonsense, ModelUnavailable
from logdoctor.llm.answers import parse
from logdoctor.llm.chat import Message, Reply, Tool, ToolCall, as_words, estimate, flat, weight
from logdoctor.llm.masking import mask
from logdoctor.text import harmless

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage
    from langchain_openai import ChatOpenAI

Output = Literal["auto", "json_schema", "json", "tools", "text"]

MODES: tuple[Literal["json_schema", "json", "tools", "text"], ...] = ("json_schema", "json", "tools", "text")
"""Ways to have a model answer in JSON, in the order in which `auto` tries them."""

MAX_BODY = 1 << 20
"""Bytes of a response; a server that sends more is cut off."""

_MOST_TOKENS = 10_000_000
_OF_TOOLS = re.compile(r"\btools?\b|tool[_-]|\bfunctions?\b", re.I)
_OF_FORMS = re.compile(r"response_format|json|schema|grammar", re.I)
_HEADERS = ("host", "content-type", "content-length", "accept")
_NOT_UNDERSTOOD = (400, 404, 415, 422, 501)


class _Dialect(NamedTuple):
    """What a server understands, as far as it was found out; `looks`: that a model may call the tools it is given."""

    mode: Literal["json_schema", "json", "tools", "text"]
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True
    looks: bool = False


class _Asked(NamedTuple):
    """What is asked of a server, in whatever words."""

    messages: Sequence[Message]
    temperature: float
    schema: dict[str, Any] | None
    max_tokens: int
    tools: Sequence[Tool]


class _Wish(NamedTuple):
    """A tool that a model called, with its arguments as they were written."""

    id: str
    name: str
    text: str

    def call(self) -> ToolCall:
        """Return the call; without arguments when what was written is not JSON even leniently."""
        try:
            return ToolCall(self.id, self.name, parse(self.text or "{}", dict[str, Any]).value)
        except ModelNonsense:
            return ToolCall(self.id, self.name, {})


class _TooLong(Exception):
    """A response has more bytes than are read."""


class LangChainModel:
    """A model behind a URL such as http://127.0.0.1:8000/v1; any thread may ask.

    A call ends after `seconds` whatever the server does, and is tried once: when to try again is for the caller.
    With `output` "auto" a server that refuses a way to be told of JSON is asked in a weaker one, within the same
    call, and from then on; one that refuses tools is asked without. `ModelError` when the URL or key cannot be used.
    """

    def __init__(self, base_url: str, model: str, key: str, output: Output = "auto", seconds: float = 60.0) -> None:
        _check(base_url, key)
        self.name = model
        self._url = base_url
        self._key = key
        self._seconds = seconds
        self._free = output == "auto"
        self._dialect = _Dialect(MODES[0] if output == "auto" else output)
        self._looking: _Dialect | None = self._dialect._replace(looks=True)
        """How to ask with tools, which may go with other ways of asking than without; None: they are refused."""
        self._tls = ssl.create_default_context()
        _clients()  # the import is no part of a call's time

    def __repr__(self) -> str:
        return f"LangChainModel({self._url!r}, {self.name!r})"

    def ask(
        self,
        messages: Sequence[Message],
        *,
        temperature: float,
        schema: dict[str, Any] | None,
        max_tokens: int,
        tools: Sequence[Tool] = (),
    ) -> Reply:
        """Return the model's reply; see `ChatModel`."""
        asked = _Asked(messages, temperature, schema, max_tokens, tools)
        # a loop of its own, closed without waiting: a name that does not resolve must not hold the caller either
        loop = asyncio.new_event_loop()
        try:
            message = loop.run_until_complete(asyncio.wait_for(self._understood(asked), self._seconds))
        except TimeoutError:
            raise self._unavailable(f"gave no answer within {self._seconds:g} s") from None
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
        return self._reply(asked, message)

    async def _understood(self, asked: _Asked) -> "AIMessage":
        """Return the first answer that the server gives to any way of asking, which is remembered."""
        free = self._free and asked.schema is not None
        dialect = (self._looking if asked.tools else None) or self._dialect
        while True:
            try:
                message = await self._sent(dialect, asked)
            except _clients().openai.APIStatusError as error:
                weaker = _weaker(dialect, error.message, free) or (self._dialect if dialect.looks else None)
                if not _is_not_understood(dialect, error.status_code, error.message) or weaker is None:
                    self._refused(error.status_code, error.message, error.response.headers)
                dialect = weaker
            else:
                if dialect.looks:
                    self._looking = dialect
                else:
                    self._dialect = dialect
                    self._looking = None if asked.tools else self._looking
                return message

    async def _sent(self, dialect: _Dialect, asked: _Asked) -> "AIMessage":
        """Return the answer to one request. What the server refuses is raised as the client's own error."""
        openai = _clients().openai
        body: dict[str, Any] = {dialect.limit: asked.max_tokens}
        if dialect.temperature:
            body["temperature"] = asked.temperature
        if asked.schema is not None:
            body |= _answer_form(dialect.mode, asked.schema)
        if dialect.looks:
            # whether to call one is for the model: the form of the answer is only one of them then
            body["tools"] = [_clients().tool(tool) for tool in asked.tools] + body.get("tools", [])
            body["tool_choice"] = "auto"
        messages = flat(asked.messages) if asked.tools and not dialect.looks else asked.messages
        try:
            async with _clients().http(self._key, self._tls) as http:
                # not `ainvoke`: the layer above asks the environment for tracing, and can fail for what it finds
                result = await self._chat(http)._agenerate(
                    [_clients().message(message) for message in messages], extra_body=body
                )
                return cast("AIMessage", result.generations[0].message)
        except openai.APIStatusError:
            raise
        except openai.APIConnectionError as error:
            self._broken(error)
        except _TooLong:
            self._too_long()
        except (openai.OpenAIError, ValueError, TypeError, AttributeError, LookupError, RuntimeError, OSError) as error:
            # the client meets a body that is not JSON, or not of the form, with any of these
            kind = type(error).__name__
            raise self._unavailable(f"sent a response that is not one of a chat model ({kind})") from None

    def _chat(self, http: Any) -> "ChatOpenAI":
        """LangChain's model around one HTTP client, which lives as long as the event loop of the call."""
        chat: ChatOpenAI = _clients().chat(
            model=self.name,
            base_url=self._url,
            api_key="sent by the client below",
            http_client=_clients().nothing,
            http_async_client=http,
            openai_proxy=None,
            http_socket_options=(),
            timeout=self._seconds,
            max_retries=0,
            use_responses_api=False,
            output_version="v0",
            cache=False,
            verbose=False,
        )
        return chat

    def _reply(self, asked: _Asked, message: "AIMessage") -> Reply:
        """Return the text of an answer, or the arguments of the tool that stands for it, with its tokens."""
        wishes = _wishes(message)
        form = asked.schema.get("title", "answer") if asked.schema else None
        written = [wish.text for wish in wishes if not asked.tools or wish.name == form]
        calls = tuple(wish.call() for wish in wishes) if asked.tools and not written else ()
        text = written[0] if written else message.text
        if refusal := message.additional_kwargs.get("refusal"):
            raise ModelNonsense(f"the answer of {self.name}", f"is a refusal ({self._shown(refusal)})", "Try another.")
        if not text.strip() and not calls:
            raise ModelNonsense(f"the answer of {self.name}", "is empty", "Give it more tokens, or another model.")
        usage = getattr(message, "usage_metadata", None) or {}
        return Reply(
            text,
            _tokens(usage.get("input_tokens")) or weight(asked.messages, asked.tools),
            _tokens(usage.get("output_tokens")) or estimate(text) + sum(estimate(as_words(call)) for call in calls),
            calls,
        )

    def _refused(self, status: int, said: object, headers: Any) -> NoReturn:
        """Raise what a status other than 2xx means. Only a part of what the server said is told, without keys."""
        if 300 <= status < 400:
            raise self._unavailable(f"answers {status}, a redirect, which is not followed", "Set its last URL.")
        retry_after = _seconds(headers.get("retry-after"), headers.get("date")) if status in (429, 503) else None
        step = "Check LOGDOCTOR_LLM_KEY." if status in (401, 403) else "It is asked again later."
        if status in (400, 404, 422):
            step = "Check LOGDOCTOR_LLM_BASE_URL and LOGDOCTOR_LLM_MODEL."
        raise self._unavailable(f"answers {status} ({self._shown(said)})", step, retry_after) from None

    def _broken(self, error: BaseException) -> NoReturn:
        """Raise what a connection means that broke, by the error at its bottom."""
        kinds = []
        while error.__cause__ is not None:
            error = error.__cause__
            kinds.append(type(error).__name__)
            if isinstance(error, _TooLong):
                self._too_long()
        raise self._unavailable(f"cannot be reached, or broke off ({', '.join(kinds[:1]) or 'connection'})") from None

    def _too_long(self) -> NoReturn:
        raise self._unavailable(f"sent more than {MAX_BODY} bytes, or compressed ones") from None

    def _unavailable(
        self, cause: str, step: str = "It is asked again later.", retry_after: float | None = None
    ) -> ModelUnavailable:
        return ModelUnavailable(f"the model {self.name} at {self._url}", cause, step, retry_after)

    def _shown(self, said: object) -> str:
        """Return a part of what the server said, fit for a log: it may say the key, or the prompt, back to us."""
        text = str(said)[:2000]
        return harmless(mask(text.replace(self._key, "<secret>") if self._key else text), 200)


def _check(url: str, key: str) -> None:
    if not (key.isascii() and key.isprintable()) or key != key.strip():
        raise ModelError("LOGDOCTOR_LLM_KEY", "holds blanks or signs that no key has", "Set it again, or its file.")
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine:
        raise ModelError("LOGDOCTOR_LLM_BASE_URL", "is no http or https URL", "Use one as http://127.0.0.1:8000/v1.")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ModelError(
            "LOGDOCTOR_LLM_BASE_URL", "holds a user, a query or a fragment", "Put the key into LOGDOCTOR_LLM_KEY."
        )


def _wishes(message: "AIMessage") -> list[_Wish]:
    """Return the tools that a message calls, those with broken arguments behind."""
    good = [(one, json.dumps(one["args"])) for one in getattr(message, "tool_calls", ())]
    bad = [(one, str(one["args"] or "")) for one in getattr(message, "invalid_tool_calls", ())]
    return [_Wish(str(one["id"] or ""), str(one["name"] or ""), text) for one, text in good + bad]


def _answer_form(mode: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a request that asks for an answer of this form."""
    name = schema.get("title", "answer")
    form = {key: value for key, value in schema.items() if key != "title"}
    if mode == "json_schema":
        inner = {"name": name, "schema": form, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": inner}}
    if mode == "json":
        return {"response_format": {"type": "json_object"}}
    if mode == "tools":
        return {
            "tools": [{"type": "function", "function": {"name": name, "parameters": form}}],
            "tool_choice": {"type": "function", "function": {"name": name}},
        }
    return {}


def _is_not_understood(dialect: _Dialect, status: int, said: object) -> bool:
    """Return whether a refusal is about how was asked; a server without tools may call that an error of its own."""
    return status in _NOT_UNDERSTOOD or (status == 500 and dialect.looks and bool(_OF_TOOLS.search(str(said)[:500])))


def _weaker(dialect: _Dialect, said: object, free: bool) -> _Dialect | None:
    """Return how to ask a server that did not understand: without what it complains of, else in the next weaker mode.

    None when there is no other way; where tools were offered, it may be these.
    """
    text = str(said)[:500]
    if "max_completion_tokens" in text and dialect.limit == "max_tokens":
        return dialect._replace(limit="max_completion_tokens")
    if "temperature" in text and dialect.temperature:
        return dialect._replace(temperature=False)
    if dialect.looks and _OF_TOOLS.search(text) and not _OF_FORMS.search(text):
        return None
    place = MODES.index(dialect.mode) + 1
    return dialect._replace(mode=MODES[place]) if free and place < len(MODES) else None


def _tokens(count: object) -> int:
    """Return a count of tokens as the server gives it, or 0 when it cannot be one."""
    return count if isinstance(count, int) and 0 < count < _MOST_TOKENS else 0


def _seconds(retry_after: str | None, date: str | None) -> float | None:
    """Return the seconds of a Retry-After, which may be a date; the server's own clock counts then, if it shows it."""
    if not retry_after:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        try:
            now = parsedate_to_datetime(date).timestamp() if date else time.time()
            seconds = parsedate_to_datetime(retry_after).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return None
    return seconds if 0 <= seconds < float("inf") else None


class _Clients(NamedTuple):
    """What is used of the libraries: imported once."""

    openai: Any
    chat: Any
    message: Any
    tool: Any
    http: Any
    nothing: Any


_loaded: list[_Clients] = []


def _clients() -> _Clients:
    """Return the libraries, imported at the first call."""
    if not _loaded:
        _loaded.append(_imported())
    return _loaded[0]


def _imported() -> _Clients:
    import openai
    from langchain.chat_models import init_chat_model
    from langchain.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.utils.function_calling import convert_to_openai_tool

    class Http(openai.DefaultAsyncHttpxClient):
        """Sends requests with the headers of the protocol only, to the server that was set, and reads bounded bodies.

        The SDK adds headers from the environment, and some that describe this machine.
        """

        def __init__(self, key: str, tls: ssl.SSLContext) -> None:
            super().__init__(trust_env=False, verify=tls, follow_redirects=False)
            self._key = key

        async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
            """Return the response, read whole, at most `MAX_BODY` bytes of it."""
            kept = {name: request.headers[name] for name in _HEADERS if name in request.headers}
            own = {"accept-encoding": "identity", "user-agent": "logdoctor"}
            key = {"authorization": f"Bearer {self._key}"} if self._key else {}
            bare = type(request)(
                request.method,
                request.url,
                headers=kept | own | key,
                content=await request.aread(),
                extensions=request.extensions,
            )
            response = await super().send(bare, stream=True, follow_redirects=False)
            try:
                if response.headers.get("content-encoding", "identity").lower() != "identity":
                    raise _TooLong
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > MAX_BODY:
                        raise _TooLong
            finally:
                await response.aclose()
            return type(response)(response.status_code, headers=response.headers, content=bytes(body), request=request)

    def message(one: Message) -> Any:
        if one.role == "tool":
            return ToolMessage(one.text, tool_call_id=one.answers)
        calls = [{"type": "tool_call", "id": call.id, "name": call.name, "args": call.arguments} for call in one.calls]
        return HumanMessage(one.text) if one.role == "user" else AIMessage(one.text, tool_calls=calls)

    def tool(one: Tool) -> Any:
        return convert_to_openai_tool({"name": one.name, "description": one.description, "parameters": one.schema})

    return _Clients(
        openai,
        partial(init_chat_model, model_provider="openai"),
        message,
        tool,
        Http,
        openai.DefaultHttpxClient(trust_env=False),
    )
