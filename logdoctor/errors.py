"""The errors logdoctor raises on purpose.

    LogdoctorError
    ├── InputError       a log cannot be read: missing, unreadable, unknown or damaged compression, too large
    ├── RuleError        a rule file is wrong: misspelt key, refused pattern, failing example, duplicate id
    ├── RuleRefused      a learned rule cannot be entered, or cannot take this step
    │   └── PatternRefused  its pattern is not of the language of learned patterns
    ├── ConfirmationRefused  a failure cannot be confirmed as asked
    │   └── ConfirmationSuperseded  somebody else was quicker
    ├── RecallError      past cases cannot be searched: the vectors are damaged, held by others, or their server is away
    │   └── VectorsDamaged  their folder cannot be read; they are rebuilt
    ├── PromptError      a prompt file is wrong
    ├── ModelError       a language model gives no usable answer
    │   ├── ModelUnavailable  it does not answer: time-out, no connection, 429, 5xx, an answer cut off
    │   ├── ModelNonsense     its answer is not JSON, not of the form asked for, or a refusal
    │   └── BudgetSpent       the budget of calls or tokens is spent
    ├── ExtraMissing     a library is not installed; the message names the command that installs it
    ├── SettingsError    a LOGDOCTOR_* variable is unknown or holds a bad value
    ├── NameRefused      a job, attempt or stream may not have this name
    ├── OffsetMismatch   bytes do not continue their stream; `next_offset` is where to resume
    ├── LimitReached     a stream or an attempt has reached its size limit
    ├── Busy             the service cannot take more now; retry later
    ├── StorageFull      the disk is full; nothing of the request was stored
    ├── CursorError      a cursor of a list is invalid
    ├── LaunchError      a launcher cannot start probes on nodes, or knows no such node
    ├── CordonError      a node cannot be cordoned or uncordoned
    │   └── CordonRefused  it may not be: a cap is reached, or the cordon belongs to others
    ├── NodeTestRefused  a node test cannot be started, extended or ended as asked
    ├── ActionRefused    an action cannot be decided or performed as asked
    ├── NoticeRefused    a notification cannot be sent as asked
    ├── IncidentRefused  an incident cannot take the step that is asked for; somebody may have been quicker
    ├── TokenError       a token cannot be made or revoked as asked
    ├── RequestRefused   a request cannot be served; its HTTP status and a word for why
    │   └── PushRefused  a push of a log shipper cannot be taken (web/push/)
    ├── SendError        the sender cannot begin: an option is missing or wrong
    │   └── NotTaken     the service did not take a request now; it is tried again
    ├── ServiceError     a running service cannot be asked: not trusted, not a logdoctor, of another version, no token
    │   ├── TokenRefused it wants a token, or another one
    │   └── ServiceAway  it does not answer now; retry later
    ├── CheckpointError  a checkpoint, or a folder of them, cannot be read, saved, loaded or changed as asked
    │   ├── CheckpointDamaged  it is torn or was changed
    │   └── CheckpointFenced   another trainer writes into the folder now
    ├── TrialError       an evaluation trial cannot be started, resumed or read as asked
    ├── CheckoutNeeded   a command measures logdoctor itself, and only a checkout of the repository has its code
    └── StoreError       the data folder, database or archive cannot be used: held by another, away, too new, damaged
        ├── StoreDamaged  stored data is missing or damaged; retrying does not help
        └── StoreRefused  a bucket does not allow the request; it may allow others

Every message names the thing, the cause and the next step; a cause begins with a verb where it can. The command line
prints it and exits with code 2; the service answers with it as JSON.
"""

from typing import Any

_VERBS = frozenset(
    "answered answers are asks can cannot captures contains contradicts did do does exists failed fails gives had "
    "has have hold holds includes is leaves lists matched matches may measures must names needs refused says stands "
    "unpacks was were works would".split()
)


