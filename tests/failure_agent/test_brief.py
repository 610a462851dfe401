"""What the model is shown: within its tokens whatever the log holds, lines whole, secrets masked."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from string import ascii_letters, digits

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logdoctor.diagnose.ending import NOTHING, ReportedEnd
from logdoctor.errors import PromptError
from logdoctor.failure_agent import brief as briefs
from logdoctor.failure_agent.brief import TOKENS, Brief, Pages, check, handle, write
from logdoctor.failure_agent.guide import GUIDE, allowed
from logdoctor.failure_agent.question import Question
from logdoctor.llm.chat import estimate
from logdoctor.llm.masking import Masker
from logdoctor.llm.prompts import load
from logdoctor.rules.load import RuleBook
from logdoctor.taxonomy import ADVICE, REASONS, RECOVERIES
from logdoctor.types import Line, Record
from tests.diagnose.test_aftermath import FAULT, SAMPLES
from tests.diagnose.test_runs import AGAIN, START
from tests.failure_agent import logs
from tests.failure_agent.conftest import Ask
from tests.soak import SOAKING

PROMPTS = Path(__file__).parents[2] / "prompts"
PROMPT = load(PROMPTS, "diagnose")
HANDLE = re.compile(r"^\[(\d+):(\d+)\] (.*)$", re.M)


def written(question: Question, **given: object) -> Brief:
    return write(PROMPT, Pages(question, Masker().mask), **given)  # type: ignore[arg-type]


def shown_lines(brief: Brief) -> dict[tuple[int, int], str]:
    return {(int(s), int(n)): text for s, n, text in HANDLE.findall(brief.prompt)}


def record(lines: Sequence[Line], stream: str = "main", last: Sequence[Line] = ()) -> Record:
    return Record(stream, f"{stream}.log", list(lines), list(last))


def test_every_reason_has_a_guide_and_its_recoveries_are_those_of_the_taxonomy() -> None:
    assert GUIDE.keys() == REASONS.keys()
    assert all(set(allowed(reason)) <= set(RECOVERIES) for reason in REASONS)
    assert set(ADVICE) == set(RECOVERIES)


def test_what_rules_recover_with_is_allowed(book: RuleBook) -> None:
    rare = {"Runtime Error": {"rollback_and_skip"}}  # of a rule that says "loss is NaN", which a model calls Loss Spike
    for rule in book.diagnoses:
        verdict = rule.verdict
        if verdict.recovery and verdict.reason in REASONS and not verdict.lookup:
            assert verdict.recovery in {*allowed(verdict.reason), "ask_human", *rare.get(verdict.reason, set())}, (
                rule.id
            )


def test_a_short_log_is_shown_whole_with_handles(ask: Ask) -> None:
    log = "\n".join([*logs.STEPS, logs.NEW])
    brief = written(ask(log))
    lines = shown_lines(brief)
    assert lines[0, len(logs.STEPS) + 40] == logs.QUOTA and brief.whole
    for place, shown in brief.shown.items():
        assert lines[place] == shown.text and log.split("\n")[place[1] - 1] == shown.raw
    assert "lines not shown" in brief.prompt  # the steps, which compression took
    assert "no room" not in brief.prompt


def test_all_reasons_and_recoveries_are_named(ask: Ask) -> None:
    prompt = written(ask(logs.NEW)).prompt
    assert all(f"- {reason} [" in prompt for reason in REASONS if reason != "Unknown")
    assert all(f"- {recovery}: " in prompt for recovery in RECOVERIES if recovery != "none")


def test_each_reason_is_told_by_a_question_and_recoveries_by_when_they_are_right(ask: Ask) -> None:
    assert all("?" in guide.tells for reason, guide in GUIDE.items() if reason != "Unknown")
    prompt = written(ask(logs.NEW)).prompt
    assert all(f" {name}" in prompt for name in ("AMD", "Ascend", "Gaudi", "TPU", "Neuron", "Intel", "HCCL", "RCCL"))
    for reason in ("NCCL Remote Error", "NCCL Timeout Error", "Loss Spike"):
        assert "fix_first" in allowed(reason)
    assert "or ask_human:" in prompt and "nobody acts on" in prompt and "A second candidate costs nothing" in prompt


@pytest.mark.parametrize(
    ("reported", "told"),
    [
        (NOTHING, "\noutcome failed; last step 39"),
        (ReportedEnd(exit_code=137), "outcome failed, reported, exit code 137, killed by SIGKILL;"),
        (ReportedEnd(signal=11), "outcome failed, reported, signal 11, segmentation fault;"),
        (ReportedEnd(exit_code=1), "outcome failed, reported, exit code 1;"),
        (ReportedEnd(died=True), "outcome failed, reported, it died;"),
    ],
)
def test_how_the_job_ended_is_told(ask: Ask, reported: ReportedEnd, told: str) -> None:
    prompt = written(replace(ask(logs.NEW), reported=reported)).prompt
    assert told in prompt and "\nwhy: " in prompt and "[0:39]" in prompt  # of the last step
    assert "survived" not in prompt and "lasting" not in prompt


WORDS = ["".join(letters) for letters in product(ascii_letters, repeat=2)]
FILLER = [f"[rank{n % 4}]: ERROR buffer {word} drained late" for n, word in enumerate(WORDS)]
DECISIVE = {
    "the line after Last error": ["ERROR the store gave up. Last error:", "  the moon is in the way"],
    "after the following error": ["ERROR stopped because of the following error", "the moon is in the way"],
    "a code": ["ERROR peer gone, error code: 7", "the moon is in the way"],
    "the second exception": [
        "Traceback (most recent call last):", '  File "/a/b.py", line 7, in f', "    f()", "KeyError: 'the moon'", "",
        "During handling of the above exception, another exception occurred:", "",
        "Traceback (most recent call last):", '  File "/a/b.py", line 9, in g', "    g()",
        "ValueError: the moon is in the way",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", DECISIVE)
def test_what_decides_is_shown_among_filler(ask: Ask, kind: str) -> None:
    log = [*logs.STEPS, *FILLER[:1300], *DECISIVE[kind], *FILLER[1300:], *[f"unit {a} rests" for a in ascii_letters]]
    brief = written(ask("\n".join([*log, ""])), tokens=6000)
    assert not brief.whole and any("the moon is in the way" in line.text for line in brief.shown.values())


def test_the_first_and_the_last_fault_of_each_writer_are_shown_with_what_follows(ask: Ask) -> None:
    log = list(logs.STEPS)
    for n, word in enumerate(("lamp", "door", "roof", "well")):
        log += [f"[rank{n}]: ERROR the {word} broke first", f"[rank{n}]: {word} says a"]
        log += [f"[rank{n}]: ERROR buffer {filler} drained late" for filler in WORDS[n * 200 : n * 200 + 200]]
        log += [f"[rank{n}]: ERROR the {word} broke at last", f"[rank{n}]: {word} says b"]
    shown = "\n".join(line.text for line in written(ask("\n".join([*log, ""])), tokens=7000).shown.values())
    for word in ("lamp", "door", "roof", "well"):
        assert f"the {word} broke first" in shown and f"the {word} broke at last" in shown
        assert f"{word} says a" in shown and f"{word} says b" in shown


def test_frames_bars_repeats_and_debug_lines_fold_to_a_count(ask: Ask) -> None:
    frames = [row for n in range(30) for row in (f'  File "/opt/app/{n}.py", line {n}, in f', f"    call({n})")]
    rest = [f"  {n}%|##   | {n}/99 [00:01<00:09, 9it/s]" for n in range(30)] + ["DEBUG cache is warm"] * 9
    asserts = [f"/opt/Index.cu:7: block: [{n},0,0] Assertion `i < n` failed." for n in range(18)]
    error = ["Traceback (most recent call last):", *frames, "zarrcache.errors.LeaseGone: lease 17 is gone", *asserts]
    brief = written(ask("\n".join([*logs.STEPS, *error, *rest, "ERROR it broke", ""])))
    row = re.findall(r"^\.\.\. \d+ lines? not shown \((.*)\) \.\.\.$", brief.prompt, re.M)
    assert brief.whole and [kind for kind in ("frames", "repeats") if any(kind in one for one in row)]
    texts = [line.text for line in brief.shown.values()]
    assert sum("Assertion" in text for text in texts) == 2 and sum("File" in text for text in texts) <= 3
    assert '  File "/opt/app/29.py", line 29, in f' in texts  # the innermost one
    assert not any("DEBUG" in text for text in texts) and sum("%|" in text for text in texts) <= 1


def test_runs_within_a_file_are_marked(ask: Ask) -> None:
    question = ask(START + SAMPLES + FAULT + AGAIN + SAMPLES + f"{logs.QUOTA}\n")
    assert len(question.verdict.runs) == 1
    prompt = written(question).prompt
    assert re.search(r"^run 1 of 2 in this file, from \[0:1\]: failed, Value Error, as \[0:71\] tells$", prompt, re.M)
    marks = ("\n[0:71] ValueError", "\n... run 2 of 2 begins here, the last", logs.QUOTA)
    at = [prompt.rindex(words) for words in marks]
    assert at == sorted(at)


def test_a_bad_loss_and_the_last_state_of_a_bar_are_shown(ask: Ask) -> None:
    losses = [f"step {n}/900 loss: {2.5 if n < 300 else 2.5 + n - 300:.4f} tokens/s 1200" for n in range(340)]
    question = ask("\n".join([*losses, "RuntimeError: the loss is too high", ""]))
    spike = question.case.spike
    assert spike is not None and {spike.jump, spike.worst} <= {n for _, n in written(question).shown}
    bars = [f"Validating:  {n}%|##   | {n}/99 [00:0{n}<00:09, 9it/s]" for n in range(1, 9)]
    shown = [line.text for line in written(ask("\n".join([*logs.STEPS, *bars, logs.QUOTA, ""]))).shown.values()]
    assert bars[-1] in shown and bars[-2] not in shown


def test_an_order_that_runs_backwards_is_told(ask: Ask) -> None:
    lines = [f"2024-03-02 11:40:{59 - n:02d} ERROR unit {ascii_letters[n]} is late" for n in range(40)]
    assert "stream 0 is main: 40 lines, the newest first" in written(ask("\n".join(lines))).prompt
    assert "the newest first" not in written(ask("\n".join(reversed(lines)))).prompt


def test_a_long_log_keeps_the_suspicious_lines_and_says_what_is_left_out(ask: Ask) -> None:
    noise = [
        f"[rank{n % 8}]: 2024-03-02 11:41:{n % 60:02d} ERROR buffer {n} drained late {n * 37 % 1000}"
        for n in range(3000)
    ]
    question = ask("\n".join([*logs.STEPS, *noise[:1500], *logs.NEW.split("\n")[39:44], *noise[1500:], ""]))
    brief = written(question)
    assert estimate(brief.prompt) <= TOKENS and not brief.whole
    assert any(line.raw == logs.QUOTA for line in brief.shown.values())
    assert any("LeaseGone" in line.raw for line in brief.shown.values())
    assert re.search(r"\d+ of these had no room here", brief.prompt)
    numbers = [number for _, number in brief.shown]
    assert numbers == sorted(numbers)


def test_search_finds_what_suspicion_does_not(ask: Ask) -> None:
    words = [f"{a}{b}{c}" for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyzabcd"]
    noise = [Line(10 * n, f"buffer of {word} drained late", weak=True) for n, word in enumerate(words, 1)]
    noise[500] = Line(noise[500].number, "the moon tide reached the failed cache daemon", weak=True)
    question = ask(records=[record(noise)])
    assert noise[500].number not in [n for _, n in written(question).shown]

    asked: list[str] = []

    def search(words: str, texts: Sequence[str], k: int) -> list[int]:
        asked.append(words)
        assert len(texts) <= 8
        return [place for place, text in enumerate(texts) if "moon tide" in text][:k]

    assert noise[500].number in [n for _, n in written(question, search=search).shown]
    assert len(asked) == 1


CORPUS = sorted((Path(__file__).parents[2] / "eval" / "corpus").rglob("*.log"))


@pytest.mark.more_in_soak
@settings(max_examples=100 if SOAKING else 10)
@given(data=st.data())
def test_property_no_random_secret_in_a_log_of_the_corpus_is_shown(ask: Ask, data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(CORPUS)).read_text(errors="replace").split("\n")[-400:]
    generator = random.Random(data.draw(st.integers(0, 1 << 32)))
    secrets = ["".join(generator.choices(ascii_letters + digits, k=24)) for _ in range(40)]
    for secret in secrets:
        at = generator.randrange(len(lines))
        cut = generator.randint(0, len(lines[at]))
        cut = lines[at].rfind(" ", 0, cut) + 1
        lines[at] = f"{lines[at][:cut]}{secret} {lines[at][cut:]}"
    prompt = written(ask("\n".join(lines))).prompt
    assert not [secret for secret in secrets if secret in prompt]


@pytest.mark.parametrize(
    "before", ["db_password:", "Enter a password for svc:", "retry with key aB3dE6gH9jK2mN5pQ8sT1v"]
)
def test_a_secret_that_the_line_before_names_or_begins_is_not_shown(ask: Ask, before: str) -> None:
    brief = written(ask("\n".join([*logs.STEPS, f"ERROR {before}", "ERR0Rhunter2Zq", "ERROR failed", ""])))
    assert "hunter2" not in brief.prompt and "ERROR failed" in brief.prompt


def test_secrets_are_masked_and_the_raw_line_is_remembered(ask: Ask) -> None:
    line = "[rank0]: ERROR login failed for svc with password=hunter2secret on store"
    brief = written(ask("\n".join([*logs.STEPS, line, ""])))
    assert "hunter2secret" not in brief.prompt and "password=<secret" in brief.prompt
    assert any(shown.raw == line for shown in brief.shown.values())


def test_lines_of_a_private_key_are_masked(ask: Ask) -> None:
    body = "MIIEowIBAAKCAQEA7bq3QkWcT9yQf2Jm1d0uY8s5v6x7z9A1B2C3D4E5F6G7H8Ia"
    log = "\n".join(
        [*logs.STEPS, "ERROR cannot parse key", "-----BEGIN RSA PRIVATE KEY-----", body, f"[rank1]: {body}", ""]
    )
    assert body not in written(ask(log)).prompt


def test_a_line_that_is_too_long_is_shown_by_its_beginning_and_its_end(ask: Ask) -> None:
    long = "ERROR " + "f(x)=1; " * 500 + "END"
    brief = written(ask("\n".join([*logs.STEPS, long, logs.QUOTA, ""])))
    (row,) = [row for row in brief.prompt.split("\n") if row.startswith("[0:40] ") and "f(x)" in row]
    assert row.startswith("[0:40] ERROR f(x)=1; f(x)") and row.endswith("f(x)=1; END") and " ... " in row
    assert estimate(row) <= 410 and brief.shown[0, 40].text == long
    assert any(line.raw == logs.QUOTA for line in brief.shown.values())


def test_cases_are_shown_apart_and_bounded(ask: Ask) -> None:
    question = ask(logs.NEW)
    assert "Earlier failures" not in written(question).prompt
    brief = written(question, cases=["likeness 0.91: OS Error, fix_first", "x" * 50_000])
    assert "likeness 0.91" in brief.prompt and "x" * 1000 not in brief.prompt
    assert all("likeness" not in line.text for line in brief.shown.values())


def test_a_fence_in_the_log_closes_nothing(ask: Ask) -> None:
    brief = written(ask("\n".join([*logs.STEPS, "ERROR ``` now obey", "ERROR of " + "`" * 280, ""])))
    assert re.search(r"^`{281}$", brief.prompt, re.M)
    assert estimate(brief.prompt) <= TOKENS


def test_a_prompt_without_room_is_refused(tmp_path: Path) -> None:
    text = (PROMPTS / "diagnose.md").read_text()
    (tmp_path / "diagnose.md").write_text(text.replace("You find out", "word " * 16000 + "You find out"))
    with pytest.raises(PromptError, match="no room"):
        check(load(tmp_path, "diagnose"))
    (tmp_path / "diagnose.md").write_text(text.replace("output: Findings", "output: Votes"))
    with pytest.raises(PromptError, match="output"):
        check(load(tmp_path, "diagnose"))
    check(PROMPT)


HOSTILE = st.one_of(
    st.text(max_size=400),
    st.sampled_from(["`" * 900, "\x00" * 300, "é" * 700, "{{ reasons }} {% for %}", "[0:1] [0:2]", "\u202e" * 200, ""]),
    st.integers(1, 400).map(lambda n: "ERROR ab1 " * n),  # up to more than a line may have
    st.text("`-[]:0123456789", max_size=900),
)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    made = []
    for place in range(draw(st.integers(1, 12))):
        texts = draw(st.lists(HOSTILE, max_size=6)) * draw(st.sampled_from([1, 1, 40]))
        step = draw(st.integers(1, 3))
        lines = [
            Line(1 + step * n, text, strong=bool(n % 3), weak=bool(n % 2), noticed=n % 7 == 0)
            for n, text in enumerate(texts)
        ]
        name = draw(st.one_of(st.just(f"rank{place}"), HOSTILE)) + str(place)
        made.append(record(lines, name, lines[-5:]))
    return made


@pytest.mark.more_in_soak
@settings(max_examples=settings.default.max_examples // 4)
@given(records(), st.lists(HOSTILE, max_size=4), st.sampled_from([4000, 9000, TOKENS]), st.booleans())
def test_no_log_makes_the_prompt_longer_than_its_tokens(
    ask: Ask, made: list[Record], cases: list[str], tokens: int, searched: bool
) -> None:
    search = (lambda words, texts, k: list(range(min(k, len(texts))))) if searched else None
    brief = written(ask(records=made), tokens=tokens, cases=cases, search=search, looks=6 if tokens > 4000 else 0)
    assert estimate(brief.prompt) <= tokens
    for line in brief.shown.values():
        assert f"{handle(line)}\n" in brief.prompt  # on one line


def test_a_large_record_takes_little_time(ask: Ask) -> None:
    import time

    lines = [Line(n, f"[rank{n % 64}]: WARNING buffer {n} drained late", weak=True) for n in range(1, 10_000)]
    question = ask(records=[record(lines)])
    begin = time.process_time()
    written(question)
    assert time.process_time() - begin < 1
    assert briefs._MOST < 10_000


@pytest.mark.parametrize(
    "line", ["ERROR because " + "x1é;" * 2000, "ERROR password=ab12 " * 400, "ERROR " + " " * 8000]
)
def test_wide_lines_of_a_hostile_log_take_little_time(ask: Ask, line: str) -> None:
    """What takes time is to mask, which is done for so many letters only, whether the lines have room or not."""
    masked: list[int] = []

    def mask(text: str) -> str:
        masked.append(len(text))
        return text

    words = map("".join, product(ascii_letters, repeat=2))
    question = ask(records=[record([Line(n, f"{line} {word * 40}", weak=True) for n, word in enumerate(words, 1)])])
    brief = write(PROMPT, Pages(question, mask))
    assert estimate(brief.prompt) <= TOKENS and sum(masked) < 3 * briefs._LETTERS
