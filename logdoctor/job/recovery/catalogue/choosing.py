"""Which checkpoint to resume from, and which ones may be removed."""

from collections.abc import Callable, Sequence

import msgspec

from logdoctor.job.recovery.catalogue.checkpoint import MOST_TRIES, Checkpoint, Onset, Refused
from logdoctor.job.recovery.catalogue.health import not_before

_RUNNING = 3600.0  # seconds after its last write in which a save may still be running
_NAMED = 3  # checkpoints that a refusal names


def best(
    checkpoints: Sequence[Checkpoint], before_step: int | None = None, before_time: float | None = None
) -> Checkpoint | Refused:
    """Return the newest complete checkpoint that is not suspect and can be loaded. One that failed to load twice is
    skipped. With `before_step` or `before_time` (seconds since the epoch) it must be known to be from before that
    onset."""
    onset = Onset(before_step, before_time)
    why: list[str] = []
    for one in newest_first(checkpoints):
        reason = skip_reason(one, onset)
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


def skip_reason(one: Checkpoint, onset: Onset) -> str:
    """Return why a checkpoint is skipped; "" when it can be used."""
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
    """Return what may be removed, oldest first, while the `keep` newest healthy checkpoints stay.

    Never among them: links and pinned ones, those that a mark or link names as the latest, the newest complete one by
    step and by time (after a roll-back they differ), the one that `best` returns, the newest that is not suspect, and
    torn ones that were written within the last hour or are newer than any complete one: they may be saves under way.
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
    """Return what may be removed while `keep` undamaged ones stay; and those found damaged, now suspect.

    `damage_of` reads a whole checkpoint and says why it is damaged ("" when not). Nothing may be removed unless a good
    one stays.
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
