"""Check the settings, this machine and stored data, for `logdoctor doctor`."""

import os
import platform
import shutil
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from logdoctor import wiring
from logdoctor.errors import LogdoctorError, SettingsError
from logdoctor.extras import EXTRAS
from logdoctor.service.service import locked
from logdoctor.settings import Settings, data_folder, llm_key
from logdoctor.store.database import Database
from logdoctor.store.jobs.records import Records
from logdoctor.store.keeping import checks
from logdoctor.store.keeping.checks import Check, State, failed
from logdoctor.store.keeping.repair import Repair
from logdoctor.wiring.stored import database_url, made_folder, objects, open_to_others

_PATIENCE = 3.0  # seconds for a model to answer
_SQLITE = (3, 35)  # has RETURNING


def checkup(settings: Settings, errors: list[SettingsError], deep: bool = False) -> Iterator[Check]:
    """Yield all checks; `errors` are those of the settings, `deep` reads the whole archive."""
    yield from _settings(errors)
    yield _versions()
    yield _extras()
    yield _folder(settings)
    yield _rules(settings)
    if settings.cordon_with == "file":
        yield _cordons(settings)
    if settings.llm_base_url:
        yield _model(settings)
    if data_folder(settings).exists() or settings.database_url:
        yield from stored(settings, deep)


def stored(settings: Settings, deep: bool = False) -> Iterator[Check]:
    """Yield the checks of the database, the archive and the log."""
    url = settings.database_url or f"sqlite:///{data_folder(settings) / 'logdoctor.db'}"
    of_database = checks.of_database(url)
    yield of_database
    try:
        place = objects(settings)
    except LogdoctorError as error:
        yield failed("archive", error)
        return
    of_archive = checks.of_archive(place)
    yield of_archive
    if of_database.state != "ok" or of_archive.state != "ok":
        return
    database = Database(url)
    try:
        yield checks.of_clock(database)
        yield checks.of_identity(database, place)
        yield from checks.of_stored(database, place, deep)
    finally:
        database.close()


def repair(settings: Settings, say: Callable[[str], None], dry: bool = False) -> None:
    """Repair stored data, and tell `say` each step first; `StoreError` when a service runs."""
    folder = made_folder(settings)
    lock = locked(folder)
    records = Records(database_url(settings))
    try:
        Repair(records, objects(settings), say, dry).run()
    finally:
        records.close()
        os.close(lock)


def _settings(errors: list[SettingsError]) -> Iterator[Check]:
    for error in errors:
        yield failed("settings", error)
    if not errors:
        yield Check("settings", "ok", "every LOGDOCTOR_ variable is a setting with a valid value")


def _versions() -> Check:
    said = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < _SQLITE:
        return Check("versions", "problem", said, f"Use a Python with SQLite {'.'.join(map(str, _SQLITE))} or newer.")
    return Check("versions", "ok", said)


def _extras() -> Check:
    absent = [name for name, libraries in EXTRAS.items() if not all(find_spec(library) for library in libraries)]
    said = f"installed: {', '.join(name for name in EXTRAS if name not in absent) or 'none'}"
    return Check("extras", "ok", f"{said}; not installed: {', '.join(absent)}" if absent else said)


def _folder(settings: Settings) -> Check:
    folder = data_folder(settings)
    if not folder.exists():
        state: State = "warning" if settings.database_url else "problem"
        next_step = "Name that of the service with --data-dir; `logdoctor serve` creates it."
        return Check("data folder", state, f"{folder} does not exist", next_step)
    try:
        made_folder(settings)
        mode = open_to_others(folder)
        free = shutil.disk_usage(folder).free
    except LogdoctorError as error:
        return failed("data folder", error)
    except OSError as error:
        return Check("data folder", "problem", f"{folder} {error.strerror}", "Check its permissions.")
    if free < settings.min_free_bytes:
        said = f"{folder} has {free} bytes free, less than {settings.min_free_bytes}: new bytes are refused"
        return Check("data folder", "problem", said, "Free some space, or lower LOGDOCTOR_MIN_FREE_BYTES.")
    if mode:
        return Check("data folder", "warning", f"{folder} is open to others ({mode})", f"Run `chmod 700 {folder}`.")
    return Check("data folder", "ok", f"{folder}, {free >> 20} MiB free")


def _rules(settings: Settings) -> Check:
    try:
        book = wiring.scanner(settings).book
    except LogdoctorError as error:
        return failed("rules", error)
    return Check("rules", "ok", f"{len(book.filters)} filter rules, {len(book.diagnoses)} diagnosis rules compile")


def _cordons(settings: Settings) -> Check:
    if settings.cordon_file is None:
        return Check("cordons", "problem", "LOGDOCTOR_CORDON_WITH=file has no file", "Set LOGDOCTOR_CORDON_FILE.")
    if not settings.fleet:
        said = "LOGDOCTOR_FLEET is not set, so that only nodes that were ever tested are known and can be cordoned"
        return Check("cordons", "warning", said, "Set it to the names of all nodes, such as gpu-[001-588].")
    return Check("cordons", "ok", f"in {settings.cordon_file}, of {settings.fleet[:80]}")


def _model(settings: Settings) -> Check:
    url = f"{settings.llm_base_url.rstrip('/')}/models"
    next_step = "Check LOGDOCTOR_LLM_BASE_URL, and that the server runs."
    try:
        key = llm_key(settings)
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
        if not url.startswith(("http://", "https://")):
            raise ValueError("it is no URL of HTTP")
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
            answer.read(1)
    except LogdoctorError as error:
        return failed("model", error)
    except urllib.error.HTTPError as error:
        next_step = "Check LOGDOCTOR_LLM_KEY." if error.code in (401, 403) else next_step
        return Check("model", "warning", f"{url} answers {error.code}", next_step)
    except (OSError, ValueError) as error:
        return Check("model", "problem", f"{url} does not answer ({error})", next_step)
    return Check("model", "ok", f"{url} answers")
