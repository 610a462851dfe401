"""What a writer did after an error: it went on as before, started again, or fell silent.

A line's kind is its first words, without numbers, paths and names with numbers. A writer's work (steps, requests,
samples) is the kinds that make up most of what it printed before an error. If the work stops, the error ended its
writer; if all of it goes on, the error was caught.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import regex

from logdoctor.diagnose.ends import tells_of_failure
from logdoctor.diagnose.findings import LogFinding, StreamReading
from logdoctor.diagnose.fingerprint import normalised
from logdoctor.rules.once import once
from logdoctor.text import LineOrigin, said_in

_WORDS = regex.compile(r"[A-Za-z]{2,}|<\w+>")
_RECORD = 1000  # characters of a record in which its message is looked for
_FIRST, _KIND = 500, 4  # characters of a message that are searched for words; words that make its kind
_EARLY = 50  # characters of a message that mostly have these words
_LETTERS = regex.compile(r"[A-Za-z]{2,}")
_ANSWER = regex.compile(r"(?:HTTP/[\d.]+\"|\b(?:GET|POST|PUT) /\S*) (?P<status>[2-5])\d\d\b")
"""How a server answers a request."""
_FAILED = "5"  # server errors; their lines have a kind of their own
_FAILS = f" {_FAILED}"  # suffix of that kind
_REFUSED = regex.compile(r"(?<!://\S{1,80} )\"POST /\S* HTTP/[\d.]+\" 4(?:00|04|09|13|22)\b")
"""How a server answers a bad request."""
_REQUEST = regex.compile(r"\b(?:GET|POST|PUT)\b")
_STREAM = regex.compile(r"<std(?:out|err)>")
_NEAR = 40  # lines of a writer before an error that show its work
_LAST = 3  # last lines before an error; at least one must be work
_AGAIN = 2  # fewest lines of a kind that count as work
_WENT_ON = {True: 1, False: 3}
"""Fewest lines of work after an error that show it was caught; the key is whether a logger printed the error."""
_WARNED = ("WARNING", "WARN")
_RECENT = 6  # lines before a logged error; where requests are few, some of their kinds recur
_ALSO = 2  # fewest of these kinds that must recur
_PROCESS = "pid="  # marks a process in a channel
_TAKEN_OVER = 20  # fewest lines of known kinds by other processes that show that the program goes on
_LOOKED_AT = 400  # most lines after an error that are examined
_AT_START = 12  # lines of a file within which a failure is one at the start
_OPENING = 2  # fewest words of a first line that identify a start
_BEATS = 10  # fewest lines of one kind that show waiting
_BEGUN = 10  # fewest lines behind a repeated first line that show another start
_STATE = regex.compile(r"(?<![\d/])(?P<done>\d{1,9})/(?P<total>\d{2,9}) \[")
_STATES = 10  # fewest new states of a bar that show progress, each further than all before the error
_LATEST = 1000  # most distinct states that are searched, from the last


class OrdinaryLine(NamedTuple):
    """An ordinary line, or a server's 5xx answer. A bar's `kind` is ""; `bar` holds its states. `status` is the first
    digit of an HTTP status, else ""."""

    number: int
    kind: str
    bar: tuple[tuple[int, int], ...]
    status: str


class After(NamedTuple):
    """What a writer printed after an error: ordinary `lines`, `of_work` of them of the kinds in `work`, its work
    before."""

    work: set[str]
    lines: int
    of_work: int


class Aftermath:
    """What the writers of one stream did after any of its lines."""

    def __init__(self, reading: StreamReading) -> None:
        self.reading = reading

    def went_on(self, finding: LogFinding) -> bool:
        """Return whether the writer of an error went on as before, or started again."""
        is_logged = finding.rule is None and finding.origin.level is not None
        return self.goes_on(*self._span(finding), finding.origin.channel, is_logged)

    def is_warned_of(self, finding: LogFinding) -> bool:
        """Return whether a logger printed an exception as a chosen warning and its writer went on. Where most lines are
        warnings, as in output piped through a logger, the level was not chosen."""
        lines, begin, end = self._around(*self._span(finding), finding.origin.channel)
        near = [self.reading.origins[line.number].level for line in lines[max(begin - _NEAR, 0) : begin]]
        is_chosen = 2 * sum(level in _WARNED for level in near) <= len(near)
        return finding.origin.level in _WARNED and is_chosen and len(lines) - end >= _WENT_ON[False]

    def course(self, finding: LogFinding) -> After:
        """Count what the writer of an error printed after it."""
        before, after = self._before_and_after(*self._span(finding), finding.origin.channel)
        work = _work(before)
        return After(work, len(after), sum(line.kind in work for line in after))

    def _span(self, finding: LogFinding) -> tuple[int, int]:
        """Return the first and last line of an error."""
        chain = self.reading.chain_at(finding.line)
        return (chain.first, chain.last) if chain else (finding.line, finding.line)

    def _around(self, first: int, last: int, channel: str) -> tuple[list[OrdinaryLine], int, int]:
        """Return a writer's ordinary lines, and how many come before `first` and up to `last`. A bar on line `first`
        came before it."""
        lines = self._lines.get(writer_of(channel), [])
        begin = _place(lines, first - 1)
        if begin < len(lines) and lines[begin].number == first and not lines[begin].kind:
            begin += 1
        return lines, begin, _place(lines, last)

    def _before_and_after(self, first: int, last: int, channel: str) -> tuple[list[OrdinaryLine], list[OrdinaryLine]]:
        """Return a writer's ordinary lines before and after a span; too slow to call per finding."""
        lines, begin, end = self._around(first, last, channel)
        return lines[:begin], lines[end:]

    def goes_on(self, first: int, last: int, channel: str, is_logged: bool) -> bool:
        """Return whether a writer went on, or started again, after a span. `is_logged` when a logger wrote it."""
        lines, begin, end = self._around(first, last, channel)
        before, after = lines[max(begin - _NEAR, 0) : begin], lines[max(end, len(lines) - _LOOKED_AT) :]
        work = _work(before)
        if deaths := [line.number for line in after if line.number in self._deaths]:
            after = [line for line in after if line.number > deaths[-1]]  # earlier work may have been buffered
        going = [line.kind for line in after if line.kind in work]
        is_all = work <= set(going) or (is_logged and len(going) == len(after) < 2 * len(work))  # or only work follows
        if work and is_all and len(going) >= _WENT_ON[is_logged]:
            return True
        if is_logged and _are_answers({line.kind for line in before[-_RECENT:]} & _well(after)):
            return True
        is_refused = is_logged and after and _REFUSED.search(self.reading.texts[after[0].number])
        if is_refused and not any(line.status == _FAILED for line in after):
            return True  # the error was about one request
        if not after and self._is_taken_over(writer_of(channel), last):
            return True
        opening = lines[: min(begin, _AT_START)]
        return self._bar_moves(writer_of(channel), begin, len(after)) or _begins_anew(opening, after, first)

    def _is_taken_over(self, writer: str, last: int) -> bool:
        """Return whether other processes of the program went on with its work after a line."""
        if _PROCESS not in writer:
            return False
        lines, first = self._of_processes
        begin = _place(lines, last)
        after = lines[begin : begin + _LOOKED_AT]
        going = sum(first[line.kind] < last for line in after if line.kind)
        return _TAKEN_OVER <= going and len(after) <= 2 * going and self._last_death <= last

    @once
    def _of_processes(self) -> tuple[list[OrdinaryLine], dict[str, int]]:
        """The ordinary lines of all processes in order, and the first line of each kind."""
        found = (line for writer, lines in self._lines.items() if _PROCESS in writer for line in lines)
        lines = sorted(found, key=lambda line: line.number)
        return lines, {line.kind: line.number for line in reversed(lines)}

    @once
    def _last_death(self) -> int:
        """The last line that reports a failed process; 0 if none does."""
        return max((line.number for line in self._of_processes[0] if line.number in self._deaths), default=0)

    @once
    def _deaths(self) -> set[int]:
        """The ordinary lines that report a failed process, other than bars with an error behind them."""
        some = (line for _, line in self.ordinary if line.status == _FAILED or line.number not in self._trouble)
        return {one.number for one in some if tells_of_failure(self.reading.origins[one.number].message)}

    @once
    def _trouble(self) -> set[int]:
        """The lines with a sign of trouble, and those of tracebacks."""
        return {line.number for line, _ in self.reading.lines if line.strong or line.weak or line.rules}.union(
            self.reading.in_chains
        )

    def _bar_moves(self, writer: str, begin: int, left: int) -> bool:
        """Return whether a bar passes its earlier states in a writer's last `left` lines. States drawn again at exit,
        or printed again by a launcher, do not count."""
        bars, states, lines = self._bars.get(writer, {}), self._states.get(writer, []), self._lines.get(writer, [])
        moved, since = 0, len(lines) - left
        for done, total, last in islice(reversed(states), _LATEST):
            if last < since:
                return False
            places, furthest = bars.get(total, ([], []))
            known = bisect_left(places, begin)
            is_new = self._first_drawn[writer, self.reading.texts[lines[last].number]] >= begin
            moved += is_new and done > (furthest[known - 1] if known else total)
            if moved == _STATES:
                return True
        return False

    def waits(self, number: int) -> bool:
        """Return whether at least 10 lines, and 80 % of all after a line, are alike."""
        after = [line.kind for lines in self._lines.values() for line in lines[_place(lines, number) :]]
        most = max(Counter(after).values(), default=0)
        return most >= _BEATS and 5 * most >= 4 * len(after)

    def last_answers(self, end: int) -> tuple[int, int]:
        """Return the last request and the last 5xx answer before line `end`; 0 for none."""
        lines = [line for lines in self._lines.values() for line in lines if line.number < end]
        failed = max((line.number for line in lines if line.kind.endswith(_FAILS)), default=0)
        return max((line.number for line in lines if _REQUEST.search(line.kind)), default=0), failed

    def said_between(self, first: int, last: int) -> int:
        """Count the ordinary lines of all writers between two lines."""
        return sum(first < line.number < last for lines in self._lines.values() for line in lines)

    def is_new(self, number: int, channel: str) -> bool:
        """Return whether a writer printed at least 10 lines before a line, none of its kind."""
        lines = self._lines.get(writer_of(channel), [])
        kinds = [line.kind for line in lines if line.number == number]
        before = [line.kind for line in lines if line.number < number]
        return bool(kinds) and len(before) >= _BEGUN and kinds[0] not in before

    def closes(self, number: int, channel: str) -> bool:
        """Return whether work was done before a line and none after it."""
        before, after = self._before_and_after(number, number, channel)
        read = [readings.lines for readings in self.reading.record.progress.values()]
        kinds = {kind for kind, count in Counter(line.kind for line in before).items() if kind and count >= _AGAIN}
        was_done = bool(kinds) or any(line.bar for line in before) or any((some < number).sum() > 1 for some in read)
        goes_on = any(line.kind in kinds for line in after) or any((some > number).any() for some in read)
        return was_done and not goes_on

    @once
    def _lines(self) -> dict[str, list[OrdinaryLine]]:
        """The ordinary lines of each writer, in order."""
        found: dict[str, list[OrdinaryLine]] = {}
        for writer, line in self.ordinary:
            found.setdefault(writer, []).append(line)
        return found

    @once
    def _bars(self) -> dict[str, dict[int, tuple[list[int], list[int]]]]:
        """Bars of each writer by total: at which ordinary lines they advanced, and how far. A bar that falls back below
        half is another bar."""
        found: dict[str, dict[int, tuple[list[int], list[int]]]] = {}
        for writer, lines in self._lines.items():
            bars = found.setdefault(writer, {})
            for place, line in enumerate(lines):
                for done, total in line.bar:
                    places, furthest = bars.setdefault(total, ([], []))
                    known = furthest[-1] if furthest else -1
                    if done > known or 2 * done < known:
                        places.append(place)
                        furthest.append(done)
        return found

    @once
    def _first_drawn(self) -> dict[tuple[str, str], int]:
        """For each writer and bar text, clock included: the place of the first line that shows it."""
        first: dict[tuple[str, str], int] = {}
        for writer, lines in self._lines.items():
            for place, line in enumerate(lines):
                if line.bar:
                    first.setdefault((writer, self.reading.texts[line.number]), place)
        return first

    @once
    def _states(self) -> dict[str, list[tuple[int, int, int]]]:
        """The distinct bar states of each writer, with the place of their last line, in that order."""
        found: dict[str, list[tuple[int, int, int]]] = {}
        for writer, lines in self._lines.items():
            last = {state: place for place, line in enumerate(lines) for state in line.bar}
            found[writer] = sorted(((*state, place) for state, place in last.items()), key=lambda state: state[2])
        return found

    @once
    def ordinary(self) -> list[tuple[str, OrdinaryLine]]:
        """All ordinary lines in order, each with its writer."""
        return list(self._ordinary())

    def _ordinary(self) -> Iterator[tuple[str, OrdinaryLine]]:
        for number, text in sorted(self.reading.texts.items()):
            where, bar = self.reading.origins[number], tuple(_states(text))
            answer = _ANSWER.search(text)
            status = answer["status"] if answer else ""
            if number in self._trouble and status != _FAILED:
                if bar:  # an error follows it in the same line
                    yield writer_of(where.channel), OrdinaryLine(number, "", bar, "")
                continue
            kind = kind_of(where)
            if status == _FAILED:
                kind = f"{kind} {status}".strip()
            if kind and (bar or where.level is not None or not where.message[:1].isspace()):
                yield writer_of(where.channel), OrdinaryLine(number, "" if bar else kind, bar, status)


