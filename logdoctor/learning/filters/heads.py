"""Free text behind a fixed head: answers, transcripts, names of work items; each occurs once.

Such lines have one shape by what stands before the text (`Transcribed: a.wav -> `). A rule for them takes whatever
follows its head one day, so the head must say what the program does with the text, not who writes: behind the name of a
logger, a thread or a host anything may stand, even a cause. Lines that are evidence or have a mark are never taken.
"""

from collections.abc import Sequence

import regex

from logdoctor.learning.filters.automaton import Automaton
from logdoctor.rules import marks
from logdoctor.text import origin

TAIL = r"[^\t]+"
"""The end of a pattern whose head may be followed by any text."""
TEXTS = 20
"""Different texts behind a head, each with its own first word, that show that any may stand there."""
_LEAST = 8  # letters of a label
_WRITER = regex.compile(r".*(?:\b(?:DEBUG|INFO|NOTICE)\b\W*|[\])}]|[ \t][-|](?=[ \t]))", regex.DOTALL)
"""What names the writer of a line: all up to its level, the last bracket, or the last dash between blanks."""
_WORD = regex.compile(r"[^\W\d_]{3,}")
_DOES = regex.compile(r"(?i)\p{L}{2,}(?:ing|ed)")
_WORK = regex.compile(
    r"(?i)\b(?:questions?|answers?|prompts?|responses?|outputs?|inputs?|texts?|transcripts?|transcription|predictions?"
    r"|predicted|references?|hypothes[ie]s|targets?|ground ?truth|quer(?:y|ies)|completions?|translations?"
    r"|summar(?:y|ies)|samples?|captions?|sentences?|expected|generated|transcribed)[^\p{L}]*(?::|->|=)\s*$"
)
_REPORTS = regex.compile(
    r"(?i)warn|re-?(?:start|tr[yi]|connect|set|cover)|skip|drop|los[et]|miss(?:ed|ing)|dead|di(?:e|ed|es)\b|kill|exit|ended"
    r"|stop|hang|hung|stuck|stall|drain|evict|remov|block|slow|degrad|throttl|detect|notic|receiv|report|happen|caus"
    r"|reason|because|status|state|health|check|messag|alert|event|stderr|stdout|log(?:s|ged|ging)?\b|monitor|node|host"
    r"|gpu|device|worker|rank|network|link|driver|kernel"
)


def head_of(source: str) -> str | None:
    """Return the head of a pattern that allows any text behind it, as a pattern; None for other patterns."""
    return f"{source.removesuffix(f'{TAIL}$')}$" if source.endswith(f"{TAIL}$") and source != f"^{TAIL}$" else None


def label_cause(head: str) -> str | None:
    """Return why any text may not follow a head, given by its literal text; None when it may."""
    label = _WRITER.sub("", head)
    words = _WORD.findall(label)
    if marks.is_error_like(label) or _REPORTS.search(label):
        return "any text may follow, and what stands before it tells of what happened"
    if sum(map(len, words)) < _LEAST and not _WORK.search(label):
        return "any text may follow, and little stands before it"
    if not (_WORK.search(label) or (len(words) > 1 and _DOES.search(label))):
        return "any text may follow, and what stands before it does not say what is done with it"
    return None


def texts_cause(texts: Sequence[str]) -> str | None:
    """Return why the texts behind a head do not show that any may stand there; None if they do."""
    if bad := next((text for text in texts if marks.is_error_like(text)), None):
        return f"any text may follow, and {bad[:200]!r} looks like an error"
    seen = {text.split()[0] for text in texts if text.strip()}
    if len(seen) < TEXTS:
        return f"any text may follow, and only {len(seen)} began in different ways; {TEXTS} must"
    return None


def parted(head: Automaton, lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return (head, text behind it) for each line that begins with the head."""
    messages = [origin(line).message.encode("utf-8", "replace") for line in lines]
    places = [(message, head.reached(message)) for message in messages]
    return [
        (message[:at].decode("utf-8", "replace"), message[at:].decode("utf-8", "replace"))
        for message, at in places
        if at is not None
    ]
