from pathlib import Path

import pytest

from eval.replay.kinds import kinds
from eval.replay.label import Kind

CORPORA = (Path("eval/corpus"), Path("eval/validation"))


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    return kinds(CORPORA, tmp_path_factory.mktemp("heads"))
