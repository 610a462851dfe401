"""Patterns keep the words of a line, and know the same failure again on other hosts, with other numbers and quotes."""

import time

import pytest

from logdoctor.diagnose.taught import line_matches
from logdoctor.learning.diagnoses.writer import pattern, patterns
from logdoctor.learning.grammar import parse

LINES = {
    "RuntimeError: loom driver on gpu-cn-0713 reports a jammed shuttle at 0x7f3a (code 17)": [
        "[rank3]: RuntimeError: loom driver on wn061.site.example reports a jammed shuttle at 0x1 (code 17)",
        "2024-03-02 11:08:47,123 RuntimeError: loom driver on 10.0.3.4:77 reports a jammed shuttle at 12 (code 17)",
        "acme.errors.RuntimeError: loom driver on n1 reports a jammed  shuttle at 0xffffff (code 17)",
    ],
    "quota service refused lease for user 'alice' on /mnt/fs/a: limit 512.00 GiB exceeded": [
        'quota service refused lease for user "bob the 2nd" on s3://bucket/x.y: limit 1 TB exceeded',
        "gpu-12: quota service refused lease for user carol on C:\\data: limit 90 MiB exceeded",
    ],
    "acme.QuotaError: 12 of 64 shards [0, 3, 17] lost after 600081 ms by libfoo.so.2.1 v2.1.0+cu118": [
        "QuotaError: 1 of 8 shards [5] lost after 7 ms by libfoo.so v3",
    ],
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has 79 GiB": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512 MB and more was said",
    ],
    "ValueError: unused arguments ['--a', '--b 3'] with dtype=bf16 mode=FAST": [
        "ValueError: unused arguments ['--long_one'] with dtype=fp8 mode=SLOW",
    ],
    "\u6570\u636e\u52a0\u8f7d\u5931\u8d25: \u6587\u4ef6 shard-0003 \u5df2\u635f\u574f": [
        "\u6570\u636e\u52a0\u8f7d\u5931\u8d25: \u6587\u4ef6 data/part.9 \u5df2\u635f\u574f"
    ],
}


@pytest.mark.parametrize("line", LINES)
def test_variations_of_a_line_are_known_again(line: str) -> None:
    assert line_matches(pattern(line), [line, *LINES[line]]) == list(range(1 + len(LINES[line])))


@pytest.mark.parametrize("line", LINES)
def test_each_pattern_is_of_the_linear_language_and_matches_its_line(line: str) -> None:
    for one in patterns(line):
        assert one.startswith("^") and parse(f"{one}$") and line_matches(one, [line]) == [0]


@pytest.mark.parametrize("line", LINES)
def test_other_words_are_another_failure(line: str) -> None:
    others = [other for other in LINES if other != line]
    assert line_matches(pattern(line), others) == []


def test_numbers_that_say_what_went_wrong_stay() -> None:
    one = pattern("OSError: [Errno 28] cannot extend the checkpoint file")
    assert line_matches(one, ["OSError: [Errno 122] cannot extend the checkpoint file"]) == []


def test_narrower_ones_keep_plain_quoted_words_and_names() -> None:
    wide, *narrow = patterns("loader found no column 'labels' in table train9")
    other = "loader found no column 'tokens' in table train9"
    assert line_matches(wide, [other]) == [0] and line_matches(narrow[-1], [other]) == []


def test_examples_widen_it() -> None:
    line, other = "shard daemon alpha lost its lease", "shard daemon beta lost its lease"
    assert line_matches(pattern(line), [other]) == []
    assert line_matches(pattern(line, [other]), ["shard daemon gamma lost its lease"]) == [0]


def test_an_exact_one_keeps_what_tells_a_routine_line_from_the_next() -> None:
    (one,) = patterns("preflight gpus=7 expected=8 shm=ok", exact=True)
    assert line_matches(one, ["preflight gpus=7 expected=8 shm=ok", "preflight gpus=8 expected=8 shm=ok"]) == [0]


@pytest.mark.parametrize(
    "line",
    [
        "login of svc failed with password=hunter2-XYZ on the vault",
        'login of svc failed with "password": "correct horse battery" on the vault',
        "upload with AKIAABCDEFGHIJKLMNOP was refused by the store",
    ],
)
def test_no_secret_gets_into_a_pattern(line: str) -> None:
    found = patterns(line)
    assert found
    for one in found:
        assert not any(secret in one for secret in ("hunter2", "horse", "AKIA"))


@pytest.mark.parametrize(
    "line",
    [
        "x" * 200_000,
        "\0\x1b[31m\x07" * 5000,
        "'" * 5000,
        "[" * 5000 + "1," * 3000,
        "a." * 30_000,
        "(((((.*)+)+)+$ [[:alpha:]] \\1 (?<=x) {9999} lost",
        "1" * 4000,
        "/" * 4000,
        "a:" * 3000,
        "<secret>" * 500,
        "-" * 5000,
        "",
    ],
)
def test_hostile_lines_give_sound_patterns_soon(line: str) -> None:
    begin = time.process_time()
    for one in patterns(line):
        assert len(one) <= 1000 and one.isprintable() and parse(f"{one}$")
        assert line_matches(one, [line]) in ([0], [])
    assert time.process_time() - begin < 10


def test_signs_of_the_language_are_text() -> None:
    line = "cannot expand ${HOME}/(a+b)*[x]? | ^caret$ in the config"
    assert line_matches(pattern(line), [line]) == [0]
