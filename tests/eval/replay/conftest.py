from pathlib import Path

import pytest

from eval.replay.kinds import kinds
from eval.replay.label import FailureKind

CORPORA = (Path("eval/corpus"), Path("eval/validation"))


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FailureKind]:
    return kinds(CORPORA, tmp_path_factory.mktemp("heads"))
