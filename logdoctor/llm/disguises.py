"""Texts as they read, whatever they are written with, so that what stands in them is recognised.

`password` may be written with letters that look alike, of full width, with marks on them or characters of no width and
colours between them, and with the escapes of JSON, URLs (also of URLs in URLs) and HTML. A plain copy of the text is
searched, and what is found is hidden in the text itself.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from html import unescape

_DISGUISE = re.compile(
    r"(?P<none>(?:\x1b|\\{1,8}(?:x1b|u001b|033|e))"  # a colour, or what else a terminal is told
    r"(?:\[[0-9;:?]{0,20}[@-~]|[()][0-9A-B]|\][^\n\x07\x1b]{0,200}(?:\x07|\x1b\\)))"
    r"|\\{1,8}(?:u(?P<u>[0-9a-fA-F]{4})|u\{(?P<brace>[0-9a-fA-F]{1,6})\}|x(?P<x>[0-9a-fA-F]{2})"
    r"|U(?P<U>[0-9a-fA-F]{8})|(?P<octal>[01][0-7]{2}))"
    r"|\\{1,8}(?P<slash>/)"
    r"|%(?:25){0,8}(?P<percent>[2-7][0-9a-fA-F]|0[9aAdD])"
    r"|&(?:amp;){0,8}(?P<html>\#[0-9]{1,7};?|\#[xX][0-9a-fA-F]{1,6};?|[A-Za-z]{2,31};)"
    r"|(?P<letter>[^\t\n\r -~])"
)
_ALIKE = str.maketrans(
    "аеорсухіјѕԁһԛԝкмтвнгпьӏүαοριντυχεωκγηɑոօАВЕКМНОРСТУХІЈЅԌԚԜΑΒΕΖΗΙΚΜΝΟΡΤΥΧ∶‐‑‒–—−⁄∕“”„«»‘’‚",  # noqa: RUF001 -- those that are meant
    "aeopcyxijsdhqwkmtbhrnblyaopivtuxewkynanoABEKMHOPCTYXIJSGQWABEZHIKMNOPTYX" + ':------//"""""\'\'\'',
)
"""Letters of other alphabets, and marks, that look like those in the names of secrets."""
_DESCRIBED = re.compile(
    r".*LATIN .*LETTER (?:.* )?(?P<letter>[A-Z])(?: WITH .*| ROTUNDA)?"
    r"|.*(?:(?P<colon>(?<!SEMI)COLON|VERTICAL TWO DOT LEADER)|(?P<equals>EQUALS SIGN|DOUBLE HYPHEN))"
)
"""Names that Unicode gives to letters and signs that look like one of ASCII."""
_UNSEEN = frozenset(("Cc", "Cf", "Co", "Mn", "Me"))  # control, format, private, marks on letters
_BLANK = frozenset("\u115f\u1160\u3164\uffa0")  # letters that show nothing
HIDDEN = "\ue000"
"""What stands in place of each letter that is hidden in a plain copy, which else has none."""

Hide = Callable[[str], str]


def hide_disguised(search: Callable[[Hide, str], str], hide: Hide, text: str) -> str:
    """Return the text with what `hide` makes of each part of it that `search`, a function from a way to hide and a text
    to what is left of it, hides in its plain copy; as it was where that is the same. `search` keeps all else."""
    copy, places, origins = _copy(text)
    if copy == text:
        return text

    def origin(place: int) -> int:
        last = bisect_right(places, place) - 1
        return origins[last] + place - places[last]

    parts, at = [], 0
    for found in re.finditer(f"{HIDDEN}+", search(lambda value: re.sub(r"[^\n]", HIDDEN, value), copy)):
        begin, end = origin(found.start()), origin(found.end())
        parts += [text[at:begin], hide(text[begin:end])]
        at = end
    return "".join([*parts, text[at:]])


def plain(text: str) -> str:
    """Return the plain copy of a text."""
    return _copy(text)[0]


def _copy(text: str) -> tuple[str, list[int], list[int]]:
    """Return the plain copy of a text, places in it, and what these are in the text: between them, they go together."""
    parts, places, origins, length, at = [], [0], [0], 0, 0
    for found in _DISGUISE.finditer(text):
        letter = _letter(found[0])
        parts += [text[at : found.start()], letter]
        length += found.start() - at
        at = found.end()
        if len(letter) != len(found[0]):
            places += [length, length + len(letter)]
            origins += [found.start(), at]
        length += len(letter)
    return "".join([*parts, text[at:]]), places, origins


@lru_cache(4096)
def _letter(written: str) -> str:
    """Return what something reads as that `_DISGUISE` matches."""
    found = _DISGUISE.fullmatch(written)
    assert found is not None
    kind = found.lastgroup or ""
    if kind == "none":
        return ""
    if kind in ("slash", "letter"):
        letter = found[kind]
    elif kind == "html":
        letter = unescape(f"&{found[kind]}")
    else:
        number = int(found[kind], 8 if kind == "octal" else 16)
        letter = chr(number) if number <= 0x10FFFF else ""
    if letter in ("\t", "\n", "\r"):
        return letter
    seen = len(letter) == 1 and unicodedata.category(letter) not in _UNSEEN
    if seen and (described := _DESCRIBED.fullmatch(unicodedata.name(letter, ""))):
        return _described(described)
    marked = unicodedata.normalize("NFKD", letter)
    bare = "".join(one for one in marked if unicodedata.category(one) not in _UNSEEN and one not in _BLANK)
    return alike if (alike := bare.translate(_ALIKE)).isascii() else unicodedata.normalize("NFKC", letter)


def _described(name: re.Match[str]) -> str:
    """Return the letter or sign of ASCII that is in the name of another."""
    if name["letter"]:
        return name["letter"].lower() if "SMALL" in name[0] else name["letter"]
    return ":" if name["colon"] else "="
