"""The output of the command line."""

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from logdoctor import taxonomy
from logdoctor.rules.load import RuleBook
from logdoctor.rules.schema import FilterRule, Rule
from logdoctor.text import harmless

if TYPE_CHECKING:
    from logdoctor.learning.files.imports import Imported
    from logdoctor.learning.files.overriding import Retried
    from logdoctor.learning.files.why import Said
    from logdoctor.store.keeping.tokens import Token
    from logdoctor.store.learning.confirmed import Confirmation
    from logdoctor.store.learning.learned import Event, Learned
    from logdoctor.store.learning.overrides import StoredOverride

_WORDS = 2000  # characters of a text by a rule, a person or a model
_WIDE = 150  # columns from which on rules are shown as a table


def rules(book: RuleBook, as_json: bool, status: str | None = None) -> None:
    """Print one row, or one JSON object, for each shipped rule."""
    console = Console(highlight=False)
    both: tuple[Rule, ...] = (*book.filters, *book.diagnoses)
    every = [one for one in both if status in (None, one.status)]
    if as_json:
        for one in every:
            print(msgspec.json.encode(one).decode())
        return
    if console.width < _WIDE:
        for one in every:
            console.print(Text(one.id).append(f"  {one.status}  {_claims(one)}", style="dim"), soft_wrap=True)
            console.print(Padding(Text(one.title), (0, 0, 0, 4)))
        return
    table = Table("rule", "status", "verdict", "title", box=None, header_style="dim")
    for one in every:
        table.add_row(Text(one.id, no_wrap=True), one.status, _claims(one), one.title)
    console.print(table)


def _claims(one: Rule) -> str:
    """Return what a rule says about the lines it matches, in a few words."""
    return ("harmless" if one.harmless else "filter") if isinstance(one, FilterRule) else _role_or_outcome(one)


def tokens(every: "Sequence[Token]", as_json: bool) -> None:
    """Print one row, or one JSON object, for each token."""
    if as_json:
        for one in every:
            print(msgspec.json.encode(one).decode())
        return
    table = Table("token", "scopes", "jobs", "created", "expires", "revoked", box=None, header_style="dim")
    for one in every:
        jobs = ", ".join(f"{prefix}*" for prefix in one.prefixes) or "all"
        times = [day(time) for time in (one.created, one.expires, one.revoked)]
        table.add_row(one.name, " ".join(one.scopes), jobs, *times)
    Console(highlight=False).print(table)


def day(time: float | None) -> str:
    """Format seconds since the epoch to the minute in UTC; "" for None. An impossible time is "?"."""
    try:
        return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%Y-%m-%d %H:%M") if time else ""
    except (ValueError, OverflowError, OSError):
        return "?"


def _role_or_outcome(rule: Rule) -> str:
    assert not isinstance(rule, FilterRule)
    claim = rule.verdict
    if claim.lookup:
        return f"by table {claim.lookup}"  # which gives the role, too
    return claim.outcome or f"{claim.role}: {claim.reason}"


def rule(one: Rule, as_json: bool = False) -> None:
    """Print a rule as YAML, or as one JSON object."""
    from logdoctor.learning.files.files import text_of  # it imports the store, which a diagnosis does not need

    print(msgspec.json.encode(one).decode() if as_json else text_of(one), end="\n" if as_json else "")


# ---- learned rules: their texts come from logs and models, and are made harmless


_STATUS_COLOURS = {"proposed": "bold yellow", "shadow": "cyan", "active": "green", "retired": "dim"}


def learned_rules(every: "Sequence[Learned]", as_json: bool, alone: bool) -> None:
    """Print learned rules, grouped by kind, or one JSON object for each. `alone`: nothing is printed before them."""
    if as_json:
        for one in every:
            print(ascii_json(one))
        return
    console = Console(highlight=False)
    if not every and alone:
        console.print("no learned rules")
    for number, (kind, mine) in enumerate(groupby(every, lambda one: one.kind)):
        if number or not alone:
            console.print()
        _kind(console, kind, list(mine))
    waiting = sum(one.waits for one in every)
    if waiting:
        ending = "rule is" if waiting == 1 else "rules are"
        console.print(
            f"\n{waiting} {ending} waiting for approval: logdoctor rules list --waiting", style="yellow", soft_wrap=True
        )


