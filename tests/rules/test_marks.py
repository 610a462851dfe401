"""What looks like trouble, whatever it is called; a count of trouble that is nought is none."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logdoctor.rules import marks
from logdoctor.rules.match import Matcher

TROUBLE = (
    "it failed",
    "failed",
    "(failed)",
    "x-failed",
    "state=failed",
    "failed\r",
    "10 failed",
    "1.0 failed",
    "retry 20: failed",
    "failed: 10",
    "failed 0x1f",
    "failed 0.5",
    "failed: 05",
    "timed out after 0 s",
    "unreachable=1 failed=0",
    "0 failed, 3 killed",
    "rank 0 failed to join",
    "[rank0]: worker 0 failed",
    "GPU 0 lost",
    "GPU 0 is unreachable",
    "process 0 terminated",
    "rank 0 timed out",
    "node 0 killed",
    "step 0 aborted",
    "fatal: 0 GPUs found",
    "init failed: 0 devices",
    "worker-3   Failed      10m",
    "node-3 killed     by signal 9",
    "worker failed    ",
    "failed\t0x1",
    "error ===== x",
    "got SIGTERM",
    "WARNING: CRITICAL",
    "Traceback (most recent call last):",
)
NO_TROUBLE = (
    "all well",
    "timeout 0",
    "0 failed",
    "100 passed, 0 failed",
    "failed=0",
    "killed: 0",
    "lost 0, killed 0",
    "errors",
    "failsafe",
    "foolproof",
    "defaulted",
    "",
)


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher([*marks.STRONG.values(), *marks.WEAK.values()])


@pytest.mark.parametrize("line", TROUBLE)
def test_trouble_is_marked(matcher: Matcher, line: str) -> None:
    assert len(matcher.scan(line.encode())[0]) and marks.is_error_like(line)


@pytest.mark.parametrize("line", NO_TROUBLE)
def test_what_is_well_is_not_marked(matcher: Matcher, line: str) -> None:
    assert not len(matcher.scan(line.encode())[0]) and not marks.is_error_like(line)


_PARTS = st.sampled_from(
    ["failed", "Error", "timed out", "killed", "SIGKILL", "rank", "0", "10", "0.5", "0x1", "x", "ERROR", "lost"]
)
_BETWEEN = st.sampled_from([" ", " ", "  ", "     ", "=", ": ", ":", ", ", "", "(", ")", "-", "_", "\t", ".", "\r"])


@given(st.lists(st.tuples(_PARTS, _BETWEEN), max_size=8))
@example([("failed", "\r")])
def test_property_both_engines_see_the_same_trouble(matcher: Matcher, parts: list[tuple[str, str]]) -> None:
    """Hyperscan looks at the log, `is_error_like` at proposals: what one holds back the other must not let pass."""
    line = "x" + "".join(part + between for part, between in parts)
    assert bool(len(matcher.scan(line.encode())[0])) == marks.is_error_like(line)


@given(st.sampled_from(["failed", "error", "killed", "timeout", "lost"]), st.integers(1, 10**6), st.booleans())
def test_property_a_count_that_is_not_nought_is_trouble(word: str, number: int, before: bool) -> None:
    assert marks.is_error_like(f"ok, {number} {word}" if before else f"ok, {word}: {number}")


@given(st.sampled_from(["failed", "error", "killed", "timeout", "lost"]), st.booleans())
def test_property_a_count_of_nought_is_found_where_it_makes_the_difference(word: str, before: bool) -> None:
    line = f"ok, 0 {word}" if before else f"ok, {word}: 0"
    assert not marks.is_error_like(line)
    assert "".join(match.group() for match in marks.zero_counts(line)).strip() == line[4:]


def test_noughts_are_counts_only() -> None:
    for line in ("10 failed", "1.0 failed", "failed 0.5", "failed 0x1", "failed: 01", "0 passed", "failed"):
        assert list(marks.zero_counts(line)) == [], line
