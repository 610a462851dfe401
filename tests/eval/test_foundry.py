"""The foundry makes the same cases with the same truth from a seed, its programs meet their faults, and the scorer
counts what is right."""

import json
from pathlib import Path

import msgspec
import pytest

from eval.foundry import programs
from eval.foundry.cases import LAUNCHERS, LIGHT, ONE, TORCH, Case, draw, write
from eval.foundry.faults import FAULTS, Truth
from eval.foundry.run import Ran, cause_lines, command, failure, made_case
from eval.foundry.score import Answer, Row, grouped, mark, misses, page, table
from logdoctor import taxonomy

SOME = range(40)


def case_of(fault: str) -> Case:
    """Return a case with a fault, in the lightest program that it fits."""
    fits = FAULTS[fault].fits
    program, launcher = next(
        (program, launcher)
        for program in (*LIGHT, *TORCH)
        for launcher in LAUNCHERS.get(program, ONE)
        if fits(program, launcher)
    )
    drawn = draw(3, 5, FAULTS)
    world = 2 if launcher not in ONE else 1
    return msgspec.structs.replace(
        drawn, fault=fault, program=program, launcher=launcher, style="plain", form=0, crash="raw", world=world,
        steps=30, step=20, rank=world - 1, workers=0,
    )  # fmt: skip


# ---- making


def test_the_same_seed_draws_the_same_cases_and_another_seed_draws_others() -> None:
    first = [draw(1, number, FAULTS) for number in SOME]
    assert first == [draw(1, number, FAULTS) for number in SOME]
    assert first != [draw(2, number, FAULTS) for number in SOME]


def test_about_a_third_of_the_cases_fail_nothing() -> None:
    harmless = sum(FAULTS[draw(1, number, FAULTS).fault].harmless for number in range(300))
    assert 70 <= harmless <= 130


def test_what_is_left_out_is_not_drawn() -> None:
    drawn = {draw(1, number, FAULTS, frozenset({"loop", "serve"})).program for number in range(60)}
    assert not drawn & {"loop", "serve"}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_one_truth(fault: str, tmp_path: Path) -> None:
    case = case_of(fault)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    made, truth = made_case(case, folders[0])
    assert made_case(case, folders[1])[1] == truth
    assert set((truth.reason, *truth.also)) <= {*taxonomy.REASONS, "None"}
    assert FAULTS[fault].harmless == (truth.outcome != "failed")
    assert truth.texts or truth.outcome != "failed"
    write(made)
    assert (folders[0] / f"{case.name}.py").exists()
    assert command(made, 29500)


def test_no_name_of_a_fault_is_written_where_a_program_prints_it(tmp_path: Path) -> None:
    made, _ = made_case(case_of("sample-field"), tmp_path)
    write(made)
    assert "sample-field" not in "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())


