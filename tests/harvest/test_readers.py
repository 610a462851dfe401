"""The readers that all families share: of trees, of C and C++, of Python, and what they fill into places."""

import subprocess
from pathlib import Path

import pytest

from eval.harvest import nccl, trees
from eval.harvest.c_messages import Call, calls, literals, printed
from eval.harvest.messages import reason_of_class
from eval.harvest.python_messages import exceptions, messages
from eval.harvest.values import filled, value_of

C_SOURCE = r"""
// WARN("in a comment");
#define CHECK(cmd, name) do { if ((cmd) < 0) { \
  WARN("Call to " name " failed : %s", strerror(errno)); } } while (0)
int f(int rank) {
  WARN("Two lines "
       "of rank %d at %s", rank, addrToString(a, line));
  INFO(NET, "not a warning %d", rank);
  WARN(ok ? "one of two" : "the other");
}
"""

PYTHON_SOURCE = """
class TeaError(RuntimeError):
    fmt = "no {leaf} left"

class CupError(TeaError):
    def __str__(self):
        return f"cup {self.size} broke"

def brew(path, cups):
    '''raise ValueError("not code")'''
    message = f"cannot pour from {path}"
    if cups < 1:
        raise ValueError("only %d cups" % cups)
    if not path:
        raise TeaError(message)
    if cups == 5:
        raise _error("five" " is too " + str(cups))
    assert cups < 9, "too many cups for {}".format(path)
    logger.error("kettle %s is cold", path)
    logger.warning("kettle is old")
    warnings.warn("kettle is loud")
    raise KeyError(path)
"""


def _calls(text: str, *names: str) -> list[Call]:
    return list(calls(text, names))


def test_calls_join_literals_and_keep_arguments() -> None:
    found = _calls(C_SOURCE, "WARN")
    assert [call.text for call in found] == [
        "Call to ⟦name⟧ failed : %s",
        "Two lines of rank %d at %s",
        "one of two",
    ]
    assert found[1].arguments == ("rank", "addrToString(a,line)")
    assert [call.line for call in found] == [4, 6, 9]


def test_calls_know_their_function() -> None:
    text = (
        "static int _lift(void)\n{\n"
        '\terror("%s: crane %s " "is %" PRIu64 " t\\n",\n\t      __func__, crane->host, load);\n}\n'
    )
    (call,) = _calls(text, "error")
    assert (call.name, call.line, call.function) == ("error", 3, "_lift")
    assert call.text == "%s: crane %s is %lu t\n"
    assert call.arguments == ("__func__", "crane->host", "load")
    assert printed(call) == "_lift: crane gpu-07 is 3 t"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('f(dev, KERN_ERR "belt " SIDE "torn\\n");', "belt left torn"),
        ('f(ok ? "first" : "second");', "first"),
        ('f("no %m, no %*d, no %.*s", 4, 5, 6, name);', "no Connection timed out, no 3, no word-7"),
        ('f("100%% at %pM {a, b}", mac);', "100% at 94:6d:ae:5c:12:0a {a, b}"),
        ('f("a \\"quoted\\" word" /* "not this" */, x);', 'a "quoted" wordword-7'),
        ('f(_("cup of %s"), strerror(errno));', "cup of Connection timed out"),
        ('f("cup ", cup_name, " of tea", "!");', "cup word-7 of tea!"),
        ('f(x > 0, "no tea: ", strerror(errno), TEA_ERROR(kind));', "no tea: Connection timed out"),
        ('f("cup {} of {}", cup, rank);', "cup word-7 of 3"),
        ('f(StrCat("cup ", rank, " of tea"));', "cup 3 of tea"),
        ('f() << "cup " << (whole ? "whole" : "broken") << " of " << rank << std::endl;', "cup whole of 3"),
    ],
)
def test_texts_are_filled_as_they_would_print(text: str, said: str) -> None:
    (call,) = calls(text, ("f",), {"SIDE": "left "})
    assert printed(call) == said


