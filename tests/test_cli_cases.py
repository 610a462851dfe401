"""Past cases on the command line, beside a service or after one."""

import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from logdoctor import pipeline
from logdoctor.diagnose.episodes import episodes
from logdoctor.pipeline import LogFile, ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.confirmed import AGREEMENT, Cited, Confirmed, NewConfirmation
from logdoctor.store.learning.learned import CORDON, StoredClaim
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from logdoctor.types import Alternative, DecidedBy
from logdoctor.wiring import stored
from tests.diagnose.logs import TORN, steps
from tests.failure_agent.injection.obeying import obeying
from tests.llm.server import model_server, saying
from tests.rule_files.learned import EVIL, entered, new, opened
from tests.service.conftest import words
from tests.test_cli import ECC_LOG, Ran, assert_refused, data, run
from tests.web.conftest import local_client, new_service
from tests.web.test_pages import changed, send

__all__ = ["data", "run", "words"]  # fixtures
pytestmark = pytest.mark.usefixtures("words")

STRANGE = "ERROR fabric lane 7 of plane 2 is poisoned, resync refused\nlauncher says goodbye\n"
"""A log that no rule knows."""


def store(folder: Path) -> tuple[Records, Confirmed]:
    """The records and confirmations of a data folder."""
    folder.mkdir(parents=True, exist_ok=True)
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    return records, Confirmed(records.database)


def case(job: str = "j", **changes: object) -> NewConfirmation:
    """What is confirmed of a job."""
    one = NewConfirmation(job, 1, "user-17", "ECC Error", fix="board returned", title="the cause", digests=("0" * 16,))
    return msgspec.structs.replace(one, **changes)


def test_commands_on_cases_make_no_database(run: Callable[..., Ran], data: Path) -> None:
    for command in (["list"], ["show", "1"], ["confirm", "1"], ["withdraw", "1"], ["reindex"], ["list", "--json"]):
        assert_refused(run("cases", *command), data, "no records", "--data-dir")
    assert_refused(run("cases", "correct", "1", "--reason", "Key Error"), data, "no records")
    assert not data.exists()


def test_no_cases_are_listed(run: Callable[..., Ran], data: Path) -> None:
    store(data)
    assert run("cases", "list").out == "no cases\n" and run("cases", "list", "--json").out == ""


def test_nothing_of_a_case_steers_the_terminal(run: Callable[..., Ran], data: Path) -> None:
    _, confirmed = store(data)
    words = {name: EVIL for name in ("by", "fix", "comment", "suggestion", "title", "summary")}
    confirmed.add(case(digests=(EVIL,), evidence=(Cited(EVIL, 1, EVIL),), **words), 1.0)
    confirmed.withdraw(1, EVIL, EVIL, 2.0)
    for command in (["list", "--withdrawn"], ["show", "1"]):
        out = run("cases", *command).out
        assert all(char.isprintable() or char == "\n" for char in out), command
        assert "\u7814" in out and run("cases", *command, "--json").out.isascii()


def test_people_confirm_and_withdraw(run: Callable[..., Ran], data: Path) -> None:
    records, confirmed = store(data)
    stored = records.publish("j", 1, changed(), True, 1.0)
    assert stored is not None
    ran = run("cases", "confirm", stored.id, "--fix", "board returned", "--by", "user-18")
    assert (ran.code, ran.out.splitlines()[0]) == (0, "case 1: ECC Error: cordon the node, then restart")
    assert (confirmed.one(1).by, confirmed.one(1).fix, confirmed.one(1).evidence[0].quote) == (
        "user-18",
        "board returned",
        "the cause",
    )
    assert run("cases", "confirm", "j/1").code == 0
    assert [one.id for one in confirmed.cases()] == [2], "the later one counts"
    assert confirmed.one(2).by == pwd.getpwuid(os.getuid()).pw_name
    assert run("cases", "withdraw", "2", "--why", "it was the cable").out == "case 2 no longer decides anything\n"
    assert confirmed.cases() == [] and confirmed.one(2).withdrawn_why == "it was the cable"
    assert_refused(run("cases", "withdraw", "2"), "already withdrawn")


