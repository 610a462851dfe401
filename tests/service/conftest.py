"""Shared by the tests of the service."""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import structlog

from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from tests.failure_agent.cases.chroma import WordEmbedder
from tests.service.services import serving
from tests.service.sites import Site


def _dropped(*event: object) -> NoReturn:
    raise structlog.DropEvent


@pytest.fixture(autouse=True, scope="session")
def _silence() -> None:
    """What the service logs would drown a failure report."""
    if not structlog.is_configured():
        structlog.configure(processors=[_dropped])


@pytest.fixture(scope="module")
def words() -> Iterator[None]:
    """Cases are alike by their words: to load what ships takes seconds, and is tested in tests/failure_agent/cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("logdoctor.wiring.failures.SentenceEmbedder", lambda model: WordEmbedder())
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder."""
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A cluster on paper; its processes are stopped in the end."""
    site = Site(tmp_path)
    yield site
    site.close()


@pytest.fixture
def service(folder: Path, scanner: Scanner) -> Iterator[Service]:
    """A service that does only what it is asked for."""
    with serving(folder, scanner) as service:
        yield service
