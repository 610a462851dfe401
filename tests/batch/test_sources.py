"""What is found in folders, and what it is taken for."""

import os
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from logdoctor.errors import ServiceAway, StoreError
from logdoctor.pipeline.batch.sources import Mode, Source, Tar, Walk, are_of_one_job
from logdoctor.store.log.bucket import Bucket


def walk(mode: Mode = "") -> Walk:
    return Walk(mode, Bucket)


def names(found: Iterator[Source | Tar]) -> list[str]:
    return [one.name for one in found]


@pytest.mark.parametrize(
    ("names", "one"),
    [
        (["rank0.log", "rank1.log", "rank10.log"], True),
        (["job-rank_0.log", "job-rank_1.log"], True),
        (["node-01.out", "node-02.out"], True),
        (["stdout.log", "stderr.log"], True),
        (["a-rank0.log", "b-rank0.log"], False),
        (["rank0.log", "summary.log"], False),
        (["job-1.log", "job-2.log"], False),
        (["rank0.log"], False),
        ([], False),
    ],
)
def test_files_are_of_one_job_when_only_a_rank_or_node_differs(names: list[str], one: bool) -> None:
    assert are_of_one_job(names) is one


def test_folders_of_nodes_are_one_job(tmp_path: Path) -> None:
    for node in range(2):
        (tmp_path / "job" / f"node{node}").mkdir(parents=True)
        (tmp_path / "job" / f"node{node}" / "out.log").write_text("x\n")
    (source,) = walk().sources([str(tmp_path)])
    assert isinstance(source, Source)
    assert (source.name, [file.stream for file in source.files]) == (
        f"{tmp_path}/job",
        ["node0/out.log", "node1/out.log"],
    )


def test_what_is_below_a_folder_of_one_job_is_read_or_counted(tmp_path: Path) -> None:
    for name in ("attempt_0/rank0.log", "sub/a.log", "sub/t.tar", "sub/below/u.tar.gz", "sub/notes.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    one = walk()
    found = list(one.sources([str(tmp_path)]))
    of_job = [file.stream for source in found if isinstance(source, Source) for file in source.files]
    assert of_job == ["sub/a.log", "attempt_0/rank0.log"] and (one.jobs, one.logs, one.skipped) == (1, 0, 1)
    tars = [tar.name for tar in found if isinstance(tar, Tar)]
    assert tars == [f"{tmp_path}/sub/t.tar", f"{tmp_path}/sub/below/u.tar.gz"]


def test_patterns_are_expanded_and_names_with_stars_are_names(tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "[x].log", "c.json"):
        (tmp_path / name).write_text("x\n")
    assert names(walk().sources([f"{tmp_path}/?.log"])) == [f"{tmp_path}/a.log", f"{tmp_path}/b.log"]
    assert names(walk().sources([f"{tmp_path}/[x].log"])) == [f"{tmp_path}/[x].log"]
    everything = walk()
    assert len(names(everything.sources([f"{tmp_path}"]))) == 3 and everything.skipped == 1


def test_a_deep_tree_and_an_unreadable_folder_are_no_end(tmp_path: Path) -> None:
    place, descriptor = tmp_path / "deep", os.open(tmp_path, os.O_RDONLY)
    os.mkdir("deep", dir_fd=descriptor)
    here = os.open("deep", os.O_RDONLY, dir_fd=descriptor)
    for _ in range(420):
        os.mkdir("d" * 10, dir_fd=here)
        below = os.open("d" * 10, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    (tmp_path / "z.log").write_text("x\n")
    found = list(walk().sources([str(place), str(tmp_path / "z.log")]))
    subprocess.run(["rm", "-r", str(place)], check=True)  # pytest cannot
    assert [bool(getattr(one, "error", None)) for one in found] == [True, False]
    assert "File name too long" in str(found[0].error)  # type: ignore[union-attr]


def test_memory_does_not_grow_with_the_number_of_folders(tmp_path: Path) -> None:
    def most(folders: int) -> int:
        tracemalloc.start()
        for _ in walk().sources([str(tmp_path / str(folders))]):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    for folders in (10, 100):
        for folder in range(folders):
            (tmp_path / str(folders) / str(folder)).mkdir(parents=True)
            for number in range(30):
                (tmp_path / str(folders) / str(folder) / f"{number}.log").touch()
    assert most(100) < 2 * most(10) + 100_000


KNOWN = ("job/a.log", "job/b.log", "job/x.tar", "job/new.tar", "each/rank0.log", "each/rank1.log")


def assert_only_known_are_found(root: str) -> None:
    """Of what lies at `KNOWN` below the root, nothing that was not named, and nothing that is gone."""
    known = {f"{root}/{name}" for name in ("job", "job/x.tar", "each/rank0.log", "each/gone.log")}
    some = Walk("jobs", Bucket, known=known)
    assert sorted(names(some.sources([root]))) == sorted(known - {f"{root}/each/gone.log"})
    assert (some.jobs, some.logs) == (1, 1)


def test_of_known_sources_no_others_are_found_and_none_that_is_gone(tmp_path: Path) -> None:
    for name in KNOWN:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    assert_only_known_are_found(str(tmp_path))


def test_a_listing_that_breaks_off_is_the_end() -> None:
    def broken(error: Exception) -> Iterator[Source]:
        yield Source("service:a/1")
        raise error

    for error in (ServiceAway("the service", "does not answer", "Wait."), OSError(5, "Input/output error")):
        found = Walk("", Bucket, lambda name, error=error: broken(error)).sources(["service:", "b.log"])
        assert next(found).name == "service:a/1"
        with pytest.raises(StoreError, match="give the same command again"):
            next(found)