def kind_of(where: LineOrigin) -> str:
    """Return the kind of a line, or of what a record says: its first 4 words, normalised. Most lines have them up to
    some early blank, which nothing that is normalised reaches across."""
    message = said_in(where.message[:_RECORD])[:_FIRST]
    words = _WORDS.findall(normalised(message[: message.find(" ", _EARLY) + 1]))
    if len(words) < _KIND:
        words = _WORDS.findall(normalised(message))
    return " ".join(words[:_KIND])


def _begins_anew(before: list[OrdinaryLine], after: list[OrdinaryLine], error: int) -> bool:
    """Return whether a program that failed within its first 12 lines was started again. Its first line, printed once
    before, comes once more with a start behind it; `runs` tells longer runs apart."""
    if not before or error > _AT_START:
        return False
    opening = before[0].kind
    again = [at for at, line in enumerate(after) if line.kind == opening]
    comes_once = len(again) == sum(line.kind == opening for line in before) == 1
    return comes_once and len(_LETTERS.findall(opening)) >= _OPENING and len(after) - again[0] >= _BEGUN


def writer_of(channel: str) -> str:
    """Return the writer of a channel: standard output and error belong to one."""
    return _STREAM.sub("", channel)


def _place(lines: list[OrdinaryLine], number: int) -> int:
    """Count the lines up to a number, included."""
    return bisect_right(lines, number, key=lambda line: line.number)


def _work(before: list[OrdinaryLine]) -> set[str]:
    """Return the main kinds of a writer's lines before an error; none if its last 3 differ."""
    kinds = [line.kind for line in before[-_NEAR:] if line.kind]
    counts = Counter(kinds)
    most = max(counts.values(), default=0)
    work = {kind for kind, count in counts.items() if count >= _AGAIN and 2 * count > most}
    return work if work.intersection(kinds[-_LAST:]) else set()


def _well(after: list[OrdinaryLine]) -> set[str]:
    """Return the kinds of lines after an error; none if a server answers 5xx."""
    kinds = {line.kind for line in after} - {""}
    return set() if any(kind.endswith(_FAILS) for kind in kinds) else kinds


def _are_answers(kinds: set[str]) -> bool:
    """Return whether recurring kinds show a server that keeps answering."""
    return len(kinds) >= _ALSO and any(_REQUEST.search(kind) for kind in kinds)


def _states(text: str) -> Iterator[tuple[int, int]]:
    """Yield (done, total) of each bar state in a text."""
    for state in _STATE.finditer(text):
        yield int(state["done"]), int(state["total"])
