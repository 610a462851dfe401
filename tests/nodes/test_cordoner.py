"""A mark on a node reads back as it was written, whatever the reason holds, and no other text is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import CordonError
from logdoctor.nodes.cordon.cordoner import MAX_TEXT, carries, checked_owner, mark_of, plain_reason, reason_text
from logdoctor.types.nodes import Mark, NodeState

MARK = Mark("logdoctor", 45, 123, "wrong data from GPU 3")
numbers = st.integers(0, 10**18 - 1)
marks = st.builds(
    Mark, st.sampled_from(["logdoctor", "a", "team-7.x_y", "cordon", "x" * 40]), numbers, st.none() | numbers, st.text()
)


def test_a_mark_is_one_line_for_people() -> None:
    assert reason_text(MARK) == "logdoctor cordon 45 verdict 123: wrong data from GPU 3"
    assert reason_text(Mark("logdoctor", 45, None, "")) == "logdoctor cordon 45"
    assert mark_of("logdoctor cordon 45 verdict 123: wrong data from GPU 3") == MARK


@given(marks)
def test_a_mark_reads_back(mark: Mark) -> None:
    text = reason_text(mark)
    found = mark_of(text)
    assert len(text) <= MAX_TEXT and text.isascii() and text.isprintable() and not set(text) & set("\"'`\\")
    assert found is not None and (found.owner, found.cordon, found.verdict) == (mark.owner, mark.cordon, mark.verdict)
    assert reason_text(found) == text and plain_reason(mark.reason).startswith(found.reason)
    assert carries(NodeState("gpu-1", True, found), mark)


@given(st.text() | st.from_regex(r"\w+ cordon \d+( verdict \d+)?(: .*)?", fullmatch=True))
def test_any_text_is_a_mark_or_none(text: str) -> None:
    found = mark_of(text)
    assert found is None or reason_text(found) == text


@pytest.mark.parametrize(
    "text",
    ["", "maintenance", "logdoctor cordon", "logdoctor cordon 45 ", "logdoctor cordon 045", "logdoctor cordon 45\n",
     "logdoctor cordon 45 verdict x", "logdoctor cordon 45: a  b", "-x cordon 1", "logdoctor cordon 45: it's",
     "ask logdoctor cordon 45", "logdoctor cordon 4" + "5" * 20, "logdoctor cordon \u0664"],
)  # fmt: skip
def test_what_others_wrote_is_no_mark(text: str) -> None:
    assert mark_of(text) is None


def test_what_others_changed_is_not_carried() -> None:
    for other in (
        Mark("logdoctor", 46, 123, MARK.reason),
        Mark("other", 45, 123, MARK.reason),
        Mark("logdoctor", 45, 124, MARK.reason),
        Mark("logdoctor", 45, 123, MARK.reason + "; and a dead fan"),
    ):
        assert not carries(NodeState("gpu-1", True, other), MARK)
    assert not carries(NodeState("gpu-1", False, MARK), MARK)
    assert not carries(NodeState("gpu-1", True, None), MARK) and not carries(None, MARK)


@pytest.mark.parametrize("owner", ["", "a b", "x" * 41, "-a", "a:", "\u00e9", "a\n"])
def test_an_owner_is_a_word(owner: str) -> None:
    with pytest.raises(CordonError):
        checked_owner(owner)
    with pytest.raises(CordonError):
        reason_text(Mark(owner, 1, None, ""))


@pytest.mark.parametrize("numbers", [(-1, None), (10**18, None), (1, -1), (1, 10**18)])
def test_numbers_are_in_range(numbers: tuple[int, int | None]) -> None:
    with pytest.raises(CordonError):
        reason_text(Mark("logdoctor", *numbers, ""))
