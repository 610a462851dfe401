"""The Log Agent as a language model: it writes filter patterns for a sample, and judges them.

It sees messages without their prefix, as patterns are matched, and with secrets masked.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

import msgspec

from logdoctor.errors import PromptError
from logdoctor.learning.filters.proposal import Answer, FilterCandidate, Judgement, Proposal, Sample
from logdoctor.llm.answers import Form
from logdoctor.llm.chat import Message, estimate
from logdoctor.llm.masking import MARK_IN_PATTERN, Masker
from logdoctor.llm.prompts import Prompt, load
from logdoctor.llm.spending import Guarded
from logdoctor.text import harmless, origin

WRITE = "write-filter"
JUDGE = "judge"
"""The prompts, and the purposes of their calls in the ledger."""

_LINES_OF_GROUP = 3
_TAKES = 4
_LEAVES = 4
_TOKENS_OF_PATTERN = 120  # of an answer, including its title and lines
_TOKENS_OF_VOTE = 45
_WIDEST_BLOCK = 0.4  # of the prompt: a wider block is never shown
_TITLE = 120
_WHY = 300


class WrittenPattern(msgspec.Struct):
    """A pattern as the model returns it, with what its lines are, and the numbers of those it saw."""

    pattern: str
    what: str = ""
    lines: list[int] = []


class Patterns(msgspec.Struct):
    """The answer to `write-filter`: patterns, and the numbers of lines that look like trouble."""

    patterns: list[WrittenPattern]
    errors: list[int] = []


class Vote(msgspec.Struct):
    """The model's vote on one candidate, numbered from 1."""

    candidate: int
    vote: Literal["keep", "drop"]
    why: str = ""


class Votes(msgspec.Struct):
    """The answer to `judge`."""

    votes: list[Vote]


class _Block(NamedTuple):
    """Lines of a prompt that are shown together or not at all, and the sample lines behind each number in them."""

    lines: list[str]
    places: dict[int, tuple[int, ...]]


