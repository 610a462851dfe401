"""The command line for tests: the real program, and the same in this process, where a run costs no start."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner

from logdoctor import wiring
from logdoctor.cli import cli
from logdoctor.errors import LogdoctorError
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings

LOGDOCTOR = str(Path(sys.executable).with_name("logdoctor"))
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment without settings of logdoctor, a data folder of its own, and two workers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    return kept | {"LOGDOCTOR_DATA_DIR": str(tmp_path / "data"), "LOGDOCTOR_WORKERS": "2"}


@pytest.fixture
def batch(tmp_path: Path, environment: dict[str, str]) -> Command:
    """Runs `logdoctor batch` in a folder of its own, as a process."""

    def run(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        command = [LOGDOCTOR, "batch", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=environment | more, capture_output=True, text=True)

    return run


_unchecked_scanner = wiring.unchecked_scanner


@cache
def _shipped(cache_dir: Path | None) -> Scanner:
    return _unchecked_scanner(Settings(cache_dir=cache_dir))


def _kept(settings: Settings) -> Scanner:
    """Return the shipped rules as they were made once: most of what a short command does is to make them."""
    return _unchecked_scanner(settings) if settings.rules else _shipped(settings.cache_dir)


def invoked(*arguments: object, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run a command in this process, and return its exit code and what it wrote; errors end it as in `main`."""
    with mock.patch.object(wiring, "unchecked_scanner", _kept):
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], input=stdin)
    if isinstance(result.exception, LogdoctorError):
        return 2, result.stdout_bytes, result.stderr_bytes + f"logdoctor: {result.exception}\n".encode()
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout_bytes, result.stderr_bytes


def here(folder: Path, environment: Mapping[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, in a folder, with an environment that ends with it."""
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ, environment, clear=True):
        patch.chdir(folder)
        code, out, err = invoked(*arguments)
    return subprocess.CompletedProcess([*map(str, arguments)], code, out.decode(), err.decode())


def is_gone(session: int) -> bool:
    """Whether no process of a session is left."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return True
    return False