def _kind(console: Console, kind: str, mine: "list[Learned]") -> None:
    """Print the rules of a kind, as a table if the terminal is wide enough."""
    counts = Counter(one.status for one in mine)
    totals = ", ".join(f"{counts[status]} {status}" for status in _STATUS_COLOURS if counts[status])
    heading = Text(safe(kind, 400), style="bold")
    console.print(heading.append(f"  learned rules: {totals}", style="dim"), soft_wrap=True)
    if console.width < _WIDE:
        for one in mine:
            _print_narrow(console, one)
        return
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("rule", no_wrap=True, min_width=max(len(one.id) for one in mine))  # ids are there to be copied
    table.add_column("status")
    for name in ("jobs", "lines", "removed", "votes"):
        table.add_column(name, justify="right")
    table.add_column("agent", max_width=24, no_wrap=True)
    table.add_column("title, and what it is waiting for")
    for one in mine:
        status = Text(one.status, style=_STATUS_COLOURS[one.status])
        summary = Text(safe(one.title, 80))
        if claimed := _claimed(one):
            summary.append(f"\n{safe(claimed, 200)}", style="bold")
        if wait := _wait(one):
            summary.append(f"\n{safe(wait, 200)}", style="yellow")
        numbers = (f"{one.jobs:,}", f"{one.lines:,}", f"{one.taken:,}", _votes(one))
        table.add_row(Text(safe(one.id, 400)), status, *numbers, Text(safe(one.agent, 24)), summary)
    console.print(table)


def _print_narrow(console: Console, one: "Learned") -> None:
    line = Text(f"  {safe(one.id, 400)}  ").append(one.status, style=_STATUS_COLOURS[one.status])
    console.print(line, soft_wrap=True)
    numbers = f"{_plural(one.jobs, 'job')}, {_plural(one.lines, 'line')}"
    if one.claim is None:  # only filter rules remove lines
        numbers += f", {one.taken:,} removed"
    parts = (numbers, f"votes {_votes(one)}" if one.votes.runs else "", safe(one.agent, 30))
    _print_indented(console, "; ".join(part for part in parts if part), "dim")
    _print_indented(console, safe(one.title, 200), "")
    if claimed := _claimed(one):
        _print_indented(console, safe(claimed, 200), "bold")
    if wait := _wait(one):
        _print_indented(console, safe(wait, 300), "yellow")


def _print_indented(console: Console, text: str, style: str) -> None:
    console.print(Padding(Text(text, style=style), (0, 0, 0, 6)))


def _wait(one: "Learned") -> str:
    """Return what a rule waits for; "" if it does not wait."""
    return f"waiting for approval: {one.waits_for or 'it was demoted'}" if one.waits else ""


def _claimed(one: "Learned") -> str:
    """Return the verdict of a diagnosis rule; "" for a filter rule."""
    if one.claim is None:
        return ""
    default = taxonomy.REASONS[one.claim.reason]
    return f"{one.claim.reason}: {taxonomy.ADVICE[one.claim.recovery or default.recovery]}"


def _votes(one: "Learned") -> str:
    return f"{len(one.votes.agreed)}/{one.votes.runs}" if one.votes.runs else "-"


def _plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def learned_rule(one: "Learned", events: "Sequence[Event]", as_json: bool) -> None:
    """Print everything known about a learned rule, with its steps, or one JSON object."""
    if as_json:
        print(ascii_json({"rule": one, "events": events}))
        return
    console = Console(highlight=False)
    table = facts((name, Text(value, style=_STATUS_COLOURS.get(value, ""))) for name, value in _facts(one))
    console.print(Text(safe(one.id, 400), style="bold"), soft_wrap=True)
    console.print(Padding(table, (0, 0, 1, 2)))
    for event in reversed(events):
        _print_event(console, event)
    if one.waits:
        console.print(f"\nnext: logdoctor rules approve {one.id}  (or retire)", style="yellow", soft_wrap=True)


def _facts(one: "Learned") -> "Iterator[tuple[str, str]]":
    """Yield the facts about a learned rule as (name, value)."""
    yield "status", one.status
    if wait := _wait(one):
        yield "", safe(wait, 2000)
    yield "title", safe(one.title, 200)
    if one.claim is None:
        yield "kind of jobs", safe(one.kind, 300)
    else:
        yield "verdict", safe(_claimed(one), 200)
        if one.claim.suggestion:
            yield "next step", safe(one.claim.suggestion, 2000)
    yield "pattern", safe(one.pattern, 4000)
    for number, text in enumerate(one.examples):
        yield "" if number else "examples", safe(text, 1000)
    for number, text in enumerate(one.metrics):
        yield "" if number else "metrics", safe(text, 1000)
    if one.harmless:
        yield "harmless", "a person approved it for lines that look like errors"
    taken = f", {one.taken:,} of them removed" if one.claim is None else ""
    yield "hits", f"{_plural(one.lines, 'line')} in {_plural(one.jobs, 'attempt')}{taken}"
    where = f" from {one.source.job}/{one.source.attempt}" if one.source.job else ""
    yield "learned", safe(f"{day(one.created)} UTC by {one.agent}{where}", 700)
    for name in ("framework", "image", "command", "user", "name"):
        if value := getattr(one.source, name):
            yield f"  {name}", safe(value, 2000)
    if one.votes.runs:
        runs = ", ".join(map(str, one.votes.agreed))
        yield "votes", f"{len(one.votes.agreed)} of {one.votes.runs} runs agreed ({runs})"
    if one.votes.judge:
        yield "judge", safe(one.votes.judge, 2000)