class ModelAgent:
    """An `Agent` that asks a model; any thread may call. `PromptError` when a prompt cannot be used."""

    def __init__(self, model: Guarded, prompts: Path) -> None:
        self.model = model
        self._write = _prompt(prompts, WRITE, Patterns)
        self._judge = _prompt(prompts, JUDGE, Votes)
        self.name = f"{model.name}@{self._write.version[:12]}+{self._judge.version[:12]}"
        self.groups = max(1, self._write.head.max_tokens // _TOKENS_OF_PATTERN)
        self.free = False
        self.room = 1 << 20  # few lines of each group are shown

    def propose(self, sample: Sample, run: int) -> Answer:
        """Return the patterns and error lines that the model finds. Each run sees other lines of a group, in another
        order.

        The largest groups are shown, as many as fit into prompt and answer. `ModelError` without an answer.
        """
        random = Random(run)  # reproducible: a prompt depends only on its inputs
        masker = self.model.masker()
        blocks = [
            block
            for group in range(len(sample.counts))
            if (block := _group(sample, group, random, masker)).places and self._has_room(self._write, block.lines)
        ][: self.groups]
        hidden = len(sample.counts) - len(blocks)
        _, fit = self._write.fitted([block.lines for block in blocks], hidden)
        hidden, blocks = hidden + len(blocks) - fit, blocks[:fit]
        if run:
            random.shuffle(blocks)
        if not blocks:
            return Answer(())
        text, _ = self._write.fitted([block.lines for block in blocks], hidden)
        answer = self._asked(sample, self._write, text, Patterns, masker, run)
        return _mapped(answer, {number: places for block in blocks for number, places in block.places.items()})

    def singly(self, sample: Sample, places: Collection[int]) -> list[Proposal]:
        """Return none: the model has seen each group already."""
        return []

    def judge(self, sample: Sample, candidates: Sequence[FilterCandidate], runs: int) -> list[Judgement]:
        """Return the model's vote on each candidate; one without a vote is dropped.

        It takes one call, or more when they do not fit. `ModelError` without an answer.
        """
        masker = self.model.masker()
        messages = [_message(line, masker) for line in sample.lines]
        judgements = [Judgement(False, "the judge did not vote on it") for _ in candidates]
        blocks: list[tuple[int, list[str]]] = []
        for place, candidate in enumerate(candidates):
            block = _candidate(place + 1, sample, messages, candidate, runs)
            if self._has_room(self._judge, block):
                blocks.append((place, block))
            else:
                judgements[place] = Judgement(False, "it is too long to be shown to the judge")
        most = max(1, self._judge.head.max_tokens // _TOKENS_OF_VOTE)
        while blocks:
            batch = blocks[:most]
            text, fit = self._judge.fitted([block for _, block in batch], len(blocks) - len(batch))
            if not fit:
                break
            answer = self._asked(sample, self._judge, text, Votes, masker)
            for place, judgement in _counted(answer, {place for place, _ in batch[:fit]}).items():
                judgements[place] = judgement
            blocks = blocks[fit:]
        return judgements

    def _asked(self, sample: Sample, prompt: Prompt, text: str, form: type[Form], masker: Masker, run: int = 0) -> Form:
        return self.model.answer(
            sample.job,
            prompt.name,
            [Message("user", text)],
            form,
            temperature=prompt.head.temperature if run else 0.0,
            max_tokens=prompt.head.max_tokens,
            attempt=sample.attempt,
            sample=run,
            prompt=prompt.version,
            masker=masker,
        )

    def _has_room(self, prompt: Prompt, lines: Sequence[str]) -> bool:
        return estimate("\n".join(lines)) <= prompt.head.max_tokens_in * _WIDEST_BLOCK


def _prompt(folder: Path, name: str, form: type) -> Prompt:
    prompt = load(folder, name)
    if prompt.head.output != form.__name__ or prompt.head.inputs.keys() != {"lines", "left_out"}:
        raise PromptError(
            f"prompt {folder / name}.md",
            f"its output is not {form.__name__}, or its inputs are not lines and left_out",
            "Restore the file that came with logdoctor.",
        )
    return prompt


def _group(sample: Sample, group: int, random: Random, masker: Masker) -> _Block:
    """Return a few differing lines of a group, numbered by sample place, from 1."""
    alike: dict[str, list[int]] = {}
    for place, of in enumerate(sample.groups):
        if of == group and (message := _message(sample.lines[place], masker)).strip():
            alike.setdefault(message, []).append(place)
    chosen = random.sample(list(alike), min(_LINES_OF_GROUP, len(alike)))
    lines = [f"[{alike[message][0] + 1}] {message}" for message in chosen]
    places = {alike[message][0] + 1: tuple(alike[message]) for message in chosen}
    return _Block([f"group of {sample.counts[group]} lines:", *lines], places)


def _message(line: str, masker: Masker) -> str:
    """Return what a pattern is matched with, masked."""
    return origin(masker.mask(line)).message


def _mapped(answer: Patterns, shown: dict[int, tuple[int, ...]]) -> Answer:
    """Return the answer with sample indexes, without patterns for lines that the model calls trouble."""
    errors = [number for number in dict.fromkeys(answer.errors) if number in shown]
    patterns: dict[str, str] = {}
    for written in answer.patterns:
        pattern = _pattern(written.pattern)
        if pattern and not set(written.lines) & set(errors):
            patterns.setdefault(pattern, harmless(written.what, _TITLE).strip() or "Lines of one form")
    return Answer(
        tuple(Proposal(pattern, title) for pattern, title in patterns.items()),
        tuple(place for number in errors for place in shown[number]),
    )


def _pattern(written: str) -> str:
    """Return a pattern as intended: with backslashes restored that JSON consumed, and masks as fields."""
    plain = written.strip("\r\n").replace("\b", r"\b").replace("\t", r"\t")
    return MARK_IN_PATTERN.sub(lambda _: r"\S+", plain)


def _candidate(
    number: int, sample: Sample, messages: Sequence[str], candidate: FilterCandidate, runs: int
) -> list[str]:
    """Return what the judge sees of a candidate."""
    takes = _spread(sample, messages, sorted(candidate.takes), _TAKES)
    word = takes[0].split(" ", 1)[0] if takes else ""
    others = [place for place in range(len(sample.lines)) if place not in candidate.takes]
    others.sort(key=lambda place: not messages[place].startswith(word))
    lines = sum(sample.counts[group] for group in {sample.groups[place] for place in candidate.takes})
    return [
        f"candidate {number}: {len(candidate.runs)} of {runs} runs proposed this or what takes the same lines; "
        f"about {lines} lines of the log are of these forms",
        f"pattern: {candidate.proposal.pattern}",
        f"author: {harmless(candidate.proposal.title, _TITLE)}",
        *(f"takes: {message}" for message in takes),
        *(f"leaves: {message}" for message in _spread(sample, messages, others, _LEAVES)),
    ]


def _spread(sample: Sample, messages: Sequence[str], places: Sequence[int], most: int) -> list[str]:
    """Return messages from as many groups as possible, so that differences show."""
    firsts = set({sample.groups[place]: place for place in reversed(places)}.values())
    ordered = [place for place in places if place in firsts] + list(places)
    return list(dict.fromkeys(messages[place] for place in ordered[: 3 * most]))[:most]


def _counted(answer: Votes, asked: set[int]) -> dict[int, Judgement]:
    """Return the judgements by the candidate's index; of two votes on one, the first that drops it counts."""
    judgements: dict[int, Judgement] = {}
    for vote in answer.votes:
        place = vote.candidate - 1
        if place in asked and (place not in judgements or judgements[place].keep):
            judgements[place] = Judgement(vote.vote == "keep", harmless(vote.why, _WHY).strip() or "no reason given")
    return judgements
