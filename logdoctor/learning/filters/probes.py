"""What else a learned pattern would take: questions that its own lines do not ask.

A field is the danger: if a pattern allows any words somewhere, it hides whatever a job says there one day. Two kinds of
probes find that out beforehand: phrases that no line of the pattern may be able to hold, and words put in place of the
numbers and words in its own lines.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache

import regex

from logdoctor.learning.filters.automaton import Automaton
from logdoctor.learning.grammar import Pattern

_PHRASES = tuple(
    phrase.encode()
    for phrase in (
        *("link is down", "gpu-17 drained", "GPU lost", "mlx5_0 down", "node-17 DOWN", "loss nan", "State DOWN"),
        *("out of memory", "no space left", "not responding", "went away", "fell off", "timed out", "was killed"),
        *("zq jx", "Zq Jx", "ZQ JX", "zq7 jx9", "Zq: jx", "zq, jx", "zq\tjx", "(zq) jx", "zq=jx jx", "zq  jx"),
        *("ошибка узла", "显存 不足", "erreur réseau", "zq é"),
    )
)
"""Words with blanks between them; no literal spells the nonsense words, so they stand for any sentence."""
_SPELLED = regex.compile(r"\p{L}{2,}")
_ANY_WORD = ("zq", "Zq", "ZQ", "жц")
_FOR_A_NUMBER = tuple(word.encode() for word in ("nan", "NaN", "inf", "-inf", "DOWN", "down", "drained", "N/A", "失败"))
_FOR_A_WORD = tuple(word.encode() for word in ("DOWN", "down", "Down", "drained", "DRAINED", "nan", "zq"))
_FOR_A_DRAWING = tuple(word.encode() for word in ("显存不足", "ошибка", "down"))
_NUMBER = regex.compile(
    rb"(?:(?<![\w./-])[-+]?|(?<=(?<![\w./-])\d+/))\d(?:[\d.,]*\d)?(?:[eE][-+]?\d+)?(?=[a-zA-Z%/]{0,6}(?![\w-]|\.\w))"
)
"""A number that stands for itself, without its unit; not one within a name, path or date."""
_COUNT_OF_TROUBLE = regex.compile(
    rb"(?i)\b(?:exit ?code|exit status|return code|rc|returned|uncorrectable(?: \w+)?|ecc(?: \w+)?|unhealthy|dead"
    rb"|missing|lost|exited with(?: code| status)?|status|dropped\w*|retired\w*|\w*remap\w*|pending|stale|stuck|silent)"
    rb"[ :=]{1,4}\Z"
)
"""What precedes a number that is 0 as long as all is well."""
_WORD = regex.compile(rb"(?<![\w./-])[A-Za-z]+(?![\w/-]|\.\w|://)")
_DRAWING = regex.compile(rb"[\x80-\xff]+")
_URL = regex.compile(rb"[A-Za-z][A-Za-z0-9+]*://\S+")
_OPEN = 7
"""Distinct words in one place that make it an open list rather than a few states."""


def phrase_held(pattern: Pattern, automaton: Automaton) -> str | None:
    """Return the first phrase with blanks that a line of the pattern could hold; None without one.

    Phrases with a word that the pattern spells are skipped: other guards judge its own text.
    """
    spelled = " ".join(pattern.literals)
    for phrase in _PHRASES:
        words = _SPELLED.findall(phrase.decode())
        if automaton.holds(phrase) and not any(word in spelled for word in words):
            return phrase.decode()
    return None


def holds_any_word(automaton: Automaton) -> bool:
    """Return whether a line of the pattern could hold letters that it does not spell."""
    return any(automaton.holds(word.encode()) for word in _ANY_WORD)


def wide_field(pattern: Pattern) -> str | None:
    """Return what is wrong with a pattern's widest field; None when all are narrow."""
    for chars in pattern.fields:
        if len(chars.members) == 255:
            return "a class that holds any character"
        if chars.free:
            return "a field that may hold words with blanks or tabs between them"
    return None