def _print_event(console: Console, event: "Event") -> None:
    way = f"{event.from_status or 'new'} -> {event.to_status}"
    line = Text(f"  {day(event.at)}  ").append(safe(event.step, 20), style="bold").append(f"  {way}")
    line.append(f"  by {safe(event.by, 200)}", style="dim")
    console.print(line, soft_wrap=True)
    if event.why:
        _print_indented(console, safe(event.why, 2000), "")


def step(before: str, one: "Learned") -> None:
    """Print the result of a step."""
    print(f"{safe(one.id, 400)}: {before} -> {one.status}")
    if one.status == "shadow":
        does = "removes lines" if one.claim is None else "decides"
        print(f"  watched from now on; it {does} once it has matched often enough, or when approved again")


def overrides(some: "Sequence[StoredOverride]", as_json: bool) -> None:
    """Print overrides, or one JSON object for each."""
    for one in some:
        override(one, as_json)
    if not some and not as_json:
        print("No shipped rule is overruled.")


def override(one: "StoredOverride", as_json: bool = False) -> None:
    """Print an override: its effect on the rule, its jobs, its end, and its author."""
    if as_json:
        print(ascii_json(msgspec.to_builtins(one)))
        return
    ended = "withdrawn" if one.withdrawn else f"until {one.expires}" if one.expires else "no end"
    whose = "all jobs" if one.scope == "fleet" else f"{one.scope} {safe(one.whose, 300)}"
    says = f"says {one.reason}" if one.reason else "is muted"
    print(f"override/{one.id}: {safe(one.rule, 300)} {says}; {whose}; {ended}; by {safe(one.by, 200)}")
    if why := one.withdrawn_why if one.withdrawn else one.why:
        print(f"  {safe(why, _WORDS)}")


def retried(found: "Retried") -> None:
    """Print what an override would have changed, and how to enter it."""
    changed, against = sum(found.changed.values()), sum(found.contradicted.values())
    whole = "all that are kept" if found.complete else "until time ran out"
    print(f"Tried on {found.attempts} stored attempts, {whole}: {changed} change, {against} against a person's word.")
    for one in found.changes:
        told = " (confirmed)" if one.confirmed else ""
        print(f"  {safe(one.job, 300)}/{one.attempt}: {one.before} -> {one.after}{told}")
    print("Nothing was entered. Give --yes to enter it.")


_EFFECTS = {
    "evidence": "evidence",
    "marks": "looks like an error",
    "taken by": "removed by",
    "would take": "would be removed by",
    "in vain": "matched without effect",
    "named by": "cause named by",
    "would name": "cause would be named by",
    "refused": "not learned, refused by",
    "unlearned": "not learned",
}
"""The verbs of findings of `rules.why` and `learning.files.why`, in words for people."""
_MARKS = {
    "frame": "a frame of a traceback",
    "chain": "a chain of exceptions",
    "exception": "the name of an exception",
    "cpp": "the end of a C++ program",
    "level": "a log level",
    "word": "an error word",
    "signal": "the name of a signal",
}
_WORD = 11  # characters of such a word with its blanks
_EFFECT = max(map(len, _EFFECTS.values()))


def why(effects: "Sequence[Said]") -> None:
    """Print what the rules do with a line."""
    for one in effects:
        if one.kind:
            print(
                f"jobs of the kind {safe(one.kind, 300)}:" if one.kind != "diagnosis" else "diagnosis rules, all jobs:"
            )
        for finding in one.findings:
            word, rest = finding[:_WORD].strip(), finding[_WORD:]
            if word == "marks":
                rest = ", ".join(_MARKS.get(mark, mark) for mark in rest.split(", "))
            print(safe(f"{_EFFECTS.get(word, word):<{_EFFECT}}  {rest}", 2000))


def imported(results: "Sequence[Imported]", as_json: bool) -> None:
    """Print the result for each rule, refused ones last, or one JSON object for each."""
    if as_json:
        for one in results:
            print(ascii_json(one._asdict()))
        return
    for one in sorted(results, key=lambda one: one.outcome == "refused"):
        print(_imported(one))
    counts = Counter(one.outcome for one in results)
    print(", ".join(f"{counts[name]} {name}" for name in ("entered", "known", "held", "refused") if counts[name]))


