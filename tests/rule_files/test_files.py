"""Exported rules are rule files with their proof inside; what is read from anybody is bounded."""

import os
import shutil
import stat
import time
from pathlib import Path

import pytest
import yaml

from logdoctor.errors import RuleError, StoreError
from logdoctor.learning.files import files
from logdoctor.learning.files.files import content_of, export, file_rule, files_below, rules_in, text_of
from logdoctor.learning.filters.metrics import LOSS, STEP
from logdoctor.rules.check import check
from logdoctor.rules.load import RuleBook, load_book
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import FilterRule
from logdoctor.settings import Settings, cache_folder
from logdoctor.store.learning.learned import LearnedRules
from tests.rule_files.learned import EVIL, HEARTBEAT, KIND, active, entered, new, opened
from tests.soak import SOAKING

SHIPPED = Path(__file__).parents[2] / "rules"
SOME = ["knowledge", "diagnosis/anomaly", "diagnosis/outcome", "filter/megatron", "filter/nccl"]
"""Packs of the shipped rules, for a book that is soon checked."""


@pytest.fixture
def rules(tmp_path: Path) -> LearnedRules:
    return opened(tmp_path / "data")


@pytest.mark.more_in_soak
def test_exported_rules_below_the_shipped_ones_pass_the_check(rules: LearnedRules, tmp_path: Path) -> None:
    learned = [
        active(rules),
        active(rules, HEARTBEAT),
        active(rules, new(pattern="^x[0-9]+ [a-c]$", examples=("x1 a",))),
    ]
    step = new(pattern="^step [0-9]+ done$", examples=("step 7 done",), metrics=(STEP, LOSS))
    learned += entered(rules, step, new(pattern="^gone [0-9]+$", examples=("gone 1",)))
    learned[-1] = rules.retire(learned[-1].id, "user-17", "says too much", 1.0)
    target = tmp_path / "rules"
    for pack in [""] if SOAKING else SOME:
        shutil.copytree(SHIPPED / pack, target / pack)
    exported = export(learned, rules, target)
    assert len(exported.written) == 5 and all(
        path.is_relative_to(target / "filter/learned") for path in exported.written
    )
    scanner = Scanner(load_book(target), cache_folder(Settings()))
    assert check(scanner.book, scanner) == []
    read = {rule.id: rule for rule in scanner.book.filters if rule.id.startswith("filter/learned/")}
    assert read.keys() == {f"filter/{rule.id}" for rule in learned}
    assert read[f"filter/{learned[0].id}"] == file_rule(learned[0], rules)
    assert read[f"filter/{learned[0].id}"].scope == {"kind": KIND}
    assert read[f"filter/{learned[1].id}"].harmless
    assert read[f"filter/{learned[3].id}"].metrics == (STEP,), "a file proves what it holds"
    retired = read[f"filter/{learned[4].id}"].retired
    assert retired is not None and (retired.by, retired.why) == ("user-17", "says too much")


def test_what_was_exported_is_read_again(rules: LearnedRules) -> None:
    rule = active(rules, new(title=EVIL, examples=("Opening data shard 3 of 9 at /data/abc", EVIL.replace("\n", " "))))
    text = text_of(file_rule(rule, rules))
    assert rules_in(f"---\n{text}---\n{text}".encode(), "x") == [file_rule(rule, rules)] * 2
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "  - '^Opening data" in text, "patterns stand in single quotes"


def test_text_beyond_ascii_stays_readable(rules: LearnedRules) -> None:
    assert "\u7814\u7a76" in text_of(file_rule(active(rules, new(title="\u7814\u7a76")), rules))


def test_all_shipped_rules_come_out_as_they_went_in(book: RuleBook) -> None:
    for rule in book.filters[:40]:
        assert rules_in(text_of(rule).encode(), rule.id) == [rule]


def test_nothing_is_overwritten_without_force(rules: LearnedRules, tmp_path: Path) -> None:
    first, second = active(rules), active(rules, HEARTBEAT)
    (path,) = export([first], rules, tmp_path).written
    assert export([first], rules, tmp_path).same == [path]
    path.write_text("mine")
    with pytest.raises(StoreError, match="exists with different content"):
        export([first, second], rules, tmp_path)
    assert path.read_text() == "mine" and len(list(tmp_path.rglob("*.yaml"))) == 1, "half of it was written"
    assert len(export([first, second], rules, tmp_path, force=True).written) == 2
    assert path.read_text().startswith("id: filter/learned/")


def test_a_link_in_the_place_of_a_file_is_not_followed(rules: LearnedRules, tmp_path: Path) -> None:
    rule = active(rules)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "out" / "filter" / f"{rule.id}.yaml"
    path.parent.mkdir(parents=True)
    path.symlink_to(victim)
    with pytest.raises(StoreError):
        export([rule], rules, tmp_path / "out")
    export([rule], rules, tmp_path / "out", force=True)
    assert victim.read_text() == "precious" and not path.is_symlink()


