"""What a model's answers are worth is counted as it is: right, steady, its calls, its cost, its time and ours."""

import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from eval import model_score as em
from logdoctor.cli import cli
from logdoctor.errors import InputError
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.failure_agent.question import Question
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings, rules_folder
from logdoctor.types import Verdict
from logdoctor.types.models import Exchange
from logdoctor.wiring import failures
from tests.failure_agent.injection.obeying import claims, shown_rows
from tests.llm.server import Behave, ModelServer, model_server, saying, status

TABLES = rules_folder(Settings()) / "knowledge"
USAGE = {"prompt_tokens": 4000, "completion_tokens": 100, "total_tokens": 4100}

XID = "Mar 02 10:59:10 wn061 kernel: NVRM: Xid (PCI:0000:1b:00): 48, pid=4182, name=python, An uncorrectable DBE\n"
TRACE = 'Traceback (most recent call last):\n  File "/opt/app/train.py", line 3, in main\n    run()\n{}\n'
FAULT = "RuntimeError: the memory of device 3 reports an uncorrectable ECC fault\n"
LOGS = {"ecc.log": XID + FAULT, "key.log": TRACE.format("KeyError: 'input_ids'")}
LABELS: list[dict[str, Any]] = [
    {"id": "e", "file": "ecc.log", "reason": "ECC Error", "category": "Infrastructure", "user_fault": False}
    | {"recovery": "isolate_and_restart", "evidence_lines": [1]},
    {"id": "k", "file": "key.log", "reason": "Key Error", "category": "Script", "user_fault": True}
    | {"recovery": "fix_first", "evidence_lines": [4]},
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (folder := tmp_path / "corpus").mkdir()
    for name, text in LOGS.items():
        (folder / name).write_text(text)
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, LABELS)))
    return folder


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


def naming(reason: str, recovery: str) -> Behave:
    """Names a reason, with the last line that is shown of the log: the fault."""
    return saying(lambda body: claims(reason, recovery, *shown_rows(body)[-1]), USAGE)


NOTHING = saying('{"candidates": []}', USAGE)

Measure = Callable[..., em.ModelReport]


@pytest.fixture
def measure(corpus: Path, server: ModelServer, scanner: Scanner, limits: ReadLimits, tmp_path: Path) -> Measure:
    """`measure(rules, repeats)`: the report over the corpus with the server for a model, whose clock waiting moves."""

    def run(
        rules: em.Rules = "unseen", repeats: int = 1, waits: list[float] | None = None, below: float = 0.0
    ) -> em.ModelReport:
        settings = Settings(llm_base_url=server.url, llm_model="m", llm_dollars_in=1.0, llm_dollars_out=10.0)
        calls = em.ModelCalls()
        waited = waits if waits is not None else []
        begun = time.time()
        agent = failures.agent_to_measure(settings, calls, lambda: begun + sum(waited))
        trials_made: list[em.ModelTrial] = []
        new = (lambda question: True) if rules == "read" else None
        asker = em.Asker(Ladder(None, 0.0, 0, agent.conclude, below, new), calls, waited.append)
        (scratch := tmp_path / "scratch").mkdir()
        read = em.read_failures([corpus], rules, scanner, TABLES, limits, scratch)
        trials = em.run(read, asker, repeats, 1, lambda done, total, trial: trials_made.append(trial))
        assert trials_made == [trial for trial in trials if trial.asked], "each is reported as it comes"
        return em.summarise([str(corpus)], "m", agent.prompt.version, rules, trials, 1.0)

    return run


def test_only_what_rules_leave_open_is_asked_and_a_right_answer_counts(measure: Measure, server: ModelServer) -> None:
    server.behave(naming("ECC Error", "isolate_and_restart"))
    report = measure()
    assert (report.failures, report.questions, len(server.bodies)) == (2, 1, 1)
    assert report.asked.strict == 1 and report.asked.recovery == 1 and report.asked.wrong_actions == 0
    assert report.all.strict == 1  # the class of the other one's exception says what it is
    (asked,) = [trial for trial in report.trials if trial.asked]
    assert (asked.by_rules, asked.said, asked.decided) == ("Unknown", "ECC Error", "agent")
    assert (asked.calls, asked.tokens_in, asked.tokens_out) == (1, 4000, 100)
    assert report.dollars == pytest.approx(0.005) and report.dollars_per_question == pytest.approx(0.005)


