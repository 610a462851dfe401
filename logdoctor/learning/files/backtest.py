"""Back-tests of learned rules on kept attempts, for people who decide about them."""

from collections.abc import Callable, Sequence

from logdoctor.diagnose.taught import Taught
from logdoctor.learning.backtest import BackTest, Says, Tried
from logdoctor.learning.diagnoses.guards import says, trial_of
from logdoctor.learning.diagnoses.past import as_records
from logdoctor.learning.filters.life import quotes
from logdoctor.learning.form import as_diagnosis
from logdoctor.rules.lines import hits, joined
from logdoctor.rules.match import Matcher
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.confirmed import Confirmed, Past
from logdoctor.store.learning.learned import Learned

Places = Sequence[tuple[str, int]]
"""Lines by stream and number."""


def backtest(
    rule: Learned, confirmed: Confirmed, records: Records, sees: Callable[[str], bool], seconds: float
) -> Tried:
    """Try a rule on visible kept attempts, newest first, for at most `seconds`.

    `sees` tells which jobs are visible. The attempt that it was learned from is left out. `RuleError` when it does not
    compile. A diagnosis rule agrees if the attempt failed for its reason. A filter rule agrees if the verdict cites no
    line that it matches, because those must never be taken.
    """
    test = BackTest(seconds)
    own = (rule.source.job or "", -1 if rule.source.attempt is None else rule.source.attempt)
    find, judge = _finding(rule), _judging(rule, confirmed, records)
    for past in test.course(one for one in confirmed.past(own) if sees(one.job)):
        if places := find(past):
            test.enter(0, past, *judge(past, places))
    return test.of(0)


def _finding(rule: Learned) -> Callable[[Past], Places]:
    """Return a function for the lines of an attempt that a rule matches."""
    if rule.claim is not None:
        taught = Taught([as_diagnosis(rule)])
        return lambda past: taught.hits(as_records(past.lines)).get(rule.id, ())
    matcher = Matcher([rule.pattern])

    def find(past: Past) -> Places:
        (numbers,) = hits(matcher, joined(line.text for line in past.lines))
        return [(past.lines[number].stream, past.lines[number].line) for number in sorted(numbers)]

    return find


def _judging(rule: Learned, confirmed: Confirmed, records: Records) -> Callable[[Past, Places], tuple[Places, Says]]:
    """Return a function that judges the rule on an attempt, naming the deciding lines."""
    if rule.claim is None:
        return lambda past, places: _judged_filter(records, past, places)
    trial = trial_of(rule, rule.claim, confirmed)
    return lambda past, places: (places, says(past, trial))


def _judged_filter(records: Records, past: Past, places: Places) -> tuple[Places, Says]:
    stands = records.current(past.job, past.attempt)
    if stands is None:
        return places, "open"
    proofs = {(one.stream, one.line) for one in stands.verdict.evidence if quotes([one])}
    cited = [place for place in places if place in proofs]
    return (cited, "contradicts") if cited else (places, "agrees")