@pytest.mark.parametrize(("by", "words"), [(AGREEMENT, "nobody may be called"), (" ", "names nobody")])
def test_who_confirms_is_somebody(run: Callable[..., Ran], data: Path, by: str, words: str) -> None:
    records, confirmed = store(data)
    records.publish("j", 1, changed(), True, 1.0)
    assert_refused(run("cases", "confirm", "j/1", "--by", by), words)
    assert confirmed.cases() == []


def test_a_correction_reaches_a_running_service(run: Callable[..., Ran], tmp_path: Path, scanner: Scanner) -> None:
    folder = tmp_path / "data"
    with local_client(new_service(folder, scanner)) as client:
        stored = send(client, "j", STRANGE.encode())
        ran = run("cases", "correct", "j/1", "--reason", "nvlink error", "--by", "ops", "--data-dir", folder)
        assert ran.code == 0, ran.err
        cases = client.get("/v1/cases").json()["items"]
        assert [(one["reason"], one["by"], one["verdict"]) for one in cases] == [("NVLink Error", "ops", stored.id)]


def test_a_correction_quotes_the_archive(run: Callable[..., Ran], tmp_path: Path, scanner: Scanner) -> None:
    folder = tmp_path / "data"
    with local_client(new_service(folder, scanner)) as client:
        send(client, "j", STRANGE.encode())
    lines = ("--line", "main:2", "--line", "main:1")
    ran = run("cases", "correct", "j/1", "--reason", "NVLink Error", *lines, "--data-dir", folder)
    assert ran.code == 0, ran.err
    _, confirmed = store(folder)
    assert [one.quote for one in confirmed.cases()[0].evidence] == STRANGE.splitlines()[::-1]
    refused = run("cases", "correct", "j/1", "--reason", "NVLink Error", "--line", "main:3", "--data-dir", folder)
    assert_refused(refused, "line 3", "is not in j/1")


