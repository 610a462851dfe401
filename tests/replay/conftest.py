from pathlib import Path

import pytest

from logdoctor.replay.kinds import kinds
from logdoctor.replay.label import Kind

CORPORA = (Path("eval/corpus"), Path("eval/validation"))


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    return kinds(CORPORA, tmp_path_factory.mktemp("heads"))
