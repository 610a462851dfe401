"""A path stands for attempts: a file, standard input, a folder, or torchrun's attempt folders."""

import os
from pathlib import Path

import pytest

from logdoctor.errors import InputError
from logdoctor.pipeline import LogFile
from logdoctor.pipeline.attempts import attempts


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n")


def streams(root: Path) -> dict[str, list[str]]:
    return {attempt.name.removeprefix(str(root)): [s.name for s in attempt.streams] for attempt in attempts(root)}


def test_a_file_is_one_attempt_whatever_its_name(tmp_path: Path) -> None:
    fill(tmp_path, "job.weird")
    path = tmp_path / "job.weird"
    assert attempts(path) == [(str(path), (LogFile("main", path),))]


def test_standard_input() -> None:
    assert attempts(Path("-")) == [("standard input", (LogFile("main", Path("-")),))]


def test_a_folder_is_one_attempt_with_a_stream_for_each_log(tmp_path: Path) -> None:
    logs = ["rank_2.log", "rank_10.log", "node/stderr", "a.out.gz", "b.txt.zst", "job.err.1", "RANK3"]
    fill(tmp_path, *logs, "model.py", "notes.md", "config.json", "stats.csv")
    (attempt,) = attempts(tmp_path)
    assert {stream.name for stream in attempt.streams} == set(logs)
    assert all(stream.path == tmp_path / stream.name for stream in attempt.streams)


def test_ranks_are_ordered_by_number(tmp_path: Path) -> None:
    fill(tmp_path, *(f"rank_{n}.log" for n in (10, 2, 1, 0)))
    assert streams(tmp_path) == {"": ["rank_0.log", "rank_1.log", "rank_2.log", "rank_10.log"]}


def test_attempt_folders_are_attempts_in_order(tmp_path: Path) -> None:
    fill(
        tmp_path,
        *(f"none_x/attempt_{attempt}/{rank}/stderr.log" for attempt in (0, 2, 10) for rank in (0, 1)),
        "main.log",
    )
    assert streams(tmp_path) == {"": ["main.log"]} | {
        f" (none_x/attempt_{n})": [f"none_x/attempt_{n}/{rank}/stderr.log" for rank in (0, 1)] for n in (0, 2, 10)
    }
    assert attempts(tmp_path)[-1].name.endswith("attempt_10)")


def test_only_files_are_logs(tmp_path: Path) -> None:
    fill(tmp_path, "real.log")
    (tmp_path / "folder.log").mkdir()
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.log")
    assert streams(tmp_path) == {"": ["real.log"]}


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.log does not exist"):
        attempts(tmp_path / "none.log")


@pytest.mark.parametrize("names", [(), ("model.py", "sub/config.json")])
def test_a_folder_without_logs_is_named(tmp_path: Path, names: tuple[str, ...]) -> None:
    fill(tmp_path, *names)
    with pytest.raises(InputError, match="is a folder without logs") as caught:
        attempts(tmp_path)
    assert str(tmp_path) in str(caught.value) and "*.log" in caught.value.next_step