def sentence(thing: str, cause: str) -> str:
    """Join thing and cause into one sentence. A cause that begins with a verb follows directly, others after a
    colon."""
    said = cause.removeprefix("it ")
    return f"{thing} {said}" if said.partition(" ")[0] in _VERBS else f"{thing}: {cause}"


class LogdoctorError(Exception):
    """Base of all errors raised on purpose; `str(error)` can be shown to a person."""

    def __init__(self, thing: str, cause: str, next_step: str) -> None:
        super().__init__(f"{sentence(thing, cause)}. {next_step}")
        self.thing = thing
        self.cause = cause
        self.next_step = next_step

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling: errors cross process boundaries when many files are diagnosed at once."""
        return type(self), (self.thing, self.cause, self.next_step)


class InputError(LogdoctorError):
    """A log cannot be read, or only in part."""


class RuleError(LogdoctorError):
    """A rule file cannot be used."""


class RuleRefused(LogdoctorError):
    """A learned rule cannot be entered, or cannot take this step of its lifecycle."""


class PatternRefused(RuleRefused):
    """A pattern is not in the language of learned patterns. `guard` is the guard that it fails."""

    def __init__(self, source: str, guard: str, cause: str) -> None:
        super().__init__(f"pattern {source[:120]!r}", cause, "Write it with literals, classes and (?:a|b) only.")
        self.guard = guard
        self._source = source

    def __reduce__(self) -> tuple[type["PatternRefused"], tuple[str, str, str]]:
        return PatternRefused, (self._source, self.guard, self.cause)


class ConfirmationRefused(LogdoctorError):
    """A confirmation cannot be entered or withdrawn as asked, or does not exist."""


class ConfirmationSuperseded(ConfirmationRefused):
    """The confirmation is based on an outdated state: somebody else has changed it."""


class RecallError(LogdoctorError):
    """Past cases cannot be searched by similarity; those with the same digest can."""


class VectorsDamaged(RecallError):
    """The vectors of past cases can no longer be read. They are rebuilt from the cases."""


class PromptError(LogdoctorError):
    """A prompt file cannot be used."""


class ModelError(LogdoctorError):
    """A language model gives no usable answer."""


class ModelUnavailable(ModelError):
    """A language model does not answer. `retry_after` is how many seconds it asks to wait, if it says so."""

    def __init__(self, thing: str, cause: str, next_step: str, retry_after: float | None = None) -> None:
        super().__init__(thing, cause, next_step)
        self.retry_after = retry_after


class ModelNonsense(ModelError):
    """A language model's answer is not JSON, not of the requested form, or a refusal."""


class BudgetSpent(ModelError):
    """The budget of calls or tokens is spent."""


