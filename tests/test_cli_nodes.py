"""Nodes on the command line: what is on record is shown, what is done is asked for, exit codes say what was found."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from logdoctor.errors import InputError
from logdoctor.types.nodes import Action, Finding
from logdoctor.words.nodesets import expanded, folded
from tests.recorded_nodes import CORDON, FAULTY, LINK, NODES, NOW, OPEN, RecordedLauncher, kept_test, opened
from tests.rule_files.learned import EVIL
from tests.test_cli import Ran, assert_refused, data, run

__all__ = ["data", "run"]  # fixtures


# --- node sets


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["gpu-[01-03]"], "gpu-01 gpu-02 gpu-03"),
        (["gpu-[01-02],gpu-11 login"], "gpu-01 gpu-02 gpu-11 login"),
        (["gpu-02", "gpu-[01-02]"], "gpu-02 gpu-01"),
        ([], ""),
    ],
)
def test_node_sets_stand_for_names(texts: list[str], names: str) -> None:
    assert expanded(texts) == tuple(names.split())


@pytest.mark.parametrize("text", ["@all", "gpu-[1-", "gpu-[1-99999999999]", "-x", "a;b", "$(id)", "a/b", "\u0661"])
def test_what_is_no_node_set_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        expanded([text])


def test_names_are_folded() -> None:
    assert folded(["gpu-01", "gpu-02", "gpu-04"]) == "gpu-[01-02,04]"


# --- what is on record


def test_commands_on_nodes_make_no_database(run: Callable[..., Ran], data: Path) -> None:
    for command in (["tests"], ["show-test", "1"], ["list"], ["history", "gpu-01"], ["actions"], ["audit"]):
        assert_refused(run("nodes", *command), data, "no records", "--data-dir")
    assert not data.exists()


def test_tests_are_listed_and_shown(run: Callable[..., Ran], data: Path) -> None:
    records = opened(data)
    assert run("nodes", "tests").out == "no tests\n" and run("nodes", "tests", "--json").out == ""
    kept_test(records)
    kept_test(records, LINK, at=NOW + 100)
    kept_test(records, OPEN, at=NOW + 200)
    out = run("nodes", "tests").out
    assert out.index("3  finished") < out.index("1  finished") and "gpu-[01-04]" in out and "by ops, slurm" in out
    assert "faulty: gpu-02" in out and "link: gpu-01 - gpu-02" in out and "indeterminate: gpu-[01-04]" in out
    assert [json.loads(line)["id"] for line in run("nodes", "tests", "--json").out.splitlines()] == [3, 2, 1]
    assert run("nodes", "tests", "--node", "gpu-09").out == "no tests\n"
    shown = " ".join(run("nodes", "show-test", "1").out.split())
    for words in (
        "1 1 gpu-01 gpu-02 failed 60.0 first round gpu-02: wrong data: 3 values",
        "2 1 gpu-03 gpu-04 passed 4.1 38 first round",
        "gpu-02 faulty wrong data: failed with gpu-04 (worlds 1, 4)",
        "gpu-03 healthy passed with gpu-04",
        "! GPU 3: 85 C",
        "gpu-[01,04] healthy 2 in all",
        "logdoctor nodes cordon gpu-02 --test 1",
    ):
        assert words in shown, words
    told = json.loads(run("nodes", "show-test", "1", "--json").out)
    assert told["test"]["conclusion"]["findings"][1]["fault"] == "wrong data"
    assert [world["world"]["number"] for world in told["worlds"]] == [2, 1, 3, 4], "as they ended"
    assert_refused(run("nodes", "show-test", "9"), "test 9", "does not exist")


def test_a_test_that_runs_is_shown_so_far(run: Callable[..., Ran], data: Path) -> None:
    records = opened(data)
    kept_test(records, None, worlds=1)
    out = run("nodes", "show-test", "1").out
    assert "running" in out and "gpu-03 gpu-04" in out and "healthy" not in out
    records.abort_test(1, "stopped by ops", NOW)
    assert "aborted" in run("nodes", "tests").out and "stopped by ops" in run("nodes", "show-test", "1").out


def test_nodes_are_listed_repeat_offenders_first(run: Callable[..., Ran], data: Path) -> None:
    records = opened(data)
    assert run("nodes", "list").out == "no nodes recorded\n"
    kept_test(records)
    lines = run("nodes", "list").out.splitlines()
    assert lines[1].startswith("gpu-02") and "faulty: wrong data, test 1" in lines[1]
    assert json.loads(run("nodes", "list", "--json").out)["items"][0]["node"] == "gpu-02"


def test_the_history_of_a_node(run: Callable[..., Ran], data: Path) -> None:
    records = opened(data)
    kept_test(records)
    records.want_cordon("gpu-02", "slurm", "ops", NOW, "wrong data", None, 1)
    records.step_cordon(1, "standing", "ops", "", NOW)
    out = run("nodes", "history", "gpu-02").out
    lines = [line.strip() for line in out.splitlines()]
    assert "cordon 1 (slurm) in effect by ops: wrong data" in lines[1], "what stands comes first"
    assert "test 1: faulty wrong data: failed with gpu-04, boot 8c1f" in lines[2]
    assert json.loads(run("nodes", "history", "gpu-02", "--json").out)["findings"][0]["standing"] == "faulty"
    assert "no records" in run("nodes", "history", "gpu-99").out
    assert_refused(run("nodes", "history", "gpu 99"), "not a valid node name")


def test_the_audit_tells_every_step(run: Callable[..., Ran], data: Path) -> None:
    records = opened(data)
    kept_test(records)
    records.want_cordon("gpu-02", "slurm", "ops", NOW, "wrong data", None, 1)
    out = run("nodes", "audit", "--test", "1").out
    for words in ("test 1 begun", "test 1 finished", "cordon 1 requested gpu-02", "by ops"):
        assert words in out, words
    assert "begun" not in run("nodes", "audit", "--limit", "1").out
    assert all(json.loads(line)["by"] == "ops" for line in run("nodes", "audit", "--json").out.splitlines())


def test_actions_are_listed(run: Callable[..., Ran], data: Path) -> None:
    records = opened(data)
    assert run("nodes", "actions").out == "no actions\n"
    records.propose(CORDON, "j", 1, NOW)
    records.propose(Action("reboot", ("gpu-02",), "ask", "it hangs"), "j", 1, NOW)
    records.decide(2, False, "ops", "it was the cable", NOW)
    out = run("nodes", "actions").out
    assert "1  waiting  cordon gpu-02" in out and "refused by ops: it was the cable" in out
    assert "reboot" not in run("nodes", "actions", "--state", "waiting").out
    assert json.loads(run("nodes", "actions", "--json", "--limit", "1").out)["id"] == 2


def test_nothing_of_a_node_steers_the_terminal(run: Callable[..., Ran], data: Path) -> None:
    records = opened(data)
    evil = Finding("gpu-02", "faulty", EVIL, (1,), ("gpu-01",), EVIL, (EVIL,))
    findings = tuple(evil if one.node == "gpu-02" else one for one in FAULTY.findings)
    nodes = [msgspec.structs.replace(node, address=EVIL) for node in NODES]
    test = records.begin_test(EVIL, nodes, {}, EVIL, None, NOW)
    records.finish_test(test, msgspec.structs.replace(FAULTY, findings=findings, open=EVIL), NOW)
    records.want_cordon("gpu-02", "file", EVIL, NOW, EVIL)
    records.propose(msgspec.structs.replace(CORDON, why=EVIL), EVIL, 1, NOW)
    for command in (["tests"], ["show-test", "1"], ["list"], ["history", "gpu-02"], ["actions"], ["audit"]):
        ran = run("nodes", *command)
        assert ran.code == 0 and "\u7814" in ran.out, command
        assert all(char.isprintable() or char == "\n" for char in ran.out), command
        assert run("nodes", *command, "--json").out.isascii()


# --- tests


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> RecordedLauncher:
    """The launcher that every name stands for: four nodes, of which gpu-02 is faulty."""
    launcher = RecordedLauncher([node.name for node in NODES], ["gpu-02"])
    monkeypatch.setattr("logdoctor.wiring.nodes.launcher", lambda settings, name: launcher)
    return launcher


def test_a_faulty_node_is_found_and_told_live(run: Callable[..., Ran], data: Path, recorded: RecordedLauncher) -> None:
    ran = run("nodes", "test", "--launcher", "slurm", "--nodes", "gpu-[01-04]", "--by", "user-17")
    assert ran.code == 1, ran.err
    begun, *told = ran.err.splitlines()
    assert begun == "test 1: 4 nodes through slurm; a world takes at most 75 s"
    assert [line.split("  ")[0] for line in told] == sorted(line.split("  ")[0] for line in told)
    assert any("gpu-01 gpu-02  failed" in line and "gpu-02: wrong data: 3 values" in line for line in told)
    assert any("gpu-03 gpu-04  passed" in line and "40 GB/s" in line for line in told)
    out = " ".join(ran.out.split())
    assert "gpu-02 faulty" in out and "gpu-[01,03-04] healthy 3 in all" in out and "cordon gpu-02 --test 1" in out
    kept = opened(data).test(1)
    assert kept is not None and (kept.by, kept.launcher, kept.state) == ("user-17", "slurm", "finished")


def test_a_test_as_json_is_one_object(run: Callable[..., Ran], data: Path, recorded: RecordedLauncher) -> None:
    ran = run("nodes", "test", "--launcher", "local", "--json", "--repeats", "3", "--seconds", "7")
    told = json.loads(ran.out)
    assert ran.code == 1 and told["test"]["options"]["repeats"] == 3 and told["test"]["options"]["seconds"] == 7
    assert told == json.loads(run("nodes", "show-test", "1", "--json").out)


def test_exit_codes_say_what_was_found(run: Callable[..., Ran], data: Path, recorded: RecordedLauncher) -> None:
    test = ["nodes", "test", "--launcher", "local", "--nodes"]
    assert run(*test, "gpu-03,gpu-04").code == 0
    assert run(*test, "gpu-01,gpu-02").code == 3, "one of them, and nobody knows which"
    assert run(*test, "gpu-01").code == 3
    assert_refused(run(*test, "gpu-99"), "gpu-99", "not known here")
    assert run(*test, ",").code == 2
    assert_refused(run("nodes", "test", "--nodes", "gpu-[01-04]"), "no launcher is set", "LOGDOCTOR_LAUNCHER")
    assert_refused(run(*test, "gpu-01", "--verdict", 99), "verdict 99", "does not exist")
    assert len(opened(data).tests().items) == 3, "what cannot be tested leaves no test behind"


def test_what_nobody_expected_is_no_finding(run: Callable[..., Ran], data: Path) -> None:
    """Exit code 1 is that a node was found faulty: scripts act on it."""
    ran = run("nodes", "test", "--launcher", "local", slurm_options='"a')
    assert_refused(ran, "LOGDOCTOR_SLURM_OPTIONS", "No closing quotation")


def test_an_error_of_our_own_ends_with_2(run: Callable[..., Ran], data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(settings: object) -> None:
        raise ZeroDivisionError("a mistake")

    opened(data)
    monkeypatch.setattr("logdoctor.wiring.stored.node_records", fail)
    ran = run("nodes", "tests")
    assert ran.code == 2 and "ZeroDivisionError: a mistake" in ran.err and ran.out == ""


def test_a_test_of_which_nothing_was_launched_could_not_work(run: Callable[..., Ran], data: Path) -> None:
    ran = run("nodes", "test", "--launcher", "local", local_nodes="64", test_python="/nowhere/python3")
    assert ran.code == 2 and "/nowhere/python3: No such file" in ran.err
    assert len(ran.out.splitlines()) < 12, "one cause is told once"
    assert "local-[0-63]" in ran.out and "the same for 63 other nodes" in " ".join(ran.out.split())


def test_a_test_that_nobody_runs_is_cancelled(run: Callable[..., Ran], data: Path, recorded: RecordedLauncher) -> None:
    records = opened(data)
    kept_test(records, None, worlds=1, at=time.time())
    assert_refused(
        run("nodes", "test", "--launcher", "local", "--nodes", "gpu-01,gpu-03"), "test 1 is running on gpu-01"
    )
    assert run("nodes", "cancel", "1", "--by", "user-17").out == "test 1: cancelled\n"
    assert "cancelled by user-17" in run("nodes", "show-test", "1").out
    assert_refused(run("nodes", "cancel", "1"), "test 1", "aborted already")
    assert_refused(run("nodes", "cancel", "9"), "test 9", "does not exist")
    assert run("nodes", "test", "--launcher", "local", "--nodes", "gpu-01,gpu-03").code == 0


# --- cordons


@pytest.fixture
def cordons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that cordons go to, of a fleet of 40 nodes."""
    for name, value in (("CORDON_WITH", "file"), ("CORDON_FILE", tmp_path / "cordoned"), ("FLEET", "gpu-[01-40]")):
        monkeypatch.setenv(f"LOGDOCTOR_{name}", str(value))
    return tmp_path / "cordoned"


