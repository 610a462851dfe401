"""Each command twice: on a data folder, and through a real service over another folder with the same in it."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import structlog

from logdoctor import wiring
from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.settings import read_settings
from logdoctor.wiring import running
from tests.test_cli import Ran, run
from tests.web.conftest import options, serving

__all__ = ["run"]  # fixtures

ENGINEER = "engineer"
"""Who acts: by the login name, and by the name of the token."""
_TIMES = re.compile(r"\b1[6-9]\d{8}(\.\d+)?\b|\b20\d\d-\d\d-\d\d \d\d:\d\d(:\d\d)?\b")
"""Seconds since the epoch and dates: both folders are filled one after the other."""


class Both(NamedTuple):
    """What a command came to on the folder, and through the service."""

    here: Ran
    there: Ran

    def same(self) -> Ran:
        """What both came to, which is the same."""
        assert self.here.code == self.there.code, (self.here.err, self.there.err)
        assert plain(self.here.out) == plain(self.there.out)
        return self.there


class Twins:
    """Two data folders with the same in them, one of which is served."""

    def __init__(self, folder: Path, served: Service, url: str, token: str, run: Callable[..., Ran]) -> None:
        self.folder, self.service, self.url, self.token, self._run = folder, served, url, token, run

    def here(self, *arguments: object, stdin: bytes = b"") -> Ran:
        """What a command comes to on the folder."""
        return self._run(*arguments, stdin=stdin, url="", token="", data_dir=str(self.folder))

    def there(self, *arguments: object, token: str | None = None, stdin: bytes = b"") -> Ran:
        """What a command comes to through the service, where no data folder is."""
        secret = self.token if token is None else token
        return self._run(*arguments, stdin=stdin, url=self.url, token=secret, data_dir="/nowhere")

    def both(self, *arguments: object, stdin: bytes = b"") -> Both:
        """What a command comes to in both places."""
        return Both(self.here(*arguments, stdin=stdin), self.there(*arguments, stdin=stdin))

    def same(self, *arguments: object, stdin: bytes = b"") -> Ran:
        """What a command comes to in both places, which is the same."""
        return self.both(*arguments, stdin=stdin).same()

    def secret(self, *scopes: str, prefixes: tuple[str, ...] = ()) -> str:
        """A new token."""
        name = f"token {len(self.service.tokens.list())}"
        return self.service.tokens.create(name, scopes, prefixes, None)[1]


Fill = Callable[[Path], object]


@pytest.fixture
def twins(
    tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, scanner: Scanner
) -> Iterator[Callable[[Fill], Twins]]:
    """Fills two folders with the same, and serves one of them, as `logdoctor serve` does, to those with a token."""
    monkeypatch.setattr("logdoctor.cli.options.login", lambda: ENGINEER)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))  # the service is in this process
    monkeypatch.setattr(structlog, "configure", lambda **_: None)
    with ExitStack() as stack:

        def filled(fill: Fill) -> Twins:
            here, there = tmp_path / "here", tmp_path / "there"
            for folder in (here, there):
                folder.mkdir()
                fill(folder)
            settings = msgspec.structs.replace(
                read_settings(), data_dir=there, serve_workers=0, scan_seconds=0.05, min_free_bytes=0
            )
            with monkeypatch.context() as patched:
                patched.setattr(wiring, "scanner", lambda _: scanner)
                service = running.service(settings)
            token = service.tokens.create(ENGINEER, ("admin",), (), None)[1]
            served = stack.enter_context(serving(service, options(wants_token=True)))
            return Twins(here, service, served.url, token, run)

        yield filled
    structlog.reset_defaults()


def plain(text: str) -> str:
    """A text without the times in it."""
    return _TIMES.sub("TIME", text)
