"""Conversations without tools, and what they weigh."""

from logdoctor.llm.chat import Message, Tool, ToolCall, estimate, flat, weight

CALL = ToolCall("1", "grep", {"pattern": "näme"})


def test_a_flat_conversation_has_no_tools_and_no_two_turns_of_one_role() -> None:
    talk = [
        Message("user", "Why?"),
        Message("assistant", "Let me see.", (CALL, CALL)),
        Message("tool", "one", answers="1"),
        Message("tool", "two", answers="2"),
        Message("user", "Answer now."),
    ]
    assert flat(talk) == [
        Message("user", "Why?"),
        Message("assistant", 'Let me see.\ngrep({"pattern": "näme"})\ngrep({"pattern": "näme"})'),
        Message("user", "one\n\ntwo\n\nAnswer now."),
    ]
    assert flat(flat(talk)) == flat(talk) and flat(talk[:1]) == talk[:1]


def test_calls_and_tools_weigh() -> None:
    bare = weight([Message("user", "a b")])
    assert bare == estimate("a b")
    assert weight([Message("user", "a b", (CALL,))]) > bare + 5
    assert weight([Message("user", "a b")], [Tool("grep", "Looks.", {"type": "object"})]) > bare + 5