def test_with_all_rules_no_question_reaches_the_model(measure: Measure, server: ModelServer) -> None:
    server.behave(naming("Hang", "restart"))
    report = measure("all")
    assert report.questions == 0 and not server.bodies and report.all.strict == 1
    assert report.steady is None


def test_without_rules_what_structure_does_not_tell_is_asked(measure: Measure, server: ModelServer) -> None:
    server.behave(NOTHING)
    report = measure("none")
    assert report.questions == 1 and report.asked.unknown == 1 and report.asked.wrong_reasons == 0


def test_what_rules_are_in_doubt_of_is_asked_too(measure: Measure, server: ModelServer) -> None:
    server.behave(NOTHING)
    report = measure("all", below=0.9)
    assert report.questions == 1 and report.asked.strict == 1, "the class of an exception is a weak proof"
    (asked,) = [trial for trial in report.trials if trial.asked]
    assert (asked.by_rules, asked.said, asked.decided) == ("Key Error", "Key Error", "structure")


def test_a_wrong_reason_and_a_wrong_action_are_counted(measure: Measure, server: ModelServer) -> None:
    server.behave(naming("Value Error", "fix_first"))
    report = measure()
    assert (report.asked.strict, report.asked.wrong_reasons, report.asked.wrong_actions) == (0, 1, 1)
    assert report.by_reason["ECC Error"].wrong_reasons == 1


def test_answers_that_change_are_not_steady_and_are_asked_anew(measure: Measure, server: ModelServer) -> None:
    right = naming("ECC Error", "isolate_and_restart")
    server.behave(right, NOTHING, right)
    report = measure(repeats=3)
    assert len(server.bodies) == 3 and report.repeats == 3
    assert [some.strict for some in report.by_repeat] == [1, 0, 1]
    assert report.steady == 0 and report.agreement == pytest.approx(2 / 3)
    assert report.asked.trials == 3 and report.all.trials == 6


def test_answers_that_stay_are_steady(measure: Measure, server: ModelServer) -> None:
    server.behave(naming("ECC Error", "isolate_and_restart"))
    report = measure(repeats=3)
    assert report.steady == 1 and report.agreement == 1


def test_a_model_that_is_down_is_waited_for_and_then_leaves_the_verdict_of_the_rules(
    measure: Measure, server: ModelServer
) -> None:
    server.behave(status(500))
    waits: list[float] = []
    report = measure(waits=waits)
    assert 1800 <= sum(waits) < 1830 and all(0.1 <= wait <= 30 for wait in waits)
    assert report.unanswered == 1 and report.asked.unknown == 1
    assert next(trial for trial in report.trials if trial.asked).failure


def test_a_model_that_talks_nonsense_is_not_left_alone(measure: Measure, server: ModelServer) -> None:
    """In production it is, after five such answers; a measure would wait for hours to hear the next."""
    server.behave(saying("I am a helpful assistant.", USAGE))
    waits: list[float] = []
    report = measure(repeats=6, waits=waits)
    assert waits == [] and len(server.bodies) == 12, "each is trials_made once what is wrong"
    assert report.unanswered == 6 and report.asked.unknown == 1


def test_a_model_that_comes_back_is_asked_again(measure: Measure, server: ModelServer) -> None:
    server.behave(status(503, retry_after="20"), naming("ECC Error", "isolate_and_restart"))
    waits: list[float] = []
    report = measure(waits=waits)
    assert report.unanswered == 0 and report.asked.strict == 1 and waits and sum(waits) >= 20


def test_a_second_reader_is_asked_about_each_failure(measure: Measure, server: ModelServer) -> None:
    server.behave(NOTHING)
    report = measure("read", repeats=2)
    assert (report.failures, report.questions, len(server.bodies)) == (2, 2, 4)
    assert report.name == "read-m" and "a second reader" in report.page() and report.steady == 1