def test_a_node_is_cordoned_and_uncordoned(run: Callable[..., Ran], data: Path, cordons: Path) -> None:
    ran = run("nodes", "cordon", "gpu-02", "--reason", "wrong data", "--yes", "--by", "user-17")
    assert (ran.code, ran.out) == (0, "gpu-02: cordoned (cordon 1, file)\n"), ran.err
    assert "gpu-02  # logdoctor cordon 1: wrong data" in cordons.read_text()
    assert "1 (file)" in run("nodes", "list", "--cluster").out
    assert_refused(run("nodes", "cordon", "gpu-02", "--reason", "x", "--yes"), "already cordoned")
    assert run("nodes", "uncordon", "gpu-02", "--why", "board replaced").out == (
        "gpu-02: uncordoned (cordon 1, file)\n"
    )
    assert "gpu-02" not in cordons.read_text()
    assert_refused(run("nodes", "uncordon", "gpu-02"), "no cordon by logdoctor")
    assert "user-17" in run("nodes", "audit", "--node", "gpu-02").out


def test_a_cordon_is_asked_for(run: Callable[..., Ran], data: Path, cordons: Path) -> None:
    ran = run("nodes", "cordon", "gpu-02", "--reason", "wrong data", stdin=b"n\n")
    assert ran.code == 2 and "Cordon gpu-02 (wrong data)?" in ran.err and not cordons.exists()
    assert run("nodes", "cordon", "gpu-02", "--reason", "wrong data", stdin=b"y\n").code == 0
    assert cordons.exists()
    assert run("nodes", "cordon", "gpu-03", "--yes").code == 2, "for no reason"


