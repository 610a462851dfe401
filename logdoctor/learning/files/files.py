"""Learned rules as YAML files: written for review, and read from anybody.

An exported file has the form of every rule file (see `rules/README.md`) and lies at its id: `learned/K/D` becomes
`filter/learned/K/D.yaml`, a diagnosis rule `diagnosis/learned/diagnosis/D.yaml`, so that `FOLDER/filter` and
`FOLDER/diagnosis` can be copied into a rule folder as they are.
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
from logdoctor.rules.schema import DiagnosisRule, FilterRule, OverrideRule, Retirement, Rule
from logdoctor.safe.lasting_files import new_file
from logdoctor.safe.plain_yaml import documents
from logdoctor.store.learning.learned import Event, Learned
from logdoctor.store.learning.overrides import PREFIX, StoredOverride

MOST_BYTES = 8 << 20
"""Bytes of a file."""
MOST_RULES = 5000
"""Rules of a file."""
MOST_FILES = 20_000
"""Files below the folders that are named."""

_SECONDS = 0.2
_SAFE_NAME = regex.compile(r"learned(?:/[a-z0-9][a-z0-9-]*)+")


class _Document(msgspec.Struct):
    """What tells the one kind of rule from the other."""

    kind: str


# ---- out


class RuleHistory(Protocol):
    """What has happened to learned rules, wherever they are."""

    def events(self, id: str, limit: int = 100) -> list[Event]:
        """Return the steps of a rule, the newest first."""


def file_rule(rule: Learned, rules: RuleHistory) -> Rule:
    """Return a learned rule in the form of a rule file, fit to pass `logdoctor rules check`.

    Metrics that none of its examples proves are left out: a file carries its own proof.
    """
    if rule.claim is not None:
        retired = _retirement(rule, rules) if rule.status == "retired" else None
        return msgspec.structs.replace(as_diagnosis(rule), id=f"diagnosis/{rule.id}", retired=retired)
    metrics = tuple(one for one in rule.metrics if any(_finds(one, text) for text in rule.examples))
    retired = _retirement(rule, rules) if rule.status == "retired" else None
    return msgspec.structs.replace(as_filter(rule), id=f"filter/{rule.id}", metrics=metrics, retired=retired)


def override_file(rule: OverrideRule) -> OverrideRule:
    """Return an override of a service as a file has it: under an id that no shipped file has."""
    return msgspec.structs.replace(rule, id=rule.id.replace(PREFIX, f"{PREFIX}learned/", 1))


def text_of(rule: Rule | OverrideRule) -> str:
    """Return a rule as YAML that is harmless to a terminal; what has its default is left out."""
    fields = {"id": rule.id, "kind": "", **msgspec.to_builtins(rule, builtin_types=(datetime.date,))}
    optional = rule.__struct_fields__[-len(rule.__struct_defaults__) :]
    kept = {name: _quoted(value) for name, value in fields.items() if value or name not in optional}
    plain = all(char.isprintable() for text in _texts(kept) for char in text)
    return yaml.dump(kept, Dumper=_Dumper, sort_keys=False, allow_unicode=plain, width=1 << 30)


class _Quoted(str):
    """Text that stands in single quotes, as patterns and lines of logs do."""


class _Dumper(yaml.SafeDumper):
    """Writes rules; the lists of a rule are indented as everywhere in `rules/`."""

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
    """The files that were written, and those that were there with the same content."""

    written: list[Path]
    same: list[Path]


def export(learned: Sequence[Learned], rules: RuleHistory, folder: Path, force: bool = False) -> Exported:
    """Write each rule to its file below a folder; `StoreError` when a file cannot be written.

    Another file that stands in the place of one is only overwritten with `force`: without it nothing is written
    then. Every file is there as a whole or not at all.
    """
    texts = {_place(folder, rule): text_of(file_rule(rule, rules)).encode() for rule in learned}
    return _written(texts, folder, force)


def _written(texts: dict[Path, bytes], folder: Path, force: bool) -> Exported:
    """Write files as a whole or not at all; none where another stands in the place of one, without `force`."""
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
    """Write each override that holds on a day to its file below a folder, as `export` does."""
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
    """Return the rules of YAML from anybody, one a document; `RuleError` when it is anything else or too much."""
    rules: list[Rule] = []
    try:
        for number, document in enumerate(documents(content.decode("utf-8"))):
            if number >= MOST_RULES:
                raise RuleError(where, f"it holds more than {MOST_RULES} rules", "Split it.")
            if document is not None:
                rules.append(_rule(document))
    except ValueError as error:  # what is no UTF-8, no YAML or no rule
        raise RuleError(where, f"is not a rule in YAML ({' '.join(str(error).split())[:300]})", _MEND) from error
    if not rules:
        raise RuleError(where, "holds no rule", _MEND)
    return rules


_MEND = "Compare it with what `logdoctor rules export` writes."


def _rule(document: Any) -> Rule:
    """Return a document as a rule; `msgspec.ValidationError` (a ValueError) when it is none."""
    forms: dict[str, type[Rule]] = {"filter": FilterRule, "diagnosis": DiagnosisRule}
    form = forms.get(msgspec.convert(document, _Document).kind)
    if form is None:
        raise msgspec.ValidationError("only filter rules and diagnosis rules can be learned")
    return msgspec.convert(document, form, strict=False)


def files_below(paths: Sequence[Path]) -> list[Path]:
    """Return the files that are named and those (`*.yaml`, `*.yml`) below folders that are; links are not followed
    there.

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
    """Return the bytes of a plain file; `RuleError` for a link, a device, what is too large and what cannot be read."""
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
