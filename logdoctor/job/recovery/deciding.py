"""Decides what follows after an attempt of a job: a list of rules over its attempts. Pure.

The first rule that applies decides. Nothing restarts on an Unknown or doubtful verdict, and limits count only attempts
without progress.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from logdoctor.job.recovery.contract import ASK, DONE, RESTART, RESTART_ELSEWHERE, exit_code
from logdoctor.job.recovery.judged import Judged

Kind = Literal["restart", "wait", "move", "stop", "ask"]
"""Restart; wait for node tests; restart without some nodes; end; end and ask a person."""

_FASTER = 0.8  # of the duration before: shorter than that, and by more than noise, is "faster"
_NOISE = 1.0  # seconds
_FASTER_ATTEMPTS = 3
_OFTEN, _HOUR = 12, 3600.0
_MOST_NAMED = 4  # suspect nodes of a log that are believed; more are not a bad node
_LONGEST_DELAY = 600.0


class Attempt(NamedTuple):
    """One attempt that has ended.

    `status` is its exit code, or 128 plus the signal it died of; `seconds` are monotonic. `saved` is the highest step
    of the checkpoints that it completed (None without one, or unknown); `resumed` the checkpoint that it was told to
    load, `back_to` its step if that was a roll-back; `skipped` the batches that it was told to skip. `interrupted`:
    somebody ended it from outside. `launcher_gone`: its launcher was killed while its ranks lived on, and they were
    ended. `sending` and `judging` are the seconds after `seconds` until its output was sent and until its verdict
    stood.
    """

    number: int
    status: int
    seconds: float
    judged: Judged | None = None
    interrupted: bool = False
    saved: int | None = None
    resumed: str = ""
    back_to: int | None = None
    skipped: str = ""
    launcher_gone: bool = False
    sending: float = 0.0
    judging: float = 0.0


class Limits(NamedTuple):
    """When to stop: restarts without progress, like failures without progress, and attempts without any step, all in a
    row. Verdicts below `doubt` wait for a person. `delay` is the first wait before a restart without progress, in
    seconds; it doubles."""

    max_restarts: int = 8
    no_progress: int = 3
    before_first_step: int = 2
    doubt: float = 0.7
    restart_unknown: bool = False
    delay: float = 10.0


class NodesSaid(NamedTuple):
    """What is known about a job's nodes after its verdict: all `healthy`, some `out` (no jobs go there any longer),
    tests or cordons `pending`, or a `person` needed. `why` is a sentence."""

    state: Literal["healthy", "out", "pending", "person"]
    why: str
    nodes: tuple[str, ...] = ()


class Place(NamedTuple):
    """Where the job runs: whether its scheduler can restart it `without_nodes`, and its nodes there."""

    without_nodes: bool = False
    nodes: tuple[str, ...] = ()


class Decision(NamedTuple):
    """What to do, and the reason as a sentence.

    `code` is the exit code if the supervisor ends here, `delay` the seconds before a restart, `nodes` those to leave
    out. `back`: the restart must begin before a loss spike; `ended`: the job's own exit code is passed on.
    """

    kind: Kind
    why: str
    code: int = ASK
    delay: float = 0.0
    nodes: tuple[str, ...] = ()
    back: bool = False
    ended: bool = False


class _Case(NamedTuple):
    attempts: Sequence[Attempt]
    limits: Limits
    said: NodesSaid | None
    place: Place
    other_start: bool
    damaged: str

    @property
    def last(self) -> Attempt:
        return self.attempts[-1]

    @property
    def verdict(self) -> Judged:
        assert self.last.judged is not None
        return self.last.judged

    @property
    def code(self) -> int:
        """Return the exit code of the verdict alone."""
        return exit_code(self.verdict, self.limits.doubt)

    @property
    def crashed_at_work(self) -> bool:
        """Return whether native code broke after the attempt had saved a later checkpoint than those before."""
        crashed = self.verdict.has_crashed and self.verdict.outcome == "failed" and self.verdict.reason == "Unknown"
        return crashed and self.last.saved is not None and not without_progress(self.attempts)

    @property
    def named(self) -> str:
        return f"The verdict is {self.verdict.title}"


def decide(
    attempts: Sequence[Attempt],
    limits: Limits,
    said: NodesSaid | None = None,
    place: Place = Place(),  # noqa: B008 - immutable
    other_start: bool = False,
    damaged: str = "",
) -> Decision:
    """Return what follows after the last of these attempts of one job, given in order.

    `said` is None until nodes were asked about. `other_start`: the next attempt would load another checkpoint than the
    last one; `damaged` names the checkpoint that it could not load, and why ("" if none).
    """
    case = _Case(attempts, limits, said, place, other_start, damaged)
    return next(decision for row in _TABLE if (decision := row.rule(case)) is not None)


def without_progress(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the latest attempts without progress: no later checkpoint or, if none is known, no later step. After a
    roll-back, progress counts from the checkpoint rolled back to."""
    by_checkpoint = any(attempt.saved is not None for attempt in attempts)
    stalled: list[Attempt] = []
    furthest = -1
    for attempt in attempts:
        if attempt.back_to is not None:
            furthest = min(furthest, attempt.back_to)
        reached = attempt.saved if by_checkpoint else _step(attempt)
        if reached is not None and reached > furthest:
            furthest, stalled = reached, []
        else:
            stalled.append(attempt)
    return stalled


