"""Everything that can be set, in one place. Only this module reads the environment."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from logdoctor.errors import SettingsError

PREFIX = "LOGDOCTOR_"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings with their defaults; the environment variable of `workers` is LOGDOCTOR_WORKERS."""

    rules: Path | None = None
    cache_dir: Path | None = None
    workers: int = 0
    block_bytes: int = 4 << 20
    max_decompressed_bytes: int = 1 << 40
    max_expansion: int = 2000


class Help(NamedTuple):
    """What a setting means, for the documentation."""

    name: str
    default: str
    meaning: str


MEANINGS = {
    "rules": "folder of the rules; default: those that came with logdoctor",
    "cache_dir": "where compiled rules are kept; default: $XDG_CACHE_HOME/logdoctor or ~/.cache/logdoctor",
    "workers": "processes that scan a log; 0 means one for each core",
    "block_bytes": "bytes that are scanned at a time, 64 KiB to 64 MiB; memory grows with it",
    "max_decompressed_bytes": "a compressed log that unpacks to more is refused",
    "max_expansion": "a compressed log that unpacks to more than this many times its size (and over 64 MiB) is refused",
}


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process; `SettingsError` for an unknown LOGDOCTOR_* variable or a bad value."""
    environment = os.environ if environment is None else environment
    given: dict[str, Any] = {}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or variable.endswith("_COMPLETE"):  # shell completion is click's own
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name not in Settings.__struct_fields__:
            raise SettingsError(variable, "there is no such setting", "See the table of settings in README.md.")
        given[name] = value
    try:
        settings = msgspec.convert(given, Settings, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{PREFIX}*", f"{error}", "See the table of settings in README.md.") from error
    if not 1 << 16 <= settings.block_bytes <= 1 << 26:
        raise SettingsError(
            "LOGDOCTOR_BLOCK_BYTES", f"{settings.block_bytes} is out of range", "Use 65536 to 67108864."
        )
    if not 0 <= settings.workers <= 256:
        raise SettingsError("LOGDOCTOR_WORKERS", f"{settings.workers} is out of range", "Use 0 (one per core) to 256.")
    for name in ("max_decompressed_bytes", "max_expansion"):
        if getattr(settings, name) < 1:
            raise SettingsError(f"{PREFIX}{name.upper()}", f"{getattr(settings, name)} is too small", "Use 1 or more.")
    return settings


def _decode(kind: type, value: Any) -> Any:
    if kind is Path:
        return Path(value).expanduser()
    raise NotImplementedError(f"no setting has the type {kind}")


def rules_folder(settings: Settings) -> Path:
    """The folder with the rules: as set, of the wheel, or of the source tree."""
    if settings.rules:
        return settings.rules
    package = Path(__file__).resolve().parent
    bundled = package / "data" / "rules"
    return bundled if bundled.is_dir() else package.parent / "rules"


def cache_folder(settings: Settings) -> Path:
    """The folder for compiled rules; it may not exist yet."""
    if settings.cache_dir:
        return settings.cache_dir
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "logdoctor"


def table() -> list[Help]:
    """One row for each setting, for README.md and its test."""
    defaults = Settings()
    return [
        Help(f"{PREFIX}{name.upper()}", str(getattr(defaults, name) or ""), meaning)
        for name, meaning in MEANINGS.items()
    ]
