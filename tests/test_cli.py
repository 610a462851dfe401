"""The command line: what it prints, where, and with which exit code."""

import bz2
import gzip
import io
import json
import lzma
import os
import pwd
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jsonschema
import msgspec
import pytest

import logdoctor
from logdoctor.cli import cli, main
from logdoctor.errors import InputError
from logdoctor.store.learning.refusals import Votes
from tests.programs import invoked
from tests.rule_files.learned import EVIL, HEARTBEAT, KIND, SHARD, active, entered, new, opened

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "eval" / "corpus"
ECC_LOG = CORPUS / "failures" / "inf-028.log"
NVLINK_LOG = CORPUS / "failures" / "usr-061.log"
GOOD_LOG = CORPUS / "healthy" / "ok-002.log"
ERROR = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
SCHEMA: dict[str, Any] = json.loads(Path(logdoctor.__path__[0], "verdict.schema.json").read_text())


class Ran:
    """What a run of the command line came to."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.raw, self.err = code, out, err.decode()
        self.out = out.decode()

    @property
    def verdicts(self) -> list[dict[str, Any]]:
        """The JSON objects, one a line, each true to the schema."""
        found = [json.loads(line) for line in self.raw.split(b"\n")[:-1]]
        for verdict in found:
            jsonschema.validate(verdict, SCHEMA)
        return found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs a command in this process, errors raised on purpose handled as in `main`."""
    monkeypatch.setenv("COLUMNS", "100")

    def invoke(*args: object, stdin: bytes = b"", **settings: str) -> Ran:
        for name, value in settings.items():
            monkeypatch.setenv(f"LOGDOCTOR_{name.upper()}", value)
        return Ran(*invoked(*args, stdin=stdin))

    return invoke