def test_what_cannot_be_written_leaves_nothing_half(rules: LearnedRules, tmp_path: Path) -> None:
    rule = active(rules)
    (tmp_path / "filter").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match="cannot be written"):
        export([rule], rules, tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != "data"] == ["filter"]
    with pytest.raises(StoreError, match="cannot be written"):
        export([rule], rules, Path("/proc/none"))


RULE = """\
id: filter/x
kind: filter
status: active
title: t
patterns: ['^x$']
must_match: ['x']
origin: {by: me, at: 2026-01-01, source: s}
"""
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_a_file_of_two_rules_is_two_rules() -> None:
    found = rules_in(f"{RULE}---\n---\n{RULE}".encode(), "x")
    assert [type(rule) for rule in found] == [FilterRule, FilterRule]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "holds no rule"),
        (b"# nothing\n", "holds no rule"),
        (b"a: [", "not a rule"),
        (b"\xff\xfe\x00", "not a rule"),
        (b"[1, 2]", "not a rule"),
        (b"kind: filter", "not a rule"),
        (RULE.replace("title", "titel.*did you mean `title`").encode(), "titel"),
        (RULE.replace("2026-01-01", "2026-13-41").encode(), "not a rule"),
        (RULE.replace("kind: filter", "kind: diagnosis").encode(), "not a rule"),
        (RULE.replace("kind: filter", "kind: other").encode(), "only filter rules and diagnosis rules"),
        (RULE.replace("'x'", "!!python/object/apply:os.system ['true']").encode(), "not a rule"),
        (RULE.replace("title: t", "title: !!binary aGk=").encode(), "not a rule"),
        (BOMB.encode(), "alias"),
        (b"a: &a [*a]", "alias"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{a: " * 100_000, "nested too deeply"),
        (b"---\n" * 6000, "more than 5000"),
        (b"[" + b"a," * 4_000_000 + b"]", "more than 5000"),
    ],
)
def test_what_is_no_rule_is_refused_soon(content: bytes, cause: str) -> None:
    begin = time.process_time()
    with pytest.raises(RuleError, match=cause) as caught:
        rules_in(content, "x.yaml")
    assert time.process_time() - begin < 5
    assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "number",
    ["9" * 10_000, "1" + ":1" * 100_000, "1" + ":1" * 250 + ":1.0", "0x" + "f" * 10_000, "1e999", "2026-13-41"],
    ids=["long", "to the base of 60", "an overflow", "hexadecimal", "infinite", "no date"],
)
def test_what_is_a_number_to_yaml_is_a_text(number: str) -> None:
    (found,) = rules_in(RULE.replace("title: t", f"title: {number}").encode(), "x")
    assert found.title == number
    with pytest.raises(RuleError, match="only filter rules and diagnosis rules"):
        rules_in(RULE.replace("kind: filter", f"kind: {number}").encode(), "x")


def test_files_below_folders_are_found_and_links_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for name in ("b.yaml", "deep/a.yml", "note.txt", ".hidden.yaml"):
        (folder / name).write_text(RULE)
    (folder / "loop").symlink_to(folder)
    (folder / "passwd.yaml").symlink_to("/etc/passwd")
    found = files_below([folder, folder / "b.yaml"])
    assert [str(path.relative_to(folder)) for path in found] == ["b.yaml", "passwd.yaml", "deep/a.yml"]
    with pytest.raises(RuleError, match="symbolic link"):
        content_of(folder / "passwd.yaml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuleError, match="without"):
        files_below([folder, tmp_path / "empty"])


def test_what_is_no_plain_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    for path, cause in ((tmp_path / "pipe", "not a regular file"), (Path("/dev/zero"), "not a regular file")):
        with pytest.raises(RuleError, match=cause):
            content_of(path)
    with pytest.raises(RuleError, match="No such file"):
        content_of(tmp_path / "none")
    with pytest.raises(RuleError, match="not a path"):
        content_of(tmp_path / "a\0b")
    monkeypatch.setattr(files, "MOST_BYTES", 10)
    (tmp_path / "big").write_bytes(b"x" * 11)
    with pytest.raises(RuleError, match="more than 10 bytes"):
        content_of(tmp_path / "big")


def test_a_rule_file_holds_no_tags(rules: LearnedRules) -> None:
    assert yaml.safe_load(text_of(file_rule(active(rules), rules)))["patterns"] == [
        "^Opening data shard [0-9]+ of [0-9]+ at /data/[a-z]+$"
    ]
