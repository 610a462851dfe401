"""The job, attempt and stream of a batch, from its labels by a configurable mapping."""

import hashlib
from typing import NamedTuple

from logdoctor.errors import SettingsError
from logdoctor.store.names import MAX_ATTEMPT, MAX_NAME, Key, file_name
from logdoctor.web.push.pushes import Batch, Labels, PushRefused, merged, plain, plainly

SETTING = "LOGDOCTOR_LABELS"
DEFAULT = (
    "job=logdoctor_job,slurm_job_id,job_name,batch_kubernetes_io_job_name,k8s.job.name,service.name,job; "
    "attempt=logdoctor_attempt,slurm_restart_count,attempt; "
    "stream=logdoctor_stream,rank,host+filename,hostname+filename,instance+filename,host.name+log.file.path,"
    "filename,log.file.path,pod,k8s.pod.name,host.name,instance,host,hostname"
)
"""`a+b` stands for both labels together: the same file name on two nodes means two streams."""

FIRST_ATTEMPT = 1
ONLY_STREAM = "main"
_PARTS = ("job", "attempt", "stream")
_MAX_SETTING = 10_000
_MAX_FILE_NAME = 240
_FORBIDDEN = "/\\\N{REPLACEMENT CHARACTER}"
_SHOWN_LABELS = 20

Choice = tuple[str, ...]
"""Labels that name something together; usually one."""


class Placed(NamedTuple):
    """A batch and the stream it belongs to."""

    key: Key
    batch: Batch


class Gathered(NamedTuple):
    """The batches of a push, one per stream, and how many entries were rejected. `refusal` is the first reason."""

    placed: list[Placed]
    rejected: int
    refusal: PushRefused | None


class LabelMap(NamedTuple):
    """For job, attempt and stream the labels that name it, in the order of preference."""

    job: tuple[Choice, ...]
    attempt: tuple[Choice, ...]
    stream: tuple[Choice, ...]

    def place(self, labels: Labels) -> Key:
        """Return the stream that the labels name.

        Invalid names are made valid, the same way each time. Without a label for it the attempt is 1 and the stream
        "main". `PushRefused` when no label names the job or the attempt is not a number.
        """
        named = plainly(labels)
        job = _first(self.job, named)
        if not job:
            raise PushRefused("push", f"no label names the job; {_seen(labels)}", self._advice("job"), "no_job")
        return Key(job, self._attempt(named), _first(self.stream, named) or ONLY_STREAM)

    def gather(self, batches: list[Batch]) -> Gathered:
        """Return the batches of a push by stream, in order of arrival within a stream.

        A batch without a place is left out and counted: one shipper sends the logs of many jobs in one push, and
        the others must not suffer.
        """
        by_key: dict[Key, list[Batch]] = {}
        rejected = 0
        refusal = None
        for batch in batches:
            try:
                by_key.setdefault(self.place(batch.labels), []).append(batch)
            except PushRefused as error:
                rejected += batch.entries
                refusal = refusal or error
        return Gathered([Placed(key, merged(parts)) for key, parts in by_key.items()], rejected, refusal)

    def table(self) -> str:
        """Return the mapping as a Markdown table for the documentation."""
        rows = (
            ("job", self.job, "the push is refused"),
            ("attempt", self.attempt, str(FIRST_ATTEMPT)),
            ("stream", self.stream, ONLY_STREAM),
        )
        lines = ["| what | labels, the first one present is used | if none is present |", "|---|---|---|"]
        for what, choices, default in rows:
            lines.append(f"| {what} | {', '.join(f'`{_spelt(choice)}`' for choice in choices)} | {default} |")
        return "\n".join(lines)

    def _attempt(self, named: Labels) -> int:
        value = next((named[choice[0]] for choice in self.attempt if choice[0] in named), str(FIRST_ATTEMPT))
        if value.isascii() and value.isdigit() and len(value) <= 20 and int(value) <= MAX_ATTEMPT:
            return int(value)
        raise PushRefused(
            "push",
            f"the attempt {value[:60]!r} is not an integer of 0 to {MAX_ATTEMPT}",
            self._advice("attempt"),
            "bad_attempt",
        )

    def _advice(self, part: str) -> str:
        choices = ", ".join(_spelt(choice) for choice in getattr(self, part))
        return f"Send one of the labels {choices}, or set '{part}=LABEL' in {SETTING}."


def label_map(setting: str = DEFAULT) -> LabelMap:
    """Parse a mapping like `job=a,b; stream=host+filename,pod`; parts left out are the default ones.

    `SettingsError` names the part that is wrong.
    """
    given = _parsed(DEFAULT) | _parsed(setting)
    return LabelMap(given["job"], given["attempt"], given["stream"])


def allowed(value: str) -> str:
    """Return a valid name of a job or stream for a value, or "".

    A leading `/` is removed and other forbidden characters become `_`. A name that is too long is cut and ends in a
    digest of the whole, so that it stays distinct.
    """
    name = value.strip().lstrip("/").strip()
    name = "".join("_" if c in _FORBIDDEN or not c.isprintable() else c for c in name)
    if name in (".", ".."):
        name = "_" * len(name)
    if len(name) <= MAX_NAME and len(file_name(name)) <= _MAX_FILE_NAME:
        return name
    digest = hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()[:12]
    short = name[: MAX_NAME - len(digest) - 1]
    while len(file_name(short)) > _MAX_FILE_NAME - len(digest) - 1:
        short = short[:-1]
    return f"{short}-{digest}"


def _parsed(setting: str) -> dict[str, tuple[Choice, ...]]:
    if len(setting) > _MAX_SETTING:
        raise SettingsError(SETTING, "it is too long", f"Use at most {_MAX_SETTING} characters.")
    found: dict[str, tuple[Choice, ...]] = {}
    for piece in filter(None, (piece.strip() for piece in setting.split(";"))):
        part, equals, names = (text.strip() for text in piece.partition("="))
        if part not in _PARTS or not equals:
            raise SettingsError(SETTING, f"the part {piece!r} is not understood", f"Write {_example()}.")
        if part in found:
            raise SettingsError(SETTING, f"the part {part!r} comes twice", f"Write {_example()}.")
        found[part] = tuple(_choice(part, name) for name in names.split(","))
    return found


def _choice(part: str, text: str) -> Choice:
    names = tuple(plain(name.strip()) for name in text.split("+"))
    if not all(name.strip("_") for name in names):
        raise SettingsError(SETTING, f"the part {part!r} has an empty label name", f"Write {_example()}.")
    if part == "attempt" and len(names) > 1:
        raise SettingsError(SETTING, f"the attempt cannot be two labels ({text.strip()})", "Name one label.")
    return names


def _example() -> str:
    return "'job=LABEL,LABEL; attempt=LABEL; stream=LABEL+LABEL,LABEL'"


def _first(choices: tuple[Choice, ...], named: Labels) -> str:
    """Return the name by the first choice whose labels are all present, or ""."""
    for choice in choices:
        if all(map(named.__contains__, choice)):
            # each is made valid before joining, so that inner ones lose a leading slash, too
            values = [allowed(named[label]) for label in choice]
            if all(values):
                return allowed(" ".join(values)) if values[1:] else values[0]
    return ""


def _spelt(choice: Choice) -> str:
    return "+".join(choice)


def _seen(labels: Labels) -> str:
    if not labels:
        return "it has no labels"
    names = sorted(labels)
    more = f" and {len(names) - _SHOWN_LABELS} more" if len(names) > _SHOWN_LABELS else ""
    return f"its labels are {', '.join(name[:60] for name in names[:_SHOWN_LABELS])}{more}"