def test_our_time_is_what_the_calls_did_not_take(
    corpus: Path, scanner: Scanner, limits: ReadLimits, tmp_path: Path
) -> None:
    now, calls = [1_795_250_000.0], em.ModelCalls()

    class Slow(Ladder):
        def by_case(self, question: Question) -> Verdict:
            now[0] += 1
            return question.verdict

        def by_agent(self, question: Question) -> Verdict:
            now[0] += 2
            calls.enter(Exchange(now[0], question.job, None, *5 * [""], (), "", "", 0, 0, 0.0, 5.0, False, "", ""))
            now[0] += 9
            return question.verdict

    read = em.read_failures([corpus], "unseen", scanner, TABLES, limits, tmp_path)
    asker = em.Asker(Slow(None, 0.0, 0, lambda question: None), calls, clock=lambda: now[0])
    (seconds,) = (asker.trial(one).seconds for one in read if asker.asks_about(one))
    assert (seconds.cases, seconds.brief, seconds.model, seconds.own) == (1.0, 2.0, 5.0, 7.0)
    assert seconds.rules > 0


def test_percentiles_are_those_of_the_nearest_rank() -> None:
    assert em.percentiles(n / 1000 for n in range(1, 101)) == em.Percentiles(50.0, 95.0)
    assert em.percentiles([]) == em.Percentiles(0.0, 0.0)
    assert em.percentiles([0.002]) == em.Percentiles(2.0, 2.0)


def test_the_report_is_shown_and_written(measure: Measure, server: ModelServer, tmp_path: Path) -> None:
    server.behave(naming("Value Error", "fix_first"))
    report = measure(repeats=2)
    console = Console(file=io.StringIO(), width=100)
    report.show(console, details=True)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "repeat 2" in shown and "a wrong action" in shown and "our own time" in shown
    report.write(tmp_path)
    assert msgspec.json.decode((tmp_path / "unseen-m.json").read_bytes(), type=em.ModelReport) == report
    assert "| asked | 2 |" in (tmp_path / "unseen-m.md").read_text()
    with pytest.raises(InputError, match="cannot be written"):
        report.write(tmp_path / "missing")


def test_what_was_paid_for_is_written_down_at_once(measure: Measure, server: ModelServer, tmp_path: Path) -> None:
    server.behave(naming("Value Error", "fix_first"))
    diary, trials = em.TrialLog(tmp_path / "new" / "folder", "unseen-m"), measure().trials
    written = tmp_path / "new" / "folder" / "unseen-m.trials.jsonl"
    for number, trial in enumerate(trials, 1):
        diary.enter(trial)
        lines = written.read_bytes().splitlines()
        assert len(lines) == number and msgspec.json.decode(lines[-1], type=em.ModelTrial) == trial
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        em.TrialLog(tmp_path / "file", "x")


def test_a_folder_that_cannot_be_written_is_found_before_a_question_is_asked(
    corpus: Path, server: ModelServer, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    more = ["--write", str(tmp_path / "file" / "below"), "--only-unseen"]
    done = CliRunner().invoke(cli, ["eval", str(corpus), "--llm", server.url, "--model", "m", *more])
    assert done.exit_code != 0 and isinstance(done.exception, InputError) and not server.bodies


@pytest.mark.parametrize("command", [["eval"], ["eval", "unseen"]])
def test_the_commands_ask_the_model_that_is_named(
    command: list[str], corpus: Path, server: ModelServer, tmp_path: Path
) -> None:
    server.behave(NOTHING)
    more = ["--only-unseen", "--repeats", "1"] if command == ["eval"] else []
    more += ["--write", str(tmp_path / "out")]
    done = CliRunner().invoke(cli, [*command, str(corpus), "--llm", server.url, "--model", "m", "--json", *more])
    assert done.exit_code == 0, done.output
    report = msgspec.json.decode(done.stdout.encode(), type=em.ModelReport)
    assert (report.model, report.rules, report.questions, len(server.bodies)) == ("m", "unseen", 1, 1)
    assert len((tmp_path / "out" / "unseen-m.trials.jsonl").read_bytes().splitlines()) == 1
    assert (tmp_path / "out" / "unseen-m.json").exists()


@pytest.mark.parametrize("given", [["--llm", "http://127.0.0.1:1/v1"], ["--model", "m"], ["--without-rules"]])
def test_half_of_what_is_needed_is_a_usage_error(given: list[str], corpus: Path) -> None:
    done = CliRunner().invoke(cli, ["eval", str(corpus), *given])
    assert done.exit_code == 2 and "--llm" in done.output
