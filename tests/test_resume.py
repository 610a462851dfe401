"""The hook of training programs: what they are told, and that exactly the announced batches are left out."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

from logdoctor import resume
from logdoctor.errors import SendError
from logdoctor.job.recovery.skipping import Batches, read_ranges
from logdoctor.resume import SkippingBatches

SAMPLES = 480


class OfRank:
    """The micro-batches of one rank: each global batch is dealt out to the ranks in turn."""

    def __init__(self, rank: int, ranks: int, size: int) -> None:
        self._rank, self._ranks, self._size = rank, ranks, size

    def __iter__(self) -> Iterator[list[int]]:
        for begin in range(0, SAMPLES, self._ranks * self._size):
            yield [begin + self._rank * self._size + place for place in range(self._size)]


class Numbers:
    """A dataset of numbers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, place: int) -> int:
        return place


def seen(batches: Iterable[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def expected(skip: str, size: int, begin: int = 0) -> set[int]:
    """The samples of the global batches, of so many samples, from one on, that are not left out."""
    left_out = {number for one in read_ranges(skip) for number in range(one.first, one.last + 1)}
    return {sample for sample in range(SAMPLES) if begin <= sample // size and sample // size + 1 not in left_out}


def test_nothing_is_told_where_no_supervisor_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGDOCTOR_RESUME", raising=False)
    monkeypatch.delenv("LOGDOCTOR_SKIP_BATCHES", raising=False)
    assert resume.announced() == ("", ())


def test_checkpoint_and_ranges_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGDOCTOR_RESUME", "/ckpt/300")
    monkeypatch.setenv("LOGDOCTOR_SKIP_BATCHES", "7-9,3")
    told = resume.announced()
    assert told == ("/ckpt/300", (Batches(3, 3), Batches(7, 9)))
    assert [told.position(step) for step in (2, 3, 5, 6)] == [2, 4, 6, 10]


def test_ranges_that_cannot_be_read_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGDOCTOR_SKIP_BATCHES", "1-x")
    with pytest.raises(SendError, match="LOGDOCTOR_SKIP_BATCHES cannot be read: '1-x' is no range"):
        resume.announced()


@pytest.mark.parametrize(("ranks", "accumulation"), [(1, 1), (1, 4), (2, 1), (2, 2), (4, 3), (3, 4)])
def test_all_ranks_leave_out_the_announced_batches_whatever_their_number(ranks: int, accumulation: int) -> None:
    """The global batch has 24 samples."""
    size, skip = 24 // ranks // accumulation, "2,5-9,20"
    parts = [seen(SkippingBatches(OfRank(rank, ranks, size), read_ranges(skip), accumulation)) for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    assert sorted(sample for part in parts for sample in part) == sorted(expected(skip, 24))


@given(
    skip=st.lists(st.tuples(st.integers(1, 45), st.integers(0, 5)), max_size=4),
    stop=st.integers(0, 39),
    before=st.sampled_from([1, 2, 3]),
    after=st.sampled_from([1, 2, 3]),
)
def test_a_state_goes_on_with_another_accumulation(
    skip: list[tuple[int, int]], stop: int, before: int, after: int
) -> None:
    """12 samples are one global batch; it stopped after some of them, and none is seen twice."""
    ranges = tuple(Batches(first, first + more) for first, more in skip)
    first = SkippingBatches(OfRank(0, 1, 12 // before), ranges, before)
    told: list[int] = []
    batches = iter(first)
    for _ in range(stop * before):
        batch = next(batches, None)
        assume(batch is not None)  # the end of an epoch is the begin of the next
        assert batch is not None
        told += batch
    second = SkippingBatches(OfRank(0, 1, 12 // after), ranges, after)
    second.load_state_dict(first.state_dict())
    told += seen(second)
    text = ",".join(f"{one.first}-{one.last}" for one in ranges)
    assert sorted(told) == sorted(expected(text, 12))


def test_epochs_count_on() -> None:
    batches = SkippingBatches(OfRank(0, 1, 12), read_ranges("1,41,42"))
    epochs = [seen(batches) for _ in range(2)]
    assert epochs[0] == list(range(12, SAMPLES)) and epochs[1] == list(range(24, SAMPLES))
    broken_off = iter(batches)
    assert next(broken_off) == next(iter(batches)) == list(range(12)), "an epoch that was broken off begins again"


def test_a_state_within_a_global_batch_is_not_taken_apart() -> None:
    first = SkippingBatches(OfRank(0, 1, 6), accumulation=2)
    next(iter(first))
    with pytest.raises(ValueError, match="within a global batch"):
        SkippingBatches(OfRank(0, 1, 4), accumulation=3).load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="over 0 micro-batches"):
        SkippingBatches([], accumulation=0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [0, 7, 13, 21])
def test_a_stateful_loader_goes_on_without_them(workers: int, at: int) -> None:
    """Its workers read ahead, and its state tells of what was given out alone."""

    def loader(skip: str) -> StatefulDataLoader[int]:
        batches = SkippingBatches(OfRank(0, 1, 12), read_ranges(skip))
        return StatefulDataLoader(Numbers(), batch_sampler=batches, num_workers=workers)  # type: ignore[arg-type]

    before = loader("")
    given = iter(before)
    samples = seen(next(given).tolist() for _ in range(at))
    state = before.state_dict()
    after = loader("15-30")
    if at:
        after.load_state_dict(state)
    samples += seen(batch.tolist() for batch in after)
    assert sorted(samples) == sorted({*range(12 * at), *expected("15-30", 12, at)})


def test_it_needs_nothing_but_python(tmp_path: Path) -> None:
    code = "import sys, logdoctor.resume; print(sorted({name.split('.')[0] for name in sys.modules}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "msgspec", "fastapi"} & set(eval(run.stdout))