def _completed(case: _Case) -> Decision | None:
    if case.last.status == 0 and case.last.judged is None:  # one that was stopped for a verdict may end well, too
        return Decision("stop", "The command ended with exit code 0.", DONE, ended=True)
    return None


def _interrupted(case: _Case) -> Decision | None:
    if case.last.interrupted:
        return Decision("stop", "Somebody ended the job.", case.last.status, ended=True)
    return None


def _launcher_gone(case: _Case) -> Decision | None:
    """Restart when only the launcher was killed; what its ranks print while they are ended is ignored."""
    if not case.last.launcher_gone:
        return None
    why = "The launcher was killed (SIGKILL) while its ranks lived on; they were ended."
    if len(without_progress(case.attempts)) >= case.limits.no_progress:
        return Decision("ask", f"{why} The last {case.limits.no_progress} attempts brought the job no further.", ASK)
    return _no_first_step(case) or _again(case, why)


def _not_judged(case: _Case) -> Decision | None:
    if case.last.judged is None:
        why = "There is no verdict: neither the service nor a diagnosis on this machine gave one. Look at the log."
        return Decision("ask", why, ASK)
    return None


def _not_failed(case: _Case) -> Decision | None:
    outcome = case.verdict.outcome
    if outcome in ("completed", "recovered"):
        why = f"Its log says that it completed, but its exit code is {case.last.status}: a restart would do it again."
        return Decision("stop", why, case.last.status, ended=True)
    if outcome == "cancelled":
        return Decision("stop", "Its log says that somebody cancelled it.", case.last.status, ended=True)
    return None


def _damaged_start(case: _Case) -> Decision | None:
    if not case.damaged:
        return None
    return _again(case, f"{case.named}, and {case.damaged}: it goes on from the one before.")


def _unknown(case: _Case) -> Decision | None:
    if not (case.verdict.is_unknown or case.verdict.outcome == "running") or case.limits.restart_unknown:
        return None
    if case.crashed_at_work:
        return None
    known = f" ({case.verdict.detail})" if case.verdict.detail else ""
    why = f"The cause is unknown{known}, so it is not known whether a restart helps. Look at its log."
    return Decision("ask", why, case.code)


def _fix_first(case: _Case) -> Decision | None:
    if case.verdict.recovery == "fix_first":
        why = f"{case.named}: a restart fails again. {case.verdict.suggestion}".strip()
        return Decision("stop", why, exit_code(case.verdict))
    return None


