"""What overrides of shipped rules would change in kept attempts, for people who decide about them."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from logdoctor.compress.kept import rebuilt
from logdoctor.diagnose.decide import diagnose
from logdoctor.diagnose.ending import FAILED, NOTHING
from logdoctor.llm.masking import mask
from logdoctor.rules.overrides import applies
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import OverrideRule
from logdoctor.store.learning.confirmed import Confirmed, Past
from logdoctor.types import Record, Verdict

_SHOWN = 10  # changed attempts shown
_MOST_TEXT = 300  # characters of the deciding line

ChangeSays = Literal["agrees", "contradicts", "open"]


class Change(NamedTuple):
    """A kept attempt whose verdict changes, judged by its kept lines; `before` and `after` are reasons.

    It `agrees` if a person confirmed the new reason, `contradicts` if they confirmed the old one, and is `open`
    otherwise.
    """

    job: str
    attempt: int
    before: str
    after: str
    confirmed: bool
    text: str
    says: ChangeSays
    scopes: tuple[str, ...]


class Retried(NamedTuple):
    """How many kept attempts overrides were tried on, the newest first (`complete`: all of them), how many of the job,
    the kind and the fleet change, how many of these against a person's confirmation, and some examples."""

    attempts: int
    complete: bool
    changed: dict[str, int]
    contradicted: dict[str, int]
    changes: tuple[Change, ...]

    def of(self, scope: str) -> "Retried":
        """Return the results for one scope alone."""
        some = tuple(one for one in self.changes if scope in one.scopes)
        changed, contradicted = self.changed.get(scope, 0), self.contradicted.get(scope, 0)
        return self._replace(changed={scope: changed}, contradicted={scope: contradicted}, changes=some)


def retried(
    overrides: Sequence[OverrideRule],
    scanner: Scanner,
    confirmed: Confirmed,
    kind_of: Callable[[str], str],
    sees: Callable[[str], bool],
    job: str,
    seconds: float,
    own: tuple[str, int] | None = None,
    kind: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> Retried:
    """Return what overrides would change in the attempts that the caller `sees`. The scopes of overrides are ignored,
    and the attempt that they come from (`own`) is left out. Changes are counted for a `job`, a `kind` (default: the
    job's), and all."""
    until, kind = clock() + seconds, kind or (kind_of(job) if job else "")
    kinds: dict[str, str] = {}
    tried, complete = 0, True
    changed, contradicted = Counter[str](), Counter[str]()
    some: list[Change] = []
    numbers = {number for number, rule in enumerate(scanner.book.diagnoses) if rule.id in {o.rule for o in overrides}}
    for past in (one for one in confirmed.past(own) if sees(one.job)):
        if clock() >= until:
            complete = False
            break
        tried += 1
        if (found := _changed(past, numbers, overrides, scanner)) is None:
            continue
        if past.job not in kinds:
            kinds[past.job] = kind_of(past.job)
        scopes = tuple(_scopes(past.job, kinds[past.job], job, kind))
        change = _change(past, *found, scopes)
        changed.update(scopes)
        contradicted.update(scopes if change.says == "contradicts" else ())
        if len(some) < _SHOWN:
            some.append(change)
    some.sort(key=lambda one: ("contradicts", "agrees", "open").index(one.says))
    return Retried(tried, complete, dict(changed), dict(contradicted), tuple(some))


def _changed(
    past: Past, rules: set[int], overrides: Sequence[OverrideRule], scanner: Scanner
) -> tuple[Verdict, Verdict] | None:
    """Return the verdicts on an attempt's kept lines before and after; None when no overridden rule matches, or nothing
    changes."""
    records = rebuilt(past.lines, scanner, f"{past.job}/{past.attempt}")
    if not any(not rules.isdisjoint(line.rules) for record in records for line in record.lines):
        return None
    before = _judged(records, past, scanner, ())
    after = _judged(records, past, scanner, tuple(overrides))
    said = [(one.outcome, one.reason, one.recovery) for one in (before, after)]
    return None if said[0] == said[1] else (before, after)


def _judged(records: Sequence[Record], past: Past, scanner: Scanner, overrides: tuple[OverrideRule, ...]) -> Verdict:
    reported = FAILED if past.outcome == "failed" else NOTHING
    return diagnose(records, scanner.book.overruled(overrides), reported=reported)


def _change(past: Past, before: Verdict, after: Verdict, scopes: tuple[str, ...]) -> Change:
    reasons = [one.reason if one.outcome == "failed" else one.outcome for one in (before, after)]
    text = mask(before.evidence[0].quote)[:_MOST_TEXT] if before.evidence else ""
    says: ChangeSays = "open"
    if past.confirmed:
        says = "agrees" if past.reason == after.reason else "contradicts" if past.reason == before.reason else "open"
    return Change(past.job, past.attempt, reasons[0], reasons[1], past.confirmed, text, says, scopes)


def _scopes(past_job: str, past_kind: str, job: str, kind: str) -> Iterator[str]:
    """Yield the scopes of a job of a kind that contain another job's attempt."""
    if job and applies({"job": job}, past_job, past_kind):
        yield "job"
    if kind and applies({"kind": kind}, past_job, past_kind):
        yield "kind"
    yield "fleet"