def _imported(one: "Imported") -> str:
    what = safe(f"{one.where}: {one.rule}" if one.rule else one.where, 300)
    if one.outcome == "refused":
        return f"refused  {what}\n         {one.guard}: {safe(one.cause, 500)}"
    if one.outcome == "held":
        return f"held     {what}\n         valid, but another rule of its file was refused"
    waits = f"\n         waiting for approval: {safe(one.waits_for, 300)}" if one.status == "proposed" else ""
    return f"{one.outcome:<8} {one.id}  {one.status}{waits}"


# ---- past cases: their texts come from logs and people


def cases(every: "Iterable[Confirmation]", as_json: bool) -> None:
    """Print some lines, or one JSON object, for each past case."""
    if as_json:
        for one in every:
            print(ascii_json(one))
        return
    console = Console(highlight=False)
    for one in each(every, "no cases"):
        head = Text(f"{one.id:>5}  ").append(safe(one.reason, 100), style="dim" if one.withdrawn else "bold")
        head.append(f"  {safe(one.job, 300)}/{one.attempt}")
        head.append(f"  {day(one.at)} UTC by {_said_by(one)}{', withdrawn' if one.withdrawn else ''}", style="dim")
        console.print(head, soft_wrap=True)
        _print_indented(console, safe(one.line, 300), "")
        if one.fix:
            _print_indented(console, f"fixed by: {safe(one.fix, 300)}", "green")


def case(one: "Confirmation", as_json: bool) -> None:
    """Print everything known about a past case, or one JSON object."""
    if as_json:
        print(ascii_json(one))
        return
    console = Console(highlight=False)
    table = facts((name, Text(safe(value, 4000))) for name, value in _facts_of_case(one) if value)
    console.print(Text(f"case {one.id}: {safe(one.reason, 100)}", style="bold"), soft_wrap=True)
    console.print(Padding(table, (0, 0, 0, 2)))
    for cited in one.evidence:
        console.print(Text(f"    > {safe(cited.stream, 200)}:{cited.line} {safe(cited.quote, 400)}"), soft_wrap=True)


def _facts_of_case(one: "Confirmation") -> "Iterator[tuple[str, str]]":
    """Yield the facts about a past case as (name, value); "" is unknown."""
    default = taxonomy.REASONS[one.reason]
    yield "entered", f"{day(one.at)} UTC by {_said_by(one)}"
    if one.withdrawn:
        why = f": {one.withdrawn_why}" if one.withdrawn_why else ""
        yield "withdrawn", f"{day(one.withdrawn_at)} UTC by {one.withdrawn_by}{why}"
    verdict = f", verdict {one.verdict}" if one.verdict else ""
    yield "attempt", f"{one.job}/{one.attempt}{verdict}{', which was wrong' if one.corrects else ''}"
    yield "advice", taxonomy.ADVICE[one.recovery or default.recovery]
    yield "fault", taxonomy.FAULT_WORDS[one.fault or default.fault]
    yield "fixed by", one.fix
    yield "next time", one.suggestion
    yield "comment", one.comment
    yield "deciding line", one.title
    yield "fingerprints", " ".join(one.digests)


def _said_by(one: "Confirmation") -> str:
    return "attempts that agree" if one.by == "agreement" else safe(one.by, 200)


def entered(one: "Confirmation") -> None:
    """Print the result of a confirmation."""
    recovery = one.recovery or taxonomy.REASONS[one.reason].recovery
    print(f"case {one.id}: {safe(one.reason, 100)}: {taxonomy.ADVICE[recovery]}")
    if not one.digests and not one.summary:
        print("  no line that identifies it was kept, so no other failure is recognised by it; name lines with --line")


_Row = TypeVar("_Row")


def each(every: "Iterable[_Row]", empty: str) -> "Iterator[_Row]":
    """Yield all; print `empty` when there are none."""
    none = True
    for one in every:
        none = False
        yield one
    if none:
        print(empty)


def facts(rows: Iterable[tuple[str, Text]]) -> Table:
    """Return a table of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def safe(text: str, width: int) -> str:
    """Return harmless text of at most `width` characters; a carriage return in it hides nothing."""
    return harmless(text.replace("\r", "\N{REPLACEMENT CHARACTER}"), width)


def ascii_json(value: object) -> str:
    """Return JSON in ASCII, which cannot control a terminal."""
    return json.dumps(msgspec.to_builtins(value))