# ---- diagnose --ask


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A log that no rule knows."""
    path = tmp_path / "strange.log"
    path.write_text(STRANGE)
    return path


def test_ask_finds_a_past_case(
    run: Callable[..., Ran], data: Path, strange: Path, scanner: Scanner, limits: ReadLimits
) -> None:
    (verdict,) = run("diagnose", "--json", "--ask", strange).verdicts
    assert verdict["reason"] == "Unknown", "nothing is known of it yet"
    records = pipeline.records([LogFile("main", strange)], scanner, limits)
    found = episodes(records, scanner.book)
    _, confirmed = store(data)
    confirmed.add(
        case(
            reason="NVLink Error",
            recovery="restart",
            title=found[0].title,
            digests=(found[0].digest,),
            evidence=(Cited("main", 1, STRANGE.splitlines()[0]),),
        ),
        1.0,
    )
    ran = run("diagnose", "--json", "--ask", strange)
    (verdict,) = ran.verdicts
    assert ran.code == 1 and (verdict["reason"], verdict["recovery"]) == ("NVLink Error", "restart")
    assert verdict["decided_by"]["rule"] == "case/1" and verdict["evidence"][0]["line"] == 1
    out = run("diagnose", "--ask", strange).out
    assert "decided by  case 1 " in out
    assert run("diagnose", "--json", strange).verdicts[0]["reason"] == "Unknown", "without --ask only rules decide"
    assert run("diagnose", "--json", strange, "--ask", cases="off").verdicts[0]["reason"] == "Unknown"


def test_ask_leaves_what_a_rule_knows_alone(run: Callable[..., Ran], data: Path) -> None:
    plain, asked = run("diagnose", "--json", ECC_LOG), run("diagnose", "--json", "--ask", ECC_LOG)
    assert {**plain.verdicts[0], "seconds": 0} == {**asked.verdicts[0], "seconds": 0}


def test_ask_has_a_doubt_weighed(run: Callable[..., Ran], data: Path, tmp_path: Path) -> None:
    (log := tmp_path / "torn.log").write_text(steps(1, 30) + TORN)
    assert 0.5 < run("diagnose", "--json", "--ask", log).verdicts[0]["confidence"] < 0.7
    with model_server() as server:
        server.behave(obeying("CUDA Error", "isolate_and_restart", "illegal memory"))
        (verdict,) = run("diagnose", "--json", "--ask", log, llm_base_url=server.url, llm_model="m").verdicts
    assert (verdict["reason"], verdict["confidence"], len(server.bodies)) == ("CUDA Error", 0.95, 1)


def test_a_model_that_is_away_is_complained_about(run: Callable[..., Ran], data: Path, strange: Path) -> None:
    ran = run("diagnose", "--json", "--ask", strange, llm_base_url="http://127.0.0.1:9/v1", llm_model="none")
    assert ran.verdicts[0]["reason"] == "Unknown" and ran.code == 1
    assert ran.err.startswith("logdoctor: ") and "Traceback" not in ran.err


def test_ask_with_files_that_cannot_be_read(run: Callable[..., Ran], data: Path, strange: Path, tmp_path: Path) -> None:
    ran = run("diagnose", "--json", "--ask", tmp_path / "none", strange)
    assert ran.code == 2 and len(ran.verdicts) == 1 and "does not exist" in ran.err
    assert run("diagnose", "--data-dir", data, strange).code == 2
    assert run("diagnose", "--json", "--ask", "-", stdin=STRANGE.encode()).verdicts


def test_people_see_who_decided_and_what_was_set_aside(capsys: pytest.CaptureFixture[str]) -> None:
    from logdoctor.words import panel

    agent = DecidedBy("agent", "agent", "0123", f"a-model {EVIL}", "0123")
    verdict = changed(decided_by=agent, why=f"[bold]{EVIL}", alternatives=(Alternative("Node Failure", EVIL),) * 9)
    panel.show("x", verdict, True)
    out = capsys.readouterr().out
    assert "agent a-model" in out and "[bold]" in out and out.count("Node Failure: ") == 5
    assert all(char.isprintable() or char == "\n" for char in out)


# ---- learned diagnosis rules


def test_learned_diagnosis_rules_among_the_others(run: Callable[..., Ran], data: Path) -> None:
    rules = opened(data)
    pattern = "^fabric lane [0-9]+ of plane [0-9]+ is poisoned, resync refused$"
    line = STRANGE.splitlines()[0].removeprefix("ERROR ")
    plain = new(
        kind=DIAGNOSIS,
        pattern=pattern,
        examples=(line,),
        title="fabric lane poisoned",
        claim=StoredClaim("NVLink Error", recovery="restart", suggestion="reseat it"),
    )
    cordon = new(
        plain,
        pattern=pattern.replace("refused", "denied"),
        claim=StoredClaim("NVLink Error"),
        waits_for=f"{CORDON}: nodes",
    )
    one, other = entered(rules, plain, cordon)
    out = run("rules", "list", "--learned").out
    assert "NVLink Error: restart from the last checkpoint" in out and "1 rule is waiting for approval" in out
    waiting = [json.loads(row)["id"] for row in run("rules", "list", "--waiting", "--json").out.splitlines()]
    assert waiting == [other.id]
    shown = run("rules", "show", one.id).out
    assert "NVLink Error: restart" in shown and "reseat it" in shown and "kind of jobs" not in shown
    said = run("rules", "why", line).out
    assert f"cause would be named by  {one.id}: NVLink Error (shadow)" in said and other.id not in said
    assert "no rule matches it" in said, "filter rules know nothing of it"
    assert stored.learned_rules(Settings(data_dir=data)).one(one.id).claim == plain.claim


def test_what_a_model_is_sent_can_be_seen(run: Callable[..., Ran], data: Path, strange: Path, tmp_path: Path) -> None:
    """With a model and without, for sure verdicts too; nobody is asked, and a secret stays one."""
    strange.write_text(f"{STRANGE}\nERROR login failed, password=hunter2secret\n")
    with model_server() as server:
        server.behave(saying('{"candidates": []}'))
        model = {"llm_base_url": server.url, "llm_model": "m"}
        shown = run("diagnose", "--ask", "--show-prompt", strange, ECC_LOG, **model)
        assert shown.code == 1 and not server.bodies
        run("diagnose", "--ask", strange, **model)
    sent = server.bodies[0]["messages"][0]["content"]
    assert shown.out.startswith(f"{sent}\n") and "hunter2secret" not in shown.out
    assert f"[0:1] {STRANGE.splitlines()[0]}" in shown.out and shown.out.count("You find out why a job") == 2
    assert run("diagnose", "--ask", "--show-prompt", strange, ECC_LOG).out == shown.out
    (fine := tmp_path / "fine.log").write_text(steps(1, 30))
    assert run("diagnose", "--ask", "--show-prompt", fine).out == ""
    assert run("diagnose", "--show-prompt", strange).code == 2