def test_comments_strings_and_definitions_are_no_calls() -> None:
    source = (
        '// f("one tea")\nconst char* x = "f(two)";\n#define f(y) g("three" y)\nf(y);\nf_g("x");\nf("four teas");\n'
    )
    assert [(call.line, call.text) for call in _calls(source, "f")] == [(6, "four teas")]


def test_literals_of_a_piece_are_joined() -> None:
    assert literals('{"a\\n" "b", \n "\\x1bc"}') == "a\nbc"


def test_own_values_come_first() -> None:
    assert filled("%s at %s", ("tea", "host"), {"^tea$": "green"}) == "green at gpu-07"
    assert value_of("host", {"h": "x"}) == "x"


@pytest.mark.parametrize(
    ("template", "arguments", "text"),
    [
        ("rank %d of %s", ("r", "strerror(errno)"), "rank 3 of Connection timed out"),
        ("0x%x %5.2f%%", (), "0x1f 1.5%"),
        ("{}/{} clients joined on {host_name}", (), "3/3 clients joined on gpu-07"),
        ("failed: %m", (), "failed: Connection timed out"),
    ],
)
def test_placeholders_get_plausible_values(template: str, arguments: tuple[str, ...], text: str) -> None:
    assert filled(template, arguments) == text


def test_every_revision_of_a_mirror_is_read_once(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(["git", "-C", str(tmp_path / "w"), *who, *arguments], check=True, capture_output=True)

    (tmp_path / "w" / "src").mkdir(parents=True)
    git("init", "-q")
    for tag, said in (("v2.17.1-1", "zero"), ("v2.18.1-1", "one"), ("v2.19.1-1", "two"), ("v2.20.1-1", "two")):
        (tmp_path / "w" / "src" / "a.cc").write_text(f'WARN("{said}");')
        git("add", "-A")
        git("commit", "-q", "--allow-empty", "-m", tag)
        git("tag", tag)
    subprocess.run(["git", "clone", "-q", "--bare", str(tmp_path / "w"), str(tmp_path / "m")], check=True)
    assert trees.releases(tmp_path / "m", (2, 18)) == ["v2.18.1-1", "v2.19.1-1", "v2.20.1-1", "HEAD"]
    said = [message.text.rpartition(" ")[2] for message in nccl.warnings("NCCL", tmp_path / "m")]
    assert said == ["one", "two"]


def test_places_are_folders_or_files(tmp_path: Path) -> None:
    for name in ("src/a.c", "src/b/c.h", "src/b.c", "srcs/d.c", "lib/e.c", "lib/f.c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    wanted = trees.below(("src", "lib/e.c"), "c|h")
    assert [path for path, _ in trees.files(tmp_path, wanted)] == ["lib/e.c", "src/a.c", "src/b/c.h", "src/b.c"]


def test_python_sources_tell_what_they_raise_warn_and_log() -> None:
    assert {(one.printed(), one.loud) for one in messages(PYTHON_SOURCE)} == {
        ("TeaError: no word-7 left", True),
        ("CupError: cup word-7 broke", True),
        ("ValueError: only 3 cups", True),
        ("TeaError: cannot pour from /data/run/part-3", True),
        ("RuntimeError: five is too word-7", True),
        ("AssertionError: too many cups for /data/run/part-3", True),
        ("kettle /data/run/part-3 is cold", True),
        ("kettle is old", False),
        ("UserWarning: kettle is loud", False),
    }
    assert dict(exceptions(PYTHON_SOURCE)) == {"TeaError": ("RuntimeError",), "CupError": ("TeaError",)}


def test_a_source_that_does_not_parse_says_nothing() -> None:
    assert not list(messages("def broken(:"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tea.pot.KeyError: 'leaf'", "Key Error"),
        ("RuntimeError: the cup is empty", ""),
        ("OSError: the cup is empty", ""),
        ("TeaError: the cup is empty", ""),
        ("the cup is empty", ""),
    ],
)
def test_a_class_decides_where_it_stands_for_a_reason(text: str, reason: str) -> None:
    assert reason_of_class(text) == reason
