"""Reads rules and knowledge tables from `rules/`."""

import csv
import datetime
import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from logdoctor import taxonomy
from logdoctor.errors import RuleError
from logdoctor.rules.captures import TimedPattern
from logdoctor.rules.once import once
from logdoctor.rules.overrides import SCOPES, Overriding, in_force, overruled
from logdoctor.rules.pattern_size import may_explode
from logdoctor.rules.schema import PARTS, Claim, DiagnosisRule, FilterRule, OverrideRule, Rule
from logdoctor.safe import cache_files
from logdoctor.safe.lasting_files import Folder
from logdoctor.safe.plain_yaml import document

AnyRule = TypeVar("AnyRule", bound=FilterRule | DiagnosisRule | OverrideRule)

_KINDS = ("filter", "diagnosis", "override")
_MOST_BYTES = 1 << 20
_CACHE_FORMAT = 1  # raise when the schema changes in a way its field names do not show


class RuleBook:
    """All rules of one folder, in the order of their ids, with the knowledge tables they use.

    Behind the shipped filter rules stand those `learned` from jobs of one `kind`; they are only ever appended, so that
    a rule keeps its index in `filters` while a stream is read. `overrides` are files of the folder that apply to the
    jobs they name; those `in_force` take effect.
    """

    def __init__(
        self,
        rules: tuple[Rule, ...],
        tables: Path,
        kind: str = "",
        learned: tuple[FilterRule, ...] = (),
        overrides: tuple[OverrideRule, ...] = (),
    ) -> None:
        shipped = tuple(rule for rule in rules if isinstance(rule, FilterRule))
        self.filters = (*shipped, *learned)
        self.diagnoses = tuple(rule for rule in rules if isinstance(rule, DiagnosisRule))
        self.kind, self.learned = kind, learned
        self.taught: tuple[DiagnosisRule, ...] = ()
        self.overrides = overrides
        self.in_force: tuple[OverrideRule, ...] = ()
        self.added: frozenset[str] = frozenset()
        """The ids of rules that folders beside the shipped ones add."""
        self._rules, self._tables = rules, tables

    def with_learned(self, kind: str, learned: tuple[FilterRule, ...]) -> "RuleBook":
        """Return the same shipped rules with those learned from jobs of a kind."""
        book = RuleBook(self._rules, self._tables, kind, learned, self.overrides)
        book.shipped_digest, book.added = self.shipped_digest, self.added
        return book

    def with_taught(self, taught: tuple[DiagnosisRule, ...]) -> "RuleBook":
        """Return the same rules with learned diagnosis rules behind the shipped ones."""
        book = RuleBook((*self._rules, *taught), self._tables, self.kind, self.learned, self.overrides)
        book.shipped_digest, book.taught, book.in_force = self.shipped_digest, taught, self.in_force
        book.added = self.added
        return book

    def for_job(
        self, job: str, kind: str, more: tuple[OverrideRule, ...] = (), day: datetime.date | None = None
    ) -> "RuleBook":
        """Return the rules for judging an attempt of a job on a day (default: today, UTC): overridden by the folder's
        files and by `more`, where these apply."""
        day = day or datetime.datetime.now(datetime.UTC).date()
        return self.overruled(in_force(Overriding((*self.overrides, *more), job, kind), day))

    def overruled(self, overrides: tuple[OverrideRule, ...]) -> "RuleBook":
        """Return the same rules in the same places, some with another verdict or none. For judging only: the rules that
        a scanner was made of continue to protect their lines (law 2)."""
        if not overrides:
            return self
        filters = tuple(rule for rule in self._rules if isinstance(rule, FilterRule))
        rules: tuple[Rule, ...] = (*filters, *overruled(self.diagnoses, overrides))
        book = RuleBook(rules, self._tables, self.kind, self.learned, self.overrides)
        book.shipped_digest, book.taught, book.in_force = self.shipped_digest, self.taught, overrides
        book.added = self.added
        return book

    def without_filters(self) -> "RuleBook":
        """Return the diagnosis rules alone, for learning from nothing."""
        return RuleBook(self.diagnoses, self._tables)

    @once
    def tables_digest(self) -> str:
        """Return SHA-256 (16 hex digits) over the knowledge tables."""
        digest = hashlib.sha256()
        for path in sorted(self._tables.glob("*.tsv")):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    @once
    def shipped_digest(self) -> str:
        """Return SHA-256 (16 hex digits) over every shipped rule and table."""
        shipped = self.filters[: self.shipped_filters]
        digest = hashlib.sha256(msgspec.json.encode((shipped, self.diagnoses)))
        for path in sorted(self._tables.glob("*.tsv")):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    @once
    def digest(self) -> str:
        """Return SHA-256 (16 hex digits) over everything that takes part in a verdict (law 8)."""
        taking = [*(rule for rule in self.learned if rule.status == "active"), *self.taught, *self.in_force]
        if not taking:
            return self.shipped_digest
        return hashlib.sha256(self.shipped_digest.encode() + msgspec.json.encode(taking)).hexdigest()[:16]

    def rule(self, rule_id: str) -> Rule:
        """Return the rule with this id; `RuleError` without one."""
        rules: tuple[Rule, ...] = (*self.filters, *self.diagnoses)
        for rule in rules:
            if rule.id == rule_id:
                return rule
        raise RuleError(f"rule {rule_id!r}", "does not exist", "See `logdoctor rules list`.")

    @property
    def shipped_filters(self) -> int:
        """Return how many filter rules come before the learned ones."""
        return len(self.filters) - len(self.learned)

    @once
    def metrics(self) -> dict[int, tuple[re.Pattern[bytes] | TimedPattern, ...]]:
        """Return the metric expressions of filter rules, compiled for bytes, by the rule's index."""
        return {
            place: tuple((TimedPattern if rule.id in self.added else re.compile)(one.encode()) for one in rule.metrics)
            for place, rule in enumerate(self.filters)
            if rule.metrics
        }

    @once
    def bad_losses(self) -> list[int]:
        """Return the indexes of the diagnosis rules for a loss that is not a number."""
        return [place for place, rule in enumerate(self.diagnoses) if rule.verdict.reason == "Loss Spike"]

    def progress_rules(self) -> set[str]:
        """Return the ids of the filter rules that read steps or losses."""
        groups = ("(?P<step>", "(?P<loss>")
        return {rule.id for rule in self.filters if any(group in m for m in rule.metrics for group in groups)}

    def knowledge(self, table: str) -> dict[str, dict[str, str]]:
        """Return a knowledge table: rows by their first column, each a mapping from column to text.

        A first column may hold several keys for one row, separated by ` | ` (a number, a name, its text).
        """
        return _read_table(self._tables / f"{table}.tsv")


