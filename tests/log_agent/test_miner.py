"""What the miner writes matches the lines it came from and nothing that it has not seen the like of."""

import random
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logdoctor.errors import PatternRefused
from logdoctor.learning.filters.heads import TAIL
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.filters.miner import Miner
from logdoctor.learning.filters.proposal import Sample
from logdoctor.learning.filters.vote import poll
from logdoctor.learning.grammar import parse
from logdoctor.rules import marks
from logdoctor.text import origin
from tests.log_agent.samples import sample
from tests.soak import SOAKING

RUNS = range(5) if SOAKING else (0, 3)


def mined(held: Sample, run: int = 0) -> list[str]:
    return [one.pattern for one in Miner().propose(held, run).proposals]


def matches(patterns: list[str], lines: list[str]) -> list[bool]:
    """For each line whether one of the patterns matches it, by the real matcher."""
    found: set[int] = set().union(*taken(patterns, lines)) if patterns else set()
    return [number in found for number in range(len(lines))]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("seen", "unseen"),
    [
        ("step {0} of 500, took 0.{0} s", "step 7123 of 501, took 17.25 s"),
        ("fetched {0} samples from host-{0}", "fetched 3 samples from gpu-0713"),
        ("rank {0} at 10.0.0.{0}:2940{0} is up", "rank 77 at 192.168.14.250:1 is up"),
        ("saved to /ckpt/run-{0}/model.pt", "saved to /other/place/m_1.safetensors"),
        ("GET https://hub.example.org/a/{0} 200", "GET http://10.0.0.1:8080/b?c=d 200"),
        ("it is 11:08:{0}4 now", "it is 23:59:59.999 now"),
        ("buffer at 0x7f{0}ab is free", "buffer at 0xDEADBEEF is free"),
        ("commit 1f3ab2{0} was built", "commit 99ffe01abc was built"),
        ("lr {0}.5e-05 (warm)", "lr 1.25e-07 (warm)"),
        ("gizmo {0} ........ [OK]", "gizmo 1 ............................. [OK]"),
        ("{0} requests in flight", "123456 requests in flight"),
        ("größe {0} mm", "größe 99 mm"),
        ("训练 步骤 {0}", "训练 步骤 123"),
    ],
)
def test_fields_are_told_from_words(run: int, seen: str, unseen: str) -> None:
    lines = [seen.format(number) for number in (1, 2, 3, 5, 8)]
    patterns = mined(sample(lines), run)
    assert all(matches(patterns, [*lines, unseen])), patterns
    assert matches(patterns, ["", "odd", f"{unseen} and more", f"before {unseen}", f"{unseen} {unseen}"]) == [False] * 5


@pytest.mark.parametrize("run", RUNS)
def test_hosts_of_all_domains_are_one_field(run: int) -> None:
    hosts = [
        "login.acme.net",
        "gpu-7.rack.cluster.local",
        "10.0.4.7",
        "store.example.org",
        "cache01.corp",
        "192.168.0.3",
    ]
    patterns = mined(sample([f"peer {host}:29500 answered" for host in hosts]), run)
    assert matches(patterns, ["peer other.example.edu:1 answered", "peer 1.2.3.4:80 answered"]) == [True, True]
    assert matches(patterns, ["peer nn.Linear:1 died", "peer a b:80 answered"]) == [False, False]


@pytest.mark.parametrize("run", RUNS)
def test_prefixes_are_no_part_of_a_pattern(run: int) -> None:
    lines = [f"2024-03-02 11:08:4{n},123 gpu-{n}: [rank{n}]: gizmo {n} turns" for n in range(5)]
    patterns = mined(sample(lines), run)
    assert all(matches(patterns, [*lines, "gizmo 9 turns", "[rank700]: gizmo 12 turns\r"])), patterns


BARS = [
    f"\r {n}0%|{'#' * n}{' ' * (10 - n)}| {n}/10 [00:0{n}<00:0{10 - n},  1.{n}it/s]"
    f"\r {n}5%|{'#' * n}{' ' * (10 - n)}| {n}/10 [00:0{n}<00:0{10 - n},  1.{n}it/s]"
    for n in range(1, 6)
]


@pytest.mark.parametrize("run", RUNS)
def test_redrawn_bars(run: int) -> None:
    patterns = mined(sample(BARS), run)
    state = " 95%|█████████▌| 19/20 [10:00<00:32, 31.5it/s]"
    assert all(matches(patterns, [*BARS, f"\r{state}\r{state}\r{state}"])), patterns
    assert matches(patterns, [f"\r{state}\rCUDA broke", "CUDA broke", f"{state} odd"]) == [False] * 3


