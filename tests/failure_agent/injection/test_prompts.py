"""What is sent to a model: no hostile line closes a fence, breaks into lines, or stands outside of the fences."""

import random
import re
from pathlib import Path
from string import ascii_letters, digits

import pytest

from logdoctor.failure_agent import brief
from logdoctor.failure_agent.brief import Pages
from logdoctor.learning.diagnoses import model_writer
from logdoctor.learning.diagnoses.writer import Task
from logdoctor.llm.chat import estimate
from logdoctor.llm.masking import Masker
from logdoctor.llm.prompts import fenced, load
from tests.failure_agent.injection.conftest import AskRaw
from tests.failure_agent.injection.planted import FAILURES, FORMS, HOSTILE, Hostile, planted, unknown

PROMPTS = Path(__file__).parents[3] / "prompts"
ROW = re.compile(r"\[\d+:\d+\] .*|\.\.\.(?: \d+ lines? not shown(?: \([a-z \d,]+\))? \.\.\.)?")


def taken_apart(prompt: str) -> tuple[list[str], list[list[str]]]:
    """The lines of a prompt outside of its fences, and those inside of each, as a reader of Markdown sees them."""
    outside: list[str] = []
    inside: list[list[str]] = []
    fence = ""
    for line in prompt.split("\n"):
        if fence and re.fullmatch(r"`+", line) and len(line) >= len(fence):
            fence = ""
        elif fence:
            inside[-1].append(line)
        elif re.match(r"```|~~~", line):
            fence = line
            inside.append([])
        else:
            outside.append(line)
    assert not fence, "a fence stays open"
    return outside, inside


def counted(lines: list[str]) -> list[str]:
    """The lines without numbers: how many lines are left out is told."""
    return [re.sub(r"\d+", "#", line) for line in lines]


def test_a_hostile_line_stays_a_line_between_the_fences(ask_raw: AskRaw) -> None:
    prompt = load(PROMPTS, "diagnose")
    plain = brief.write(prompt, Pages(ask_raw(unknown([])), Masker().mask))
    before, _ = taken_apart(plain.prompt)
    for hostile in FORMS:
        made = brief.write(prompt, Pages(ask_raw(unknown([hostile.raw])), Masker().mask))
        outside, inside = taken_apart(made.prompt)
        words = [line for line in counted(outside) if "not shown" not in line and "no room" not in line]
        assert [line for line in words if line not in counted(before)] == [], hostile.id
        assert len(inside) == 2, hostile.id  # the overview and the lines
        assert all(ROW.fullmatch(line) for line in inside[-1] if line), hostile.id
        assert all(c.isprintable() or c == "\n" for c in made.prompt), hostile.id
        assert estimate(made.prompt) <= brief.TOKENS, hostile.id


@pytest.mark.parametrize("place", ["before the cause", "behind the cause", "behind the last of its lines"])
def test_no_secret_of_a_log_is_in_a_prompt(ask_raw: AskRaw, place: str) -> None:
    """Secrets of 24 random letters and digits, whatever they are called, in real logs: others in each run."""
    generator, shown = random.SystemRandom(), 0
    for log in generator.sample(FAILURES, 4):
        secret = "".join(generator.choices(ascii_letters + digits, k=24))
        told = planted(log, f"RuntimeError: the store refused {secret}".encode(), place, as_neighbour=True)
        made = brief.write(load(PROMPTS, "diagnose"), Pages(ask_raw(told.text), Masker().mask))
        assert secret[:12] not in made.prompt and secret[-12:] not in made.prompt, (log.path.name, secret)
        shown += "the store refused <secret-" in made.prompt
    assert shown


def test_all_of_them_together_do_not_get_out_either(ask_raw: AskRaw) -> None:
    prompt = load(PROMPTS, "diagnose")
    cases = [f"likeness 0.91: Hang, restart; what helped: {one.text}" for one in HOSTILE]
    made = brief.write(prompt, Pages(ask_raw(unknown([one.raw for one in HOSTILE])), Masker().mask), cases=cases)
    outside, inside = taken_apart(made.prompt)
    assert len(inside) == 3 and all(ROW.fullmatch(line) for line in inside[-1] if line)
    said = "\n".join(outside)
    assert not any(one.text[:60] in said for one in HOSTILE)


def test_the_name_of_a_stream_and_past_cases_stay_between_fences_too(ask_raw: AskRaw) -> None:
    prompt = load(PROMPTS, "diagnose")
    for hostile in (one for one in FORMS if len(one.text) < 2000):
        question = ask_raw(unknown([]), stream=hostile.text)
        cases = [f"likeness 0.9: Hang, restart; {hostile.text}"]
        made = brief.write(prompt, Pages(question, Masker().mask), cases=cases)
        outside, inside = taken_apart(made.prompt)
        assert len(inside) == 3 and hostile.text[:60] not in "\n".join(outside), hostile.id
        assert all(c.isprintable() or c == "\n" for c in made.prompt), hostile.id


def test_the_prompt_that_writes_diagnosis_rules_holds_it_too() -> None:
    prompt = load(PROMPTS, model_writer.WRITE)
    for hostile in FORMS:
        text = hostile.raw.decode("utf-8", "replace")
        task = Task("job-1", 1, text, (text, text), (text,), (text,), "Hang")
        made = model_writer._text(prompt, task, Masker().mask)
        outside, inside = taken_apart(made)
        other = model_writer._text(prompt, task._replace(line="x", examples=(), around=()), Masker().mask)
        assert outside == taken_apart(other)[0] and len(inside) == 2, hostile.id
        assert estimate(made) <= prompt.head.max_tokens_in, hostile.id


@pytest.mark.parametrize("name", ["write-filter", "judge"])
def test_the_prompts_that_learn_filter_rules_hold_it_too(name: str) -> None:
    prompt = load(PROMPTS, name)
    plain, _ = taken_apart(prompt.fitted([["[1] one"]], 0)[0])
    for hostile in FORMS:
        text = hostile.raw.decode("utf-8", "replace")
        outside, inside = taken_apart(prompt.fitted([["[1] one"], [text], ["[2] two"]], 0)[0])
        words = [line for line in counted(outside) if "no room" not in line]
        assert len(inside) == 1 and [line for line in words if line not in counted(plain)] == [], hostile.id
        assert len(inside[0]) <= 3, hostile.id


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda one: one.id)
def test_a_fence_holds_any_hostile_line(hostile: Hostile) -> None:
    """What all prompts stand on: a line stays one that prints, and no row of backticks is as long as the fence."""
    text = hostile.raw.decode("utf-8", "replace")
    rows = fenced([text, "next"]).split("\n")
    assert len(rows) == 4 and rows[0] == rows[-1] and rows[2] == "next"
    assert set(rows[0]) == {"`"} and rows[0] not in rows[1]
    assert rows[1].isprintable()
    assert taken_apart("\n".join(["before", *rows, "behind"])) == (["before", "behind"], [rows[1:3]])
