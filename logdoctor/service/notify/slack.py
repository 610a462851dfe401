"""Messages in the format of Slack's incoming webhooks, within Slack's limits.

Outside text cannot use Slack's markup: it stands in plain text, in code or in a fence, with `&`, `<` and `>` escaped
and without backticks, so that nothing in a log becomes a mention, a link or a format. The limits are from Slack's
reference of Block Kit, counted after escaping, in UTF-16 units where its meaning of characters is unclear.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from logdoctor.service.notify.messages import (
    IncidentData,
    Message,
    Resolved,
    Summary,
    SummaryData,
    SuspectData,
    TrialMessage,
    what,
)
from logdoctor.service.notify.slack_actions import ACKNOWLEDGE, ASSIGN
from logdoctor.taxonomy import FAULT_WORDS, category_words

MOST_BLOCKS = 50
HEADER = 150
SECTION = 3000
FIELD = 2000
FIELDS = 10
BUTTON = 75
URL = 3000
TEXT = 3000
"""Characters of the fallback text; Slack cuts at 40,000 and recommends 4,000."""

_NAME = 120  # characters of a name in a field
_DETAIL = 300  # ... of what failed
_LINE = 60  # ... in a line of a summary
_LINES = 10  # incidents in a summary
_FIRST = 3  # ... in its text
_SUSPECTS = 3
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

Block = dict[str, Any]


def payload(message: Message, answers: bool = False) -> dict[str, Any]:
    """Return the JSON of a message for Slack: blocks, and a short version as text. Where Slack `answers`, it has
    buttons to acknowledge and to take an incident."""
    if isinstance(message, TrialMessage):
        blocks, text = _trial(message)
    elif isinstance(message, Summary):
        blocks, text = _summary(message.data)
    else:
        blocks, text = _incident(message.data, isinstance(message, Resolved), answers)
    return {
        "text": text,
        "blocks": blocks[:MOST_BLOCKS],
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _trial(message: TrialMessage) -> tuple[list[Block], str]:
    said, by = message.data.text, message.data.by
    blocks = [_header("logdoctor: test"), _plain(f"{said} Sent by {by}." if by else said)]
    return [*blocks, *_button("Open logdoctor", message.data.link)], _escaped(said, TEXT)


def _incident(data: IncidentData, is_resolved: bool, answers: bool) -> tuple[list[Block], str]:
    place = next((one.node for one in data.suspects if one.node), None)
    title = f"{what(data)} on {place}" if place else f"{what(data)}: {data.job}"
    title = f"Resolved: {title}" if is_resolved else title
    lead = _resolution(data) if is_resolved else f"*{_first_up(data.advice)}*{' (provisional)' * data.provisional}"
    blocks = [_header(title), _marked(lead), {"type": "section", "fields": _fields(data)}]
    if not is_resolved:
        blocks += _proof(data)
    buttons = _button("Open the incident", data.link)
    if answers and not is_resolved:
        buttons = _answering(buttons, data.incident)
    blocks += buttons
    blocks.append(_context(f"logdoctor, incident {data.incident}"))
    where = f" on {_code(place, _NAME)}" if place else ""
    lines = [f"{_what(data, HEADER)}{where}: {lead}", f"Job {_code(data.job, _NAME)}, attempt {data.attempt}"]
    if data.evidence and not is_resolved:
        lines.append(_code(data.evidence.quote, 300))
    if _is_usable(data.link):
        lines.append(_escaped(data.link, URL))
    return blocks, "\n".join(lines)


def _what(data: IncidentData, most: int) -> str:
    """Return what failed, as code if it is text of a log."""
    said = what(data)
    return _escaped(said, most) if said == data.reason else _code(said, most)


def _resolution(data: IncidentData) -> str:
    by = f" by {_code(data.by, _NAME)}" if data.by else ""
    return f"*Resolved*{by}{f': {_code(data.note, 300)}' if data.note else ''}"


def _proof(data: IncidentData) -> list[Block]:
    """Return the line that decided, and the suggestion."""
    blocks = []
    if data.evidence is not None:
        of = f"Line {data.evidence.line} of {_code(data.evidence.stream, _NAME)}:\n"
        blocks.append(_marked(of + _fenced(data.evidence.quote, SECTION - _units(of) - 16)))
    if data.suggestion:
        blocks.append(_plain(data.suggestion))
    return blocks


def _fields(data: IncidentData) -> list[Block]:
    """Return the facts of an incident in two columns."""
    rows = [
        ("What", _code(data.detail, _DETAIL) if data.detail and what(data) == data.reason else ""),
        ("Job", f"{_code(data.job, _NAME)}, attempt {data.attempt}"),
        ("Fault", _escaped(FAULT_WORDS.get(data.fault, data.fault), _NAME)),
        ("Suspects", _suspects(data.suspects)),
        ("Attempts", f"{data.attempts:,}{f' of {data.jobs:,} jobs' if data.jobs > 1 else ''}"),
        ("Category", _escaped(category_words(data.category, data.fault), _NAME)),
        ("User", _code(data.user or "", _NAME) if data.user else ""),
    ]
    return [_text("mrkdwn", f"*{label}*\n{value}", FIELD) for label, value in rows if value][:FIELDS]


def _suspects(suspects: Sequence[SuspectData]) -> str:
    """Return the first suspects that have a name."""
    named = [name for one in suspects if (name := _called(one))]
    more = f" and {len(named) - _SUSPECTS} more" if len(named) > _SUSPECTS else ""
    return ", ".join(_code(name, _NAME) for name in named[:_SUSPECTS]) + more


def _called(one: SuspectData) -> str:
    parts = (one.node, f"rank {one.rank}" if one.rank is not None else "", f"GPU {one.gpu}" if one.gpu else "")
    return ", ".join(part for part in parts if part)


def _summary(data: SummaryData) -> tuple[list[Block], str]:
    number = data.opened + data.resolved
    title = f"{number:,} incident{'' if number == 1 else 's'}"
    counted = f"{data.opened:,} new, {data.resolved:,} resolved" if data.resolved else f"{data.opened:,} new"
    shown = data.incidents[:_LINES]
    lines = [_line(one) for one in shown]
    if number > len(shown):
        lines.append(f"and {number - len(shown):,} more")
    blocks = [_header(title), _marked(counted), *_sections(lines)]
    link = [_escaped(data.link, URL)] if _is_usable(data.link) else []
    text = "\n".join([f"{title}: {counted}", *lines[:_FIRST], *link])
    return [*blocks, *_button("Open the list", data.link)], text


def _line(one: IncidentData) -> str:
    """Return a line for an incident of a summary, about 600 characters at most."""
    state = "resolved" if one.state == "resolved" else _escaped(one.advice, _LINE)
    times = f" ({one.attempts:,} attempts)" if one.attempts > 1 else ""
    return f"\N{BULLET} *{_what(one, _LINE)}*, {_code(one.job, _LINE)}{times}: {state}"


def _sections(lines: Iterable[str]) -> list[Block]:
    """Pack lines, unbroken, into as few sections as possible."""
    found: list[str] = []
    for line in lines:
        if found and _units(found[-1]) + 1 + _units(line) <= SECTION:
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return [_marked(text) for text in found]


def _button(label: str, link: str) -> list[Block]:
    """Return a link button; none without a usable link."""
    if not _is_usable(link):
        return []
    text = _text("plain_text", label, BUTTON)
    return [{"type": "actions", "elements": [{"type": "button", "text": text, "url": link, "action_id": "open"}]}]


def _answering(buttons: list[Block], incident: int) -> list[Block]:
    """Prepend the buttons that Slack reports back to us."""
    own = [
        {"type": "button", "text": _text("plain_text", label, BUTTON), "value": str(incident), "action_id": action}
        for label, action in (("Acknowledge", ACKNOWLEDGE), ("Assign to me", ASSIGN))
    ]
    given = buttons[0]["elements"] if buttons else []
    return [{"type": "actions", "elements": [*own, *given]}]


def _is_usable(link: str) -> bool:
    return link.startswith(("http://", "https://")) and _units(link) <= URL


def _header(text: str) -> Block:
    return {"type": "header", "text": _text("plain_text", _escaped(text, HEADER), HEADER)}


def _plain(text: str) -> Block:
    return {"type": "section", "text": _text("plain_text", _escaped(text, SECTION), SECTION)}


def _marked(text: str) -> Block:
    """Return a section with our own markup; outside text was made safe before."""
    return {"type": "section", "text": _text("mrkdwn", text, SECTION)}


def _context(text: str) -> Block:
    return {"type": "context", "elements": [_text("plain_text", text, FIELD)]}


def _text(kind: str, text: str, most: int) -> dict[str, Any]:
    """Return a text object; `verbatim` and `emoji` keep Slack from finding links, names and emoji in it."""
    assert 0 < _units(text) <= most, f"{_units(text)} characters, more than {most}"
    return {"type": kind, "text": text, **({"verbatim": True} if kind == "mrkdwn" else {"emoji": False})}


def _code(text: str, most: int) -> str:
    """Return outside text as inline code: no markup, mention or link in it works."""
    return f"`{_escaped(_tame(text).strip() or '-', most)}`"


def _fenced(text: str, most: int) -> str:
    """Return outside text as a code block."""
    return f"```{_escaped(_tame(text).strip() or '-', most)}```"


def _tame(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")


def _escaped(text: str, most: int) -> str:
    """Escape the characters special to Slack, and cut to at most `most` units; never returns ""."""
    parts: list[str] = []
    left = most - 1  # for the ellipsis
    for at, char in enumerate(text):
        part = _ESCAPES.get(char, char)
        if _units(part) > left and not (at == len(text) - 1 and _units(part) == left + 1):
            return "".join(parts) + "…"
        parts.append(part)
        left -= _units(part)
    return "".join(parts) or "-"


def _units(text: str) -> int:
    """Return the length in UTF-16 units."""
    return len(text) + sum(char > "\uffff" for char in text)


def _first_up(text: str) -> str:
    return _escaped(text[:1].upper() + text[1:], FIELD)