def test_the_finding_of_a_test_is_the_reason(run: Callable[..., Ran], data: Path, cordons: Path) -> None:
    kept_test(opened(data))
    assert run("nodes", "cordon", "gpu-02", "--test", "1", "--yes").code == 0
    assert "wrong data: failed with gpu-04" in cordons.read_text()
    assert run("nodes", "cordon", "gpu-01", "--test", "1", "--yes").code == 2, "it was found healthy"
    assert_refused(run("nodes", "cordon", "gpu-03", "--test", "9", "--yes"), "test 9", "does not exist")
    assert_refused(run("nodes", "cordon", "gpu-99", "--reason", "x", "--yes"), "gpu-99", "LOGDOCTOR_FLEET")
    assert_refused(run("nodes", "cordon", "x y", "--reason", "x", "--yes"), "not a valid node name")


def test_a_dry_run_says_so(run: Callable[..., Ran], data: Path) -> None:
    out = run("nodes", "cordon", "gpu-02", "--reason", "x", "--yes", fleet="gpu-[01-40]").out
    assert "dry-run" in out and "no node was changed" in out


def test_an_action_is_approved_or_refused(
    run: Callable[..., Ran], data: Path, cordons: Path, recorded: RecordedLauncher
) -> None:
    records = opened(data)
    kept_test(records)
    records.propose(CORDON, "j", 1, NOW)
    records.propose(Action("reboot", ("gpu-02",), "ask", "it hangs"), "j", 1, NOW)
    records.propose(Action("test_nodes", tuple(node.name for node in NODES), "ask", "it hangs"), "j", 1, NOW)
    assert "done by user-17: so it is" not in run("nodes", "actions").out
    assert run("nodes", "approve", "1", "--by", "user-17", "--why", "so it is").code == 0
    assert "gpu-02" in cordons.read_text()
    assert "refused by user-17: not now" in run("nodes", "refuse", "2", "--by", "user-17", "--why", "not now").out
    ran = run("nodes", "approve", "3", launcher="local")
    assert ran.code == 1 and "gpu-02" in ran.out and "gpu-01 gpu-02  failed" in ran.err, "the test is followed"
    assert [one.state for one in records.actions().items][-3:] == ["done", "refused", "done"]
    for id in (1, 2, 9):
        assert_refused(run("nodes", "approve", id), f"action {id}")
        assert_refused(run("nodes", "refuse", id), f"action {id}")


