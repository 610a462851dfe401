"""Texts that a random generator made: keys and tokens, whoever gives them out.

Words and names of programs are made of letters that often follow each other. Of 49,000 different words of 16 characters
and more in logs and source code, those with more than two unusual pairs in five are encoded data and ids; of random
letters and digits, one in a thousand has fewer where 16 stand in a row, and one in 100,000 where 24 do.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from operator import add
from string import ascii_lowercase, ascii_uppercase, digits

_FOLLOWERS = (
    "abcdgilmnprstuy baelou cacehiklortu dadeiorsu eacdefglmnprstvwx faefilou geinrs haeio iabcdefglmnoprstvz keis"
    " ladeilostuy maeiop nacdefginostv oabcdgiklmnoprstuvw paeiloprstu qu racdegikmnorstuvy sacehiopstu tacehilorstuy"
    " ubelmnprst vaei waeio"
)
"""For each letter that has some, those that often stand behind it: nine of ten neighbours in words."""


def _usual() -> Iterator[str]:
    for first, others in ((group[0], group[1:]) for group in _FOLLOWERS.split()):
        for other in others:
            yield from (first + other, first.upper() + other, first.upper() + other.upper())
    for row in (ascii_lowercase, ascii_uppercase):
        yield from map("".join, pairwise(row))
    yield from map("".join, product(digits, digits))


_USUAL = frozenset(_usual())
_ODD = ((24, 0.37), (16, 0.42), (0, 0.5))
"""From how many letters and digits on, which share of the neighbours is unusual in a random text."""
_ODD_WITH_MARKS = 0.45
_LEAST = 16  # letters and digits of one
_LOOKED_AT = 512  # characters of a text: the rest is like its beginning
_RUN = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{16,}={0,2}")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/]{24,}={0,2}(?![A-Za-z0-9+/_-])")
_URL_SAFE = re.compile(r"(?<![A-Za-z0-9_-])(?!_Z)[A-Za-z0-9_-]{24,}")  # `_Z` begins a name of C++
_WORD = re.compile(r"(?<![A-Za-z0-9])(?!(?<=_)Z)[A-Za-z0-9]{16,}(?![A-Za-z0-9])")
_HEX = re.compile(r"(?<![A-Za-z0-9])(?:(?:0[xX])?[0-9a-f]{4,}|[0-9A-F]{4,})(?![A-Za-z0-9])")
_MARKS = re.compile(r"[^A-Za-z0-9]+")


def hide_random(hide: Callable[[str], str], text: str) -> str:
    """Return the text with what `hide` makes of each text in it that was made at random. Hashes and other hexadecimal
    numbers are left, because ids are such. Time is linear in the text."""
    return _RUN.sub(partial(_without, hide), text)


def _without(hide: Callable[[str], str], run: re.Match[str]) -> str:
    text = run[0]
    for form in (_BASE64, _URL_SAFE, _WORD):
        text = form.sub(lambda found: hide(found[0]) if is_random(found[0]) else found[0], text)
    return text


def is_random(text: str, least: int = _LEAST) -> bool:
    """Return whether a text was made at random, as far as so many letters and digits can tell. If marks stand between
    them, they are of all kinds, and at least seven times as many."""
    text = text[:_LOOKED_AT]
    words = _MARKS.sub(" ", _HEX.sub(" ", text)).strip()
    count = len(words) - words.count(" ")
    if " " in words:
        if not all(any(map(kind, words)) for kind in (str.islower, str.isupper, str.isdigit)):
            return False
        if count < 7 * words.count(" "):
            return False
        wanted = _ODD_WITH_MARKS
    else:
        wanted = next(share for most, share in _ODD if count >= most)
    pairs = [pair for pair in map(add, words, words[1:]) if " " not in pair]
    return count >= least and sum(pair not in _USUAL for pair in pairs) >= wanted * len(pairs)
