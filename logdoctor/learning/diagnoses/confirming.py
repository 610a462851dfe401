"""Builds the stored confirmation of a failure, with its episodes, so that it can be recognised."""

from collections.abc import Sequence

from logdoctor.diagnose.episodes import FOLLOWING, Episode, summary
from logdoctor.store.learning.confirmed import Cited, NewConfirmation
from logdoctor.types import Record, Verdict

_DIGESTS = 50
_TITLE = 300  # characters


def naming(found: Sequence[Episode], records: Sequence[Record], places: Sequence[tuple[str, int]]) -> Episode | None:
    """Return the episode that `holding` finds, else the most suspicious one that lasted; None without either."""
    if (held := holding(found, records, places)) is not None:
        return held
    return next((episode for episode in found if not episode.survived and episode.role not in FOLLOWING), None)


def holding(found: Sequence[Episode], records: Sequence[Record], places: Sequence[tuple[str, int]]) -> Episode | None:
    """Return the episode with the first of the (stream, number) lines that is in any."""
    streams = [record.stream for record in records]
    for stream, line in places:
        for episode in found:
            if streams[episode.stream] == stream and line in (episode.line, *episode.lines):
                return episode
    return None


def _naming_line(episode: Episode) -> str:
    return next((text for line, text in zip(episode.lines, episode.texts, strict=True) if line == episode.line), "")


def confirmation_of(
    job: str,
    attempt: int,
    verdict: Verdict,
    found: Sequence[Episode],
    records: Sequence[Record],
    by: str,
    *,
    verdict_id: int | None = None,
    reason: str = "",
    fault: str = "",
    recovery: str = "",
    fix: str = "",
    comment: str = "",
    evidence: Sequence[Cited] = (),
) -> NewConfirmation:
    """Return the confirmation of a verdict; its correction if another reason or recovery is given.

    Other fields default to the verdict's; when the reason is corrected, to the taxonomy's.
    """
    corrects = bool((reason and reason != verdict.reason) or (recovery and recovery != verdict.recovery))
    other = bool(reason) and reason != verdict.reason
    cited = tuple(evidence) or (
        () if other else tuple(Cited(one.stream, one.line, one.quote) for one in verdict.evidence)
    )
    search = holding if evidence else naming  # another episode must not replace lines chosen by a person
    named = search(found, records, [(one.stream, one.line) for one in cited])
    if named is not None and not cited:
        cited = (Cited(records[named.stream].stream, named.line, _naming_line(named)),)
    telling = [one for one in found if not one.survived and one.role not in FOLLOWING]
    digests = dict.fromkeys([*([named.digest] if named else []), *(one.digest for one in telling)])
    return NewConfirmation(
        job,
        attempt,
        by,
        reason or verdict.reason,
        fault=fault or ("" if other else verdict.fault),
        recovery=recovery or ("" if other else verdict.recovery),
        fix=fix,
        comment=comment,
        suggestion="" if other else verdict.suggestion,
        corrects=corrects,
        verdict=verdict_id,
        title=named.title if named else cited[0].quote.strip()[:_TITLE] if cited else "",
        digests=tuple(digests)[:_DIGESTS],
        summary=summary(found),
        evidence=cited,
    )
