"""The errors logdoctor raises on purpose.

    LogdoctorError
    ├── InputError       a log cannot be read: missing, unreadable, unknown or damaged compression, too large
    ├── RuleError        a rule file is wrong: misspelt key, refused pattern, failing example, duplicate id
    └── SettingsError    a LOGDOCTOR_* variable is unknown or holds a bad value

Every message names the thing, the cause and the next step. The command line prints it and exits with code 2.
"""


class LogdoctorError(Exception):
    """Base of all errors raised on purpose; `str(error)` is fit to be shown to a person."""

    def __init__(self, thing: str, cause: str, next_step: str) -> None:
        super().__init__(f"{thing}: {cause}. {next_step}")
        self.thing = thing
        self.cause = cause
        self.next_step = next_step

    def __reduce__(self) -> tuple[type["LogdoctorError"], tuple[str, str, str]]:
        """Errors cross process borders when many files are diagnosed at once."""
        return type(self), (self.thing, self.cause, self.next_step)


class InputError(LogdoctorError):
    """A log cannot be read, or only in part."""


class RuleError(LogdoctorError):
    """A rule file cannot be used."""


class SettingsError(LogdoctorError):
    """A setting is unknown or has a bad value."""
