"""The rules of a service."""

import builtins
import datetime
from pathlib import Path

import msgspec

from logdoctor.cli.client.checks import require_known
from logdoctor.cli.client.connection import Connection, Refused, path
from logdoctor.cli.client.refusing import refused_as
from logdoctor.errors import RuleError, RuleRefused
from logdoctor.learning.files.imports import File, Imported
from logdoctor.learning.files.overriding import Change, Retried
from logdoctor.learning.files.why import Said
from logdoctor.rules.load import RuleBook
from logdoctor.store.learning.learned import Event, Learned
from logdoctor.store.learning.overrides import NewOverride, StoredOverride
from logdoctor.web.rules.answers import (
    ImportOut,
    LearnedRuleOut,
    LearnedRulePage,
    OverrideOut,
    OverridesOut,
    RetriedOut,
    RuleBookOut,
    RuleEventPage,
    WhyOut,
)

_MOST = 500  # items of a page
_OVERRIDES = "List them: logdoctor rules overrides"
_LIST = "List them: logdoctor rules list --learned"


class _NotImported(msgspec.Struct):
    """The result for each rule of an import with a refused rule."""

    rules: list[dict[str, str]]


class _Refusal(msgspec.Struct):
    """The answer to an import with a refused rule."""

    error: _NotImported


class ServedOverrides:
    """The calls of `store.learning.overrides.Overrides`, over HTTP; the token says who acts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, rule: str | None = None, withdrawn: bool = False) -> list[StoredOverride]:
        """Return the overrides of a rule, or all, newest first."""
        found = self._connection.get(OverridesOut, path("rule-overrides"), rule=rule, withdrawn=withdrawn)
        return [_override(one) for one in found.items]

    def one(self, id: int) -> StoredOverride:
        """Return the override with this id."""
        with refused_as(RuleRefused, _OVERRIDES):
            return _override(self._connection.get(OverrideOut, path("rule-overrides", id)))

    def add(self, new: NewOverride, by: str, at: float) -> StoredOverride:
        """Add the override, in force from now on, and return it."""
        with refused_as(RuleRefused, _OVERRIDES):
            return _override(self._connection.post(OverrideOut, path("rule-overrides"), _override_body(new)))

    def withdraw(self, id: int, by: str, why: str, at: float) -> StoredOverride:
        """Withdraw the override, and return it."""
        with refused_as(RuleRefused, _OVERRIDES):
            return _override(self._connection.delete(OverrideOut, path("rule-overrides", id), why=why))

    def tried(self, new: NewOverride) -> Retried:
        """Return what it would have changed in the attempts that the service keeps."""
        with refused_as(RuleRefused, _OVERRIDES):
            found = self._connection.post(RetriedOut, path("rule-overrides", "preview"), _override_body(new))
        scope = str(new.scope)
        changes = tuple(Change(**msgspec.structs.asdict(one), scopes=(scope,)) for one in found.changes)
        changed, contradicted = {scope: found.changed}, {scope: found.contradicted}
        return Retried(found.attempts, found.complete, changed, contradicted, changes)


def _override(one: OverrideOut) -> StoredOverride:
    return msgspec.convert(msgspec.to_builtins(one), StoredOverride)


def _override_body(new: NewOverride) -> dict[str, object]:
    today = datetime.datetime.now(datetime.UTC).date()
    days = None if new.expires is None else max((new.expires - today).days, 1)
    said = msgspec.structs.asdict(new)
    return {name: said[name] for name in said if name not in ("expires", "verdict", "quote")} | {"days": days}


class ServedRules:
    """The calls of `store.learning.learned.LearnedRules`, over HTTP; the token says who acts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.overrides = ServedOverrides(connection)

    def book(self) -> RuleBook:
        """Return the rules shipped with the service, without their tables, which no output needs."""
        found = self._connection.get(RuleBookOut, path("rules", "book"))
        return RuleBook((*found.filters, *found.diagnoses), Path())

    def list(self, kind: str | None = None, status: str | None = None, agent: str | None = None) -> list[Learned]:
        """Return the rules that match all given filters, by kind and place."""
        wanted = {"kind": kind, "status": status, "agent": agent, "limit": _MOST}
        found: builtins.list[Learned] = []
        cursor: str | None = None
        while True:
            page = self._connection.page(LearnedRulePage, path("rules"), cursor, **wanted)
            found += [self._known(one) for one in page.items]
            if (cursor := page.next) is None:
                return sorted(found, key=lambda one: (one.kind, one.place))

    def one(self, id: str) -> Learned:
        """Return the rule with this id."""
        with refused_as(RuleRefused, _LIST):
            return self._known(self._connection.get(LearnedRuleOut, _path(id)))

    def events(self, id: str, limit: int = 100) -> builtins.list[Event]:
        """Return the history of a rule, newest first."""
        with refused_as(RuleRefused, _LIST):
            found = self._connection.get(RuleEventPage, f"{_path(id)}/events", limit=limit).items
        return [msgspec.convert(msgspec.to_builtins(one), Event) for one in found]

    def approve(self, id: str, by: str, why: str, at: float, expected: str | None = None) -> Learned:
        """Approve the rule: move it one step further, and return it."""
        return self._step(id, "approve", {"why": why, "seen_as": expected})

    def retire(self, id: str, by: str, why: str, at: float) -> Learned:
        """Retire the rule, and return it."""
        return self._step(id, "retire", {"why": why})

    def undo(self, id: str, by: str, why: str, at: float) -> Learned:
        """Undo the latest step of the rule, and return it."""
        return self._step(id, "undo", {"why": why})

    def why(self, line: str, kind: str | None = None) -> builtins.list[Said]:
        """Return what the rules do with a line, and why."""
        found = self._connection.get(WhyOut, path("rules", "why"), line=line, kind=kind)
        return [Said(one.kind, one.findings) for one in found.said]

    def enter(self, file: File, kind: str | None) -> builtins.list[Imported]:
        """Import the rules of a file, all or none, and return one result for each."""
        try:
            content = file.read()
        except RuleError as error:
            return [Imported(file.name, "", "refused", guard="file", cause=error.cause)]
        try:
            entered = self._connection.post(ImportOut, path("rules", "import"), content, kind=kind)
        except Refused as error:
            if error.code != "rules_refused":
                raise
            refused = self._connection.decoded(_Refusal, error.body).error.rules
            try:
                return [Imported(**one)._replace(where=file.name) for one in refused]
            except TypeError:
                raise self._connection.not_understood("the results of an import") from None
        return [Imported(file.name, **msgspec.structs.asdict(one)) for one in entered.rules]

    def _step(self, id: str, step: str, body: dict[str, object]) -> Learned:
        with refused_as(RuleRefused, _LIST):
            return self._known(self._connection.post(LearnedRuleOut, f"{_path(id)}/{step}", body))

    def _known(self, rule: LearnedRuleOut) -> Learned:
        """Return a rule in the type of the data folder. `ServiceError` for a reason that this version does not know."""
        if rule.claim is not None:
            require_known(self._connection, rule.claim.reason, rule.claim.fault, rule.claim.recovery)
        return msgspec.convert(msgspec.to_builtins(rule), Learned)


def _path(id: str) -> str:
    return path("rules", *id.split("/"))
