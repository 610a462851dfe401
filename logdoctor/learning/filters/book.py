"""The rule book of each kind of job: shipped and learned rules, compiled."""

import threading

import msgspec
import regex
import structlog

from logdoctor.errors import LogdoctorError, RuleError
from logdoctor.learning.form import as_filter
from logdoctor.rules.match import hyperscan_complaint
from logdoctor.rules.scanner import Scanner
from logdoctor.rules.schema import FilterRule
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.rule_rows import DIAGNOSIS

log = structlog.get_logger()


def _complaint(pattern: str) -> str | None:
    """Return why a stored pattern cannot be used; guards admit none, but databases outlive guards."""
    try:
        return hyperscan_complaint(pattern) or ("matches an empty line" if regex.fullmatch(pattern, "") else None)
    except regex.error as error:
        return str(error)


class Books:
    """The scanners of all kinds. Any thread may ask; `load` and `refresh` compile, which takes seconds."""

    def __init__(self, scanner: Scanner, rules: LearnedRules) -> None:
        self._shipped, self._rules = scanner, rules
        self._scanners: dict[str, Scanner] = {}
        self.version = -1
        """The version of the stored rules that is loaded."""
        self._compiling = threading.Lock()

    def scanner(self, kind: str) -> Scanner:
        """Return the scanner for jobs of a kind; that of the shipped rules when nothing was learned or loaded yet."""
        return self._scanners.get(kind, self._shipped)

    @property
    def kinds(self) -> list[str]:
        """Return the loaded kinds."""
        return list(self._scanners)

    def load(self, kind: str) -> Scanner:
        """Return the scanner of a kind, with its rules as stored now."""
        with self._compiling:
            learned = tuple(as_filter(rule) for rule in self._rules.list(kind) if rule.claim is None)
            if learned and self.scanner(kind).book.learned != learned:
                self._scanners[kind] = self._compiled(kind, learned)
        return self.scanner(kind)

    def refresh(self) -> bool:
        """Load what this or another process stored for all kinds; return whether anything had changed."""
        version = self._rules.version()
        if version == self.version:
            return False
        for kind in self._rules.kinds():
            if kind == DIAGNOSIS:
                continue  # diagnosis rules take no lines
            try:
                self.load(kind)
            except LogdoctorError as error:  # the other kinds must still be loaded
                log.error("rules of a kind not loaded", kind=kind, cause=str(error))
        self.version = version
        return True

    def _compiled(self, kind: str, learned: tuple[FilterRule, ...]) -> Scanner:
        """Return the scanner without rules that do not compile, which are logged (guards admit none)."""
        try:
            return self._shipped.learning(kind, learned)
        except (RuleError, regex.error):
            bad = {rule.id for rule in learned if any(map(_complaint, rule.patterns))}
            log.error("learned rules do not compile", kind=kind, rules=sorted(bad))
            fit = (msgspec.structs.replace(rule, status="retired") if rule.id in bad else rule for rule in learned)
            return self._shipped.learning(kind, tuple(fit))

    def alive(self) -> list[FilterRule]:
        """Return the learned rules in shadow or active, of all loaded kinds."""
        return [rule for scanner in list(self._scanners.values()) for rule in _alive(scanner)]

    def alive_that_match(self, line: str) -> list[FilterRule]:
        """Return all loaded learned rules, in shadow or active, that match a line."""
        found: list[FilterRule] = []
        for scanner in list(self._scanners.values()):
            matching = scanner.matching([line])[0]
            found += [rule for rule in _alive(scanner) if not matching.isdisjoint(rule.patterns)]
        return found


def _alive(scanner: Scanner) -> list[FilterRule]:
    return [rule for rule in scanner.book.learned if rule.status in ("active", "shadow")]
