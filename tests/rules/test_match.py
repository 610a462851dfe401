"""Patterns mean what `schema` says, whole buffers are matched line by line, and caches do no harm."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import RuleError
from logdoctor.rules import match as module
from logdoctor.rules.match import Compiled, Matcher, expand, hyperscan_complaint

PREFIXES = [
    "",
    "[rank3]: ",
    "[rank12]:[rank12]: ",
    "[default0]:",
    "[1,17]<stderr>:",
    "0: ",
    "gpu-node-17: ",
    "2024-03-02 11:08:47,123 ",
    "[2024-03-02 11:08:47] [ERROR] ",
    "2024-03-02T11:08:47.123456Z ",
    "Mar  2 11:08:47 ",
    "ERROR: ",
    "(RayTrainWorker pid=4182, ip=10.0.0.7) ",
    "[pod/trainer-worker-3/pytorch] ",
    "17: [rank3]: 2024-03-02 11:08:47 ERROR ",
]


def hits(pattern: str, text: str | bytes) -> list[int]:
    """Where a pattern's matches end."""
    return Matcher([pattern]).scan(text.encode() if isinstance(text, str) else text)[1].tolist()


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_leading_caret_means_the_start_of_the_message(prefix: str) -> None:
    assert hits("^lost the link", f"{prefix}lost the link")
    assert not hits("^lost the link", f"{prefix}we lost the link")
    assert hits("lost the link", f"{prefix}we lost the link")


def test_a_leading_caret_covers_alternatives() -> None:
    assert hits("^one|two", "[rank0]: two")
    assert not hits("^one|two", "the two")


@pytest.mark.parametrize("ending", ["", "\r", "\n", "\r\n"])
def test_a_trailing_dollar_allows_a_carriage_return(ending: str) -> None:
    for pattern in ("done$", "(?:done|over$)", "(?i)DONE$"):
        assert hits(pattern.replace("over", "done"), f"all done{ending}")
    assert not hits("done$", f"done it{ending}")


def test_an_escaped_dollar_is_a_dollar() -> None:
    assert expand(r"5\$") == r"5\$"
    assert expand(r"(5\$)") == r"(5\$)"
    assert hits(r"5\$", "costs 5$ a day")


@pytest.mark.parametrize(
    "pattern",
    [
        r"a\sb",
        r"a\s+b",
        r"a[\s]b",
        r"a[\s,]*b",
        r"a[^\S]b",
        r"a\Wb",
        r"a\Db",
        r"a\Hb",
        r"a\vb",
        r"a[\v ]b",
        r"a[^x]b",
        r"a[^]x]b",
        r"a[^\]x]{1,3}b",
        r"a[^\w]b",
        r"a[^[:alpha:]]b",
        r"a[\s\S]b",
        r"a.b",
        r"a.{0,5}b",
    ],
)
def test_nothing_matches_across_a_line_end(pattern: str) -> None:
    assert hits(pattern, "a b") or hits(pattern, "a-b") or hits(pattern, "a\x0bb")
    assert not hits(pattern, "a\nb")


@pytest.mark.parametrize(
    "pattern",
    [
        r"a[\W]b",
        r"a[]\D]b",
        r"a[[:space:]]b",
        r"a[[:^alpha:]x]b",
        r"(?s)a.b",
        r"a(?is:.)b",
        r"a\nb",
        r"a[\n ]b",
        r"a\x0ab",
        r"a\012b",
        r"a[\x00-\x20]b",
        r"a\Cb",
        r"a\PLb",
        r"a\cJb",
    ],
)
def test_what_would_match_across_a_line_end_is_refused(pattern: str) -> None:
    complaint = hyperscan_complaint(pattern)
    assert complaint and "may match a line end" in complaint
    with pytest.raises(RuleError, match="may match a line end"):
        Matcher(["fine", pattern])


def test_what_only_looks_like_a_line_end_is_allowed() -> None:
    assert hits(r"a\\n", r"a\n b")
    assert hits(r"a[\\n]b", "anb")
    assert hits(r"^(?:x|\n)", "\n") == [1]


@given(lines=st.lists(st.sampled_from(["ab", "a", "b", "", "a b", " ", "xx", "\ta", "b\r"]), min_size=1, max_size=8))
def test_property_a_buffer_matches_as_its_lines_do(lines: list[str]) -> None:
    matcher = Matcher([r"a\s*b", r"^a[^x]?", r"b\W?$", r"\s+\D"])
    together = {
        (int(n), "\n".join(lines).count("\n", 0, int(e) - 1)) for n, e in zip(*_scan(matcher, lines), strict=True)
    }
    apart = {(int(n), i) for i, line in enumerate(lines) for n in _scan(matcher, [line])[0]}
    assert together == apart