# --- simulation


def test_a_simulation_tells_the_figures(run: Callable[..., Ran]) -> None:
    told = json.loads(run("nodes", "simulate", "--nodes", 9, "--faulty", 2, "--trials", 100, "--json").out)
    figures = {"exact", "healthy_convicted", "missed", "indeterminate", "rounds"}
    assert figures <= told.keys() and figures <= told["dlrover"].keys()
    assert (told["exact"], told["healthy_convicted"], told["missed"], told["indeterminate"]) == (1.0, 0.0, 0.0, 0.0)
    assert told["dlrover"]["exact"] < 0.9 and told["trials"] == 100
    out = run("nodes", "simulate", "--nodes", 9, "--faulty", 2, "--trials", 100, "--intermittent", 0.5).out
    assert "logdoctor" in out and "DLRover" in out and "shows in 50% of gathers" in out
    again = run("nodes", "simulate", "--nodes", 9, "--faulty", 2, "--trials", 100, "--json").out
    assert json.loads(again) == told, "the same seed tells the same"


def test_a_simulation_of_nonsense_is_refused(run: Callable[..., Ran]) -> None:
    assert run("nodes", "simulate", "--nodes", 3, "--faulty", 4).code == 2
    assert run("nodes", "simulate", "--nodes", 0, "--faulty", 0).code == 2


def test_a_chance_that_is_no_number_is_refused(run: Callable[..., Ran]) -> None:
    ran = run("nodes", "simulate", "--nodes", "4", "--faulty", "1", "--intermittent", "nan")
    assert ran.code == 2 and "not a number" in ran.err
