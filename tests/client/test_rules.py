"""`logdoctor rules` through a service."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor.store.learning.learned import StoredClaim
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from tests.client.conftest import ENGINEER, Twins, plain
from tests.rule_files.learned import HEARTBEAT, KIND, SHARD, active, entered, new, opened
from tests.test_cli import assert_refused


def fill(folder: Path) -> None:
    """Rules of three kinds, one of them a diagnosis rule."""
    rules = opened(folder)
    entered(rules, SHARD, HEARTBEAT)
    active(rules, new(kind="nemo/train.py", agent="gpt"))
    claim = StoredClaim("Key Error", suggestion="rename it")
    (said,) = entered(
        rules, new(kind=DIAGNOSIS, pattern="^no such key: [a-z]+$", claim=claim, examples=("no such key: a",))
    )
    rules.retire(said.id, "ops", "too early", 1_795_250_200.0)


@pytest.fixture
def pair(twins: Callable[..., Twins]) -> Twins:
    return twins(fill)


def ids(pair: Twins) -> dict[str, str]:
    """The rules by their patterns and kinds."""
    return {f"{one.kind} {one.pattern}": one.id for one in pair.service.rules.list()}


def test_the_same_is_listed_and_shown(pair: Twins) -> None:
    for options in (
        [],
        ["--learned"],
        ["--shipped"],
        ["--waiting"],
        ["--learned", "--status", "active"],
        ["--kind", KIND],
        ["--agent", "gpt"],
        ["--kind", "none"],
    ):
        pair.same("rules", "list", *options)
        pair.same("rules", "list", *options, "--json")
    for id in ids(pair).values():
        pair.same("rules", "show", id)
        assert json.loads(pair.same("rules", "show", id, "--json").out)["rule"]["id"] == id
    shipped = json.loads(pair.same("rules", "list", "--json", "--shipped").out.splitlines()[0])["id"]
    pair.same("rules", "show", shipped)
    for id in ("learned/none", "filter/none"):
        found = pair.both("rules", "show", id)
        assert_refused(found.there, "does not exist")
        assert_refused(found.here, "does not exist")


def test_the_same_steps_are_taken(pair: Twins) -> None:
    shard, heart = ids(pair)[f"{KIND} {SHARD.pattern}"], ids(pair)[f"{KIND} {HEARTBEAT.pattern}"]
    assert pair.same("rules", "approve", shard, heart, "--why", "read").code == 0
    event = pair.service.rules.events(shard)[0]
    assert (event.step, event.by, event.why) == ("approve", ENGINEER, "read")
    found = pair.both("rules", "approve", shard, "learned/none", heart)
    assert found.same().code == 2 and "is already active" in found.there.err and "does not exist" in found.there.err
    found = pair.both("rules", "approve", heart, "--from", "proposed")
    assert found.same().code == 2
    assert "active -> shadow" in pair.same("rules", "undo", heart).out
    assert pair.same("rules", "retire", heart).code == 0
    pair.same("rules", "show", heart)


def test_the_same_is_said_of_a_line(pair: Twins) -> None:
    for words in ([SHARD.examples[0]], [SHARD.examples[0], "--kind", "none"], ["no such key: a"], ["nothing"]):
        pair.same("rules", "why", *words)
    assert pair.same("rules", "why", "two\nlines").code == 2


def test_the_same_is_exported_and_imported(pair: Twins, tmp_path: Path) -> None:
    folders = tmp_path / "of-here", tmp_path / "of-there"
    for options in ([], ["--status", "retired"], ["--status", "proposed", "--kind", KIND]):
        here = pair.here("rules", "export", folders[0], *options)
        there = pair.there("rules", "export", folders[1], *options)
        assert (here.code, here.out) == (there.code, there.out) == (0, there.out)
    written = [
        {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.yaml")} for folder in folders
    ]
    assert written[0].keys() == written[1].keys() and len(written[0]) == 3
    assert {plain(text) for text in written[0].values()} == {plain(text) for text in written[1].values()}
    file = next(path for path in folders[1].rglob("*.yaml") if "nemo" in str(path))
    other = tmp_path / "other.yaml"
    other.write_text(file.read_text().replace("nemo/train.py", "another/kind.py"))
    assert "1 entered" in pair.same("rules", "import", other).out
    assert json.loads(pair.same("rules", "import", other, "--json").out)["outcome"] == "known"
    other.write_text(file.read_text() + "---\n" + other.read_text().replace(SHARD.pattern, "^.*$"))
    refused = pair.same("rules", "import", other)
    assert refused.code == 2 and "grammar: the wildcard" in refused.out
    pair.same("rules", "import", other, "--json")
    assert pair.same("rules", "import", tmp_path / "none").code == 2
    other.write_text("[1, 2")
    assert pair.both("rules", "import", other).there.code == 2


def test_a_token_does_what_its_scopes_allow(pair: Twins) -> None:
    id = ids(pair)[f"{KIND} {SHARD.pattern}"]
    reader, bound = pair.secret("read"), pair.secret("read", "operate", prefixes=("llama",))
    assert pair.there("rules", "show", id, token=reader).code == 0
    assert_refused(pair.there("rules", "approve", id, token=reader), "does not allow 'operate'")
    assert_refused(pair.there("rules", "retire", id, token=bound), "acts on all jobs of its kind")
    assert "check" in pair.there("rules", "check", "--url", pair.url).err


def test_a_shipped_rule_is_overruled_listed_exported_and_restored(pair: Twins, tmp_path: Path) -> None:
    rule = "diagnosis/framework/cuda-out-of-memory"
    tried = pair.same("rules", "mute", rule, "--job", "llama")
    assert "Tried on 0 stored attempts" in tried.out and "Give --yes" in tried.out
    assert "No shipped rule" in pair.same("rules", "overrides").out
    said = ("rules", "override", rule, "--reason", "NVLink Error", "--days", "7", "--why", "loose bridge", "--yes")
    assert f"override/1: {rule} says NVLink Error; all jobs; until" in pair.same(*said).out
    assert (
        "is muted; kind k/train.py; no end"
        in pair.same("rules", "mute", rule, "--kind", "k/train.py", "--no-end", "--yes").out
    )
    assert "loose bridge" in pair.same("rules", "show", "override/1").out
    listed = [json.loads(line) for line in pair.same("rules", "overrides", "--json").out.splitlines()]
    assert [(one["id"], one["scope"], one["whose"]) for one in listed] == [(2, "kind", "k/train.py"), (1, "fleet", "")]
    for place in (pair.here, pair.there):
        folder = tmp_path / place.__name__
        assert place("rules", "export", folder).code == 0
        text = (folder / "override" / "learned" / "1.yaml").read_text()
        assert f"rule: {rule}" in text and "kind: override" in text and "expires: 20" in text
        assert place("rules", "export", folder).out.startswith("0 rules written")
    assert "withdrawn" in pair.same("rules", "restore", "2", "--why", "mended").out
    again = pair.both("rules", "restore", "2")
    assert_refused(again.here, "was already withdrawn")
    assert_refused(again.there, "was already withdrawn")
    assert len(pair.same("rules", "overrides", "--all", "--json").out.splitlines()) == 2
    for wrong in ("filter/none", "diagnosis/none", "learned/a/b"):
        refused = pair.both("rules", "mute", wrong, "--yes")
        assert (refused.here.code, refused.there.code) == (2, 2), wrong
