"""Code decides whether a proposed filter pattern may become a rule, before anything is written.

A filter rule takes lines out of what diagnosis sees: one bad pattern hides the cause of a failure. So a proposal is
refused unless each guard passes it, and the refusal names the guard. The guards, in order:

    form        text of one line, printable, neither empty nor longer than 1,000 characters
    anchor      `^` at its begin, `$` at its end, no alternative that escapes them
    grammar     nothing but the small language of `grammar`
    compile     small enough to compile; Hyperscan and `regex` compile it
    secret      its literal text holds no password, key or token
    duplicate   neither its pattern nor all of its lines belong to a live rule already
    field       no field may hold a sentence, nor a word where its lines have numbers or a few known words; but any
                text may end a line behind a head that says what is done with it (`heads`), if its lines show many
    literal     enough literal text; no random or shuffled lines, not most of a log at once
    claims      matches the lines it is for, also behind the prefixes of launchers
    evidence    matches no line that shows a cause: examples, canary corpus, past evidence
    error-word  not refused, but a person must approve: it takes lines that look like trouble
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import NamedTuple

import msgspec

from logdoctor.learning.filters.automaton import Automaton
from logdoctor.learning.filters.heads import head_of, label_cause, parted, texts_cause
from logdoctor.learning.filters.matching import compiled, hits, lines_of, taken_of
from logdoctor.learning.filters.probes import (
    holds_any_word,
    mutation_taken,
    phrase_held,
    random_lines,
    shuffled,
    wide_field,
)
from logdoctor.learning.filters.proposal import FilterCandidate, Proposal, Sample
from logdoctor.learning.grammar import Pattern, parse
from logdoctor.learning.proposed import Refusal, first_refusal, learnable, refusal
from logdoctor.llm.masking import mask
from logdoctor.rules import marks
from logdoctor.rules.pattern_set import Lines

GUARDS = (
    *("form", "anchor", "grammar", "compile", "secret", "duplicate"),
    *("field", "literal", "claims", "evidence", "error-word"),
)
"""All guards, by which refusals are counted; lessons add `vote`, `noticed` and `judge`."""

_DISGUISES = (
    "[rank3]: ",
    "2024-03-02 11:08:47,123 ",
    "gpu-cn-0713: ",
    "[1,3]<stderr>:",
    "(RayTrainWorker pid=4182, ip=10.0.4.12) ",
    "[2024-03-02 11:08:47,123] [ERROR] [logging.py:96:log_dist] [Rank 0] ",
    "ERROR:root:",
    "worker 3 | ",
)
"""Prefixes behind which cause lines are tried."""
_MATCHED = 2  # the first of them: every rule must match its lines behind these
_LETTERS = 5  # of literal words, if a field may hold any word
_FEW_LETTERS, _FEW_CHARACTERS = 3, 8  # one of them, if none may
_RULER = 3  # literal characters of a pattern without fields
_MANY_GROUPS = 8  # kinds of lines, and most of a sample, are too many for few letters
_MUTATED = 64  # lines of a candidate whose fields are tried
_SHUFFLES = 0.2  # share of the shuffles of its own lines that a pattern may match


class Approval(msgspec.Struct, frozen=True):
    """A proposal that passes all guards but takes lines that look like trouble: a person must approve it, and why."""

    pattern: str
    guard: str
    cause: str


Outcome = Refusal | Approval | None
"""The guards' result for a candidate; None: it may become a rule."""


class _Fit(NamedTuple):
    """A candidate whose pattern, the `source`, may be compiled. If any text may follow a head, `pattern` and
    `automaton` are the head's."""

    place: int
    candidate: FilterCandidate
    source: str
    pattern: Pattern
    automaton: Automaton
    headed: bool


@lru_cache(maxsize=2)
def _disguised(causes: tuple[str, ...]) -> Lines:
    """Return lines of causes as they are and behind prefixes; shared by all guards of a process."""
    return lines_of(prefix + line for prefix in ("", *_DISGUISES) for line in causes)


