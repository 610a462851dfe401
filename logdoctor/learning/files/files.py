"""Learned rules as YAML files: written for review, and read from anybody.

An exported file has the form of every rule file (see `rules/README.md`) and is named by its id: `learned/K/D` becomes
`filter/learned/K/D.yaml`, a diagnosis rule `diagnosis/learned/diagnosis/D.yaml`, so that `FOLDER/filter` and
`FOLDER/diagnosis` can be copied into a rule folder unchanged.
"""

import datetime
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import regex
import yaml

from logdoctor.errors import RuleError, StoreError
from logdoctor.learning.form import as_diagnosis, as_filter, as_override, day
from logdoctor.rules.load import explained
from logdoctor.rules.schema import DiagnosisRule, FilterRule, OverrideRule, Retirement, Rule
from logdoctor.safe.lasting_files import new_file
from logdoctor.safe.plain_yaml import documents
from logdoctor.store.learning.learned import Event, Learned
from logdoctor.store.learning.overrides import PREFIX, StoredOverride

MOST_BYTES = 8 << 20
"""Most bytes of a file."""
MOST_RULES = 5000
"""Most rules of a file."""
MOST_FILES = 20_000
"""Most files below the given folders."""

_SECONDS = 0.2
_SAFE_NAME = regex.compile(r"learned(?:/[a-z0-9][a-z0-9-]*)+")


class _Document(msgspec.Struct):
    """The field that tells filter rules from diagnosis rules."""

    kind: str


# ---- out


class RuleHistory(Protocol):
    """The event history of learned rules, in a store or a service."""

    def events(self, id: str, limit: int = 100) -> list[Event]:
        """Return the steps of a rule, newest first."""


def file_rule(rule: Learned, rules: RuleHistory) -> Rule:
    """Return a learned rule as a rule file's, fit for `logdoctor rules check`.

    Metrics that none of its examples proves are left out: a file carries its own proof.
    """
    if rule.claim is not None:
        retired = _retirement(rule, rules) if rule.status == "retired" else None
        return msgspec.structs.replace(as_diagnosis(rule), id=f"diagnosis/{rule.id}", retired=retired)
    metrics = tuple(one for one in rule.metrics if any(_finds(one, text) for text in rule.examples))
    retired = _retirement(rule, rules) if rule.status == "retired" else None
    return msgspec.structs.replace(as_filter(rule), id=f"filter/{rule.id}", metrics=metrics, retired=retired)


def override_file(rule: OverrideRule) -> OverrideRule:
    """Return a service's override in file form, with an id that no shipped file has."""
    return msgspec.structs.replace(rule, id=rule.id.replace(PREFIX, f"{PREFIX}learned/", 1))


def text_of(rule: Rule | OverrideRule) -> str:
    """Return a rule as YAML that is safe for a terminal; fields with default values are left out."""
    fields = {"id": rule.id, "kind": "", **msgspec.to_builtins(rule, builtin_types=(datetime.date,))}
    optional = rule.__struct_fields__[-len(rule.__struct_defaults__) :]
    kept = {name: _quoted(value) for name, value in fields.items() if value or name not in optional}
    plain = all(char.isprintable() for text in _texts(kept) for char in text)
    return yaml.dump(kept, Dumper=_Dumper, sort_keys=False, allow_unicode=plain, width=1 << 30)


class _Quoted(str):
    """Text in single quotes, used for patterns and log lines."""


