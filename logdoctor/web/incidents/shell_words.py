"""The words of a command as a shell would read them, where it is one simple command; or what in it only a shell can do.

Commands are told by senders: some as somebody typed them, some as the words that a program got. What a shell would
expand, join or redirect would be something else when it is quoted, so it is named, never guessed.
"""

import shlex
from collections.abc import Iterator
from typing import NamedTuple

import regex

LONGEST = 3000
"""Characters of a command."""

_ALWAYS = "|&;<>()$`*?[]{}"  # what a shell takes for itself where it is not quoted
_QUOTED = "$`"  # ... and between double quotes
_FIRST = "~#"  # ... and where a word begins
_ESCAPED = '$`"\\'  # what a backslash quotes between double quotes
_HOME = regex.compile(r"[=:]~")
_ASSIGNED = regex.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_HOSTS = regex.compile(r"(-x|-w|--exclude=|--nodelist=)?[A-Za-z0-9._,-]+(\[[0-9,-]+\][A-Za-z0-9._,-]*)+")
_HOST_OPTIONS = ("-x", "-w", "--exclude", "--nodelist")


class Command(NamedTuple):
    """The words of a simple command, the first of which are `assigned` variables; or the words or signs that only a
    `shell` understands. Without both it cannot be read."""

    words: tuple[str, ...] = ()
    assigned: int = 0
    shell: tuple[str, ...] = ()

    @property
    def program(self) -> str:
        """The name of what is run, without its folder."""
        return self.words[self.assigned].rpartition("/")[2] if len(self.words) > self.assigned else ""

    @property
    def options(self) -> tuple[str, ...]:
        """The words behind the program."""
        return self.words[self.assigned + 1 :]

    def with_options(self, options: tuple[str, ...]) -> "Command":
        """The same program with other words behind it."""
        return self._replace(words=(*self.words[: self.assigned + 1], *options))

    def __str__(self) -> str:
        """One line that runs these words and nothing else in a POSIX shell."""
        begin = []
        for word in self.words[: self.assigned]:
            name, _, value = word.partition("=")
            begin.append(f"{name}={shlex.quote(value) if value else ''}")
        program, *rest = self.words[self.assigned :]
        quoted = (
            f"'{program}'" if _ASSIGNED.match(program) and shlex.quote(program) == program else shlex.quote(program)
        )
        return " ".join((*begin, quoted, *(shlex.quote(word) for word in rest)))


class _Word(NamedTuple):
    text: str
    raw: str
    shell: str  # the first sign in it that only a shell understands


def command_of(told: str) -> Command:
    """A command as it was told; an empty one when it prints oddly, has no end or is longer than 3,000 characters."""
    if not told.isprintable() or len(told) > LONGEST:
        return Command()
    words = list(_words(told))
    if not words or any(word.shell == _OPEN for word in words):
        return Command()
    assigned = next((at for at, word in enumerate(words) if not _ASSIGNED.match(word.raw)), len(words))
    command = Command(tuple(word.text for word in words), assigned)
    if assigned == len(words):
        return Command()
    hosts = command.program in ("sbatch", "srun", "salloc")
    signs = [
        word.shell
        for before, word in zip([None, *words], words, strict=False)
        if word.shell and not (hosts and _is_hostlist(before.text if before else "", word))
    ]
    return command._replace(shell=tuple(dict.fromkeys(signs)))


def _is_hostlist(before: str, word: _Word) -> bool:
    """Whether the brackets of a word are those of a list of nodes: everybody leaves these unquoted."""
    found = _HOSTS.fullmatch(word.raw)
    return found is not None and (found[1] is not None or before in _HOST_OPTIONS)


_OPEN = "open"


def _words(told: str) -> Iterator[_Word]:
    """The words, each without its quotes; the last one is `_OPEN` when a quote of it has no end."""
    at = 0
    while at < len(told):
        if told[at] == " ":
            at += 1
            continue
        begin, text, shell, quote = at, "", "", ""
        while at < len(told) and (quote or told[at] != " "):
            sign, following = told[at], told[at + 1 : at + 2]
            if quote == "'":
                quote, text = ("", text) if sign == "'" else (quote, text + sign)
            elif sign == "\\" and (not quote or (following and following in _ESCAPED)):
                text, at = text + following, at + 1
                quote = quote if following else _OPEN
            elif sign == '"' or (sign == "'" and not quote):
                quote = "" if quote else sign
            else:
                special = _QUOTED if quote else _ALWAYS + (_FIRST if at == begin else "")
                shell = shell or (sign if sign in special else "")
                text += sign
            at += 1
        raw = told[begin:at]
        if not shell and (_HOME.search(raw) or raw == "!"):
            shell = "~" if "~" in raw else raw
        yield _Word(text, raw, _OPEN if quote else _named(shell, raw))


def _named(shell: str, raw: str) -> str:
    """What is said of a sign: the word that it is, else the sign."""
    return raw if shell and (set(raw) <= set("|&;<>") or shell in "$~") and len(raw) <= 40 else shell
