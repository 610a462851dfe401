"""Composed kinds of failures, read from `catalogue/`, whose files describe their format."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from eval.replay.label import FailureLabel
from logdoctor import taxonomy
from logdoctor.errors import InputError

_FOLDER = Path(__file__).with_name("catalogue")
_BETWEEN = " ;; "
_WHO = ("all", "few", "one")
_SAYS = re.compile(r"([KHRPLTQ])(\*?) (.*)")


class StackFrame(NamedTuple):
    """One frame of a Python report; `code` is empty where no source is shown."""

    path: str
    function: str
    code: str


class TracebackForm(NamedTuple):
    """A Python traceback: its frames from the outside in, and the lines that name the exception.

    `proof` are the indexes of the lines that prove the cause. `dress` is how it is reported: "worker" by a data loading
    worker, "ray" from a Ray task, "argparse" as usage, a class that it is re-raised as, or plainly ("").
    """

    outer: tuple[StackFrame, ...]
    inner: tuple[StackFrame, ...]
    message: tuple[str, ...]
    proof: tuple[int, ...]
    dress: str = ""


class Saying(NamedTuple):
    """One line or report of a failure, and who prints it (as in `catalogue/raw.txt`)."""

    who: str
    proof: bool
    text: str
    report: TracebackForm | None = None


class Specimen(NamedTuple):
    """A kind in the catalogue: what is printed in which order, by which framework, before or in training, and by how
    many ranks ("all", "few", "one")."""

    id: str
    label: FailureLabel
    framework: str
    training: bool
    speakers: str
    says: tuple[Saying, ...]


def specimens() -> list[Specimen]:
    """Return all kinds of the catalogue; `InputError` names a line that is wrong."""
    stacks = dict(_stacks())
    found = [*_python(stacks), *_raw(stacks)]
    return [one._replace(id=f"{_slug(one.label.reason)}-{number:03d}") for number, one in enumerate(found, 1)]


def _slug(reason: str) -> str:
    return reason.removesuffix(" Error").lower().replace(" ", "-")


def _rows(name: str) -> Iterator[tuple[int, str]]:
    for number, row in enumerate((_FOLDER / name).read_text(encoding="utf-8").split("\n"), 1):
        if row.strip() and not row.startswith("#"):
            yield number, row


def _stacks() -> Iterator[tuple[str, tuple[StackFrame, ...]]]:
    for _, row in _rows("stacks.txt"):
        name, *frames = row.split(_BETWEEN)
        yield name, tuple(map(_frame, frames))


def _frame(text: str) -> StackFrame:
    path, function, code = text.split(":", 2)
    return StackFrame(path, function, code.strip())


def _wrong(name: str, number: int, why: str) -> InputError:
    return InputError(f"{_FOLDER / name}, line {number}", why, "Compare it with the line before it.")


def _message(text: str) -> tuple[str, ...]:
    return tuple(line.replace("\\\\", "\\") for line in re.split(r"(?<!\\)\\n", text))


def _proof(reason: str, message: tuple[str, ...]) -> tuple[int, ...]:
    if reason == "Syntax Error":
        return (len(message) - 1,)
    return (0, 1)[: len(message)] if len(message) <= 2 else (0,)


def _label(reason: str, options: dict[str, list[str]]) -> FailureLabel:
    if reason not in taxonomy.REASONS:
        raise ValueError(f"there is no reason {reason!r}")
    usual = taxonomy.REASONS[reason]
    at_fault = (usual.fault == "user" or "user" in options) and "infra" not in options
    also = tuple(name.replace("_", " ") for name in options.get("also", ()))
    recovery = (options.get("rec") or [usual.recovery])[0]
    recovery_also = tuple(options.get("recalso", ()))
    if reason == "OS Error" and "infra" in options:  # as the corpus labels such failures of a file system
        recovery_also = ("isolate_and_restart", "fix_first")
    return FailureLabel(reason, recovery, at_fault, also, recovery_also)


def _options(words: list[str]) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    for word in words:
        name, _, value = word.partition("=")
        options.setdefault(name, []).append(value)
    return options


def _python(stacks: dict[str, tuple[StackFrame, ...]]) -> Iterator[Specimen]:
    reason = ""
    for number, row in _rows("python.txt"):
        if row.startswith("= "):
            reason = row[2:].strip()
            continue
        try:
            head, *frames, message = row.split(_BETWEEN)
            words = head.split()
            stack = next(word for word in words if word in stacks)
            options = _options([word for word in words if word != stack])
            lines = _message(message)
            dress = next((name for name in ("worker", "ray") if name in options), options.get("wrap", [""])[0])
            report = TracebackForm(stacks[stack], tuple(map(_frame, frames)), lines, _proof(reason, lines), dress)
            speakers = "one" if dress in ("worker", "ray") else next((w for w in _WHO if w in options), "one")
            said = (Saying("T", True, "", report),)
            yield Specimen("", _label(reason, options), stack[:-2], stack[-1] not in "sdc", speakers, said)
        except (ValueError, StopIteration) as error:
            raise _wrong("python.txt", number, f"is not a kind ({error})") from error


def _raw(stacks: dict[str, tuple[StackFrame, ...]]) -> Iterator[Specimen]:
    reason, options, says, begun = "", dict[str, list[str]](), list[Saying](), 0
    for number, row in [*_rows("raw.txt"), (0, "== ")]:
        if not row.startswith("=="):
            says.append(_saying(stacks, number, row))
            continue
        if says:
            framework = next((word for say in says if (word := say.text) in stacks), "custom.t")
            training = "start" not in options
            try:
                label = _label(reason, options)
            except ValueError as error:
                raise _wrong("raw.txt", begun, str(error)) from error
            yield Specimen("", label, framework[:-2], training, "one", tuple(says))
        reason, _, words = row[3:].partition(" ; ")
        reason, options, says, begun = reason.strip(), _options(words.split()), [], number


def _saying(stacks: dict[str, tuple[StackFrame, ...]], number: int, row: str) -> Saying:
    match = _SAYS.fullmatch(row)
    if match is None:
        raise _wrong("raw.txt", number, "does not begin with who says it")
    who, star, text = match[1], bool(match[2]), match[3]
    if who not in "TQ":
        return Saying(who, star, text.replace("\\n", "\n").replace("\\t", "\t"))
    try:
        stack, *frames, message = text.split(_BETWEEN)
        lines = _message(message.replace("\\t", "\t"))
        report = TracebackForm(stacks[stack], tuple(map(_frame, frames)), lines, _proof("", lines) if star else ())
        return Saying(who, star, stack, report)
    except (ValueError, KeyError) as error:
        raise _wrong("raw.txt", number, f"is not a report ({error})") from error
