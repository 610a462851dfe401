"""Build the overrides of a data folder, for commands that run beside a service."""

from logdoctor import wiring
from logdoctor.errors import RuleRefused
from logdoctor.learning.files.overriding import Retried, retried
from logdoctor.learning.form import overriding
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import DiagnosisRule
from logdoctor.service.overruling import Overruling
from logdoctor.settings import Settings
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.confirmed import Confirmed
from logdoctor.store.learning.overrides import NewOverride, Overrides, StoredOverride
from logdoctor.wiring import stored

_SECONDS = 30.0  # of a back-test


class OverridesHere:
    """The overrides of a data folder; it accepts only those of shipped diagnosis rules."""

    def __init__(self, overrides: Overrides, records: Records, scanner: Scanner) -> None:
        self._overrides, self._records, self._scanner = overrides, records, scanner

    def add(self, new: NewOverride, by: str, at: float) -> StoredOverride:
        """Add the override, in force from now on, and return it; `RuleRefused`."""
        self._require_shipped(new.rule)
        return self._overrides.add(new, by, at)

    def tried(self, new: NewOverride) -> Retried:
        """Return what it would have changed in stored attempts."""
        self._require_shipped(new.rule)
        kind_of, confirmed = Overruling(self._overrides, self._records).kind, Confirmed(self._records.database)
        job = new.whose if new.scope == "job" else ""
        kind = new.whose if new.scope == "kind" else ""
        rules = [overriding(new, new.rule)]
        return retried(rules, self._scanner, confirmed, kind_of, lambda job: True, job, _SECONDS, kind=kind).of(
            new.scope
        )

    def _require_shipped(self, rule: str) -> None:
        if all(one.id != rule for one in self._scanner.book.diagnoses if isinstance(one, DiagnosisRule)):
            cause = "is not a shipped diagnosis rule"
            raise RuleRefused(f"rule {rule[:200]!r}", cause, "List them: logdoctor rules list --shipped.")


def overrides(settings: Settings) -> OverridesHere:
    """Return the store of overrides in the data folder."""
    return OverridesHere(stored.learned_rules(settings).overrides, stored.records(settings), wiring.scanner(settings))