_tables: dict[Path, dict[str, dict[str, str]]] = {}


def _read_table(path: Path) -> dict[str, dict[str, str]]:
    if path not in _tables:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                lines = (line for line in file if not line.startswith("#"))
                rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
        except OSError as error:
            raise RuleError(str(path), f"cannot read the table ({error.strerror})", "Restore the file.") from error
        _tables[path] = {key: row for row in rows for key in next(iter(row.values())).split(" | ")}
    return _tables[path]


def load_book(root: Path, cache: Path | None = None, over: Sequence[Path] = ()) -> RuleBook:
    """Return the rule book of a folder, overlaid with the rules of the folders `over` it; later ones win.
    `RuleError` names the first invalid file.

    Parsing some hundred YAML files takes longer than most diagnoses, so the parsed book is kept in `cache` under the
    names, sizes and times of the files; a damaged entry is replaced.
    """
    bases = (root, *map(_with_rules, over))
    files = _files(bases, "diagnosis") | _files(bases, "filter")
    if not files:
        raise RuleError(
            str(root), "no rule files below filter/ or diagnosis/", "Point LOGDOCTOR_RULES at a rule folder."
        )
    kept = cache / f"{_signature(root, files)}.rules" if cache else None
    rules = _kept_rules(kept) if kept else None
    if rules is None:
        rules = tuple(_unique(_read_rule(base, path) for path, base in files.items()))
        if kept:
            _keep_rules(kept, rules)
    book = RuleBook(rules, root / "knowledge", overrides=_overrides(bases, {rule.id for rule in rules}))
    added = (path.relative_to(base) for path, base in files.items() if base != root)
    book.added = frozenset(path.with_suffix("").as_posix() for path in added)
    return book


def _with_rules(folder: Path) -> Path:
    if not any((folder / kind).is_dir() for kind in _KINDS):
        cause = "has no folder `filter`, `diagnosis` or `override`"
        raise RuleError(str(folder), cause, "Name a folder like that of the rules, or of `logdoctor rules export`.")
    return folder


def _files(bases: Sequence[Path], kind: str) -> dict[Path, Path]:
    """Return the files of a kind with the folder that each is of, in the order of their paths below it. Of two with the
    same path that of the later folder counts."""
    found = {path.relative_to(base): base for base in bases for path in (base / kind).rglob("*.y*ml")}
    return {base / path: base for path, base in sorted(found.items())}


def _overrides(bases: Sequence[Path], rules: set[str]) -> tuple[OverrideRule, ...]:
    """Return the overrides in rule folders, in the order of their ids."""
    files = _files(bases, "override")
    found = tuple(_unique(_read_override(base, path) for path, base in files.items()))
    if odd := next((one for one in found if one.rule not in rules), None):
        raise RuleError(f"rule {odd.id!r}", f"it overrules {odd.rule!r}, which is not here", "Correct it or remove it.")
    return found


