"""What the model is shown of a log: the lines that decide, within a hard budget of tokens.

Lines are wished for in order of what they tell and taken while there is room, each kind within its share of it; a line
that is too wide is shown by its beginning and its end. Frames, bars, debug lines and repeats fold to a count. All of it
is masked. What was shown is remembered, so that quotes can be checked against it.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from typing import NamedTuple

import regex

from logdoctor.diagnose.ends import of_report
from logdoctor.diagnose.episodes import FOLLOWING, Episode
from logdoctor.diagnose.findings import StreamReading
from logdoctor.diagnose.fingerprint import with_codes
from logdoctor.errors import PromptError
from logdoctor.failure_agent import guide
from logdoctor.failure_agent.forms import Findings
from logdoctor.failure_agent.question import Question
from logdoctor.llm.chat import estimate
from logdoctor.llm.masking import leads_on
from logdoctor.llm.prompts import Prompt
from logdoctor.rules.once import once
from logdoctor.text import LineOrigin, harmless, origin
from logdoctor.text import shown as as_on_terminal
from logdoctor.types import Line, Progress, Record

Mask = Callable[[str], str]
"""Hides secrets; a line stays one line."""

Search = Callable[[str, Sequence[str], int], list[int]]
"""The places of the texts, at most so many, that are nearest in meaning to a question, the nearest first."""

INPUTS = {"reasons", "recoveries", "faults", "overview", "lines", "left_out", "cases", "similar", "looks", "look_lines"}

TOKENS = 16_000
"""Tokens of a prompt, where nobody says otherwise."""
LOOK_LINES = 12
"""Lines that a look into the log shows at most."""

_WIDEST = 400  # tokens of a line
_GAP = 14  # tokens of the words that lines are left out between two
_OVERVIEW = 2500  # tokens
_CASES = 1000  # tokens
_STREAMS = 8
_ERRORS = 20
_TITLE = 40  # tokens of an error in the overview
_EPISODES = 100
_WHOLE = 8  # episodes shown with more than the line that names them
_FRAMES = 4  # lines before the one that names a failure: the innermost frames
_AROUND = 3  # lines before and after one that a rule names, and before the first error
_AFTER = 3  # lines that a writer printed after its fault
_ENDS = 3  # streams whose end is shown
_END = 4  # lines
_REPORTS = 30  # reports of an end
_LETTERS = 300_000  # of lines that are masked, which takes time, until no further one is looked at
_ALIKE = 2  # lines that are alike; further ones fold
_SEARCHED = 8  # lines, the most telling by their words: embedding takes about ten milliseconds for each
_SAID = 200  # characters of a line that are embedded
_FOUND = 5
_MOST = 4000  # lines that are looked at one by one, whatever the record holds
_COMPARED = 300  # characters of a line by which it is like another
_TROUBLE = regex.compile(
    r"(?i)error|fail|fault|fatal|exception|traceback|abort|kill|timed? ?out|timeout|refused|denied|unreachable|corrupt"
    r"|missing|no such|not found|cannot|could not|unable|invalid|mismatch|lost|down\b|oom\b|nan\b|xid|ecc|nvlink|warn"
)
_LEADS_ON = regex.compile(
    r"(?i)\b(?:last|inner|original|underlying|root|actual|following) (?:error|exception|cause|reason)s?\b"
    r"|\bcaused by\b|\bdue to\b|\bbecause\b|\bwhat\(\)|\berrno\b|\berror ?code\b"
    r"|\b(?:error|exception|reason|details?|stderr|output|message|failed|trace)\s?[:=]\s*$"
)
"""Words of lines that announce what went wrong in themselves or in the next lines."""
_FOLDED = {
    "frames": regex.compile(
        r"\s*(?:File \".{1,300}\", line \d+|frame #\d+|#\d+ +\S|\[?bt\]? ?[(#]?\d|at \S.{0,200}\(\S+:\d+\)$|@ +0x)"
    ),
    "bars": regex.compile(r".{0,200}?(?:\d{1,3}%\|.{0,80}\||\d+/\d+ \[[\d:?]+<|[\u2588\u258f\u2501]{4})"),
    "debug lines": regex.compile(r"Extension modules: |huggingface/tokenizers: |\s*- (?:Avoid using|Explicitly set) "),
}
"""What is printed at length and decides little, by kind, as the message of a line begins."""
_CODE = "    "
_LOGGED_AT = regex.compile(r"\[[\w./-]{1,80}:\d{1,6}\] ?")
"""Where a logger stands in the code, as it marks each line of a traceback that it prints."""
_QUESTION = "the root cause: what failed first, and why the job ended"


_ROLES = {
    "cause": "can be a cause",
    "proximate": "can be a cause",
    "cascade": "often follows when another process fails",
    "teardown": "tells that a process ended, not why",
    "note": "is advice",
}

Place = tuple[int, int]
"""A line: its stream and its number."""


class Shown(NamedTuple):
    """A line that the model was shown: its stream (place and name) and number, as logged, and as shown, or too wide."""

    stream: int
    name: str
    number: int
    raw: str
    text: str


class Brief(NamedTuple):
    """A prompt, what was shown in it and in later looks, by stream and number, the places of those in the prompt, and
    whether all lines of the records are in it but those that fold."""

    prompt: str
    shown: dict[Place, Shown]
    first: frozenset[Place]
    whole: bool


class Pages:
    """The lines of the records, as they may be shown to a model; each is masked once, when it is asked for."""

    def __init__(self, question: Question, mask: Mask) -> None:
        self.question = question
        self._mask = mask
        self._texts = [_texts(record) for record in question.records]
        self._streams = {record.stream: place for place, record in enumerate(question.records)}
        self.named = list(self._named())
        """The lines by which rules name a cause, those of a bad loss and a standstill, and that of the last step."""
        for stream, number in self.named:
            if number not in self._texts[stream] and (text := question.case.readings[stream].text(number)) is not None:
                self._texts[stream][number] = text
        self.numbers = [sorted(texts) for texts in self._texts]
        """The lines of each stream that its record holds, in order."""
        places = ((stream, number) for stream, numbers in enumerate(self.numbers) for number in numbers)
        self.count = sum(_says_something(self.said(*place)) for place in places)
        """How many of them there are in which there is something to be seen."""
        self._shown: dict[Place, Shown] = {}

    def _named(self) -> Iterator[Place]:
        verdict, case = self.question.verdict, self.question.case
        told = [(one.stream, one.line) for one in verdict.evidence]
        places = (self.place(*one) for one in (*told, (verdict.progress.stream, verdict.progress.line)))
        yield from (place for place in places if place)
        if (spike := case.spike) is not None:
            yield from ((spike.stream, line) for line in (spike.jump, spike.steepest, spike.worst))
        if case.stall is not None:
            yield case.stall.stream, case.stall.line

    def place(self, stream: str, number: int | None) -> Place | None:
        """Return the place of a line that is known by the name of its stream."""
        return None if number is None or stream not in self._streams else (self._streams[stream], number)

    def line(self, stream: int, number: int) -> Shown | None:
        """Return a line of a record; None when the record does not hold it, or holds nothing that can be seen."""
        if (known := self._shown.get((stream, number))) is not None:
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

    def origin(self, stream: int, number: int) -> LineOrigin:
        """Return the marks of a line that is kept, and what it says behind them."""
        known = self.question.case.readings[stream].origins.get(number)
        return known or origin(as_on_terminal(self._texts[stream].get(number, "")))

    def folds(self, stream: int, number: int) -> str:
        """Return the kind of what is printed at length and decides little, if a line is of one."""
        if self.origin(stream, number).level == "DEBUG":
            return "debug lines"
        said, above = self.said(stream, number), self.said(stream, number - 1)
        if said.startswith(_CODE) and _FOLDED["frames"].match(above[:_COMPARED]):
            return "frames"
        return next((kind for kind, pattern in _FOLDED.items() if pattern.match(said[:_COMPARED])), "")

    def said(self, stream: int, number: int) -> str:
        """Return what a kept line says behind its marks and the place of its logger."""
        message = self.origin(stream, number).message
        mark = _LOGGED_AT.match(message)
        return message[mark.end() :] if mark else message

    @once
    def errors(self) -> list[Episode]:
        """The episodes, without the frames and the like that stand alone among them."""
        return [one for one in self.question.episodes if one.source or not self.folds(one.stream, one.line)]


def _says_something(text: str) -> bool:
    """Return whether a line is more than a rule, or marks below a line of code."""
    return any(map(str.isalnum, text))


def _texts(record: Record) -> dict[int, str]:
    texts = {milestone.line: milestone.text for span in record.spans.values() for milestone in span}
    texts |= {line.number: line.text for line in (*record.last, *record.lines)}
    return texts


def handle(line: Shown, most: int = _WIDEST) -> str:
    """Return a line as it is shown: its handle and at most `most` tokens of its text."""
    return f"[{line.stream}:{line.number}] {shortened(line.text, most)}"


def shortened(text: str, most: int) -> str:
    """Return a text of at most so many tokens: of a longer one the beginning and the end."""
    whole, kept = text, len(text)
    while (tokens := estimate(text)) > most:
        kept = min(kept - 1, kept * most // tokens)
        text = f"{whole[: kept - kept // 3]} ... {whole[len(whole) - kept // 3 :]}" if kept > 8 else whole[:kept]
    return text


def check(prompt: Prompt, tokens: int = TOKENS) -> None:
    """Raise `PromptError` when a prompt is not one that a brief can fill, or leaves hardly any room for a log."""
    if prompt.head.output != Findings.__name__ or prompt.head.inputs.keys() != INPUTS:
        raise PromptError(
            f"prompt {prompt.name}",
            f"its output is not {Findings.__name__}, or its inputs are not {sorted(INPUTS)}",
            "Restore the file that came with logdoctor.",
        )
    if estimate(bare(prompt)) > tokens - 2 * _WIDEST:
        raise PromptError(f"prompt {prompt.name}", "leaves no room for lines of a log", "Raise LOGDOCTOR_AGENT_TOKENS.")


def bare(prompt: Prompt) -> str:
    """Return the words of a prompt itself, without any log."""
    return _filled(prompt, False, [], [], "", [], 1)


def write(
    prompt: Prompt,
    pages: Pages,
    tokens: int = TOKENS,
    cases: Sequence[str] = (),
    search: Search | None = None,
    looks: int = 0,
) -> Brief:
    """Return the prompt for a question, within its tokens.

    `cases` are similar failures, a line each; the model may look into the log so many times.
    """
    free = max(0, tokens - estimate(bare(prompt)))
    filled = partial(_filled, prompt, pages.question.reported.failed)
    overview = list(_within(_overview(pages), min(_OVERVIEW, free // 4)))
    cases = list(_within((pages.plain(case) for case in cases), min(_CASES, free // 8)))
    room = tokens - estimate(filled(overview, [], _left_out(pages, 0), cases, looks)) - _GAP
    taken = _picked(pages, room, search)
    picked = taken.lines
    while True:
        chosen = dict(sorted(picked.items()))
        missing = max(0, pages.count - len(chosen) - len(taken.folded))
        text = filled(overview, _excerpt(pages, chosen, taken.folded), _left_out(pages, missing), cases, looks)
        if estimate(text) <= tokens:
            return Brief(text, chosen, frozenset(chosen), not missing)
        if picked:  # a fence grows with the backticks in what it holds
            for place in list(picked)[-max(1, len(picked) // 8) :]:
                del picked[place]
        elif cases:
            cases = cases[:-1]
        elif overview:
            overview = overview[:-1]
        else:
            return Brief(text, chosen, frozenset(), False)  # `check` saw that the prompt alone has room


def _filled(
    prompt: Prompt,
    has_failed: bool,
    overview: list[str],
    lines: list[str],
    left_out: str,
    cases: Sequence[str],
    looks: int,
) -> str:
    return prompt.render(
        {
            "reasons": guide.reasons(has_failed),
            "recoveries": guide.recoveries(),
            "faults": guide.faults(),
            "overview": overview,
            "lines": lines,
            "left_out": left_out,
            "cases": list(cases),
            "similar": str(len(cases)),
            "looks": str(looks),
            "look_lines": str(LOOK_LINES),
        }
    )


def _within(lines: Iterable[str], room: int) -> Iterator[str]:
    """Yield the lines that fit, whole and in order; the first that does not ends them."""
    for line in lines:
        room -= estimate(line) + 1
        if room < 0:
            return
        yield line


Wish = tuple[Place, bool]
"""A line that is wished for, and whether it is shown also where its kind folds."""


class _Picked:
    """The lines to show, in the order in which they were wished for, the room that is left, and the kinds of those that
    fold."""

    def __init__(self, pages: Pages, room: int) -> None:
        self.pages, self.room = pages, room
        self.lines: dict[Place, Shown] = {}
        self.folded: dict[Place, str] = {}
        self.letters = 0
        self._forms: Counter[str] = Counter()

    def take(self, place: Place, is_decisive: bool) -> None:
        """Take a line if it has room and does not fold."""
        stream, number = place
        message = self.pages.said(stream, number)
        if place in self.lines or (place in self.folded and not is_decisive) or not _says_something(message):
            return
        form = form_of(message)
        kind = self.pages.folds(stream, number) or ("repeats" if self._forms[form] >= _ALIKE else "")
        if kind == "bars" and not self._forms[form]:
            kind = ""  # how far one came
        if kind and not is_decisive:
            self.folded[place] = kind
        elif (line := self.pages.line(stream, number)) is not None:
            self.letters += len(line.raw)
            cost = estimate(handle(line)) + 1
            cost += 0 if (stream, number - 1) in self.lines or (stream, number + 1) in self.lines else _GAP
            if cost > self.room:
                return
            self._forms[form] += 1
            self.folded.pop(place, None)
            self.lines[place] = line
            self.room -= cost


def form_of(message: str) -> str:
    """Return what is equal of lines that are alike."""
    half = _COMPARED // 2
    return with_codes(message if len(message) <= _COMPARED else f"{message[:half]} {message[-half:]}")


def _picked(pages: Pages, room: int, search: Search | None) -> _Picked:
    """Return as many lines as have room, of those wished for first, each kind within its share."""
    picked = _Picked(pages, room)
    left = _MOST
    for share, wishes in _wishes(picked, search):
        least = max(2 * _GAP, picked.room - share * room)
        for place, is_decisive in islice(wishes, left):
            if picked.room < least or picked.letters > _LETTERS:
                break
            left -= 1
            picked.take(place, is_decisive)
    return picked


def _wishes(picked: _Picked, search: Search | None) -> Iterator[tuple[float, Iterator[Wish]]]:
    """Yield the lines that tell most, then others, each kind with its share of the room; the later ones are wished for
    knowing what was `picked`."""
    pages, question = picked.pages, picked.pages.question
    readings, episodes = question.case.readings, pages.errors[:_EPISODES]
    yield 0.25, _around(pages.named)
    yield 0.35, _of_episodes(readings, episodes[:3])
    yield 0.2, _of_ends(pages, episodes)
    yield 0.4, _of_writers(readings, pages.errors)
    yield 0.2, _announced(readings)
    starts = _starts(question)
    decided = (run.decided_at for run in question.verdict.runs if starts)
    yield 0.1, (((0, number), False) for number in (*starts, *decided))
    yield 0.3, _of_episodes(readings, episodes[3:_WHOLE])
    yield 0.5, (((episode.stream, episode.line), True) for episode in episodes)
    if search is not None and picked.room > _WIDEST:
        yield 1.0, _found(picked, search)
    yield 1.0, ((place, False) for place in _marked([reading.record for reading in readings]))
    yield 1.0, (((at, n), False) for at in range(len(readings)) for n in reversed(pages.numbers[at]))


def _around(places: Sequence[Place]) -> Iterator[Wish]:
    """Yield some lines, then those around them."""
    yield from ((place, True) for place in places)
    for stream, line in places:
        near = (number for far in range(1, _AROUND + 1) for number in (line - far, line + far))
        yield from (((stream, number), False) for number in near)


def _of_episodes(readings: list[StreamReading], episodes: Sequence[Episode]) -> Iterator[Wish]:
    """Yield the lines that name failures, the exceptions of their chains, then the innermost frames and what its writer
    printed next."""
    for episode in episodes:
        yield (episode.stream, episode.line), True
        if (chain_of := readings[episode.stream].chain_at(episode.line)) is not None:
            yield from (((episode.stream, raised.line), True) for raised in chain_of.raised)
    for episode in episodes:
        if episode.role in FOLLOWING[1:]:
            continue
        before = [number for number in episode.lines if number < episode.line]
        yield from (((episode.stream, number), True) for number in reversed(before[-_FRAMES:]))
        yield from _after(readings, episode)
        yield from (((episode.stream, number), False) for number in episode.lines)


def _after(readings: list[StreamReading], episode: Episode) -> Iterator[Wish]:
    """Yield the lines that the writer of an error printed next, and those that follow in the log."""
    last = max((*episode.lines, episode.line))
    numbers = _by_its_writer(readings[episode.stream], episode.line, last, _AFTER)
    yield from (((episode.stream, number), False) for number in (*numbers, last + 1, last + 2))


def _by_its_writer(reading: StreamReading, number: int, last: int, most: int) -> list[int]:
    """Return the lines that the writer of a line printed next behind another one."""
    lines = reading.by_channel.get(reading.origins[number].channel, [])
    begin = bisect_right(lines, last, key=lambda line: line.number)
    return [line.number for line in lines[begin : begin + most]]


def _of_writers(readings: list[StreamReading], episodes: Sequence[Episode]) -> Iterator[Wish]:
    """Yield the first and the last fault of its own of each writer, with what it printed next; who failed first comes
    first, with what stands before."""
    own: dict[tuple[int, str], list[Episode]] = {}
    for episode in sorted(episodes, key=_first):
        if episode.role not in FOLLOWING and not episode.survived:
            own.setdefault((episode.stream, readings[episode.stream].origins[episode.line].channel), []).append(episode)
    for at in (0, -1):
        for faults in own.values():
            yield (faults[at].stream, faults[at].line), True
            yield from _after(readings, faults[at])
    for faults in list(own.values())[:2]:
        _, stream, first = _first(faults[0])
        yield from (((stream, first - far), False) for far in range(1, _AROUND + 1))


def _announced(readings: list[StreamReading]) -> Iterator[Wish]:
    """Yield the lines that announce what went wrong, and what their writers printed next."""
    for stream, reading in enumerate(readings):
        marked = [line for line, _ in reading.lines if line.strong or line.weak or line.rules]
        for line in marked if len(marked) <= _MOST else (*marked[: _MOST // 2], *marked[-_MOST // 2 :]):
            if _LEADS_ON.search(line.text[:_WIDEST]) or _LEADS_ON.search(line.text[-_WIDEST:]):
                numbers = _by_its_writer(reading, line.number, line.number, _AFTER)
                yield from (((stream, number), False) for number in (line.number, *numbers))


def _of_ends(pages: Pages, episodes: Sequence[Episode]) -> Iterator[Wish]:
    """Yield the lines that tell how processes and the job ended, then the last lines of the streams with the most
    suspicious episodes, or of the first ones."""
    case = pages.question.case
    told = [end[:2] for end in case.judgement.ends] or [(one.stream, one.line) for one in case.judgement.teardown]
    yield from ((place, False) for place in told[:_REPORTS])
    marks = [(found.stream, found.line) for found in case.found if found.outcome]
    yield from ((place, False) for place in marks[-_END:])
    for stream in list(dict.fromkeys((*(one.stream for one in episodes), *range(len(case.readings)))))[:_ENDS]:
        last = enumerate(reversed(pages.numbers[stream][-_END:]))
        yield from (((stream, number), at == 0) for at, number in last)


def _starts(question: Question) -> list[int]:
    """Return the lines with which runs begin in a file that holds several."""
    runs, readings = question.verdict.runs, question.case.readings
    return [*(run.line for run in runs), min(readings[0].texts, default=1)] if runs and len(readings) == 1 else []


def _first(episode: Episode) -> tuple[float, int, int]:
    """Return when or where an episode begins."""
    return episode.time or 0.0, episode.stream, min((*episode.lines, episode.line))


def _marked(records: Sequence[Record]) -> Iterator[Place]:
    """Yield the lines with marks of trouble, the strong ones first; of lines that are alike one before the others."""
    seen: set[str] = set()
    again: list[tuple[int, int]] = []
    looked = 0
    kinds: tuple[Callable[[Line], bool], ...] = (lambda line: line.strong, lambda line: line.weak or line.noticed)
    for kind in kinds:
        for stream, record in enumerate(records):
            for line in filter(kind, record.lines):
                looked += 1
                form = form_of(line.text) if looked <= _MOST // 2 else ""
                if form and form not in seen:
                    seen.add(form)
                    yield stream, line.number
                else:
                    again.append((stream, line.number))
    yield from again


def _found(picked: "_Picked", search: Search) -> Iterator[Wish]:
    """Yield the lines that are nearest in meaning to what is asked, each with its neighbours, among the most telling of
    those that are not shown yet."""
    pages, seen = picked.pages, picked.lines.keys() | picked.folded.keys()
    all_lines = ((at, line) for at, reading in enumerate(pages.question.case.readings) for line, _ in reading.lines)
    lines = [(at, line) for at, line in all_lines if (at, line.number) not in seen]
    lines = sorted(lines, key=lambda one: -_telling(one[1]))[:_SEARCHED]
    texts = [origin(as_on_terminal(line.text)).message.strip()[:_SAID] for _, line in lines]
    titles = [episode.title[:_SAID] for episode in pages.errors[:3]]
    for place in search("\n".join([_QUESTION, *titles]), texts, _FOUND) if len(lines) > _FOUND else range(len(lines)):
        stream, line = lines[place]
        yield from (((stream, line.number + beside), False) for beside in (0, -1, 1))


def _telling(line: Line) -> float:
    """Return how much the words and marks of a line tell of trouble."""
    return 2.0 * line.strong + line.weak + line.noticed + 0.5 * min(3, len(_TROUBLE.findall(line.text[-400:])))


def _excerpt(pages: Pages, chosen: dict[Place, Shown], folded: dict[Place, str]) -> list[str]:
    """Return the lines in the order of the log, with words for what is left out between them and for other runs."""
    rows: list[str] = []
    starts = _starts(pages.question)
    before: Place = (-1, 0)
    kinds: Counter[str] = Counter()
    for stream, number in sorted(chain(chosen, (place for place in folded if place not in chosen))):
        if stream != before[0]:
            rows += ["..."] if rows else []
            before, kinds = (stream, 0), Counter()
        if (line := chosen.get((stream, number))) is None:
            kinds[folded[stream, number]] += 1
            continue
        if gap := number - before[1] - 1:
            what = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
            rows.append(f"... {gap} line{'s' * (gap > 1)} not shown{f' ({what})' if what else ''} ...")
        for run, start in enumerate(starts, 1):
            if before[1] < start <= number:
                which = "the last, which is asked about" if run == len(starts) else "an earlier one"
                rows.append(f"... run {run} of {len(starts)} begins here, {which} ...")
        rows.append(handle(line))
        before, kinds = (stream, number), Counter()
    return rows


def _overview(pages: Pages) -> Iterator[str]:
    """Yield what is known of the job: how it ended, how far it came, its streams, and its errors."""
    question, case = pages.question, pages.question.case
    verdict = question.verdict
    known = [_ended(question), _progress(pages), *([] if question.is_blind else [_by_rules(pages)])]
    yield "; ".join(known)
    places = [pages.place(one.stream, one.line) for one in verdict.evidence[:1]]
    if question.is_blind:
        pass
    elif why := verdict.why or "".join(f"[{place[0]}:{place[1]}] says so" for place in places if place):
        yield f"why: {shortened(pages.plain(why), 3 * _TITLE)}"
    for end in case.judgement.ends[:_ENDS]:
        yield f"an end at [{end.stream}:{end.line}]: {end.detail}"
    starts = _starts(question)
    for run, (start, earlier) in enumerate(zip(starts, verdict.runs, strict=False), 1):
        by = f", as [0:{earlier.decided_at}] tells" if earlier.decided_at else ""
        yield f"run {run} of {len(starts)} in this file, from [0:{start}]: {earlier.outcome}, {earlier.reason}{by}"
    of_ends = (episode for episode in pages.errors if episode.role in FOLLOWING[1:])
    others = (episode for episode in pages.errors if episode.role not in FOLLOWING[1:])
    errors = list(islice(chain(others, islice(of_ends, _ENDS)), _ERRORS))
    for episode in errors:
        yield f"{_told(episode, case.judgement.survival)}: {shortened(pages.plain(episode.title), _TITLE)}"
    if more := len(pages.errors) - len(errors):
        yield f"and {more} more errors"
    for stream, record in enumerate(question.records[:_STREAMS]):
        times = list(case.readings[stream].times.values())
        is_back = sum(a > b for a, b in pairwise(times)) > sum(a < b for a, b in pairwise(times))
        order = ", the newest first" if is_back else ""
        yield f"stream {stream} is {pages.plain(record.stream[:80])}: {record.compression.lines_in} lines{order}"
    if len(question.records) > _STREAMS:
        yield f"and {len(question.records) - _STREAMS} more streams"


def _ended(question: Question) -> str:
    """Return the outcome, and how the job ended as others report it."""
    reported = question.reported
    end = of_report(reported.exit_code, reported.signal)
    codes = [f"exit code {reported.exit_code}"] * (reported.exit_code is not None)
    codes += [f"signal {reported.signal}"] if reported.signal else []
    codes += [end.kind] if end is not None and end.number else []
    codes = codes or ["it died"] * reported.died
    return ", ".join([f"outcome {question.verdict.outcome}", *(["reported"] if codes else []), *codes])


def _progress(pages: Pages) -> str:
    """Return how far the job came, and which line tells it."""
    progress = Progress() if pages.question.verdict.progress.learned else pages.question.verdict.progress
    if progress.step is None:
        return "no step is known"
    place = pages.place(progress.stream, progress.line)
    at = f" at [{place[0]}:{place[1]}]" if place else ""
    loss = "" if progress.loss is None else f", last loss {progress.loss:.4g}"
    return f"last step {progress.step} of {progress.total or 'unknown'}{at}{loss}"


def _by_rules(pages: Pages) -> str:
    """Return what the rules say of the cause, and what else they thought of: a claim to be judged by the lines."""
    verdict = pages.question.verdict
    if verdict.reason in ("Unknown", "None"):
        return "the rules know no cause"
    places = [pages.place(one.stream, one.line) for one in verdict.evidence[:1]]
    at = "".join(f" at [{place[0]}:{place[1]}]" for place in places if place)
    also = "".join(f", {one.reason}" for one in verdict.alternatives[:3])
    return f"rules see {verdict.reason}{at}{also}, and may be wrong"


def _told(episode: Episode, survival: Mapping[Place, str]) -> str:
    """Return an error in words: where it is named, who printed it, and what is known of it."""
    ranks = f" by ranks {_ranks(episode.ranks)}" if episode.ranks else ""
    times = f" printed {episode.reports} times" if episode.reports > 1 else ""
    made = "steps were made after it" if episode.survived else _ROLES.get(episode.role, "")
    what = survival.get((episode.stream, episode.line), made)
    return f"error at [{episode.stream}:{episode.line}]{times}{ranks}{f', {what}' if what else ''}"


def _ranks(ranks: tuple[int, ...]) -> str:
    few = ", ".join(map(str, ranks[:4]))
    return few if len(ranks) <= 4 else f"{few} and {len(ranks) - 4} more"


def _left_out(pages: Pages, missing: int) -> str:
    """Return how many lines are not shown, in words."""
    written = sum(record.compression.lines_in for record in pages.question.records)
    words = f"It has {written} lines; {pages.count} of them are remarkable or near those that are."
    return f"{words} {missing} of these had no room here." if missing else words