@pytest.mark.parametrize("run", RUNS)
def test_where_few_words_alternate_no_other_may_stand(run: int) -> None:
    lines = [f"link {n} is {word} now" for n in range(12) for word in ("up", "idle", "busy")]
    patterns = mined(sample(lines), run)
    assert all(matches(patterns, [*lines, "link 99 is idle now"])), patterns
    assert matches(patterns, ["link 3 is down now", "link 3 is nan now", "link 3 is lost now"]) == [False] * 3


@pytest.mark.parametrize("run", RUNS)
def test_a_count_of_nought_is_only_nought(run: int) -> None:
    """Where a line says that nothing failed, one that says the contrary may never be taken."""
    forms = ("round {0}: 9{0} passed, 0 failed", "worker {0} fetched, timeout 0", "ring {0} (0 lost)")
    for form in forms:
        lines = [form.format(n) for n in range(6)]
        worse = [line.replace(" 0 failed", " 3 failed").replace("timeout 0", "timeout 7").replace("(0", "(1")
                 for line in lines]  # fmt: skip
        assert not any(map(marks.is_error_like, lines)) and all(map(marks.is_error_like, worse))
        patterns = mined(sample(lines), run)
        assert all(matches(patterns, lines)), patterns
        assert not any(matches(patterns, worse)), patterns


@pytest.mark.parametrize("name", ["<number>", "<path>", "<hex>", "<name>", "<url>", "<*>", "\x00number\x00", "…"])
@pytest.mark.parametrize("glue", ["=", " ", ""])
def test_a_log_may_hold_the_names_of_fields(name: str, glue: str) -> None:
    lines = [f"use --key{glue}{name} ok"] * 3 + [f"use --key{glue}{value} ok" for value in ("5", "/a/b", "0x1f", "x7")]
    for run in RUNS:
        plain = [line for line in lines if "\x00" not in line]
        assert all(matches(mined(sample(lines), run), plain))


@pytest.mark.parametrize(
    "pair",
    [
        ("done ....... ok", "done ------- ok"),
        ("at 0x1f2e3d ok", "at 1f2e3dff ok"),
        ("n 5 ok", "n -5.5 ok"),
        ("n 1,000 ok", "n 1e-05 ok"),
        ("a  b 5", "a\tb 5"),
        ("  indented 5", "indented 5"),
        ("trailing 5 ", "trailing 5"),
        ("name gpu-1 ok", "name none ok"),
    ],
)
def test_forms_of_one_field_are_all_matched(pair: tuple[str, str]) -> None:
    lines = [line for line in pair for _ in range(3)]
    for run in RUNS:
        assert all(matches(mined(sample(lines), run), lines)), pair


def test_the_same_sample_gives_the_same_answer() -> None:
    rng = random.Random(3)
    lines = [
        f"{rng.choice('abc')} word{rng.randrange(9)} {rng.random():.3f} {rng.choice(['x', 'y'])}" for _ in range(300)
    ]
    held = sample(lines[:150], lines[150:])
    for run in RUNS:
        assert Miner().propose(held, run) == Miner().propose(held, run)


def test_runs_see_the_lines_in_other_orders() -> None:
    held = sample([f"{a} {b} {c}" for a in "abc" for b in "abc" for c in ("x1", "y")])
    assert len({Miner().propose(held, run) for run in range(5)}) > 1


WORDS = st.sampled_from(
    "step loss 3 3.5 0 failed /a/b gpu-7 0x1f 1f2e3d 11:08:47 https://a.b/c .... ----- größe 步骤 ٣ ² [x] (y) a=b {"
    " \\ ^ $ <number> % 1,000 -1 +2e-3 ... a|b * e _ v1.2.3".split()
    + "|##  |,\u202eabc,a\u00a0b,\ufffd,\x0b,\x85,\u2028".split(",")
)
BLANKS = st.sampled_from([" ", " ", " ", "  ", "\t", ""])
LINES = st.lists(st.tuples(WORDS, BLANKS), min_size=1, max_size=8).map(lambda parts: "".join(w + b for w, b in parts))


