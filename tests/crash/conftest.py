"""How often the service is killed, and by which dice."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.crash.load import Corpus
from tests.service.services import CORPUS

SEED = 3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--crash-seed", type=int, default=SEED, help="what kills and loads of the crash tests follow from")


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The number to give as --crash-seed to have the same again, as far as time allows."""
    number: int = request.config.getoption("--crash-seed", default=SEED)
    return number


@pytest.fixture(scope="session")
def soaking() -> bool:
    """Whether there is time for many kills."""
    return settings.get_current_profile_name() == "soak"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """What streams are made of."""
    path: Path = tmp_path_factory.mktemp("healthy") / "big.log"
    command = [sys.executable, str(CORPUS / "biglog.py"), "--mb", "12", "--out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return Corpus(path.read_bytes())
