"""Free text behind a fixed head: learned where the head says what is done with it, never with signs of a failure."""

import random

import numpy as np
import pytest

from logdoctor.learning.filters.automaton import Automaton
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.heads import TAIL, TEXTS, head_of, label_cause, parted
from logdoctor.learning.filters.lesson import lesson
from logdoctor.learning.filters.matching import taken
from logdoctor.learning.filters.miner import Miner
from logdoctor.learning.filters.proposal import Sample
from logdoctor.learning.grammar import parse
from logdoctor.learning.proposed import Refusal
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import FilterRule
from logdoctor.store.learning.learned import NewRule, Source

_WORDS = (
    "rivers hills songs stars people bread roads winter copper letters gardens bridges markets clouds sailors lanterns "
    "orchards kettles villages ribbons feathers pebbles harbours meadows candles whistles"
).split()


def texts(head: str, count: int = 60) -> list[str]:
    """Lines with a head, behind which a sentence stands that comes once."""
    dice = random.Random(head)
    firsts = [f"{_WORDS[n % len(_WORDS)]}" for n in range(count)]
    return [f"{head.format(n)}{first} {' '.join(dice.sample(_WORDS, 5))}" for n, first in enumerate(firsts)]


def sample_of(lines: list[str]) -> Sample:
    """A sample in which each line is of a form of its own."""
    count = len(lines)
    return Sample("kind", "job", 1, tuple(lines), (("log", 1),) * count, tuple(range(count)), (1,) * count)


def learned(guards: FilterGuards, lines: list[str]) -> tuple[list[NewRule], list[Refusal]]:
    """The rules of a lesson over the lines that let any text stand, and the refusals of such."""
    found = lesson(sample_of(lines), Miner(), 5, guards, (), Source("job", 1))
    return [rule for rule in found.rules if head_of(rule.pattern)], [
        one for one, _ in found.refused if head_of(one.pattern)
    ]


@pytest.mark.parametrize(
    "head",
    [
        "Transcribed: clip{}.wav -> ",
        "2026-08-08 03:22:00,591 - pipelines.retelling - INFO - Generating summary of chapter ",
        "[rank3]: [2026-08-08 03:22:00] [INFO] Searching passages for query: ",
        "Question: ",
    ],
)
def test_text_behind_a_head_that_says_what_is_done_with_it_is_one_form(guards: FilterGuards, head: str) -> None:
    (rule,), _ = learned(guards, texts(head))
    assert rule.status == "shadow" and not rule.waits_for
    assert taken([rule.pattern], texts(head, 70)[60:]) == [set(range(10))], "texts that were not in the lesson, too"
    assert taken([rule.pattern], ["Saving tables to the shelf", "nothing of the kind"]) == [set()]


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("2026-08-08 03:22:00 - pipelines.retelling - INFO - ", "little stands before it"),
        ("[2026-08-08 03:22:00][loader][INFO] - ", "little stands before it"),
        ("Data loader: ", "does not say what is done"),
        ("Worker status of reader: ", "tells of what happened"),
        ("Restarting reader because ", "tells of what happened"),
        ("Generating failed for ", "tells of what happened"),
    ],
)
def test_behind_a_writer_or_a_report_no_text_is_free(guards: FilterGuards, head: str, why: str) -> None:
    rules, refused = learned(guards, texts(head))
    assert rules == []
    assert any(why in one.cause for one in refused), refused


def test_few_texts_show_nothing(guards: FilterGuards) -> None:
    assert learned(guards, texts("Transcribed: clip{}.wav -> ", TEXTS - 1))[0] == []
    states = [f"Transcribed: clip{n}.wav -> {'good' if n % 2 else 'fair'} {word}" for n, word in enumerate(_WORDS)]
    assert learned(guards, states)[0] == [], "two states may have a third one"


def test_a_text_that_looks_like_an_error_stands_in_the_way(guards: FilterGuards) -> None:
    lines = [*texts("Transcribed: clip{}.wav -> "), "Transcribed: clip61.wav -> decoder failed"]
    rules, refused = learned(guards, lines)
    assert rules == [] and any("looks like an error" in one.cause for one in refused)


def test_what_was_evidence_behind_the_head_refuses_it(cause_lines: tuple[str, ...]) -> None:
    guards = FilterGuards(cause_lines, ["Transcribed: clip7.wav -> shelf of node 3 is gone"])
    rules, refused = learned(guards, texts("Transcribed: clip{}.wav -> "))
    assert rules == [] and {one.guard for one in refused} == {"evidence"}


def test_a_rule_for_free_text_takes_no_line_that_tells_of_a_failure(
    guards: FilterGuards, scanner: Scanner, book: RuleBook, cause_lines: tuple[str, ...]
) -> None:
    head = "Transcribed: clip{}.wav -> "
    (rule,), _ = learned(guards, texts(head))
    assert taken([rule.pattern], cause_lines) == [set()]
    active = FilterRule("learned/kind/1", "active", "", (rule.pattern,), rule.examples, book.filters[0].origin)
    scanner = scanner.learning("kind", (active,))
    lines = [
        *texts(head, 3),
        f"{head.format(4)}Traceback (most recent call last):",
        f"{head.format(5)}torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        f"{head.format(6)}decoder was killed",
        '  File "/opt/reader.py", line 17, in transcribe',
        "node 3 lies under water",
        f"[rank1]: ERROR {head.format(7)}bread",
    ]
    raw = "\n".join(lines).encode() + b"\n"
    owner = scanner.scan(raw, np.flatnonzero(np.frombuffer(raw, np.uint8) == 10)).owner
    first = scanner.book.shipped_filters
    assert [place for place in range(len(lines)) if owner[place] >= first] == [0, 1, 2]


def test_a_head_is_told_from_the_text_behind_it() -> None:
    head = head_of(rf"^Answer of \d+:[ \t]+{TAIL}$")
    assert head is not None and head_of(r"^Answer \d+$") is None and head_of(f"^{TAIL}$") is None
    lines = ["[rank0]: Answer of 7: forty two", "something else"]
    assert parted(Automaton(parse(head)), lines) == [("Answer of 7: ", "forty two")]
    assert label_cause("Reading chapter ") is None and label_cause("Reading") is not None


def test_ranks_that_stand_side_by_side_are_no_sentence(guards: FilterGuards) -> None:
    """Any name beside any other may be a sentence; names that count the same few things may not."""
    lines = [f"[2026-01-14 04:57:5{n} DP{n} TP{n + 1} EP{n}] Init of tables begins." for n in range(8)]
    sample = sample_of(lines)._replace(groups=(0,) * 8, counts=(8,))
    (rule,) = lesson(sample, Miner(), 5, guards, (), Source("job", 1)).rules
    assert r"DP\d+ +TP\d+ +EP\d+" in rule.pattern
    assert taken(
        [rule.pattern], [lines[0], lines[0].replace("DP0", "DP31"), lines[0].replace("DP0 TP1", "node lost")]
    ) == [{0, 1}]
