"""Which checkpoint to go on from, and which may be removed."""

from collections.abc import Callable, Sequence

import msgspec

from logdoctor.job.recovery.catalogue.checkpoint import MOST_TRIES, Checkpoint, Onset, Refused
from logdoctor.job.recovery.catalogue.health import not_before

_RUNNING = 3600.0  # seconds after its last byte in which a save may still run
_NAMED = 3  # checkpoints that a refusal tells of


def best(
    checkpoints: Sequence[Checkpoint], before_step: int | None = None, before_time: float | None = None
) -> Checkpoint | Refused:
    """Return the newest checkpoint that is complete, not suspect and was loaded before or not tried twice in vain.

    It is one of before an onset: of a step below `before_step`, saved before `before_time` (seconds since the epoch);
    what is not known to be is not taken.
    """
    onset = Onset(before_step, before_time)
    why: list[str] = []
    for one in newest_first(checkpoints):
        reason = passed_over(one, onset)
        if not reason:
            return one
        why.append(f"{one.name}: {reason}")
    if not why:
        return Refused("there are no checkpoints")
    more = f"; and {len(why) - _NAMED:,} older ones" if len(why) > _NAMED else ""
    return Refused(f"none of {len(why):,} checkpoints can be used: {'; '.join(why[:_NAMED])}{more}")


def newest_first(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints, the newest first."""
    return sorted(checkpoints, key=lambda one: one.order, reverse=True)


def passed_over(one: Checkpoint, onset: Onset) -> str:
    """Return why a checkpoint is not gone on from; "" when nothing speaks against it."""
    if one.torn:
        return f"it is torn ({one.torn})"
    if why := not_before(one, onset):
        return why
    if one.suspect:
        return f"it is suspect ({one.suspect})"
    if one.tries >= MOST_TRIES:
        return f"{one.tries} loads of it failed"
    return ""


def removable(checkpoints: Sequence[Checkpoint], keep: int, now: float) -> list[Checkpoint]:
    """Return what may be removed so that the `keep` newest that are complete and not suspect stay, the oldest first.

    Never among them are: links and pinned ones, those that a mark or link names as the latest, the newest complete one
    by step and the one by time (after a roll-back they differ), the one that `best` gives, the newest that is not
    suspect, and torn ones that were written to within the last hour or are newer than any complete one: that may be a
    save that runs.
    """
    newest = newest_first(checkpoints)
    complete = [one for one in newest if one.complete]
    healthy = [one for one in complete if not one.suspect]
    if not complete:
        return []
    chosen = best(checkpoints)
    kept = [*healthy[: max(keep, 1)], complete[0], max(complete, key=lambda one: one.saved_at or 0.0)]
    kept += [one for one in newest if one.pinned or one.linked or one.latest or one.order > complete[0].order]
    kept += [one for one in newest if one.torn and _may_run(one, now)]
    kept += [chosen] if isinstance(chosen, Checkpoint) else []
    names = {one.name for one in kept}
    return [one for one in reversed(newest) if one.name not in names]


def removable_once_verified(
    checkpoints: Sequence[Checkpoint], keep: int, now: float, damage_of: Callable[[Checkpoint], str]
) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """Return what may be removed so that `keep` stay that are not damaged, and those that were found to be: they count
    as suspect. `damage_of` reads one whole and tells why it is not kept, "" when nothing speaks against it.

    Nothing may be removed where no good one stays.
    """
    every, damaged, good = list(checkpoints), list[Checkpoint](), set[str]()
    while True:
        old = removable(every, keep, now)
        counted = [one for one in newest_first(every) if one.complete and not one.suspect and one not in old]
        unread = [one for one in counted[: max(keep, 1)] if one.name not in good]
        if not unread:
            return (old if counted else []), damaged
        for one in unread:
            if why := damage_of(one):
                damaged.append(msgspec.structs.replace(one, suspect=why, health="suspect"))
                every = [damaged[-1] if each.name == one.name else each for each in every]
            else:
                good.add(one.name)


def _may_run(one: Checkpoint, now: float) -> bool:
    return one.saved_at is None or one.saved_at > now - _RUNNING