@given(st.lists(LINES, min_size=1, max_size=12), st.sampled_from(RUNS))
@settings(max_examples=settings.default.max_examples // 4)
@example(["a 5", "a 5", "a 5"], 0)
def test_property_each_pattern_matches_lines_of_the_sample(lines: list[str], run: int) -> None:
    """A pattern that is of the grammar of learned patterns matches something; all that is printable is matched."""
    patterns = mined(sample(lines * 3), run)
    good = [pattern for pattern in patterns if is_fit(pattern)]
    found = taken(good, lines)
    assert all(found), (good, lines)
    if len(good) == len(patterns):
        tame = [line for line in lines if origin(line).message.strip() and line.isprintable()]
        assert all(matches(patterns, tame)), (patterns, tame)


def is_fit(pattern: str) -> bool:
    try:
        parse(pattern)
    except PatternRefused:
        return False
    return len(pattern) <= 1000


@given(st.lists(st.text(max_size=60), max_size=20), st.sampled_from(RUNS))
@settings(max_examples=settings.default.max_examples // 2)
def test_fuzz_any_text_is_mined_without_an_error(lines: list[str], run: int) -> None:
    mined(sample([line.replace("\n", " ") for line in lines]), run)


HOSTILE = {
    "one word": "a" * 2000,
    "punctuation": "(" * 2000,
    "alternating": "a+" * 1000,
    "options": "-a" * 1000,
    "commas": "1," * 998 + "x9",
    "zero_counts": "0 " * 1000,
    "counts": "0 failed " * 222,
    "hex": "a0" * 1000,
    "clocks": "1:00" * 500,
    "paths": "/a" * 1000,
    "bars": "|##|" * 500,
    "open bars": "|#" * 1000,
    "returns": "a\r" * 1000,
    "exponents": "1e" * 1000,
    "dots": "." * 2000,
    "NUL": "\x00" * 2000,
    "right to left": "\u202e\u0627" * 1000,
    "not UTF-8": "\ufffd" * 2000,
    "underscores": "_" * 2000,
    "urls": "a://" * 500,
    "almost urls": "a+b" * 666,
    "blanks": " \t" * 1000,
}


WORDS = [f"{first}{second}" * 3 for first in "abcdef" for second in "ghijkl"]
WORST = ("alternating", "zero_counts", "open bars")
"""Those that keep the miner longest; `make soak` has room for all."""


@pytest.mark.more_in_soak
@pytest.mark.parametrize("name", HOSTILE if SOAKING else WORST)
def test_hostile_lines_take_bounded_time(name: str) -> None:
    """As many as there is room for: 200 lines of 2,000 characters."""
    lines = [HOSTILE[name][:1990] + str(number) for number in range(40)]
    begin = time.process_time()  # its own: others may use the machine
    mined(sample(*[lines] * 5), 3)
    assert time.process_time() - begin < 8


def test_a_few_hostile_lines_of_each_kind_take_little_time() -> None:
    for name, text in HOSTILE.items():
        begin = time.process_time()
        mined(sample([text[:1990] + str(number) for number in range(4)]), 3)
        assert time.process_time() - begin < 2, name


def test_lines_may_have_any_number_of_words_in_common() -> None:
    """More than functions that may call each other."""
    lines = [f"{'a b ' * 800}{word} c" for word in WORDS]
    head = Miner().singly(sample(lines), range(len(lines)))[0].pattern
    assert head.count("b") == 800 and TAIL in head


@pytest.mark.more_in_soak
def test_as_many_groups_as_there_is_room_for_take_bounded_time() -> None:
    """Lines that begin alike and share little: the worst for a tree of templates. A fifth of them, but in a soak."""
    rng = random.Random(1)

    def word() -> str:
        return "".join(rng.choice("abcdefghijklmnop") for _ in range(5))

    count = Miner.groups if SOAKING else Miner.groups // 5
    groups = [[f"the {word()} {word()} {word()} {word()} {n}" for n in range(12)] for _ in range(count)]
    held = sample(*groups)
    assert sum(len(line) + 1 for line in held.lines) < Miner.room
    begin = time.process_time()  # its own: others may use the machine
    mined(held, 3)
    assert time.process_time() - begin < 30


def test_most_runs_agree_on_plain_lines() -> None:
    held = sample(
        [f"step {n}/500 loss: {9 / (n + 1):.3f}" for n in range(12)],
        [f"saving checkpoint {n} to /ckpt/{n}" for n in range(12)],
        [f"fetched {n} from gpu-{n} (0 failed)" for n in range(12)],
    )
    found = poll(Miner(), held, 5)
    assert {(len(one.runs), one.takes) for one in found.candidates} == {
        (5, frozenset(range(begin, begin + 12))) for begin in (0, 12, 24)
    }
    assert all(one.keep for one in Miner().judge(held, found.candidates, 5))