def mutation_taken(automaton: Automaton, lines: Sequence[str]) -> str | None:
    """Return how a word could replace one of the pattern's own values; None if none could.

    Where its lines have numbers, no word may stand, and where a count of trouble is 0, no other number. Where they have
    one of a few plain words, no other may: an open list of words is recognised by their number.
    """
    words: dict[int, set[bytes]] = {}
    counts: dict[int, set[bytes]] = {}
    for text in lines:
        line = text.encode("utf-8", "replace")
        begin = automaton.message(line)
        if begin is None:
            continue
        message = line[begin:].removesuffix(b"\r")
        urls = [match.span() for match in _URL.finditer(message)]
        forward, backward = automaton.forward(message), automaton.backward(message)
        if word := _misplaced(automaton, message, forward, backward, urls):
            return word
        for place, number in _counts(automaton, message, forward, backward):
            counts.setdefault(place, set()).add(number)
        for place, found in _open_words(automaton, message, forward, backward, urls):
            words.setdefault(place, set()).add(found)
    if {b"0"} in counts.values():
        return "a count of trouble that was always 0 may be any number; write the 0"
    for found_words in words.values():
        if len(found_words) < _OPEN:
            seen = ", ".join(sorted(word.decode() for word in found_words))
            return f"any word may stand where its lines have only {seen}; write these out as (?:a|b)"
    return None


def _misplaced(
    automaton: Automaton, message: bytes, forward: list[int], backward: list[int], urls: "_Spans"
) -> str | None:
    """Return how a word may stand for a number or a drawing of the message; None if none may."""
    for expression, replacements in ((_NUMBER, _FOR_A_NUMBER), (_DRAWING, _FOR_A_DRAWING)):
        for match in expression.finditer(message):
            letters = any(c.isalpha() for c in match.group().decode("utf-8", "replace"))
            if _within(match.start(), urls) or (expression is _DRAWING and letters):
                continue
            for word in replacements:
                if automaton.goes_on(forward[match.start()], word, backward[match.end()]):
                    shown = match.group().decode("utf-8", "replace")
                    return f"{word.decode()!r} may stand where its line has {shown[:40]!r}"
    return None


def _counts(
    automaton: Automaton, message: bytes, forward: list[int], backward: list[int]
) -> Iterator[tuple[int, bytes]]:
    """Yield (place in the pattern, number) for each replaceable count of trouble."""
    for match in _NUMBER.finditer(message):
        if _COUNT_OF_TROUBLE.search(message[max(0, match.start() - 40) : match.start()]):
            if automaton.goes_on(forward[match.start()], b"7", backward[match.end()]):
                yield forward[match.end()] & backward[match.end()], match.group()


def _open_words(
    automaton: Automaton, message: bytes, forward: list[int], backward: list[int], urls: "_Spans"
) -> Iterator[tuple[int, bytes]]:
    """Yield (place in the pattern, word) for each replaceable plain word of the message."""
    for match in _WORD.finditer(message):
        if _within(match.start(), urls):
            continue
        reached = forward[match.end()] & backward[match.end()]
        for word in _FOR_A_WORD:
            if word != match.group() and automaton.goes_on(forward[match.start()], word, backward[match.end()]):
                yield reached, match.group()
                break


_Spans = list[tuple[int, int]]


def _within(place: int, spans: _Spans) -> bool:
    return any(start <= place < end for start, end in spans)


@cache
def random_lines() -> tuple[str, ...]:
    """Return meaningless lines, always the same: words, numbers and marks in random order."""
    dice = random.Random(20261121)
    vowels, consonants = "aeiou", "bcdfghjklmnpqrstvwxz"

    def word() -> str:
        return "".join(dice.choice(consonants) + dice.choice(vowels) for _ in range(dice.randint(1, 4)))

    def token() -> str:
        match dice.randrange(8):
            case 0:
                return str(dice.randrange(10 ** dice.randint(1, 9)))
            case 1:
                return f"{dice.random() * 10 ** dice.randint(-4, 4):.{dice.randint(1, 6)}f}"
            case 2:
                return f"{word()}={dice.randrange(1000)}"
            case 3:
                return f"{word()}:"
            case 4:
                return f"[{word().upper()}]"
            case 5:
                return f"/{word()}/{word()}.{word()[:3]}"
            case _:
                return word().title() if dice.random() < 0.3 else word()

    return tuple(" ".join(token() for _ in range(dice.randint(1, 14))) for _ in range(2000))


def shuffled(lines: Sequence[str], groups: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield (place of a line, its words shuffled): twice for each of three lines of a group.

    A shuffle that differs from its line only in numbers is left out.
    """
    dice = random.Random(4)
    seen: dict[int, int] = {}
    for place, (line, group) in enumerate(zip(lines, groups, strict=True)):
        seen[group] = seen.get(group, 0) + 1
        words = line.split()
        if seen[group] > 3 or len(words) < 2:
            continue
        for _ in range(2):
            other = " ".join(dice.sample(words, len(words)))
            if _DIGITS.sub("0", other) != _DIGITS.sub("0", " ".join(words)):
                yield place, other


_DIGITS = regex.compile(r"[-+]?\d[\d.,e+-]*")