class FilterGuards:
    """The guards, with the known causes that they test proposals against.

    `causes` are the lines of `canary.causes`, `past` lines that were cited as evidence. Callers pass a cited metric
    line only if no rule with metrics would take it.
    """

    def __init__(self, causes: Iterable[str], past: Iterable[str] = ()) -> None:
        self._causes = _disguised(tuple(dict.fromkeys(causes)))
        self._cited = dict.fromkeys(past)
        self._joined: Lines | None = None
        self._remembering = threading.Lock()

    def remember(self, lines: Iterable[str]) -> None:
        """Add lines that were cited as evidence; any thread may call."""
        with self._remembering:
            before = len(self._cited)
            self._cited.update(dict.fromkeys(lines))
            if len(self._cited) > before:
                self._joined = None

    def _past(self) -> Lines:
        """Return all cited lines. They are joined on demand, not for each verdict."""
        with self._remembering:
            if self._joined is None:
                self._joined = lines_of(self._cited)
            return self._joined

    def evidence_taken(self, patterns: Sequence[str]) -> dict[str, str]:
        """Return the patterns that match a cause's line or past evidence, each with the line."""
        past = self._past()
        found: dict[str, str] = {}
        for lines in (self._causes, past):
            matched = taken_of(patterns, lines)
            found |= {one: _text(lines, places) for one, places in zip(patterns, matched, strict=True) if places}
        return found

    def outcomes(
        self,
        candidates: Sequence[FilterCandidate],
        sample: Sample,
        live: Collection[str] = (),
        explained: AbstractSet[int] = frozenset(),
    ) -> list[Outcome]:
        """Return the guards' result for each candidate, in order; all are compiled and matched together.

        `live` are the patterns of live rules, `explained` the lines of the sample, by index, that these take. Of two
        candidates that take the same lines the first passes.
        """
        outcomes: list[Outcome] = [None] * len(candidates)
        fits: list[_Fit] = []
        known = set(live)
        for place, candidate in enumerate(candidates):
            fit = _fitted(place, candidate, known)
            if isinstance(fit, Refusal):
                outcomes[place] = fit
            else:
                fits.append(fit)
                known.add(candidate.proposal.pattern)
        taken: set[int] = set(explained)
        for fit, refused in self._matched(fits, sample) if fits else ():
            if fit.candidate.takes <= taken:
                refused = refused or refusal(fit.source, "duplicate", "all of its lines are already removed")
            outcomes[fit.place] = refused or _approval(fit, sample)
            if not refused:
                taken |= fit.candidate.takes
        return outcomes

    def outcome(
        self,
        candidate: FilterCandidate,
        sample: Sample,
        live: Collection[str] = (),
        explained: AbstractSet[int] = frozenset(),
    ) -> Outcome:
        """Return the guards' result for one candidate."""
        return self.outcomes([candidate], sample, live, explained)[0]

    def outcome_of_rule(self, pattern: str, examples: Sequence[str], live: Collection[str] = ()) -> Outcome:
        """Return the guards' result for a pattern written elsewhere, judged by its examples."""
        places = range(len(examples))
        sample = Sample("", "", 0, tuple(examples), (("", 0),) * len(examples), (0,) * len(examples), (len(examples),))
        return self.outcome(FilterCandidate(Proposal(pattern, ""), frozenset(places), ()), sample, live)

    def _matched(self, fits: list[_Fit], sample: Sample) -> Iterator[tuple[_Fit, Refusal | None]]:
        """Yield each candidate with its refusal by what it matches, or with None."""
        part = compiled([fit.source for fit in fits])
        if part is None:  # one of them is refused, or all together are too large
            if len(fits) == 1:
                yield fits[0], refusal(fits[0].source, "compile", "Hyperscan refuses it")
            else:
                yield from self._matched(fits[: len(fits) // 2], sample)
                yield from self._matched(fits[len(fits) // 2 :], sample)
            return

        past = self._past()
        shuffles = list(shuffled(sample.lines, sample.groups))
        tried = (
            lines_of(sample.lines),
            *(lines_of(prefix + line for line in sample.lines) for prefix in _DISGUISES[:_MATCHED]),
            lines_of(random_lines()),
            lines_of(line for _, line in shuffles),
            self._causes,
            past,
        )
        for fit, *matched in zip(fits, *(hits(part, lines) for lines in tried), strict=True):
            yield fit, first_refusal(fit.source, self._asked(fit, sample, matched, shuffles, past))

    def _asked(
        self, fit: _Fit, sample: Sample, matched: Sequence[set[int]], shuffles: Sequence[tuple[int, str]], past: Lines
    ) -> Iterator[tuple[str, str | None]]:
        """Yield the guards that look at what the pattern matched."""
        bare, ranked, stamped, noise, disorder, causes, cited = matched
        yield "claims", _claims_cause(fit.candidate, sample, (bare, ranked, stamped))
        yield "literal", _noise_cause(noise, disorder, shuffles, fit.candidate)
        yield "literal", _spread_cause(fit, sample)
        yield "evidence", _evidence_cause(causes, self._causes)
        yield "evidence", _evidence_cause(cited, past)
        lines = _some_lines(fit.candidate, sample)
        if fit.headed:
            parts = parted(fit.automaton, lines)
            lines = [head for head, _ in parts]
            yield "field", texts_cause([text for _, text in parts])
        yield "field", mutation_taken(fit.automaton, lines)


def _fitted(place: int, candidate: FilterCandidate, known: Collection[str]) -> _Fit | Refusal:
    """Return the candidate with its pattern parsed, or its refusal before compiling."""
    source = candidate.proposal.pattern
    pattern = learnable(source)
    if isinstance(pattern, Refusal):
        return pattern
    head = head_of(source)
    judged = parse(head) if head else pattern
    fit = _Fit(place, candidate, source, judged, Automaton(judged), head is not None)
    return first_refusal(source, _asked_alone(fit, source in known)) or fit


def _asked_alone(fit: _Fit, is_known: bool) -> Iterator[tuple[str, str | None]]:
    """Yield the guards that look at the pattern alone."""
    yield "duplicate", "another rule has the same pattern" if is_known else None
    yield "field", _field_cause(fit.pattern, fit.automaton)
    yield "field", label_cause(" ".join(fit.pattern.literals)) if fit.headed else None
    yield "literal", _literal_cause(fit.pattern, fit.automaton)


def _field_cause(pattern: Pattern, automaton: Automaton) -> str | None:
    if wide := wide_field(pattern):
        return f"it has {wide}"
    phrase = phrase_held(pattern, automaton)
    return f"a line that it matches may hold {phrase!r}" if phrase else None


def _literal_cause(pattern: Pattern, automaton: Automaton) -> str | None:
    letters, characters = pattern.letters, pattern.characters
    if holds_any_word(automaton):
        return f"{letters} letters of literal words, at least {_LETTERS} are required" if letters < _LETTERS else None
    if letters >= _FEW_LETTERS or characters >= (_FEW_CHARACTERS if pattern.fields else _RULER):
        return None
    return f"{letters} letters of literal words and {characters} literal characters are too few"


def _claims_cause(
    candidate: FilterCandidate, sample: Sample, matched: tuple[set[int], set[int], set[int]]
) -> str | None:
    """Return why it does not match what it claims: bare, behind a rank, behind a time; None if it does."""
    takes = candidate.takes
    if not takes or not takes <= set(range(len(sample.lines))):
        return "it matches no line of the sample"
    for lines, where in zip(matched, ("", " behind a rank prefix", " behind a time stamp"), strict=True):
        if missed := takes - lines:
            return f"it does not match {sample.lines[min(missed)][:200]!r}{where}"
    if more := matched[0] - takes:
        return f"it also matches {sample.lines[min(more)][:200]!r}, which it does not claim"
    return None


def _noise_cause(
    noise: set[int], disorder: set[int], shuffles: Sequence[tuple[int, str]], candidate: FilterCandidate
) -> str | None:
    """Return how it matches meaningless lines, or lines with their words in another order; None if it does not."""
    if noise:
        return f"it matches a random line, {random_lines()[min(noise)]!r}"
    own = [number for number, (place, _) in enumerate(shuffles) if place in candidate.takes]
    foreign = disorder.difference(own)
    if foreign or len(disorder) > _SHUFFLES * len(own):
        return f"it matches words in any order, {shuffles[min(foreign or disorder)][1][:200]!r}"
    return None


def _spread_cause(fit: _Fit, sample: Sample) -> str | None:
    """Return how it takes most of a log with little literal text; None if it does not."""
    groups = {sample.groups[place] for place in fit.candidate.takes}
    wide = len(groups) >= _MANY_GROUPS and 2 * len(groups) > len(sample.counts)
    if wide and fit.pattern.letters < _LETTERS:
        return f"it takes {len(groups)} of {len(sample.counts)} kinds of lines with {fit.pattern.letters} letters"
    return None


def _evidence_cause(matched: set[int], lines: Lines) -> str | None:
    return f"it matches a line that states a cause, {_text(lines, matched)[:200]!r}" if matched else None


def _text(lines: Lines, matched: set[int]) -> str:
    """Return the first of the matched lines."""
    return lines.texts[min(matched)].decode("utf-8", "replace")


def _some_lines(candidate: FilterCandidate, sample: Sample) -> list[str]:
    """Return lines of the candidate, taking some of each group first."""
    nth: dict[int, int] = {}
    ranked: list[tuple[int, int]] = []
    for place in sorted(candidate.takes):
        group = sample.groups[place]
        nth[group] = nth.get(group, 0) + 1
        ranked.append((nth[group], place))
    return [sample.lines[place] for _, place in sorted(ranked)[:_MUTATED]]


def _approval(fit: _Fit, sample: Sample) -> Approval | None:
    """Return the approval needed when its text or one of its lines looks like trouble; None otherwise."""
    source = fit.source
    for text in (*fit.pattern.literals, *(sample.lines[place] for place in sorted(fit.candidate.takes))):
        if marks.is_error_like(text):
            return Approval(source, "error-word", f"it removes lines that look like errors, {mask(text)[:200]!r}")
    return None