def _nothing_advised(case: _Case) -> Decision | None:
    if case.verdict.recovery == "none":
        return Decision("ask", f"{case.named}, which advises nothing.", case.code)
    return None


def _in_doubt(case: _Case) -> Decision | None:
    verdict = case.verdict
    if verdict.is_unknown or not verdict.is_doubtful(case.limits.doubt):
        return None
    why = (
        f"{case.named}, but only {verdict.confidence:.0%} sure (from {case.limits.doubt:.0%} on it is acted upon): "
        f"a person has to look at it.{_without_doubt(verdict)}"
    )
    return Decision("ask", why, case.code)


def _without_doubt(verdict: Judged) -> str:
    """Return the `--doubt` with which the verdict would have been acted upon, as a sentence."""
    doubt = math.floor(100 * verdict.confidence) / 100
    return f" With --doubt {doubt:g} it would have been acted upon: {verdict.recovery.replace('_', ' ')}."


def _no_first_step(case: _Case) -> Decision | None:
    count = case.limits.before_first_step
    last = case.attempts[-count:]
    if len(last) < count or case.other_start or any(_step(one) is not None or one.saved is not None for one in last):
        return None
    why = f"No step was seen in the last {count} attempts: {_alike(last)}. A person has to look at it."
    return Decision("ask", why, ASK)


def _alike_again(case: _Case) -> Decision | None:
    stalled = without_progress(case.attempts)
    alike = 0
    for attempt in reversed(stalled):
        if attempt.judged is None or attempt.judged.fingerprint != case.verdict.fingerprint:
            break
        alike += 1
    if alike < case.limits.no_progress:
        return None
    why = f"{case.named}, the same in {alike} attempts in a row, none of which brought the job further."
    return Decision("ask", why, ASK)


def _often_in_an_hour(case: _Case) -> Decision | None:
    """Ask a person about a fast crash loop without checkpoints, whatever it fails of; any line may claim a step."""
    last = case.attempts[-_OFTEN:]
    if len(last) < _OFTEN or any(one.saved is not None for one in last) or sum(one.seconds for one in last) > _HOUR:
        return None
    return Decision("ask", f"{case.named}: {_OFTEN} attempts failed within an hour, and none saved a checkpoint.", ASK)


def _faster_each_time(case: _Case) -> Decision | None:
    last = without_progress(case.attempts)[-_FASTER_ATTEMPTS:]
    if len(last) < _FASTER_ATTEMPTS or not all(_is_faster(a.seconds, b.seconds) for a, b in pairwise(last)):
        return None
    shown = ", ".join(f"{one.seconds:.3g} s" for one in last)
    return Decision("ask", f"It fails faster each time, without progress: after {shown}.", ASK)


def _too_often(case: _Case) -> Decision | None:
    restarts = len(without_progress(case.attempts))
    if restarts <= case.limits.max_restarts:
        return None
    why = f"It was restarted {case.limits.max_restarts} times without progress (--max-restarts)."
    return Decision("ask", why, ASK)


def _nodes_first(case: _Case) -> Decision | None:
    """Leave out the named nodes if the scheduler can, else wait for their tests."""
    verdict = case.verdict
    if verdict.recovery != "isolate_and_restart":
        return None
    if case.said is not None:
        return _after_tests(case, case.said)
    named = tuple(name for name in verdict.nodes if name in case.place.nodes)
    all_named = len(named) == len(case.place.nodes) > 1
    if case.place.without_nodes and 0 < len(named) <= _MOST_NAMED and not all_named:
        why = f"{case.named} and names {', '.join(named)}: it starts again without."
        return Decision("move", why, RESTART_ELSEWHERE, nodes=named)
    return Decision("wait", f"{case.named}, which asks to test its nodes first.", RESTART_ELSEWHERE)


def _after_tests(case: _Case, said: NodesSaid) -> Decision:
    if said.state == "pending":
        return Decision("wait", said.why, RESTART_ELSEWHERE)
    if said.state == "person":
        return Decision("ask", said.why, ASK)
    if said.state == "out":
        return Decision("move", said.why, RESTART_ELSEWHERE, nodes=said.nodes)
    return _again(case, said.why)


