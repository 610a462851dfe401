"""The content of pushes in any protocol: batches of lines with labels and time stamps."""

import hashlib
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, NoReturn

import msgspec

from logdoctor.errors import RequestRefused
from logdoctor.web.push.json_records import text_of_record

Labels = Mapping[str, str]
JSON_LABEL, KEEP = "logdoctor_json", "keep"
"""The label, and its value, of streams in which JSON records stay JSON."""


class PushLimits(NamedTuple):
    """Limits of one push.

    They are bytes after decompression, entries, bytes of an entry, labels of an entry, characters of a label, and
    labels of all batches together. They bound memory too: decoding takes at most about 20 times `bytes`, and that only
    for a hostile body.
    """

    bytes: int = 8 << 20
    entries: int = 100_000
    entry_bytes: int = 1 << 20
    labels: int = 256
    label_chars: int = 4096
    labels_in_all: int = 1_000_000


class LogEntry(NamedTuple):
    """One log entry: its labels, nanoseconds since the epoch (0: unknown), and its raw text."""

    labels: Labels
    ns: int
    text: bytes


class Batch(NamedTuple):
    """Adjacent entries with the same labels, in order of arrival.

    `lines` is their text, each entry ended by exactly one newline; an entry with newlines inside makes several lines, a
    carriage return stays. JSON records of logging libraries are text (`json_records`), unless the label
    `logdoctor_json` is `keep`. `first_ns` and `last_ns` are the earliest and the latest time in nanoseconds since the
    epoch, 0 when no entry has one. `digest` is the SHA-256 of labels, times and text, so that the retry of a push is
    recognised. `facts` are what the labels say about the job, under the names of its metadata.
    """

    labels: dict[str, str]
    lines: bytes
    first_ns: int
    last_ns: int
    digest: str
    facts: dict[str, str]
    entries: int


class PushRefused(RequestRefused):
    """A push cannot be taken."""

    def __init__(self, thing: str, cause: str, next_step: str, code: str = "bad_push", status: int = 400) -> None:
        super().__init__(status, code, thing, cause, next_step)


_FACTS = {
    "name": ("job_name", "slurm_job_name", "k8s_job_name", "batch_kubernetes_io_job_name"),
    "user": ("slurm_job_user", "user", "user_name"),
    "image": ("container_image_name", "container_image", "image"),
    "command": ("process_command_line", "command"),
    "framework": ("framework",),
    "launcher": ("launcher",),
    "checkpoint_dir": ("checkpoint_dir",),
}
_FEW_BRACKETS = 100_000
_DENSEST = 6  # bytes per bracket
_LATEST_NS = (1 << 63) - 1


def batches(entries: Iterable[LogEntry], limits: PushLimits) -> list[Batch]:
    """Return the batches of a push, in order. `PushRefused` when it holds more than `limits` allows."""
    found = []
    labels_left = limits.labels_in_all
    for labels, run in groupby(_counted(entries, limits), key=lambda entry: entry.labels):
        labels_left -= len(labels)
        if labels_left < 0:
            refuse_size("it has too many labels in all")
        found.append(_batch(dict(labels), list(run)))
    return found


def checked_size(body: bytes, limits: PushLimits) -> bytes:
    """Return the body; `PushRefused` (413) when it is larger than a push may be."""
    if len(body) > limits.bytes:
        refuse_size(f"it has {len(body)} bytes, more than {limits.bytes}")
    return body


def checked_density(body: bytes) -> bytes:
    """Return the JSON body; `PushRefused` (413) when it is mostly brackets.

    `{},` is three bytes here and a hundred when decoded. Real pushes have a bracket for 20 to 200 bytes.
    """
    if (brackets := body.count(b"{") + body.count(b"[")) > _FEW_BRACKETS and brackets * _DENSEST > len(body):
        refuse_size(f"it has {brackets} brackets in {len(body)} bytes")
    return body


def refuse_size(cause: str) -> NoReturn:
    """Raise `PushRefused` (413)."""
    raise PushRefused("push", cause, "Send smaller batches.", "too_large", 413)


