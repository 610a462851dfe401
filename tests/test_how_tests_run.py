"""What refuses tests that look at the wall clock, what counts second tries, and what tests wait with."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import file_calls, many_runs, phrases, second_try, waiting, wall_clock


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import time\ntime.sleep(1)", 2),
        ("from time import sleep\n\nsleep(1)", 3),
        ("begun = monotonic()\nassert time.monotonic() - begun < 5", 2),
        ("took = time.perf_counter() - begun\nassert took <= 5", 2),
        ("assert 1 < (took := time.time() - begun) / 2", 1),
    ],
)
def test_what_looks_at_the_wall_clock_is_found(text: str, line: int) -> None:
    assert [where for where, _ in wall_clock.found(text)] == [line]


@pytest.mark.parametrize(
    "text",
    [
        "begun = time.process_time()\nassert time.process_time() - begun < 5",
        "clock.now += 5\nassert clock.now - begun > 2",
        "stopped.wait(1)",
        "at = time.time()\nassert event.at >= at",
    ],
)
def test_what_does_not_is_left_alone(text: str) -> None:
    assert list(wall_clock.found(text)) == []


@pytest.mark.parametrize(
    "call",
    [
        "os.replace(a, b)",
        "os.unlink(path)",
        "os.open(path, os.O_WRONLY | os.O_CREAT)",
        "os.open(path, flags)",
        "shutil.rmtree(folder)",
        "open(path, 'ab+')",
        "open(path, mode='x')",
        "path.open('wb')",
        "path.write_text(text)",
        "path.rename(other)",
        "path.parent.mkdir(parents=True)",
        "files.put_file(path, place)",
        "files.rm(folder, recursive=True)",
    ],
)
def test_a_way_around_the_folder_is_found(call: str) -> None:
    assert list(file_calls.found(f"class A:\n    def b(self):\n        {call}")) == [(3, "A.b")]


@pytest.mark.parametrize(
    "call",
    [
        "os.unlink(name, dir_fd=folder)",
        "os.replace(a, b, src_dir_fd=folder, dst_dir_fd=folder)",
        "os.open(path, os.O_RDONLY | os.O_CLOEXEC)",
        "open(path, 'rb')",
        "text.replace('a', 'b')",
        "msgspec.structs.replace(one, suspect=why)",
        "folder.move(a, b)",
        "folder.remove(name)",
        "names.remove(one)",
    ],
)
def test_what_is_no_way_around_is_left_alone(call: str) -> None:
    assert list(file_calls.found(call)) == []


def test_second_tries_are_counted() -> None:
    text = "1 a.py::test_x\n3 a.py::test_y[b c]\n"
    counts = second_try.counted(text)
    assert counts == {"a.py::test_x": 1, "a.py::test_y[b c]": 3}
    assert second_try.counted_up(counts, {"a.py::test_x", "b.py::test_z"}) == {
        **counts,
        "a.py::test_x": 2,
        "b.py::test_z": 1,
    }


def test_what_fails_is_tried_once_more_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "story_it.py").write_text(
        "from pathlib import Path\nimport pytest\nseen = Path('seen')\n"
        "def test_at_the_second_try():\n    known = seen.exists()\n    seen.touch()\n    assert known\n"
        "def test_well(): pass\n"
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # quicker
    monkeypatch.setattr(second_try, "ROOT", tmp_path)
    monkeypatch.setattr(second_try, "COUNTED", tmp_path / "tests/second-tries.txt")
    monkeypatch.setattr(second_try, "FAILED", tmp_path / ".pytest_cache/v/cache/lastfailed")
    assert second_try.main("story", ["-q"]) == 0
    assert second_try.counted(second_try.COUNTED.read_text()) == {"story_it.py::test_at_the_second_try": 1}
    assert second_try.main("story", ["-q"]) == 0  # nothing fails now, nothing is counted
    (tmp_path / "story_it.py").write_text("def test_never(): assert False\n")
    assert second_try.main("story", ["-q"]) == 1
    assert second_try.counted(second_try.COUNTED.read_text()) == {"story_it.py::test_at_the_second_try": 1}


def test_runs_are_written_down_with_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "runs.tsv"
    monkeypatch.setattr(many_runs, "WRITTEN", written)
    monkeypatch.setattr(many_runs, "FAILED", tmp_path / "failed")
    monkeypatch.setattr(many_runs, "failed", lambda: {"test_a.py::test_b"})
    ends = {"test": "print('3 passed in 1s')", "story": "import sys; sys.exit('1 failed in 1s')"}
    monkeypatch.setattr(many_runs, "pytest", lambda kind: [sys.executable, "-c", ends[kind]])
    assert [many_runs.run(kind, 1, []) for kind in ends] == [True, False]
    told = [line.split("\t")[2:] for line in written.read_text().splitlines()]
    assert [(kind, beside, said, names) for kind, beside, _, said, names in told] == [
        ("test", "1", "3 passed in 1s", "test_a.py::test_b"),
        ("story", "1", "nothing", "test_a.py::test_b"),
    ]


def test_waiting_gives_what_it_waited_for_and_tells_what_it_saw_last(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count()
    assert waiting.until(lambda: (number := next(numbers)) > 3 and number) == 4
    monkeypatch.setattr(waiting, "_PATIENCE", 0.0)
    with pytest.raises(AssertionError, match=r"the cows come home; last seen: \[\]"):
        waiting.until(list, "the cows come home")


def test_what_tests_start_can_be_interrupted_however_they_were_begun() -> None:
    asked = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True).stdout == "True\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Take a stream of which nothing came", 1),
        ("one of which must match", 0),
        ("what became of it", 1),
        ("again", 0),
    ],
)
def test_phrases_that_nobody_says_are_found(text: str, count: int) -> None:
    assert len(list(phrases.found(text))) == count