# ---- running


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("sample-field", KeyError),
        ("sample-label", ValueError),
        ("sample-weight", ZeroDivisionError),
        ("sample-vocabulary", IndexError),
        ("sample-huge", MemoryError),
        ("sample-torn", json.JSONDecodeError),
        ("sample-nan", FloatingPointError),
        ("code-name", NameError),
        ("module-missing", ImportError),
        ("setting-value", ValueError),
    ],
)
def test_a_program_meets_its_fault(
    fault: str,
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, truth = made_case(case_of(fault), tmp_path)
    made.config |= {"pause": 0, "schedule": f"lr_schedule_{fault.replace('-', '_')}"}
    write(made)
    (tmp_path / "lr_schedule.py").rename(tmp_path / f"{made.config['schedule']}.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    out = programs.Out(made.config)
    with pytest.raises(error) as raised:
        programs.loop(made.config, out)
    if fault.startswith("sample"):
        assert "step 19/30" in capsys.readouterr().out
    told = f"{type(raised.value).__name__}: {raised.value}".encode()
    assert cause_lines(truth, [b"step 1", told]) == [2]


def test_a_sound_program_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = made_case(case_of("none"), tmp_path)
    made.config |= {"pause": 0, "schedule": "lr_schedule_sound"}
    write(made)
    (tmp_path / "lr_schedule.py").rename(tmp_path / "lr_schedule_sound.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    programs.loop(made.config, programs.Out(made.config))
    assert (tmp_path / "complete").exists()
    assert (tmp_path / "output/step-000010/weights.npz").exists()


def test_a_text_that_was_wrapped_is_found_where_it_stands() -> None:
    lines = [b"step 1", b"   FileExistsError: [Errno 17] File", b"   exists: 'out", b"   put'", b"end"]
    assert cause_lines(Truth(texts=("File exists: 'output'",)), lines) == [2, 3, 4]


@pytest.mark.parametrize(("again", "recovery"), [(Ran(0, True), "restart"), (Ran(1, False), "fix_first")])
def test_the_label_says_whether_a_restart_was_seen_to_help(again: Ran, recovery: str) -> None:
    truth = Truth("Key Error", ("KeyError: 'a'",), ranked=True)
    case = msgspec.structs.replace(case_of("sample-field"), world=2, rank=1)
    label = failure(case, truth, Ran(1, False), [b"x", b"KeyError: 'a'"], again)
    assert (label["recovery"], label["evidence_lines"], label["first_failing_rank"]) == (recovery, [2], 1)


# ---- scoring


def row(**fields: object) -> Row:
    return msgspec.structs.replace(
        Row("c1", "c1.log", "open", case_of("sample-field"), "", reason="Key Error", recovery="fix_first"), **fields
    )


def test_a_right_answer_is_right_in_all_and_costs_nothing() -> None:
    answer = Answer("failed", "Key Error", "fix_first", [9], ["KeyError: 'a'"], 1, 0.9)
    marks = mark(row(evidence_lines=(8,), first_failing_rank=1), answer)
    assert (marks.strict, marks.lenient, marks.cause, marks.rank, marks.action) == (True,) * 5
    assert not marks.confident and marks.price == "right" and not list(misses([marks]))


@pytest.mark.parametrize(
    ("label", "answer", "price"),
    [
        ({}, Answer("failed", "Key Error", "restart"), "needless restart"),
        ({"recovery": "restart"}, Answer("failed", "Key Error", "ask_human"), "waits"),
        ({}, Answer("running", "None", "none"), "unnoticed"),
        ({"outcome": "completed"}, Answer("failed", "Key Error", "fix_first"), "alarm"),
        ({"outcome": "recovered"}, Answer("recovered", "Key Error", "none"), "right"),
    ],
)
def test_a_wrong_answer_has_its_price(label: dict[str, object], answer: Answer, price: str) -> None:
    assert mark(row(**label), answer).price == price


def test_an_uncertain_truth_does_not_count_as_strict() -> None:
    marks = mark(
        row(uncertain="a doubt", also_acceptable=("Value Error",)), Answer("failed", "Value Error", "fix_first")
    )
    assert marks.strict is None and marks.lenient


def test_a_wrong_answer_that_is_sure_of_itself_is_counted_and_listed() -> None:
    marks = mark(row(first_failing_rank=1), Answer("failed", "Type Error", "fix_first", first_rank=0, confidence=0.9))
    assert marks.confident and marks.rank_wrong
    assert "wrong lenient, rank_wrong" in next(misses([marks]))


def test_the_page_has_a_row_for_each_system_and_each_fault() -> None:
    marks = [mark(row(), Answer("failed", "Key Error", "fix_first")), mark(row(), Answer("running", "None", "none"))]
    text = page({"ours": marks, "other": marks[1:]}, void=3)
    assert "| ours | 50.0 (2)" in text and "| sample-field |" in text and "3 runs" in text
    assert table(grouped(marks, lambda one: one.split), "split").count("\n") == 2
