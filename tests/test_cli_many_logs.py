"""A folder with so many logs that they are read by several processes, which say how far they are."""

import gzip
from pathlib import Path

import msgspec
import pytest

from logdoctor import pipeline
from logdoctor.errors import Busy, InputError
from logdoctor.pipeline import ReadLimits
from logdoctor.pipeline.attempts import attempts
from logdoctor.rules.scanner import Scanner

COUNT = 430
ERROR = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of ranks, of which one failed and some are compressed."""
    folder = tmp_path_factory.mktemp("many")
    for rank in range(COUNT):
        text = "".join(f"step {step} loss {2 - step / 100:.3f}\n" for step in range(5)) + (ERROR if rank == 333 else "")
        if rank % 50 == 7:
            (folder / f"rank-{rank}.log.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"rank-{rank}.log").write_text(text)
    return folder


def test_several_processes_find_what_one_finds(ranks: Path, scanner: Scanner, limits: ReadLimits) -> None:
    [attempt] = attempts(ranks)
    told: list[int] = []
    several = pipeline.diagnose(attempt.streams, scanner, limits._replace(workers=3), done=told.append)
    one = pipeline.diagnose(attempt.streams, scanner, limits._replace(workers=1))
    assert several.reason == "ECC Error" and several.evidence[0].stream == "rank-333.log"
    assert msgspec.structs.replace(several, seconds=0.0) == msgspec.structs.replace(one, seconds=0.0)
    assert told == sorted(set(told)) and told[-1] == COUNT and len(told) > 3


def test_one_that_cannot_be_read_is_named(ranks: Path, scanner: Scanner, limits: ReadLimits) -> None:
    [attempt] = attempts(ranks)
    gone = attempt.streams[100]._replace(path=ranks / "gone.log")
    with pytest.raises(InputError, match=r"gone\.log"):
        pipeline.diagnose((*attempt.streams, gone), scanner, limits._replace(workers=3))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("form", ["plain", "gzip", "many"])
def test_who_looks_before_each_part_can_end_the_reading(
    form: str, workers: int, ranks: Path, tmp_path: Path, scanner: Scanner, limits: ReadLimits
) -> None:
    text = b"step 1 loss 2.5\n" * (1 << 20)
    one = tmp_path / "one.log"
    one.write_bytes(gzip.compress(text, 1) if form == "gzip" else text)
    streams = attempts(ranks)[0].streams if form == "many" else [pipeline.LogFile("main", one)]
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise Busy("the service", "it is stopping", "Wait.")

    with pytest.raises(Busy):
        pipeline.diagnose(streams, scanner, limits._replace(block=1 << 20, workers=workers), look=look)
    assert looks == 2