def checked_labels(labels: Labels, limits: PushLimits) -> Labels:
    """Return the labels; `PushRefused` when there are too many or one is too long."""
    if len(labels) > limits.labels:
        refuse_labels(len(labels), limits)
    for name, value in labels.items():
        if max(len(name), len(value)) > limits.label_chars:
            cause = f"the label {name[:60]!r} is longer than {limits.label_chars} characters"
            raise PushRefused("push", cause, "Put long text into the line.", "bad_labels")
    return labels


def joined(shared: Labels, own: Labels, limits: PushLimits) -> Labels:
    """Return the labels of an entry: checked shared ones, and its own, which take precedence."""
    if not own:
        return shared
    labels = {**shared, **checked_labels(own, limits)}
    if len(labels) > limits.labels:
        refuse_labels(len(labels), limits)
    return labels


def refuse_labels(count: int, limits: PushLimits) -> NoReturn:
    """Raise `PushRefused` for an entry with too many labels."""
    raise PushRefused(
        "push", f"an entry has {count} labels, more than {limits.labels}", "Drop some of them.", "bad_labels"
    )


def known_time(ns: int) -> int:
    """Return the time, or 0 for an impossible one: wrong clocks must not cost lines."""
    return ns if 0 < ns <= _LATEST_NS else 0


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Normalize a label name for comparison: `k8s.pod.name`, `k8s-pod-name` and `K8S_POD_NAME` are equal."""
    return re.sub(r"[^0-9a-z]", "_", name[:200].lower())


def plainly(labels: Labels) -> dict[str, str]:
    """Return the labels that have a value, under their plain names. For equal plain names, the first one counts.

    OpenTelemetry and Loki call an unnamed service `unknown_service`; that is no value.
    """
    named: dict[str, str] = {}
    for name, value in labels.items():
        if (value := value.strip()) and not value.startswith("unknown_service"):
            named.setdefault(plain(name), value)
    return named


def merged(parts: list[Batch]) -> Batch:
    """Merge batches in order; the result has the labels that all of them share."""
    if len(parts) == 1:
        return parts[0]
    shared = set(parts[0].labels.items()).intersection(*(part.labels.items() for part in parts))
    facts: dict[str, str] = {}
    for part in parts:
        facts = part.facts | facts
    times = [ns for part in parts for ns in (part.first_ns, part.last_ns) if ns]
    return Batch(
        {name: value for name, value in parts[0].labels.items() if (name, value) in shared},
        b"".join(part.lines for part in parts),
        min(times, default=0),
        max(times, default=0),
        hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest(),
        facts,
        sum(part.entries for part in parts),
    )


def _counted(entries: Iterable[LogEntry], limits: PushLimits) -> Iterator[LogEntry]:
    """Yield the entries within the limits; neighbours with equal labels share one object."""
    last: Labels = {}
    for count, entry in enumerate(entries, 1):
        if count > limits.entries:
            refuse_size(f"it has more than {limits.entries} entries")
        if len(entry.text) > limits.entry_bytes:
            refuse_size(f"an entry has {len(entry.text)} bytes, more than {limits.entry_bytes}")
        if entry.labels is not last and entry.labels == last:
            entry = entry._replace(labels=last)
        last = entry.labels
        yield entry


def _batch(labels: dict[str, str], run: list[LogEntry]) -> Batch:
    named = plainly(labels)
    as_text = bytes if named.get(JSON_LABEL) == KEEP else text_of_record
    identity = hashlib.sha256(msgspec.json.encode(sorted(labels.items())))
    for entry in run:
        identity.update(struct.pack("<QQ", entry.ns, len(entry.text)))
        identity.update(entry.text)
    times = [entry.ns for entry in run if entry.ns]
    return Batch(
        labels,
        b"".join(as_text(entry.text).rstrip(b"\n") + b"\n" for entry in run),
        min(times, default=0),
        max(times, default=0),
        identity.hexdigest(),
        _facts(named),
        len(run),
    )


def _facts(named: Labels) -> dict[str, str]:
    found = {fact: next((named[name] for name in names if name in named), "") for fact, names in _FACTS.items()}
    return {fact: value for fact, value in found.items() if value}
