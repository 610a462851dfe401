"""A wrong rule file is named with its cause; the cache of parsed rules never hides a change."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from logdoctor.errors import RuleError
from logdoctor.rules import load as module
from logdoctor.rules.load import load_book
from logdoctor.rules.schema import FilterRule
from tests.rules.books import diagnosis, filter_rule, write_rules

GOOD = filter_rule("good", "all is well")


def complaint(root: Path, cache: Path | None = None) -> str:
    with pytest.raises(RuleError) as caught:
        load_book(root, cache)
    assert caught.value.next_step
    return str(caught.value)


def put(root: Path, content: str | bytes, name: str = "filter/bad.yaml") -> Path:
    write_rules(root, GOOD)
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_rules_are_ordered_by_id_and_found_by_id(tmp_path: Path) -> None:
    book = load_book(write_rules(tmp_path, filter_rule("b/x", "x"), filter_rule("a/y", "y"), diagnosis("z", "z")))
    assert [rule.id for rule in book.filters] == ["filter/a/y", "filter/b/x"]
    assert book.rule("diagnosis/z") is book.diagnoses[0]
    with pytest.raises(RuleError, match=r"filter/none' does not exist"):
        book.rule("filter/none")


def test_folders_are_laid_over_another_and_named_as_they_were_given(tmp_path: Path) -> None:
    shipped = write_rules(tmp_path / "shipped", filter_rule("a", "old"), diagnosis("z", "z"))
    mine = write_rules(tmp_path / "mine", filter_rule("a", "new"), filter_rule("b", "b"))
    last = write_rules(tmp_path / "last", diagnosis("y", "y"), filter_rule("b", "c"))
    book = load_book(shipped, over=(mine, last))
    assert [(rule.id, rule.patterns) for rule in book.filters] == [("filter/a", ("new",)), ("filter/b", ("c",))]
    assert [rule.id for rule in book.diagnoses] == ["diagnosis/y", "diagnosis/z"]
    assert book.added == book.with_learned("k", ()).added == {"filter/a", "filter/b", "diagnosis/y"}
    write_rules(mine, filter_rule("b", "b", paterns=[]))
    with pytest.raises(RuleError, match=rf"{mine}/filter/b.yaml.*`paterns` \(did you mean `patterns`\?\)"):
        load_book(shipped, over=(mine,))
    write_rules(mine, filter_rule("b", "b", when={}))
    with pytest.raises(RuleError, match="unknown field `when`: it is a field of the other kind of rule"):
        load_book(shipped, over=(mine,))
    (tmp_path / "none").mkdir()
    with pytest.raises(RuleError, match="has no folder `filter`"):
        load_book(shipped, over=(tmp_path / "none",))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"paterns": ["x"]}, "paterns"),
        ({"status": "live"}, "live"),
        ({"kind": "diagnose"}, "diagnose"),
        ({"patterns": "one"}, "patterns"),
        ({"must_match": [[7]]}, "must_match"),
        ({"origin": {"by": "x", "at": "yesterday", "source": "y"}}, "origin"),
        ({"origin": {"by": "x", "at": "2026-01-01", "source": "y", "when": 1}}, "when"),
        ({"id": "filter/other"}, "filter/other"),
    ],
)
def test_a_wrong_filter_rule_is_named_with_its_cause(tmp_path: Path, change: dict[str, Any], cause: str) -> None:
    path = put(tmp_path, yaml.safe_dump(filter_rule("bad", "x") | change))
    message = complaint(tmp_path)
    assert message.startswith(str(path))
    assert cause in message


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"verdict": {"reason": "Bad Luck", "role": "cause"}}, "Bad Luck"),
        ({"verdict": {"reason": "CUDA Error", "role": "culprit"}}, "role"),
        ({"verdict": {"reason": "CUDA Error", "role": "cause", "recovery": "pray"}}, "pray"),
        ({"verdict": {"reason": "CUDA Error", "role": "cause", "fault": "weather"}}, "weather"),
        ({"verdict": {"outcome": "vanished"}}, "vanished"),
        ({"verdict": {"role": "cause"}}, "needs a reason"),
        ({"explains": ["Runtime Error", "Bad Mood"]}, "Bad Mood"),
        ({"when": {"any": ["x"], "unles": []}}, "unles"),
        ({"must_match": [{"txt": "x"}]}, "txt"),
    ],
)
def test_a_wrong_diagnosis_rule_is_named_with_its_cause(tmp_path: Path, change: dict[str, Any], cause: str) -> None:
    path = put(tmp_path, yaml.safe_dump(diagnosis("bad", "x") | change), "diagnosis/bad.yaml")
    message = complaint(tmp_path)
    assert message.startswith(str(path))
    assert cause in message


@pytest.mark.parametrize(
    "content",
    [
        "id: [unclosed",
        "a: b: c",
        "\tid: x",
        "",
        "- a list",
        "just text",
        b"\xff\xfe\x00",
        "origin: {at: 2026-13-45}",
        "id: !!python/object:os.system x",
        "{a: 1, [b]: 2}",
    ],
)
def test_what_is_no_rule_is_named(tmp_path: Path, content: str | bytes) -> None:
    path = put(tmp_path, content)
    assert complaint(tmp_path).startswith(str(path))


def test_a_row_of_a_table_may_have_several_keys(tmp_path: Path) -> None:
    book = load_book(write_rules(tmp_path, GOOD))
    (tmp_path / "knowledge" / "call.tsv").write_text("call\treason\n700 | cudaErrorX | an x\tCUDA Error\n2\tOS Error\n")
    table = book.knowledge("call")
    assert table.keys() == {"700", "cudaErrorX", "an x", "2"}
    assert table["an x"] is table["700"] and table["2"]["reason"] == "OS Error"


def test_two_files_with_one_id_are_refused(tmp_path: Path) -> None:
    write_rules(tmp_path, GOOD)
    (tmp_path / "filter" / "good.yml").write_text(yaml.safe_dump(GOOD))
    assert "filter/good" in complaint(tmp_path)
    assert "two files have this id" in complaint(tmp_path)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("kind", ["dangling link", "folder"])
def test_an_unreadable_file_is_named(tmp_path: Path, kind: str, cached: bool) -> None:
    root = write_rules(tmp_path / "rules", GOOD)
    path = root / "filter" / "odd.yaml"
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    message = complaint(root, tmp_path / "cache" if cached else None)
    assert str(path) in message
    assert "cannot be read" in message


def test_a_folder_without_rules_is_named(tmp_path: Path) -> None:
    assert str(tmp_path) in complaint(tmp_path)
    assert "LOGDOCTOR_RULES" in complaint(tmp_path)


def test_parsed_rules_are_kept_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, cache = write_rules(tmp_path / "rules", GOOD, diagnosis("d", "x")), tmp_path / "cache"
    first = load_book(root, cache)
    monkeypatch.setattr(module, "_read_rule", lambda *_: pytest.fail("parsed again"))
    again = load_book(root, cache)
    assert (again.filters, again.diagnoses, again.digest) == (first.filters, first.diagnoses, first.digest)


@pytest.mark.parametrize("change", ["edit", "same size", "add", "remove"])
def test_a_changed_folder_is_read_anew(tmp_path: Path, change: str) -> None:
    root, cache = write_rules(tmp_path / "rules", GOOD, filter_rule("more", "more")), tmp_path / "cache"
    before = load_book(root, cache)
    path = root / "filter" / "good.yaml"
    if change == "edit":
        write_rules(root, filter_rule("good", "all is very well"))
    elif change == "same size":
        stat = path.stat()
        path.write_text(path.read_text().replace("well", "sell"))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    elif change == "add":
        write_rules(root, filter_rule("new", "new"))
    else:
        path.unlink()
    after = load_book(root, cache)
    assert after.filters == load_book(root).filters
    assert after.filters != before.filters
    assert after.digest != before.digest


def test_a_damaged_cache_is_parsed_anew(tmp_path: Path) -> None:
    root, cache = write_rules(tmp_path / "rules", GOOD), tmp_path / "cache"
    wanted = load_book(root, cache).filters
    (kept,) = cache.glob("*.rules")
    for damage in (b"", kept.read_bytes()[:-3], b"\x91\x80", b"\xc1" * 20):
        kept.write_bytes(damage)
        assert load_book(root, cache).filters == wanted


def test_the_digest_knows_rules_and_tables(tmp_path: Path) -> None:
    root = write_rules(tmp_path, GOOD)
    digest = load_book(root).digest
    assert len(digest) == 16 and digest == load_book(root).digest
    (root / "knowledge" / "xid.tsv").write_text("xid\treason\n79\tCUDA Error\n")
    assert load_book(root).digest != digest


def test_knowledge_is_read_by_its_first_column(tmp_path: Path) -> None:
    root = write_rules(tmp_path, GOOD)
    (root / "knowledge" / "xid.tsv").write_text('# a comment\nxid\treason\n79\t"CUDA" Error\n48\tECC Error\n')
    book = load_book(root)
    assert book.knowledge("xid") == {
        "79": {"xid": "79", "reason": '"CUDA" Error'},
        "48": {"xid": "48", "reason": "ECC Error"},
    }
    with pytest.raises(RuleError, match=r"none\.tsv.*cannot read the table"):
        book.knowledge("none")


def test_a_rule_is_frozen(tmp_path: Path) -> None:
    (rule,) = load_book(write_rules(tmp_path, GOOD)).filters
    assert isinstance(rule, FilterRule)
    with pytest.raises(AttributeError):
        rule.title = "other"  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["pipe", "link to a good rule", "too much"])
def test_only_regular_files_of_some_size_are_rules(tmp_path: Path, kind: str) -> None:
    root = write_rules(tmp_path / "rules", GOOD)
    path = root / "filter" / "odd.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "too much":
        with path.open("wb") as file:
            file.truncate(3 << 30)
    else:
        path.symlink_to(root / "filter" / "good.yaml")
    message = complaint(root)
    assert str(path) in message and ("more than 1024 kB" if kind == "too much" else "cannot be read") in message


def test_figures_that_could_be_looked_for_without_end_are_refused(tmp_path: Path) -> None:
    slow = {**GOOD, "metrics": [r"^all is (?P<loss>(?:\d|\d\d)+) end"]}
    assert "may take for ever" in complaint(write_rules(tmp_path, slow))


@pytest.mark.parametrize("damage", ["of others", "pipe"])
def test_parsed_rules_of_somebody_else_are_not_read(tmp_path: Path, damage: str) -> None:
    root, cache = write_rules(tmp_path / "rules", GOOD), tmp_path / "cache"
    wanted = load_book(root, cache).filters
    (kept,) = cache.glob("*.rules")
    if damage == "pipe":
        kept.unlink()
        os.mkfifo(kept)
    elif os.getuid() != 0:
        pytest.skip("only root gives files away")
    else:
        kept.write_bytes(kept.read_bytes().replace(b"well", b"sell"))
        os.chown(kept, 65534, 65534)
    assert load_book(root, cache).filters == wanted