def _signature(root: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(f"{_CACHE_FORMAT} {msgspec.__version__} {root}".encode())
    for path in files:
        try:
            stat = path.stat()
            digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
        except OSError:
            digest.update(f"{path}\0\n".encode())  # the error comes when it is read
    for kind in (FilterRule, DiagnosisRule):
        digest.update(repr(kind.__struct_fields__).encode())
    return digest.hexdigest()[:32]


def _kept_rules(path: Path) -> tuple[Rule, ...] | None:
    try:
        return msgspec.msgpack.decode(cache_files.read(path) or b"", type=tuple[Rule, ...])
    except msgspec.MsgspecError:
        return None


def _keep_rules(path: Path, rules: tuple[Rule, ...]) -> None:
    cache_files.write(path, msgspec.msgpack.encode(rules))


def _read_rule(root: Path, path: Path) -> Rule:
    """Read a rule from a YAML file; check its id and its words."""
    rule: Rule = _read_file(root, path, Rule)
    if not isinstance(rule, FilterRule):
        if complaint := _vocabulary_complaint(rule.verdict, rule.explains):
            raise RuleError(str(path), complaint, "Use a word of logdoctor/taxonomy.py.")
    elif slow := next((metric for metric in rule.metrics if may_explode(metric)), None):
        cause = f"its metrics {slow!r} may take for ever on a line: a repeated group holds a choice or a repeat"
        raise RuleError(str(path), cause, "Write it as a class, such as [0-9.]+.")
    return rule


def _read_override(root: Path, path: Path) -> OverrideRule:
    """Read an override from a YAML file."""
    rule: OverrideRule = _read_file(root, path, OverrideRule)
    if complaint := override_complaint(rule):
        raise RuleError(str(path), complaint, "Compare it with what `logdoctor rules export` writes.")
    return rule


def override_complaint(rule: OverrideRule) -> str | None:
    """Return what is invalid in an override; None when it is fine."""
    if odd := next((name for name, value in rule.scope.items() if name not in SCOPES or not value), None):
        return f"its scope names {odd!r}, not a job or a kind"
    if rule.verdict is None:
        return None
    if not rule.verdict.reason or rule.verdict.lookup or rule.verdict.outcome:
        return "its verdict needs a reason, and nothing but that, a recovery and a fault"
    return _vocabulary_complaint(rule.verdict, ())


def _read_file(root: Path, path: Path, form: Any) -> Any:
    wanted = path.relative_to(root).with_suffix("").as_posix()
    try:
        data = Folder(root).read(path.relative_to(root).as_posix(), _MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise RuleError(str(path), f"has more than {_MOST_BYTES >> 10} kB", "Write one rule into a file.")
        rule = msgspec.convert(document(data.decode()), form, strict=False)
    except OSError as error:
        raise RuleError(
            str(path), f"cannot be read ({error.strerror})", "Check what it is, and its permissions."
        ) from error
    except msgspec.ValidationError as error:
        raise RuleError(str(path), explained(error), "Compare it with a rule next to it.") from error
    except ValueError as error:
        raise RuleError(str(path), f"is not YAML ({error})", "Fix the syntax.") from error
    if rule.id != wanted:
        raise RuleError(str(path), f"its id is {rule.id!r}, its path says {wanted!r}", "Make the two match.")
    return rule


def explained(error: msgspec.ValidationError) -> str:
    """Return what is wrong with a rule, with the field that may have been meant."""
    fields = {name for form in (FilterRule, DiagnosisRule, OverrideRule, *PARTS) for name in form.__struct_fields__}
    unknown = re.search("unknown field `(.+?)`", str(error))
    if unknown and unknown[1] in fields:
        return f"{error}: it is a field of the other kind of rule"
    meant = difflib.get_close_matches(unknown[1], sorted(fields), 1) if unknown else []
    return f"{error} (did you mean `{meant[0]}`?)" if meant else str(error)


def _vocabulary_complaint(claim: Claim, explains: tuple[str, ...]) -> str | None:
    fields = (
        ("reason", claim.reason, taxonomy.REASONS),
        ("recovery", claim.recovery, taxonomy.RECOVERIES),
        ("fault", claim.fault, taxonomy.FAULTS),
        ("outcome", claim.outcome, taxonomy.OUTCOMES),
    )
    for name, value, allowed in fields:
        if value and value not in allowed:
            return f"{name} {value!r} is not in the taxonomy"
    unknown = [reason for reason in explains if reason not in taxonomy.REASONS]
    if unknown:
        return f"explains {unknown[0]!r}, which is not in the taxonomy"
    if claim.role != "note" and not (claim.reason or claim.lookup):
        return f"role {claim.role!r} needs a reason"
    return None


def _unique(rules: Iterator[AnyRule]) -> Iterator[AnyRule]:
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen:
            raise RuleError(f"rule {rule.id!r}", "two files have this id", "Rename one of them.")
        seen.add(rule.id)
        yield rule
