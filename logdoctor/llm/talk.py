"""A conversation in which a model may look things up before it answers, within bounds that it cannot move."""

import json
from collections.abc import Callable, Sequence

from logdoctor.llm.chat import Message, Reply, Tool, ToolCall, as_words, estimate, flat, weight

Run = Callable[[ToolCall], str]
"""What comes of a call, in words for a model."""

_MOST_WORDS = 200  # characters that are kept of what a model says beside its calls
_MOST_ARGUMENTS = 400
_MOST_RESULT = 64 << 10
_LEAST_ROOM = 100  # tokens: a result of less tells nothing
_NOTICE = "There are no more looks. Answer now: write the JSON object only."
_CUT = "[the rest has no room]"


class Talk:
    """The messages of a conversation, which grow by what a model looks up.

    At most `most_calls` calls are made, and what is sent stays within `most_tokens`, offered tools included; the first
    messages are sent however long they are. `tools` are those on offer: none when nothing more may be looked up.
    """

    def __init__(
        self, messages: Sequence[Message], tools: Sequence[Tool], run: Run | None, most_calls: int, most_tokens: int
    ) -> None:
        self.messages = list(messages)
        self.tools = tuple(tools)
        self._run = run
        self._left = most_calls
        self._most_tokens = most_tokens - estimate(_NOTICE)
        self._made = 0
        self._asked: set[str] = set()
        if run is None or most_calls <= 0 or self._room() < _LEAST_ROOM:
            self.tools = ()

    def look(self, reply: Reply) -> None:
        """Make the calls of a reply, up to the limit, and add their results."""
        words = _plain(reply.text[:_MOST_WORDS])
        room = self._room() - estimate(words)
        calls: list[ToolCall] = []
        for call in map(self._sound, reply.calls[: self._left]):
            room -= estimate(as_words(call)) + _LEAST_ROOM
            if room < 0:
                break
            calls.append(call)
        if not calls:
            return self.end()
        self.messages.append(Message("assistant", words, tuple(calls)))
        for place, call in enumerate(calls, 1):
            kept = (len(calls) - place) * _LEAST_ROOM  # for the results of the others
            self.messages.append(Message("tool", _fitted(self._result(call), self._room() - kept), answers=call.id))
        self._left -= len(calls)
        if self._left <= 0 or self._room() < _LEAST_ROOM:
            self.end()

    def end(self) -> None:
        """Offers no more tools, and says so when some were used."""
        if self.tools and self._made:
            self.messages = flat([*self.messages, Message("user", _NOTICE)])
        self.tools = ()

    def _room(self) -> int:
        return self._most_tokens - weight(self.messages, self.tools)

    def _sound(self, call: ToolCall) -> ToolCall:
        """Return the call as it can be sent back, with an id of ours: theirs may be missing, or another in each run."""
        self._made += 1
        arguments = json.dumps(call.arguments, ensure_ascii=False).encode("utf-8", "replace")
        given = json.loads(arguments) if len(arguments) <= _MOST_ARGUMENTS else {}
        return ToolCall(f"call{self._made:05}", _plain(call.name[:64]), given)

    def _result(self, call: ToolCall) -> str:
        if call.name not in (names := [tool.name for tool in self.tools]):
            return f"There is no such tool; there are {', '.join(names)}."
        if (words := as_words(call)) in self._asked:
            return "You looked this up before; see above."
        self._asked.add(words)
        assert self._run is not None
        return self._run(call)[:_MOST_RESULT] or "Nothing was found."


def _fitted(text: str, tokens: int) -> str:
    """Return the first lines of a text that have room."""
    if estimate(text) <= tokens:
        return text
    left, kept = tokens - estimate(_CUT), []
    for line in text.split("\n"):
        left -= estimate(line) + 1
        if left < 0:
            break
        kept.append(line)
    return "\n".join([*kept, _CUT])


def _plain(text: str) -> str:
    return text.encode("ascii", "replace").decode()