class _Dumper(yaml.SafeDumper):
    """Writes rules, with list indentation as in `rules/`."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_representer(
    _Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="'")
)


def _quoted(value: Any) -> Any:
    return (
        [_Quoted(one) if isinstance(one, str) else one for one in value] if isinstance(value, list | tuple) else value
    )


class Exported(NamedTuple):
    """The files that were written, and existing ones with the same content."""

    written: list[Path]
    same: list[Path]


def export(learned: Sequence[Learned], rules: RuleHistory, folder: Path, force: bool = False) -> Exported:
    """Write each rule to its file below a folder, atomically; `StoreError` when a file cannot be written.

    A different existing file is only overwritten with `force`; without it nothing is written then.
    """
    texts = {_place(folder, rule): text_of(file_rule(rule, rules)).encode() for rule in learned}
    return _written(texts, folder, force)


def _written(texts: dict[Path, bytes], folder: Path, force: bool) -> Exported:
    """Write files atomically; without `force`, none if a different file exists."""
    try:
        present = {path: path.read_bytes() for path in texts if os.path.lexists(path)}
        same = [path for path, content in present.items() if content == texts[path]]
        if not force and (other := next((path for path in present if path not in same), None)):
            raise StoreError(str(other), "exists with different content", "Remove it, or use --force.")
        wanted = [path for path in texts if path not in same]
        for path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(path, over=force) as file:
                file.write(texts[path])
    except OSError as error:
        thing = str(error.filename or folder)
        raise StoreError(thing, f"cannot be written ({error.strerror})", "Choose another folder.") from error
    return Exported(wanted, same)


def export_overrides(
    overrides: Sequence[StoredOverride], folder: Path, day: datetime.date, force: bool = False
) -> Exported:
    """Write each override that holds on a day to its file, as `export` does."""
    rules = [override_file(as_override(one)) for one in overrides if one.holds(day)]
    return _written({folder / f"{one.id}.yaml": text_of(one).encode() for one in rules}, folder, force)


def _place(folder: Path, rule: Learned) -> Path:
    if not _SAFE_NAME.fullmatch(rule.id):
        raise StoreError(f"the rule {ascii(rule.id)[:200]}", "its id cannot be a file name", "Retire it.")
    return folder / f"{'filter' if rule.claim is None else 'diagnosis'}/{rule.id}.yaml"


def _retirement(rule: Learned, rules: RuleHistory) -> Retirement:
    for event in rules.events(rule.id):
        if event.to_status == "retired":
            return Retirement(day(event.at), event.by, event.why or "no reason was given")
    return Retirement(day(rule.changed), rule.agent, "no reason is known")


def _finds(expression: str, text: str) -> bool:
    try:
        return regex.search(expression, text, timeout=_SECONDS) is not None
    except (regex.error, TimeoutError):
        return False


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts within lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


# ---- in


def rules_in(content: bytes, where: str) -> list[Rule]:
    """Parse rules from anybody's YAML, one per document; `RuleError` when it is invalid or too much."""
    rules: list[Rule] = []
    try:
        for number, document in enumerate(documents(content.decode("utf-8"))):
            if number >= MOST_RULES:
                raise RuleError(where, f"it holds more than {MOST_RULES} rules", "Split it.")
            if document is not None:
                rules.append(_rule(document))
    except msgspec.ValidationError as error:
        raise RuleError(where, f"is not a rule ({explained(error)[:300]})", _MEND) from error
    except ValueError as error:  # not UTF-8 or not YAML
        raise RuleError(where, f"is not a rule in YAML ({' '.join(str(error).split())[:300]})", _MEND) from error
    if not rules:
        raise RuleError(where, "holds no rule", _MEND)
    return rules


_MEND = "Compare it with what `logdoctor rules export` writes."


def _rule(document: Any) -> Rule:
    """Parse a document as a rule; `msgspec.ValidationError` (a ValueError) when it is invalid."""
    forms: dict[str, type[Rule]] = {"filter": FilterRule, "diagnosis": DiagnosisRule}
    form = forms.get(msgspec.convert(document, _Document).kind)
    if form is None:
        raise msgspec.ValidationError("only filter rules and diagnosis rules can be learned")
    return msgspec.convert(document, form, strict=False)


def files_below(paths: Sequence[Path]) -> list[Path]:
    """Return the given files, and those (`*.yaml`, `*.yml`) below given folders without following links.

    `RuleError` when one does not exist, a folder holds none, or there are too many.
    """
    found: list[Path] = []
    for path in paths:
        files = list(_yaml_files(path)) if path.is_dir() else [path]
        if not files:
            raise RuleError(str(path), "is a folder without *.yaml files", "Name the folder that was exported.")
        found += files
        if len(found) > MOST_FILES:
            raise RuleError(str(path), f"these are more than {MOST_FILES} files", "Name fewer.")
    return list(dict.fromkeys(found))


def _yaml_files(folder: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise RuleError(str(error.filename), f"cannot be read ({error.strerror})", "Check its permissions.") from error

    seen = 0
    for root, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        for name in sorted(names):
            if name.endswith((".yaml", ".yml")) and not name.startswith("."):
                seen += 1
                if seen > MOST_FILES:
                    return
                yield Path(root, name)


def content_of(path: Path) -> bytes:
    """Return the bytes of a regular file; `RuleError` for a link, a device, an oversized or an unreadable file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RuleError(str(path), "is not a regular file", "Name a YAML file.")
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise RuleError(str(path), "is a symbolic link", "Name the file that it points to.") from error
        raise RuleError(str(path), f"cannot be read ({error.strerror})", "Check the path.") from error
    except ValueError as error:  # a NUL in its name
        raise RuleError(str(path), "is not a path", "Check the path.") from error
    if len(content) > MOST_BYTES:
        raise RuleError(str(path), f"has more than {MOST_BYTES} bytes", "Split it.")
    return content
