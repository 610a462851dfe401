"""The schema of rules: what a YAML file below `rules/` may contain.

`patterns`, `any` and `unless` are Hyperscan expressions matched against single lines. A leading `^` means "start of the
message", after any rank, node, time-stamp or level prefix (see `logdoctor.text.PREFIX`); a trailing `$` also accepts a
carriage return. Without `^` a pattern may match anywhere in the line.
"""

import datetime
from typing import Literal

import msgspec

Status = Literal["proposed", "shadow", "active", "retired"]
Role = Literal["cause", "proximate", "cascade", "teardown", "note"]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a rule; an unknown key is an error, so that a misspelt one is not ignored."""


class Origin(_Part, frozen=True):
    """Who wrote a rule, when, and from which source."""

    by: str
    at: datetime.date
    source: str


class Retirement(_Part, frozen=True):
    """When, by whom and why a rule was retired."""

    at: datetime.date
    by: str
    why: str


class Example(_Part, frozen=True):
    """A line and the captures that a rule must find in it."""

    text: str
    captures: dict[str, str] = {}


class KnownWrong(_Part, frozen=True):
    """A line that the rule gets wrong today; the check fails as soon as it is fixed."""

    text: str
    want: str
    got: str


class FilterRule(_Part, frozen=True, tag_field="kind", tag="filter"):
    """A rule that removes lines from a log because they are known and harmless.

    `harmless` lets it take lines that merely look like errors (structural marks such as "SomeError:"); no filter rule
    ever takes a line that a diagnosis rule matches. A `fallback` rule is tried only on lines that no other filter rule
    takes: it is general, and slow or would take another rule's lines. `metrics` are expressions whose named groups
    (step, total, loss, throughput, accuracy, rank, node, alias) go into the progress record; `unit` is the unit of the
    throughput, as far as the lines tell.
    """

    id: str
    status: Status
    title: str
    patterns: tuple[str, ...]
    must_match: tuple[str, ...]
    origin: Origin
    must_not_match: tuple[str, ...] = ()
    scope: dict[str, str] = {}
    harmless: bool = False
    fallback: bool = False
    metrics: tuple[str, ...] = ()
    unit: str = ""
    retired: Retirement | None = None


class When(_Part, frozen=True):
    """A line is hit when one of `any` matches and none of `unless`."""

    any: tuple[str, ...]
    unless: tuple[str, ...] = ()


class Claim(_Part, frozen=True):
    """What a matched line says about the job.

    Either `reason` and `role`, or `outcome` (a line that shows how a job ended without failing), or `lookup`: the name
    of a table below `rules/knowledge/` whose row, chosen by the capture of the same name, gives reason, role and
    recovery. `here`: the fault is on the node that printed the line. `mild`: programs usually continue after such a
    line (a shell that lacks a command), so it counts only when little follows. `handled`: the line's writer has handled
    what it names and continues, so no other rule's claim about that line counts.
    """

    reason: str = ""
    role: Role = "note"
    recovery: str = ""
    fault: str = ""
    outcome: str = ""
    lookup: str = ""
    here: bool = False
    mild: bool = False
    handled: bool = False


class DiagnosisRule(_Part, frozen=True, tag_field="kind", tag="diagnosis"):
    """A rule that says what a line means for the cause of a failure.

    A `fallback` rule knows only the kind of trouble ("a CUDA call failed"): it yields to every other rule that hits the
    line, even a "harmless" one, and does not count as knowing the message. `runbook` is the URL to follow when it
    decides.
    """

    id: str
    status: Status
    title: str
    when: When
    verdict: Claim
    must_match: tuple[Example, ...]
    origin: Origin
    explains: tuple[str, ...] = ()
    suggestion: str = ""
    must_not_match: tuple[Example, ...] = ()
    known_wrong: tuple[KnownWrong, ...] = ()
    scope: dict[str, str] = {}
    fallback: bool = False
    retired: Retirement | None = None
    runbook: str = ""


class OverrideRule(_Part, frozen=True, tag_field="kind", tag="override"):
    """A person's override of a diagnosis rule: another `verdict`, or none (a mute).

    It applies to the jobs of its `scope`: `job` names one, `kind` those that print alike, an empty one is for all. It
    ends with the day `expires` (UTC), if set. Lines that the overridden `rule` matches stay evidence, which no filter
    rule takes (law 2).
    """

    id: str
    status: Status
    title: str
    rule: str
    origin: Origin
    scope: dict[str, str] = {}
    verdict: Claim | None = None
    suggestion: str = ""
    expires: datetime.date | None = None
    retired: Retirement | None = None


Rule = FilterRule | DiagnosisRule
PARTS = (Origin, Retirement, Example, KnownWrong, When, Claim)
"""What rules are made of."""