class ExtraMissing(LogdoctorError):
    """A library that comes with an extra is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        cause = f"is not installed (no library {library})"
        super().__init__(f"the extra {extra!r}", cause, f"Run `{_install_command(extra)}`.")
        self._library, self._extra = library, extra

    def __reduce__(self) -> tuple[type["ExtraMissing"], tuple[str, str]]:
        return ExtraMissing, (self._library, self._extra)


def _install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, from folder, file or registry."""
    from importlib.metadata import PackageNotFoundError, distribution  # rarely needed, and slow to import
    from json import loads
    from urllib.parse import unquote, urlsplit

    try:
        source = loads(distribution("logdoctor").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        source = {}
    if "dir_info" in source:
        editable = "-e " if source["dir_info"].get("editable") else ""
        return f"pip install {editable}'{unquote(urlsplit(source['url']).path)}[{extra}]'"
    return f"pip install 'logdoctor[{extra}] @ {source['url']}'" if source else f"pip install 'logdoctor[{extra}]'"


class SettingsError(LogdoctorError):
    """A setting is unknown or has a bad value."""


class NameRefused(LogdoctorError):
    """A job, attempt or stream may not have this name."""


class OffsetMismatch(LogdoctorError):
    """Bytes do not continue their stream."""

    def __init__(self, stream: str, offset: int, next_offset: int) -> None:
        super().__init__(
            f"stream {stream}", f"it has {next_offset} bytes, not {offset}", f"Send from offset {next_offset}."
        )
        self.next_offset = next_offset


class LimitReached(LogdoctorError):
    """A stream or an attempt has reached its size limit."""


class Busy(LogdoctorError):
    """The service cannot take more now."""


class StorageFull(LogdoctorError):
    """The disk has no room for what was sent; nothing of it was kept."""


class CheckpointError(LogdoctorError):
    """A checkpoint, or a folder of them, cannot be read, saved, loaded or changed as asked."""


class CheckpointDamaged(CheckpointError):
    """A checkpoint is torn, or was changed after it was written."""


class CheckpointFenced(CheckpointError):
    """Another trainer writes into the folder now, and this one must not."""

    def __init__(self, thing: str, cause: str, next_step: str = "End one of the two trainers.") -> None:
        super().__init__(thing, cause, next_step)


class TrialError(LogdoctorError):
    """An evaluation trial cannot be started, resumed or read as asked."""


class CheckoutNeeded(LogdoctorError):
    """A command needs a checkout of the repository."""


class StoreError(LogdoctorError):
    """The data folder, the database or the archive cannot be used, maybe only for now."""


class StoreDamaged(StoreError):
    """What was stored is missing or damaged."""


class StoreRefused(StoreError):
    """A bucket does not allow what was asked for; it may allow other things."""


class CursorError(LogdoctorError):
    """A cursor of a list is invalid."""


class LaunchError(LogdoctorError):
    """A launcher cannot start probes on nodes, or knows no such node. The nodes themselves may be healthy."""


class CordonError(LogdoctorError):
    """A node cannot be cordoned or uncordoned."""


class CordonRefused(CordonError):
    """A node may not be cordoned or uncordoned: a cap is reached, or others cordoned it."""


class NodeTestRefused(LogdoctorError):
    """A node test cannot be started, extended or ended as asked, or does not exist."""


class ActionRefused(LogdoctorError):
    """An action cannot be decided or performed as asked, or does not exist."""


class IncidentRefused(LogdoctorError):
    """An incident cannot take the requested step, or does not exist."""


class NoticeRefused(LogdoctorError):
    """A notification cannot be sent as asked, or does not exist."""


class TokenError(LogdoctorError):
    """A token cannot be made or revoked as asked."""


class SendError(LogdoctorError):
    """The sender cannot begin: an option is missing or wrong."""


class NotTaken(SendError):
    """The service did not take a request now; try it again later.

    `only_this` means that the refusal concerns this stream, not the whole service. `mend` says what a person must do
    first, where waiting does not help.
    """

    def __init__(self, cause: str, retry_after: float | None = None, only_this: bool = False, mend: str = "") -> None:
        super().__init__("the service", cause, mend or "It will be retried.")
        self.retry_after = retry_after
        self.only_this = only_this
        self.mend = mend

    def __reduce__(self) -> tuple[type["NotTaken"], tuple[str, float | None, bool, str]]:
        return NotTaken, (self.cause, self.retry_after, self.only_this, self.mend)


class ServiceError(LogdoctorError):
    """A running service cannot be asked, or its answer cannot be used."""


class TokenRefused(ServiceError):
    """A running service wants a token, or does not accept the one given."""


class ServiceAway(ServiceError):
    """A running service does not answer now."""


class RequestRefused(LogdoctorError):
    """A request cannot be served: its HTTP status and a word for the reason."""

    def __init__(self, status: int, code: str, thing: str, cause: str, next_step: str) -> None:
        super().__init__(thing, cause, next_step)
        self.status, self.code = status, code

    def __reduce__(self) -> tuple[type["RequestRefused"], tuple[int, str, str, str, str]]:
        return RequestRefused, (self.status, self.code, self.thing, self.cause, self.next_step)