def _scan(matcher: Matcher, lines: list[str]) -> tuple[list[int], list[int]]:
    numbers, ends = matcher.scan("\n".join(lines).encode())
    return numbers.tolist(), ends.tolist()


def test_hits_are_ordered_by_pattern_then_by_place() -> None:
    numbers, ends = Matcher(["b", "a"]).scan(b"abab")
    assert (numbers.tolist(), ends.tolist()) == ([0, 0, 1, 1], [2, 4, 1, 3])


@pytest.mark.parametrize("buffer", [b"", b"\x00\xff\xfe", b"zzz"])
def test_no_hits_are_empty_arrays(buffer: bytes) -> None:
    for matcher in (Matcher([]), Matcher(["ab"])):
        numbers, ends = matcher.scan(buffer)
        assert (numbers.tolist(), ends.tolist()) == ([], [])


@pytest.mark.parametrize("pattern", [r"(a)\1", r"a(?=b)", r"a(?<!b)", "(unclosed", "a**", "", "a*"])
def test_a_pattern_that_cannot_be_linear_is_refused_by_name(pattern: str) -> None:
    assert hyperscan_complaint(pattern)
    with pytest.raises(RuleError) as caught:
        Matcher(["fine", pattern, "fine too"])
    assert repr(pattern) in str(caught.value)


def test_a_good_pattern_has_no_complaint() -> None:
    assert hyperscan_complaint(r"^Xid \(.{1,30}\): \d+") is None


def test_databases_are_kept_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Matcher(["ab"], tmp_path).scan(b"ab")[1].tolist() == [2]
    (kept,) = tmp_path.glob("*.hsdb")
    monkeypatch.setattr(module, "_compile", lambda _: pytest.fail("compiled again"))
    assert Matcher(["ab"], tmp_path).scan(b"xab")[1].tolist() == [3]
    assert list(tmp_path.glob("*.hsdb")) == [kept]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign", "folder", "of others"])
def test_a_damaged_cache_is_compiled_anew(tmp_path: Path, damage: str) -> None:
    Matcher(["ab"], tmp_path)
    (kept,) = tmp_path.glob("*.hsdb")
    whole = kept.read_bytes()
    if damage == "folder":
        kept.unlink()
        kept.mkdir()
    elif damage == "of others":
        if os.getuid() != 0:
            pytest.skip("only root gives files away")
        os.chown(kept, 65534, 65534)
    else:
        flipped = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
        kept.write_bytes({"truncated": whole[:50], "flipped": flipped, "empty": b"", "foreign": b"x" * 500}[damage])
    assert Matcher(["ab"], tmp_path).scan(b"ab")[1].tolist() == [2]
    assert damage == "folder" or (kept.read_bytes(), kept.stat().st_uid) == (whole, os.getuid())


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert Matcher(["ab"], blocked / "cache").scan(b"ab")[1].tolist() == [2]


def test_only_the_newest_databases_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHED", 5)
    for number in range(8):
        Matcher([f"pattern {number}"], tmp_path)
    oldest = min(tmp_path.glob("*.hsdb"), key=lambda file: file.stat().st_mtime_ns)
    module.sweep(tmp_path)
    assert len(list(tmp_path.glob("*.hsdb"))) == 5 and not oldest.exists()


def test_of_two_processes_one_compiles(tmp_path: Path) -> None:
    """The other one waits for it, and loads what it made."""
    first = Compiled(["ab"], tmp_path)
    assert first._path
    with module._alone(first._path):
        code = (
            "import sys; from pathlib import Path; from logdoctor.rules import match\n"
            "compiling = match._compile\n"
            "match._compile = lambda *given: print('compiled') or compiling(*given)\n"
            "print('begun', flush=True); match.Compiled(['ab'], Path(sys.argv[1])).make_ready(); print('ready')"
        )
        other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert other.stdout and other.stdout.readline() == "begun\n"
        module._store(first._path, hyperscan_of("ab"))
    assert other.communicate()[0] == "ready\n" and other.returncode == 0


def hyperscan_of(expression: str) -> bytes:
    """A database as it is kept."""
    return module.hyperscan.dumpb(module._compile([expression], literal=False))