def _restart(case: _Case) -> Decision:
    if case.verdict.recovery == "rollback_and_skip":
        return _again(case, f"{case.named}: it goes back to a checkpoint before it.")._replace(back=True)
    if case.verdict.is_unknown and not case.crashed_at_work:
        return _again(case, f"{case.named}: it starts again all the same (--restart-unknown).")
    told = ", and a restart may get past it" if case.verdict.reason == "Unknown" else ", which passes"
    return _again(case, f"{case.named}{told}.")


def _again(case: _Case, why: str) -> Decision:
    stalled = len(without_progress(case.attempts))
    delay = min(case.limits.delay * 2 ** (min(stalled, 32) - 1), _LONGEST_DELAY) if stalled else 0.0
    return Decision("restart", why, RESTART, delay)


class _Row(NamedTuple):
    """A row of the decision table: when it applies and what follows, in words with the limits in braces."""

    when: str
    then: str
    rule: Callable[[_Case], Decision | None]


_TABLE = (
    _Row("the command ended with exit code 0", "end", _completed),
    _Row("somebody asked it to end (SIGTERM, SIGINT, SIGHUP, SIGQUIT)", "end", _interrupted),
    _Row(
        "its launcher alone was killed, its ranks lived on",
        "end these, restart (after {no_progress} times without progress: ask a person)",
        _launcher_gone,
    ),
    _Row("there is no verdict", "ask a person", _not_judged),
    _Row("its log says that it completed, or that somebody cancelled it", "end", _not_failed),
    _Row("the checkpoint that it was to load is damaged", "restart from the one before", _damaged_start),
    _Row("its cause is unknown, and a restart is not advised (but not a crash after a save)", "{unknown}", _unknown),
    _Row("the verdict is less than {doubt:.0%} sure (--doubt)", "ask a person", _in_doubt),
    _Row("the verdict says that a restart fails again (memory, disk, program, data, settings)", "end", _fix_first),
    _Row("the verdict advises nothing", "ask a person", _nothing_advised),
    _Row("no step was seen in {before_first_step} attempts", "ask a person", _no_first_step),
    _Row("{no_progress} attempts in a row ended alike, without progress (--no-progress)", "ask a person", _alike_again),
    _Row(
        f"{_OFTEN} attempts in a row failed within an hour, without a checkpoint",
        "ask a person",
        _often_in_an_hour,
    ),
    _Row(
        f"{_FASTER_ATTEMPTS} attempts in a row failed faster each time, without progress",
        "ask a person",
        _faster_each_time,
    ),
    _Row("{max_restarts} restarts brought the job no further (--max-restarts)", "ask a person", _too_often),
    _Row(
        "the verdict asks to take a node out",
        "leave out what it names where the scheduler can, else test the nodes first",
        _nodes_first,
    ),
    _Row(
        "the verdict says that it passes, or it was killed or crashed without a witness",
        "restart; after a loss spike from a checkpoint before it",
        _restart,
    ),
)


def explained(limits: Limits) -> str:
    """Return the decision table with these limits, one numbered row each."""
    unknown = "go on to the rows below (--restart-unknown)" if limits.restart_unknown else "ask a person"
    told = limits._asdict() | {"unknown": unknown}
    rows = [(row.when.format_map(told), row.then.format_map(told)) for row in _TABLE]
    return "\n".join(f"{number:>2}  {when}\n      -> {then}" for number, (when, then) in enumerate(rows, 1))


def _step(attempt: Attempt) -> int | None:
    return attempt.judged.step if attempt.judged else None


def _is_faster(before: float, after: float) -> bool:
    return after < _FASTER * before and after < before - _NOISE


def _alike(attempts: Sequence[Attempt]) -> str:
    return ", ".join(dict.fromkeys(one.judged.reason if one.judged else "no verdict" for one in attempts))
