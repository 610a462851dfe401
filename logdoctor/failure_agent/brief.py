"""What the model is shown of a log: the lines that matter, within a hard budget of tokens.

Lines are wished for in order of their suspicion and taken while there is room; a line is shown whole or not at all, and
what was left out is said. All of it is masked. What was shown is remembered, so that quotes can be checked against it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import regex

from logdoctor.diagnose.episodes import Episode
from logdoctor.diagnose.fingerprint import normalised
from logdoctor.errors import PromptError
from logdoctor.failure_agent import guide
from logdoctor.failure_agent.forms import Findings
from logdoctor.failure_agent.question import Question
from logdoctor.llm.chat import estimate
from logdoctor.llm.masking import leads_on
from logdoctor.llm.prompts import Prompt
from logdoctor.text import harmless, origin
from logdoctor.text import shown as as_on_terminal
from logdoctor.types import Line, Progress, Record

Mask = Callable[[str], str]
"""Hides secrets; a line stays one line."""

Search = Callable[[str, Sequence[str], int], list[int]]
"""The places of the texts, at most so many, that are nearest in meaning to a question, the nearest first."""

INPUTS = {"reasons", "recoveries", "faults", "overview", "lines", "left_out", "cases", "similar", "tools"}

_WIDEST = 800  # tokens of a line; one with more is named, not shown
_GAP = 9  # tokens of the words that lines are left out between two
_OVERVIEW = 900  # tokens
_CASES = 500  # tokens
_STREAMS = 8
_ERRORS = 10
_EPISODES = 24
_OF_EPISODE = 9  # lines up to the one that names the failure
_BEFORE = 4  # lines before the first error
_ENDS = 3  # streams of which the end is shown
_END = 4  # lines
_PASSAGE = 3  # lines of a passage that is searched
_SEARCHED = 8  # passages, the most telling by their words: embedding takes about ten milliseconds for each
_WORTH_A_SEARCH = 300  # tokens: where less is left, what is found would hardly have room
_SAID = 200  # characters of a passage that are embedded
_FOUND = 5
_MOST = 4000  # lines that are looked at one by one, whatever the record holds
_COMPARED = 300  # characters of a line by which it is like another
_TROUBLE = regex.compile(
    r"(?i)error|fail|fault|fatal|exception|traceback|abort|kill|timed? ?out|timeout|refused|denied|unreachable|corrupt"
    r"|missing|no such|not found|cannot|could not|unable|invalid|mismatch|lost|down\b|oom\b|nan\b|xid|ecc|nvlink|warn"
)
_QUESTION = "the root cause: what failed first, and why the job ended"


_OF_THE_END = ("teardown", "note")
_ROLES = {
    "cause": "can be a cause",
    "proximate": "can be a cause",
    "cascade": "follows when another process fails",
    "teardown": "is of the end of the job",
    "note": "is advice",
}


class Shown(NamedTuple):
    """A line that the model was shown: its stream (place and name) and number, as logged, and as it was shown."""

    stream: int
    name: str
    number: int
    raw: str
    text: str


class Brief(NamedTuple):
    """A prompt, what was shown in it by stream and number, and whether all lines of the records are in it."""

    prompt: str
    shown: dict[tuple[int, int], Shown]
    whole: bool


class Pages:
    """The lines of the records, as they may be shown to a model; each is masked once, when it is asked for."""

    def __init__(self, question: Question, mask: Mask) -> None:
        self.question = question
        self._mask = mask
        self._texts = [_texts(record) for record in question.records]
        self._numbers = [sorted(texts) for texts in self._texts]
        self._count = sum(_says_something(text) for texts in self._texts for text in texts.values())
        self._shown: dict[tuple[int, int], Shown] = {}

    def line(self, stream: int, number: int) -> Shown | None:
        """Return a line of a record; None when the record does not hold it, or holds nothing that can be seen."""
        known = self._shown.get((stream, number))
        if known is not None:
            return known
        raw = self._texts[stream].get(number)
        return None if raw is None else self.taken(stream, number, raw)

    def taken(self, stream: int, number: int, raw: str) -> Shown | None:
        """Return a line of the log, wherever it was read; None when there is nothing to be seen in it."""
        text = self.plain(raw, self._texts[stream].get(number - 1, ""))
        if not _says_something(text):
            return None
        line = Shown(stream, self.question.records[stream].stream, number, raw, text)
        self._shown[stream, number] = line
        return line

    def plain(self, text: str, before: str = "") -> str:
        """Return text as it may be shown to a model: as on a terminal, masked. The line `before` it may name a secret
        that stands in this one, or begin it."""
        masked = as_on_terminal(text)
        if leads_on(before := as_on_terminal(before)):
            masked = self._mask(f"{before}\n{masked}").partition("\n")[2]
        else:
            masked = self._mask(masked)
        return harmless(masked, len(text) + 4096)

    def numbers(self, stream: int) -> list[int]:
        """Return the numbers of the lines that the record of a stream holds, in order."""
        return self._numbers[stream]

    def count(self) -> int:
        """Return how many lines the records hold in which there is something to be seen."""
        return self._count


def _says_something(text: str) -> bool:
    """Return whether a line is more than a rule, or marks below a line of code."""
    return any(map(str.isalnum, text))


def _texts(record: Record) -> dict[int, str]:
    texts = {milestone.line: milestone.text for span in record.spans.values() for milestone in span}
    texts |= {line.number: line.text for line in (*record.last, *record.lines)}
    return texts


def handle(line: Shown) -> str:
    """Return a line as it is shown: its handle and its text."""
    return f"[{line.stream}:{line.number}] {line.text}"


def check(prompt: Prompt) -> None:
    """Raise `PromptError` when a prompt is not one that a brief can fill, or leaves hardly any room for a log."""
    if prompt.head.output != Findings.__name__ or prompt.head.inputs.keys() != INPUTS:
        raise PromptError(
            f"prompt {prompt.name}",
            f"its output is not {Findings.__name__}, or its inputs are not {sorted(INPUTS)}",
            "Restore the file that came with logdoctor.",
        )
    if estimate(bare(prompt)) > prompt.head.max_tokens_in - _OVERVIEW - _CASES - _WIDEST:
        raise PromptError(f"prompt {prompt.name}", "leaves no room for lines of a log", "Make its words fewer.")


def bare(prompt: Prompt) -> str:
    """Return the words of a prompt itself, without any log."""
    return _filled(prompt, [], [], "", [], 1)


def write(
    prompt: Prompt, pages: Pages, cases: Sequence[str] = (), search: Search | None = None, calls: int = 0, kept: int = 0
) -> Brief:
    """Return the prompt for a question, within its tokens less those that are `kept` for what tools return.

    `cases` are similar failures, a line each; the tools may be called so many times.
    """
    most = prompt.head.max_tokens_in - kept
    overview = list(_within(_overview(pages), _OVERVIEW))
    cases = list(_within((pages.plain(case) for case in cases), _CASES))
    room = most - estimate(_filled(prompt, overview, [], _left_out(pages, {}, 0), cases, calls)) - _GAP
    taken = _picked(pages, room, search)
    picked, wide = taken.lines, len(taken.wide)
    while True:
        chosen = dict(sorted(picked.items()))
        text = _filled(prompt, overview, _excerpt(chosen), _left_out(pages, chosen, wide), cases, calls)
        if estimate(text) <= most:
            return Brief(text, chosen, len(chosen) >= pages.count())
        if picked:  # a fence grows with the backticks in what it holds
            for place in list(picked)[-max(1, len(picked) // 8) :]:
                del picked[place]
        elif cases:
            cases = cases[:-1]
        elif overview:
            overview = overview[:-1]
        else:
            return Brief(text, chosen, False)  # `check` saw that the prompt alone has room


def _filled(
    prompt: Prompt, overview: list[str], lines: list[str], left_out: str, cases: Sequence[str], calls: int
) -> str:
    return prompt.render(
        {
            "reasons": guide.reasons(),
            "recoveries": guide.recoveries(),
            "faults": guide.faults(),
            "overview": overview,
            "lines": lines,
            "left_out": left_out,
            "cases": list(cases),
            "similar": str(len(cases)),
            "tools": str(calls),
        }
    )


def _within(lines: Iterable[str], room: int) -> Iterator[str]:
    """Yield the lines that fit, whole and in order; the first that does not ends them."""
    for line in lines:
        room -= estimate(line) + 1
        if room < 0:
            return
        yield line


class _Picked:
    """The lines to show, in the order in which they were wished for, the room that is left, and what was too wide."""

    def __init__(self, pages: Pages, room: int) -> None:
        self.pages, self.room = pages, room
        self.lines: dict[tuple[int, int], Shown] = {}
        self.wide: set[tuple[int, int]] = set()

    def take(self, place: tuple[int, int]) -> None:
        """Take a line if it has room."""
        stream, number = place
        if place in self.lines or (line := self.pages.line(stream, number)) is None:
            return
        cost = estimate(handle(line)) + 1
        if cost > _WIDEST:
            self.wide.add(place)
            return
        cost += 0 if (stream, number - 1) in self.lines or (stream, number + 1) in self.lines else _GAP
        if cost <= self.room:
            self.lines[place] = line
            self.room -= cost


def _picked(pages: Pages, room: int, search: Search | None) -> _Picked:
    """Return as many lines as have room, of those wished for first."""
    picked = _Picked(pages, room)
    for place in islice(_wishes(picked, search), _MOST):
        if picked.room < 2 * _GAP:
            break
        picked.take(place)
    return picked


def _wishes(picked: _Picked, search: Search | None) -> Iterator[tuple[int, int]]:
    """Yield the places of lines, the most telling first; the later ones are wished for knowing what was `picked`."""
    pages, question = picked.pages, picked.pages.question
    episodes = question.episodes[:_EPISODES]
    yield from _of_episodes(episodes[:3])
    yield from _ends(pages, episodes)
    yield from _of_episodes(episodes[3:8])
    lasting = [episode for episode in episodes if not episode.survived and episode.role not in _OF_THE_END]
    for episode in sorted(lasting, key=_first)[:2]:
        first = _first(episode)[2]
        before = [n for n in pages.numbers(episode.stream) if n < first][-_BEFORE:]
        yield from ((episode.stream, number) for number in reversed(before))
    yield from ((episode.stream, episode.line) for episode in episodes)
    if search is not None and picked.room > _WORTH_A_SEARCH:
        yield from _found(pages, picked.lines, search)
    yield from _marked(question.records)
    for stream in range(len(question.records)):
        yield from ((stream, number) for number in reversed(pages.numbers(stream)))


def _first(episode: Episode) -> tuple[float, int, int]:
    """Return when or where an episode begins."""
    return episode.time or 0.0, episode.stream, min((*episode.lines, episode.line))


def _of_episodes(episodes: Sequence[Episode]) -> Iterator[tuple[int, int]]:
    for episode in episodes:
        yield episode.stream, episode.line
    for episode in episodes:
        if episode.role in _OF_THE_END:
            continue
        before = [number for number in episode.lines if number < episode.line][-_OF_EPISODE:]
        after = [number for number in episode.lines if number > episode.line][:2]
        yield from ((episode.stream, number) for number in (*reversed(before), *after, *episode.lines[:1]))


def _ends(pages: Pages, episodes: Sequence[Episode]) -> Iterator[tuple[int, int]]:
    """Yield the last lines of the streams with the most suspicious episodes, or of the first ones."""
    streams = dict.fromkeys((*(episode.stream for episode in episodes), *range(len(pages.question.records))))
    for stream in list(streams)[:_ENDS]:
        yield from ((stream, number) for number in reversed(pages.numbers(stream)[-_END:]))


def _marked(records: Sequence[Record]) -> Iterator[tuple[int, int]]:
    """Yield the lines with marks of trouble, the strong ones first; of lines that are alike one before the others."""
    seen: set[str] = set()
    again: list[tuple[int, int]] = []
    looked = 0
    kinds: tuple[Callable[[Line], bool], ...] = (lambda line: line.strong, lambda line: line.weak or line.noticed)
    for kind in kinds:
        for stream, record in enumerate(records):
            for line in filter(kind, record.lines):
                looked += 1
                form = normalised(line.text[-_COMPARED:]) if looked <= _MOST // 2 else ""
                if form and form not in seen:
                    seen.add(form)
                    yield stream, line.number
                else:
                    again.append((stream, line.number))
    yield from again


class _Passage(NamedTuple):
    """Lines that stand together, and how much their words and marks tell of trouble."""

    stream: int
    numbers: list[int]
    text: str
    telling: float


def _found(pages: Pages, picked: dict[tuple[int, int], Shown], search: Search) -> Iterator[tuple[int, int]]:
    """Yield the passages that are nearest to what is asked, among those of which nothing is shown yet."""
    passages = sorted(_passages(pages, picked), key=lambda passage: -passage.telling)[:_SEARCHED]
    if len(passages) <= _FOUND:
        yield from ((passage.stream, number) for passage in passages for number in passage.numbers)
        return
    titles = [episode.title[:200] for episode in pages.question.episodes[:3]]
    for place in search("\n".join([_QUESTION, *titles]), [passage.text for passage in passages], _FOUND):
        passage = passages[place]
        yield from ((passage.stream, number) for number in passage.numbers)


def _passages(pages: Pages, picked: dict[tuple[int, int], Shown]) -> Iterator[_Passage]:
    for stream, record in enumerate(pages.question.records):
        run: list[Line] = []
        for line in record.lines:
            if (stream, line.number) in picked:
                continue
            if run and (line.number != run[-1].number + 1 or len(run) == _PASSAGE):
                yield _passage(stream, run)
                run = []
            run.append(line)
        if run:
            yield _passage(stream, run)


def _passage(stream: int, run: list[Line]) -> _Passage:
    texts = [line.text[-400:] for line in run]
    marks = sum(2.0 * line.strong + line.weak + line.noticed for line in run)
    words = sum(min(3, len(_TROUBLE.findall(text))) for text in texts)
    said = " ".join(origin(as_on_terminal(text)).message.strip()[: _SAID // len(run)] for text in texts)
    return _Passage(stream, [line.number for line in run], said, marks + 0.5 * words)


def _excerpt(chosen: dict[tuple[int, int], Shown]) -> list[str]:
    """Return the lines in the order of the log, with words for what is left out between them."""
    rows: list[str] = []
    before: tuple[int, int] | None = None
    for (stream, number), line in chosen.items():
        if before is not None and before[0] == stream and number > before[1] + 1:
            rows.append(f"... {number - before[1] - 1} lines not shown ...")
        elif before is not None and before[0] != stream:
            rows.append("...")
        rows.append(handle(line))
        before = stream, number
    return rows


def _overview(pages: Pages) -> Iterator[str]:
    """Yield what is known of the job: how far it came, its streams, and its errors by the lines that name them."""
    question = pages.question
    progress = Progress() if question.verdict.progress.learned else question.verdict.progress
    step = (
        "no step is known" if progress.step is None else f"last step {progress.step} of {progress.total or 'unknown'}"
    )
    loss = "" if progress.loss is None else f", last loss {progress.loss:.4g}"
    yield f"outcome {question.verdict.outcome}; {step}{loss}; {_by_rules(pages)}"
    ends = [episode for episode in question.episodes if episode.role in _OF_THE_END]
    errors = [episode for episode in question.episodes if episode not in ends[_ENDS:]]
    yield from map(told, errors[:_ERRORS])
    for stream, record in enumerate(question.records[:_STREAMS]):
        name = pages.plain(record.stream[:80])
        yield f"stream {stream} is {name}: {record.compression.lines_in} lines"
    if len(question.records) > _STREAMS:
        yield f"and {len(question.records) - _STREAMS} more streams"
    if (more := len(question.episodes) - len(errors[:_ERRORS])) > 0:
        yield f"and {more} more errors"


def _by_rules(pages: Pages) -> str:
    """Return what the rules say of the cause, and what else they thought of: a claim to be judged by the lines."""
    verdict = pages.question.verdict
    if verdict.reason == "Unknown":
        return "the rules know no cause"
    streams = [record.stream for record in pages.question.records]
    places = [f" at [{streams.index(one.stream)}:{one.line}]" for one in verdict.evidence[:1] if one.stream in streams]
    rivals = ", ".join(one.reason for one in verdict.alternatives[:3])
    also = f"; it may also be {rivals}" if rivals else ""
    return f"a rule takes it for {verdict.reason}{''.join(places)}, but only {verdict.confidence:.0%} sure{also}"


def told(episode: Episode) -> str:
    """Return an error in a line: where it is named, who told it, and what is known of it."""
    ranks = f" by ranks {_ranks(episode.ranks)}" if episode.ranks else ""
    after = "survived: steps follow" if episode.survived else "lasting"
    known = _ROLES.get(episode.role, "not known to the rules")
    return f"error at [{episode.stream}:{episode.line}]: told {episode.reports} times{ranks}; {after}; {known}"


def _ranks(ranks: tuple[int, ...]) -> str:
    few = ", ".join(map(str, ranks[:4]))
    return few if len(ranks) <= 4 else f"{few} and {len(ranks) - 4} more"


def _left_out(pages: Pages, chosen: dict[tuple[int, int], Shown], wide: int) -> str:
    """Return how many lines are not shown, in words."""
    written = sum(record.compression.lines_in for record in pages.question.records)
    missing = pages.count() - len(chosen)
    words = f"It has {written} lines; {pages.count()} of them are remarkable or near those that are."
    if missing > 0:
        words += f" {missing} of these had no room here."
    if wide:
        words += f" {wide} are too long to be shown."
    return words