def program(*args: object, stdin: bytes = b"", **environment: str) -> Ran:
    """Runs the real program."""
    done = subprocess.run(
        [sys.executable, "-m", "logdoctor.cli", *(os.fsencode(str(arg)) for arg in args)],
        input=stdin,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def assert_refused(ran: Ran, *words: object) -> None:
    """Exit code 2, nothing on standard output, one line that names the thing, the cause and the next step."""
    assert ran.code == 2, ran.out
    assert ran.raw == b""
    assert ran.err.startswith("logdoctor: ") and ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    assert len(re.findall(r"[:.] [A-Z]", ran.err)) >= 1, "no next step"
    for word in words:
        assert str(word) in ran.err


RULE = """\
id: filter/x/hello
kind: filter
status: active
title: Greetings
patterns: ['^hello \\d+$']
must_match: ['hello 1']
origin: {by: me, at: 2026-01-01, source: a test}
"""
DIAGNOSIS = """\
id: diagnosis/x/rude
kind: diagnosis
status: active
title: A greeting that is rude
when: {any: ['hello \\d+ you (?P<node>\\w+)'], unless: ['dear']}
verdict: {reason: Node Failure, role: cause}
must_match: [{text: 'hello 7 you fool', captures: {node: fool}}]
origin: {by: me, at: 2026-01-01, source: a test}
"""


@pytest.fixture
def rule_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "rules"
    (folder / "filter" / "x").mkdir(parents=True)
    (folder / "diagnosis" / "x").mkdir(parents=True)
    (folder / "filter" / "x" / "hello.yaml").write_text(RULE)
    (folder / "diagnosis" / "x" / "rude.yaml").write_text(DIAGNOSIS)
    return folder


# ---- diagnose


@pytest.mark.parametrize(
    ("paths", "code"),
    [
        ([GOOD_LOG], 0),
        ([ECC_LOG], 1),
        (["nowhere.log"], 2),
        ([GOOD_LOG, GOOD_LOG], 0),
        ([GOOD_LOG, ECC_LOG], 1),
        ([ECC_LOG, "nowhere.log", GOOD_LOG], 2),
    ],
)
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_exit_code(run: Callable[..., Ran], paths: list[object], code: int, flags: list[str]) -> None:
    assert run("diagnose", *flags, *paths).code == code


@pytest.mark.parametrize(
    ("told", "code", "outcome", "reason"),
    [
        ((), 0, "unknown", "None"),
        (("--died",), 1, "failed", "Unknown"),
        (("--exit-code", "1"), 1, "failed", "Unknown"),
        (("--exit-code", "-9"), 1, "failed", "Unknown"),
        (("--exit-code", "0"), 0, "completed", "None"),
    ],
)
def test_a_log_of_which_nothing_is_known_is_a_failure_when_that_is_told(
    run: Callable[..., Ran], tmp_path: Path, told: tuple[str, ...], code: int, outcome: str, reason: str
) -> None:
    (tmp_path / "x.log").write_bytes(bytes(range(256)) * 9)
    for more in ((), ("--ask",)):
        ran = run("diagnose", "--json", *told, *more, tmp_path / "x.log", data_dir=str(tmp_path / "data"))
        assert (ran.code, ran.verdicts[0]["outcome"], ran.verdicts[0]["reason"]) == (code, outcome, reason)


def test_people_are_told_that_the_end_is_not_known(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("hello\n")
    out = run("diagnose", tmp_path / "x.log").out
    assert "End unknown" in out and "--died" in out


def test_what_the_log_reports_stands_whatever_is_told(run: Callable[..., Ran]) -> None:
    assert run("diagnose", "--json", "--exit-code", "0", ECC_LOG).verdicts[0]["reason"] == "ECC Error"
    assert run("diagnose", "--json", "--died", ECC_LOG).verdicts[0]["reason"] == "ECC Error"
    refused = run("diagnose", "--died", "--exit-code", "0", ECC_LOG)
    assert refused.code == 2 and "contradict" in refused.err


def test_json_of_many_files_is_one_line_each_in_order(run: Callable[..., Ran]) -> None:
    paths = [*sorted(CORPUS.glob("failures/*.log"))[:14], GOOD_LOG]
    verdicts = run("diagnose", "--json", *paths).verdicts
    assert [verdict["file"] for verdict in verdicts] == [str(path) for path in paths]


def test_json_of_the_files_that_can_be_read_is_still_printed(run: Callable[..., Ran]) -> None:
    ran = run("diagnose", "--json", ECC_LOG, "nowhere.log", GOOD_LOG)
    assert [verdict["outcome"] for verdict in ran.verdicts] == ["failed", "completed"]
    assert ran.err == "logdoctor: nowhere.log does not exist. Check the path.\n"


def test_json_is_the_same_from_one_process_and_from_many(run: Callable[..., Ran]) -> None:
    paths = sorted(CORPUS.glob("failures/*.log"))[:6]
    many = run("diagnose", "--json", *paths).verdicts
    one = run("diagnose", "--json", *paths, workers="1").verdicts
    for verdict in (*many, *one):
        del verdict["seconds"]
    assert many == one


def test_json_has_every_field_of_the_contract(run: Callable[..., Ran]) -> None:
    (verdict,) = run("diagnose", "--json", ECC_LOG).verdicts
    assert {
        "reason", "category", "fault", "recovery", "outcome", "confidence", "evidence", "suspects", "first_rank",
        "symptoms", "suggestion", "decided_by", "fingerprint", "compression", "seconds", "version", "file",
    } <= set(verdict)  # fmt: skip
    assert {"file", "stream", "line", "quote", "rule"} <= set(verdict["evidence"][0])
    assert {"node", "rank", "gpu", "why"} <= set(verdict["suspects"][0])
    assert {"reason", "line", "explained_by"} <= set(verdict["symptoms"][0])
    assert {"lines_in", "lines_kept", "bytes_in", "bytes_kept"} <= set(verdict["compression"])


def test_a_folder_is_one_job_with_a_stream_for_each_rank(run: Callable[..., Ran], tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        (tmp_path / f"rank_{rank}.log").write_text(f"step {rank}\n" + (f"{ERROR}\n" if rank == 2 else ""))
    (tmp_path / "config.yaml").write_text("RuntimeError: not a log\n")
    (verdict,) = run("diagnose", "--json", tmp_path).verdicts
    assert (verdict["reason"], verdict["compression"]["lines_in"]) == ("ECC Error", 4)
    assert [(item["stream"], item["line"]) for item in verdict["evidence"]] == [("rank_2.log", 2)]
    assert verdict["evidence"][0]["file"] == str(tmp_path / "rank_2.log")


def test_each_log_of_a_folder_is_a_job_when_that_is_asked_for(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.log").write_text(f"{ERROR}\n")
    (tmp_path / "deep" / "b.log").write_text("KeyError: 'b'\n")
    (tmp_path / "notes.md").write_text("KeyError: 'c'\n")
    ran = run("diagnose", "--json", "--each", tmp_path)
    assert [(Path(one["file"]).name, one["reason"]) for one in ran.verdicts] == [
        ("a.log", "ECC Error"),
        ("b.log", "Key Error"),
    ]
    assert (ran.code, ran.err) == (1, "")
    one = run("diagnose", "--json", tmp_path)
    assert len(one.verdicts) == 1 and "2 logs are taken for one job; with --each" in one.err
    (tmp_path / "old.tar.gz").write_bytes(b"")
    ran = run("diagnose", "--json", "--each", tmp_path)
    assert (ran.code, len(ran.verdicts)) == (2, 2) and "logdoctor batch" in ran.err
    (tmp_path / "none").mkdir()
    assert_refused(run("diagnose", "--each", tmp_path / "none"), "is a folder without logs")


def test_each_attempt_of_torchrun_is_judged_alone(run: Callable[..., Ran], tmp_path: Path) -> None:
    for attempt, text in enumerate([ERROR, "KeyError: 'a'", "Training completed"] + ["KeyError: 'b'"] * 8):
        folder = tmp_path / "run-7" / f"attempt_{attempt}" / "3"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"{text}\n")
        (folder / "stdout.log").write_text("hello\n")
    verdicts = run("diagnose", "--json", tmp_path).verdicts
    assert [verdict["reason"] for verdict in verdicts[:3]] == ["ECC Error", "Key Error", "None"]
    assert [Path(verdict["file"]).parts[-3] for verdict in verdicts] == [f"attempt_{n}" for n in range(11)]


def test_standard_input(run: Callable[..., Ran]) -> None:
    plain, packed = (
        run("diagnose", "--json", "-", stdin=data(ECC_LOG.read_bytes())) for data in (bytes, gzip.compress)
    )
    assert (plain.code, plain.verdicts[0]["reason"], plain.verdicts[0]["file"]) == (1, "ECC Error", "-")
    assert packed.verdicts[0]["evidence"] == plain.verdicts[0]["evidence"]


def test_standard_input_is_read_once(run: Callable[..., Ran]) -> None:
    ran = run("diagnose", "--json", "-", "-", stdin=b"KeyError: 'a'\n")
    assert (ran.code, ran.raw) == (2, b"")
    assert "Standard input" in ran.err


def test_people_see_reason_advice_and_the_quoted_line(run: Callable[..., Ran]) -> None:
    ran = run("diagnose", ECC_LOG)
    plain = " ".join(re.sub(r"[│╭╮╰╯─]", " ", ran.out).split())
    assert ran.err == ""
    assert "ECC Error" in plain
    assert "cordon the node, then restart" in plain
    assert "os-a100-03" in plain
    assert "> 126 [os-a100-03] Cuda failure 'uncorrectable ECC error encountered'" in plain
    for number in (124, 125, 127):  # its context
        assert f" {number} [os-a100-03]" in plain
    assert "follow-on " in plain and "NCCL Timeout Error" in plain
    assert max(map(len, ran.out.splitlines())) <= 100


def test_people_see_how_a_good_job_stands(run: Callable[..., Ran]) -> None:
    out = run("diagnose", GOOD_LOG).out
    assert "Completed" in out and "step 1500 of 1500" in out
    assert "advice" not in out


def test_people_see_what_nothing_explains(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("ZeroDivisionError: division by zero\nKeyError: 'a'\n")
    assert "other      Key Error (1, from line 2)" in run("diagnose", tmp_path / "x.log").out


def test_explain_shows_what_the_filter_rules_took(run: Callable[..., Ran]) -> None:
    short, long = run("diagnose", GOOD_LOG), run("diagnose", "--explain", GOOD_LOG)
    rules = run("diagnose", "--json", GOOD_LOG).verdicts[0]["compression"]["rules"]
    most = max(rules, key=lambda rule: rules[rule]["lines"])
    assert most in long.out and most not in short.out
    assert " lines, " in long.out and "fingerprint" in long.out


def test_explain_shows_what_the_writers_of_errors_did_next(run: Callable[..., Ran], tmp_path: Path) -> None:
    samples = "".join(f"[rank1]: sample {number} scored\n" for number in range(20))
    (tmp_path / "x.log").write_text(f"{samples}[rank1]: KeyError: 'a'\n[rank1]: sample 20 scored\n")
    out = " ".join(run("diagnose", "--explain", tmp_path / "x.log").out.split())
    assert "Key Error of [rank1]: (line 21): 1 more line of its writer kept, 1 of its work" in out, out


@pytest.mark.parametrize("flags", [[], ["--explain"]])
def test_no_control_character_of_a_log_reaches_the_terminal(
    run: Callable[..., Ran], tmp_path: Path, flags: list[str]
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x00\u202e[red]markup[/red]"
    path = tmp_path / "evil\x1b[2J\x07.log"
    path.write_text(f"{evil} before\n{ERROR} {evil}\r{ERROR} {evil}\n{evil} after\nKeyError: '{evil}'\n")
    out = run("diagnose", *flags, path).out
    assert "uncorrectable ECC" in out and "[red]markup[/red]" in out.replace("\n", "").replace("│", "")
    assert [c for c in out if not c.isprintable() and c != "\n"] == []


def test_no_control_character_of_a_file_s_name_reaches_the_terminal(run: Callable[..., Ran]) -> None:
    ran = run("diagnose", "nowhere\x1b[2J\x07.log")
    assert ran.code == 2
    assert [c for c in ran.err[:-1] if not c.isprintable()] == []


# ---- bad input


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_missing_file(run: Callable[..., Ran], tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "missing.log"
    assert_refused(run("diagnose", *flags, path), path, "does not exist", "Check the path")


def test_a_path_through_a_file(run: Callable[..., Ran]) -> None:
    assert_refused(run("diagnose", GOOD_LOG / "x.log"), GOOD_LOG / "x.log", "Check the path")


def test_a_file_that_cannot_be_read(run: Callable[..., Ran]) -> None:
    assert_refused(run("diagnose", "/proc/self/mem"), "/proc/self/mem", "cannot be read", "permissions")


def test_a_folder_without_logs(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert_refused(run("diagnose", tmp_path), tmp_path, "without logs", "*.log")


def _zip(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("train.log", data)
    return buffer.getvalue()


@pytest.mark.parametrize(("pack", "kind"), [(bz2.compress, "bzip2"), (lzma.compress, "xz"), (_zip, "zip")])
@pytest.mark.parametrize("piped", [False, True])
def test_another_compression(
    run: Callable[..., Ran], tmp_path: Path, pack: Callable[[bytes], bytes], kind: str, piped: bool
) -> None:
    path = tmp_path / "train.log"  # the bytes count, not the name
    path.write_bytes(pack(ECC_LOG.read_bytes()))
    ran = run("diagnose", "-", stdin=path.read_bytes()) if piped else run("diagnose", path)
    assert_refused(ran, "-" if piped else path, f"compressed with {kind}", "gzip or zstd")


def test_a_decompression_bomb(run: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"step 1\n" * 20_000))
    assert_refused(
        run("diagnose", path, max_decompressed_bytes="70000"), path, "70000", "LOGDOCTOR_MAX_DECOMPRESSED_BYTES"
    )


def test_a_compressed_log_within_the_limit_is_read(run: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "fine.gz").write_bytes(gzip.compress(b"step 1\n" * 10_000))
    ran = run("diagnose", "--json", tmp_path / "fine.gz", max_decompressed_bytes="70000")
    assert ran.verdicts[0]["compression"]["lines_in"] == 10_000


@pytest.mark.parametrize(("share", "code"), [(0.3, (0, 1)), (0.99, (1,))])
def test_a_truncated_archive_is_diagnosed_as_far_as_it_goes(
    run: Callable[..., Ran], tmp_path: Path, share: float, code: tuple[int, ...]
) -> None:
    path = tmp_path / "cut.log.gz"
    packed = gzip.compress(ECC_LOG.read_bytes())
    path.write_bytes(packed[: int(len(packed) * share)])
    ran = run("diagnose", "--json", path)
    assert ran.code in code
    (verdict,) = ran.verdicts
    assert 0 < verdict["compression"]["lines_in"]
    (problem,) = verdict["problems"]
    assert str(path) in problem and "ends in the middle" in problem
    assert "ends in the middle" in " ".join(run("diagnose", path).out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("WORKERS", "-1", ["LOGDOCTOR_WORKERS", "is not valid"]), ("RULES", "/nowhere/rules", ["no rule files"])],
)
@pytest.mark.parametrize("command", [["diagnose", "--json", str(ECC_LOG)], ["rules", "check"]])
def test_a_wrong_setting(run: Callable[..., Ran], name: str, value: str, words: list[str], command: list[str]) -> None:
    assert_refused(run(*command, **{name: value}), *words)


def test_a_rule_folder_of_one_s_own(run: Callable[..., Ran], rule_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("hello 1\nhello 2\nhello you\n")
    ran = run("diagnose", "--json", tmp_path / "x.log", rules=str(rule_folder))
    assert ran.verdicts[0]["compression"]["rules"] == {"filter/x/hello": {"lines": 2, "first": 1, "last": 2}}


@pytest.mark.parametrize("command", [["diagnose", "--json", str(ECC_LOG)], ["rules", "check"], ["rules", "list"]])
def test_a_broken_rule_file(run: Callable[..., Ran], rule_folder: Path, command: list[str]) -> None:
    (rule_folder / "filter" / "x" / "hello.yaml").write_text(RULE.replace("patterns:", "paterns:"))
    ran = run(*command, rules=str(rule_folder))
    assert (ran.code, ran.raw) == (2, b"") and ran.err.startswith("logdoctor: ")
    assert "hello.yaml" in ran.err and "paterns" in ran.err


def test_rules_check_finds_what_fails(run: Callable[..., Ran], rule_folder: Path) -> None:
    file = rule_folder / "filter" / "x" / "hello.yaml"
    for old, other, words in (
        ("must_match: ['hello 1']", "must_match: ['hello 1', 'goodbye']", "must match 'goodbye' but does not"),
        ("^hello", "(?<=oh )hello", "which is not supported"),
    ):
        file.write_text(RULE.replace(old, other))
        ran = run("rules", "check", rules=str(rule_folder))
        said = ran.out + ran.err
        assert ran.code == 2 and words in said and "filter/x/hello" in said


# ---- learned rules


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of the settings, with nothing in it."""
    monkeypatch.setenv("LOGDOCTOR_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_commands_on_learned_rules_make_no_database(run: Callable[..., Ran], data: Path, tmp_path: Path) -> None:
    for command in (
        ["list", "--learned"],
        ["list", "--waiting"],
        ["show", "learned/x"],
        ["approve", "learned/x"],
        ["export", tmp_path / "out"],
        ["why", "x", "--kind", "y"],
        ["list", "--data-dir", data],
    ):
        assert_refused(run("rules", *command), data, "no records", "--data-dir")
    assert run("rules", "list").code == 0
    assert not data.exists() and not (tmp_path / "out").exists()


def test_list_shows_what_waits(run: Callable[..., Ran], data: Path) -> None:
    rules = opened(data)
    shard, heart = entered(rules, SHARD, HEARTBEAT)
    nemo = active(rules, new(kind="nemo/train.py", agent="gpt"))
    assert run("rules", "list").out.count("learned/") == 3
    assert "1 rule is waiting for approval" in run("rules", "list").out
    waiting = run("rules", "list", "--waiting").out
    assert heart.id in waiting and shard.id not in waiting and "look like trouble" in waiting
    for options, wanted in (
        (["--learned"], {shard.id, heart.id, nemo.id}),
        (["--status", "active", "--learned"], {nemo.id}),
        (["--kind", KIND], {shard.id, heart.id}),
        (["--agent", "gpt"], {nemo.id}),
        (["--kind", "none"], set()),
    ):
        ran = run("rules", "list", "--json", *options)
        assert {json.loads(line)["id"] for line in ran.out.splitlines()} == wanted, options
    shipped = [json.loads(line)["id"] for line in run("rules", "list", "--json", "--shipped").out.splitlines()]
    assert shipped and not [id for id in shipped if id.startswith("learned/")]
    assert run("rules", "list", "--learned", "--kind", "none").out == "no learned rules\n"
    assert run("rules", "list", "--shipped", "--waiting").code == 2
    assert run("rules", "list", "--waiting", "--status", "active").code == 2


@pytest.mark.parametrize("columns", ["80", "200"])
def test_ids_can_be_copied_and_nothing_steers_the_terminal(
    run: Callable[..., Ran], data: Path, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "megatron/" + "a-rather-long-name-of-a-program-" * 3 + "\u7814\u7a76.py"
    waits = f"{HEARTBEAT.waits_for} {EVIL}"
    rules = opened(data)
    (rule,) = entered(
        rules, new(HEARTBEAT, kind=kind, title=EVIL, waits_for=waits, agent=EVIL, votes=Votes(5, (1,), EVIL))
    )
    rules.retire(rule.id, EVIL, EVIL, 2.0)
    rules.undo(rule.id, EVIL, "", 3.0)
    monkeypatch.setenv("COLUMNS", columns)
    for command in (["list", "--learned"], ["list", "--waiting"], ["show", rule.id], ["why", HEARTBEAT.examples[0]]):
        ran = run("rules", *command)
        assert rule.id in ran.out, command
        assert all(char.isprintable() or char == "\n" for char in ran.out), command
        assert "\u7814" in ran.out
    for command in (["list", "--learned", "--json"], ["show", rule.id, "--json"]):
        assert run("rules", *command).out.isascii()


def test_show_tells_all_of_a_rule(run: Callable[..., Ran], data: Path) -> None:
    rules = opened(data)
    rule = active(rules)
    rules.hits.count(KIND, "llama-7b", 2, {rule.id: (12_031, 12_000)}, 3.0)
    out = run("rules", "show", rule.id).out
    for word in (
        *(SHARD.pattern, *SHARD.examples, "llama-7b/1", "megatron", "registry.local/train:1", "torchrun", "u17"),
        *("4 of 5 runs agreed (0, 1, 3, 4)", "12,151 lines in 2 attempts", "12,000 of them removed"),
        *("added", "new -> shadow", "approve", "shadow -> active", "by user-17"),
    ):
        assert word in out, word
    told = json.loads(run("rules", "show", rule.id, "--json").out)
    assert told["rule"]["id"] == rule.id and [event["step"] for event in told["events"]] == ["approve", "added"]
    assert_refused(run("rules", "show", "learned/no\x1b"), "does not exist")


def test_steps_of_people(run: Callable[..., Ran], data: Path) -> None:
    rules = opened(data)
    shard, heart = entered(rules, SHARD, HEARTBEAT)
    ran = run("rules", "approve", shard.id, heart.id, "--why", "read", "--by", "user-17")
    assert ran.code == 0 and "shadow -> active" in ran.out and "proposed -> shadow" in ran.out
    assert rules.one(heart.id).harmless
    event = rules.events(shard.id)[0]
    assert (event.step, event.by, event.why) == ("approve", "user-17", "read")
    ran = run("rules", "approve", shard.id, "learned/none", heart.id)
    assert ran.code == 2 and "proposed" not in ran.out and rules.one(heart.id).status == "active", "others go on"
    assert "is already active" in ran.err and "does not exist" in ran.err
    assert rules.events(heart.id)[0].by == pwd.getpwuid(os.getuid()).pw_name
    assert run("rules", "undo", heart.id).out.startswith(f"{heart.id}: active -> shadow")
    assert run("rules", "retire", heart.id).code == 0
    assert_refused(run("rules", "retire", heart.id), heart.id, "retired already")
    assert run("rules", "approve").code == 2


def test_export_and_import(run: Callable[..., Ran], data: Path, tmp_path: Path) -> None:
    rules = opened(data)
    rule, heart = active(rules), active(rules, HEARTBEAT)
    out = tmp_path / "out"
    assert run("rules", "export", out).out == "2 rules written, 0 unchanged\n"
    assert run("rules", "export", out, "--kind", "none").out == "0 rules written, 0 unchanged\n"
    file = out / "filter" / f"{rule.id}.yaml"
    other = tmp_path / "other"
    assert run("rules", "import", out, "--data-dir", other).code == 2  # mistyped, most likely: no service was there
    opened(other)
    ran = run("rules", "import", out, "--data-dir", other, "--by", "user-18")
    assert ran.code == 0 and "2 entered" in ran.out and "waiting for approval" in ran.out
    assert {one.status for one in opened(other).list()} == {"shadow", "proposed"}
    assert opened(other).events(heart.id)[0].by == "user-18"
    file.write_text(file.read_text().replace(SHARD.pattern, "^.*$"))
    assert_refused(run("rules", "export", out), "exists with different content", "--force")
    opened(tmp_path / "third")
    ran = run("rules", "import", out, "--data-dir", tmp_path / "third")
    assert ran.code == 2 and "grammar: the wildcard" in ran.out and "1 entered, 1 refused" in ran.out
    told = [json.loads(line) for line in run("rules", "import", file, "--json").out.splitlines()]
    assert [(one["outcome"], one["guard"]) for one in told] == [("refused", "grammar")]
    assert run("rules", "export", out, "--force").out.startswith("1 rules written")
    ran = run("rules", "import", tmp_path / "none\x1b[31m")
    assert ran.code == 2 and "No such file" in ran.out and "\x1b" not in ran.out


def test_why_asks_learned_rules(run: Callable[..., Ran], data: Path) -> None:
    rule = active(opened(data))
    line = SHARD.examples[0]
    assert run("rules", "why", line).out == f"jobs of the kind {KIND}:\nremoved by               {rule.id}\n"
    assert "no rule matches it" in run("rules", "why", line, "--kind", "none").out
    ran = run("rules", "why", os.fsdecode(b"\xff\x1b[31m"))
    assert ran.code == 0 and "no rule matches it" in ran.out


# ---- rules, eval, schema, completion


def test_a_command_that_finds_no_records_says_how_to_ask_a_service(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run("incidents", "list", data_dir=str(tmp_path))
    assert ran.code == 2 and "--data-dir" in ran.err and "--url" in ran.err and "LOGDOCTOR_URL" in ran.err
    ran = run("cases", "reindex", data_dir=str(tmp_path))
    assert ran.code == 2 and "--data-dir" in ran.err and "--url" not in ran.err, "it takes none"


def test_the_help_says_which_commands_need_records() -> None:
    do_without = {"diagnose", "batch", "compare", "checkpoints", "serve"}  # they may use records, or make them
    asking: set[str] = set()
    local: set[str] = set()
    for name, command in cli.commands.items():
        options = options_of(command)
        if name not in do_without and "data_dir" in options:
            (asking if "url" in options else local).add(name)
    told = re.split(r"(?<=[.]) ", " ".join((cli.help or "").split()))
    (records,) = (set(re.findall("`([a-z]+)`", one)) for one in told if "show its records" in one)
    (folder,) = (set(re.findall("`([a-z]+)`", one)) for one in told if "data folder itself" in one)
    assert (records, folder) == (asking, local)


def options_of(command: click.Command) -> set[str | None]:
    """The options of a command, and of those below it, that its help shows."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {one.name for one in command.params if isinstance(one, click.Option) and not one.hidden}
    return own.union(*(options_of(one) for one in below))


def test_no_short_help_is_cut_off(run: Callable[..., Ran]) -> None:
    for group in (
        [],
        ["rules"],
        ["cases"],
        ["incidents"],
        ["nodes"],
        ["notify"],
        ["eval"],
        ["tokens"],
        ["checkpoints"],
    ):
        shown = run(*group, "--help").out
        assert "..." not in shown.partition("Commands:")[2], shown


def test_rules_check_finds_nothing_in_good_rules(run: Callable[..., Ran], rule_folder: Path) -> None:
    ran = run("rules", "check", rules=str(rule_folder))
    assert (ran.code, ran.out) == (0, "1 filter rules, 1 diagnosis rules, 0 problems\n")


def test_rules_list(run: Callable[..., Ran]) -> None:
    rules = [json.loads(line) for line in run("rules", "list", "--json").out.splitlines()]
    ids = [rule["id"] for rule in rules]
    assert {"filter/megatron/iteration", "diagnosis/infrastructure/ecc-uncorrectable"} <= set(ids)
    assert len(ids) == len(set(ids)) == len(list((ROOT / "rules").rglob("*.yaml")))
    assert len(run("rules", "list").out.splitlines()) >= len(ids)


def test_rules_show(run: Callable[..., Ran]) -> None:
    out = run("rules", "show", "diagnosis/infrastructure/ecc-uncorrectable").out
    assert "id: diagnosis/infrastructure/ecc-uncorrectable" in out and "must_match:" in out


def test_rules_show_of_none(run: Callable[..., Ran]) -> None:
    assert_refused(run("rules", "show", "filter/no/such"), "filter/no/such", "rules list")


def test_rules_why(run: Callable[..., Ran], rule_folder: Path) -> None:
    taken = run("rules", "why", "hello 12", rules=str(rule_folder)).out
    assert "removed by               filter/x/hello" in taken and "kept" not in taken
    evident = run("rules", "why", "hello 7 you gpu").out
    assert "evidence                 diagnosis/x/rude: cause of Node Failure {'node': 'gpu'}" in evident
    assert "kept                     the line is kept for diagnosis" in evident
    assert (
        "diagnosis/x/rude: the line also matches 'dear', which the rule excludes"
        in run("rules", "why", "dear, hello 7 you gpu").out
    )
    kept = "kept                     the line is kept for diagnosis\nbecause                  no rule matches it\n"
    assert run("rules", "why", "good bye").out == kept
    assert run("rules", "why", "a\nb").code == 2


def test_eval_as_json_and_as_a_table(run: Callable[..., Ran], tmp_path: Path) -> None:
    cases = [json.loads(line) for line in (CORPUS / "failures" / "cases.jsonl").read_text().splitlines()]
    wrong = {**cases[0], "reason": "Syntax Error", "also_acceptable": [], "why": "labelled wrongly for this test"}
    for case in (cases[0], cases[1]):
        (tmp_path / case["file"]).write_bytes((CORPUS / "failures" / case["file"]).read_bytes())
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in (wrong, cases[1])))
    report = json.loads(run("eval", "--json", tmp_path).out)
    assert (report["failures"], report["all"]["reason"]["hits"], report["all"]["reason"]["total"]) == (2, 1, 2)
    table = run("eval", "--failures", tmp_path).out
    assert "reason, strict" in table and "labelled wrongly for this test" in " ".join(table.split())


def test_eval_without_a_corpus(run: Callable[..., Ran], tmp_path: Path) -> None:
    assert_refused(run("eval", tmp_path / "none"), tmp_path / "none", "is not a folder")
    assert_refused(run("eval", tmp_path), "cases.jsonl", "cannot be read")


def test_the_published_schema_is_the_one_that_is_printed(run: Callable[..., Ran]) -> None:
    assert json.loads(run("schema").out) == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_refuses_what_is_no_verdict(run: Callable[..., Ran]) -> None:
    (verdict,) = run("diagnose", "--json", ECC_LOG).verdicts
    for broken in ({**verdict, "recovery": "pray"}, {k: v for k, v in verdict.items() if k != "reason"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMA)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Callable[..., Ran], shell: str) -> None:
    out = run("completion", shell).out
    assert f"_LOGDOCTOR_COMPLETE={shell}_complete" in out and "logdoctor" in out


def test_bash_accepts_its_completion_script(run: Callable[..., Ran]) -> None:
    script = run("completion", "bash").raw
    assert subprocess.run(["bash", "-n"], input=script, capture_output=True, check=True).stderr == b""


@pytest.mark.parametrize("args", [["diagnose"], ["diagnose", "--nope"], ["nope"], ["completion", "tcsh"]])
def test_wrong_usage_has_exit_code_2(run: Callable[..., Ran], args: list[str]) -> None:
    ran = run(*args)
    assert (ran.code, ran.raw) == (2, b"")
    assert "Error: " in ran.err


def test_main_prints_errors_and_exits_with_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["logdoctor", "rules", "show", "filter/no/such"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("logdoctor: rule 'filter/no/such'")


def test_many_logs_have_one_line_each(run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logs = [Path(f"{number}.log") for number in range(6)]
    for number, log in enumerate(logs):
        log.write_text(f"step 1\n[rank{number}]: {ERROR} {'x' * 200}\x1b[2J\n" if number else "step 1\n")
    lines = run("diagnose", *logs).out.splitlines()
    assert len(lines) == 6 and all(len(line) <= 100 and line.isprintable() for line in lines)
    assert lines[0].startswith("unknown")
    assert lines[1].startswith("failed     ECC Error ") and f"{logs[1]}:2" in lines[1]
    assert run("diagnose", "--short", logs[1]).out.splitlines() == [lines[1]]
    assert "╭─" in run("diagnose", *logs[:5]).out and "╭─" in run("diagnose", "--explain", *logs).out
    assert run("diagnose", "--json", *logs).out.count("\n") == 6
    assert run("diagnose", "--short", "--json", logs[1]).code == 2


def test_a_panel_is_not_wider_than_a_hundred_columns(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    assert max(map(len, run("diagnose", ECC_LOG).out.splitlines())) == 100


# ---- as a library


def test_the_library_is_told_what_a_log_cannot_tell(tmp_path: Path) -> None:
    (log := tmp_path / "a.log").write_text("a line that says nothing\n")
    told: list[dict[str, Any]] = [{}, {"exit_code": 1}, {"died": True}, {"exit_code": 0}]
    assert [logdoctor.diagnose(log, **one).outcome for one in told] == ["unknown", "failed", "failed", "completed"]
    with pytest.raises(ValueError, match="contradict"):
        logdoctor.diagnose(log, died=True, exit_code=0)


def test_the_library_can_be_asked_again() -> None:
    assert [logdoctor.diagnose(log).reason for log in (ECC_LOG, GOOD_LOG, ECC_LOG)] == ["ECC Error", None, "ECC Error"]


def test_the_library_takes_texts_bytes_and_open_files(tmp_path: Path) -> None:
    (log := tmp_path / "a.log").write_text(f"step 1\n{ERROR}\n")
    with log.open() as text, log.open("rb") as raw:
        given = (log, str(log), text, raw, log.read_bytes(), log.read_text(), io.StringIO(ERROR), io.BytesIO(b""))
        told = [logdoctor.diagnose(one) for one in given]
    assert [one.reason for one in told] == ["ECC Error"] * 7 + [None]
    assert [one.file for one in told] == [str(log)] * 4 + ["text"] * 4
    with pytest.raises(TypeError, match="log is a path, an open file, a text or bytes"):
        logdoctor.diagnose(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="does not exist"):
        logdoctor.diagnose("one line")


def test_the_library_judges_the_last_attempt_of_a_folder(tmp_path: Path) -> None:
    for attempt, text in enumerate([ERROR, "KeyError: 'a'"]):
        (tmp_path / f"attempt_{attempt}").mkdir()
        (tmp_path / f"attempt_{attempt}" / "stderr.log").write_text(f"{text}\n")
    assert logdoctor.diagnose(tmp_path).reason == "Key Error"


def test_the_library_and_the_command_line_agree(run: Callable[..., Ran]) -> None:
    one = msgspec.json.decode(msgspec.json.encode(logdoctor.diagnose(NVLINK_LOG)))
    other = run("diagnose", "--json", NVLINK_LOG).verdicts[0]
    assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_the_library_s_verdict_shows_itself(tmp_path: Path) -> None:
    log = tmp_path / "<b>.log"
    log.write_text(f"step 1 <script>alert(1)</script>\n{ERROR} <script>\n")
    verdict = logdoctor.diagnose(log)
    shown = str(verdict)
    assert shown.startswith("╭─ ECC Error") and ERROR in shown and "advice" in shown and "\x1b" not in shown
    assert max(map(len, shown.splitlines())) == 100
    html = verdict._repr_html_()
    assert html.startswith("<pre ") and "uncorrectable ECC error" in html
    assert "<script>" not in html and "<b>" not in html
    assert repr(verdict).startswith("ShownVerdict(reason='ECC Error'")


def test_a_text_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even an empty one, which would be the folder that somebody works in."""
    (tmp_path / "a.log").write_text(ECC_LOG.read_text())
    monkeypatch.chdir(tmp_path)
    assert logdoctor.diagnose("").reason is None
    for text in ("one line of a log", "x" * 5000, "a\0b"):
        with pytest.raises(InputError):
            logdoctor.diagnose(text)
