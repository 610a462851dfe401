"""What is measured of real logs: which are taken, how they are laid out, and whose CPU seconds count."""

import sys
from pathlib import Path

import pytest

from eval import bench

BURN = "import time\nwhile time.process_time() < 0.3: pass"
FITTING = b"step 1 loss 2.0\n" * 20_000


def checkout_at(folder: Path) -> Path:
    """A checkout with logs that fit and files that do not."""
    kept = ("NVIDIA/results/dgx/bert/result_1.txt", "Dell/results/x/r.log", "Dell/results/slurm-1.out")
    left = ("NVIDIA/results/dgx/bert/curve.csv", "NVIDIA/benchmarks/notes.txt")
    for name in (*kept, *left):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(FITTING)
    (folder / "Dell/results/small.txt").write_bytes(b"too small\n")
    return folder


def test_logs_of_a_fitting_size_below_results_are_taken_in_the_same_order_wherever_they_lie(tmp_path: Path) -> None:
    names = []
    for place in ("here", "there"):
        checkout = checkout_at(tmp_path / place)
        names.append([log.relative_to(checkout).as_posix() for log in bench.chosen([checkout])])
    assert names[0] == names[1]
    assert set(names[0]) == {
        "NVIDIA/results/dgx/bert/result_1.txt",
        "Dell/results/x/r.log",
        "Dell/results/slurm-1.out",
    }


def test_no_more_logs_are_taken_than_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "REAL_LOGS", 2)
    assert len(bench.chosen([checkout_at(tmp_path)])) == 2


def test_the_logs_are_copied_apart_and_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "REAL_BYTES", 10)
    monkeypatch.setattr(bench, "SLOW_BYTES", 5)
    for name, text in (("a.txt", "one\ntwo"), ("b.txt", "three\n")):
        (tmp_path / name).write_text(text)
    laid = bench.laid_out([tmp_path / "b.txt", tmp_path / "a.txt"], tmp_path)
    assert [path.name for path in sorted(laid.apart.iterdir())] == ["000-b.txt", "001-a.txt"]
    assert (laid.together.read_text(), laid.start.read_text()) == ("three\none\n", "three")
    assert (bench.size_of(laid.apart), laid.count()) == (13, 2)


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_without_logs_one_line_says_so_and_nothing_is_measured(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert bench.real_part(tmp_path, [tmp_path / folder], 1) == []
    assert capsys.readouterr().out.startswith("real logs are left out: ")


def test_cpu_seconds_of_what_a_command_starts_count() -> None:
    starts = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])\nprint('done')"
    spent = bench.metered([sys.executable, "-c", starts])
    assert spent.cpu_seconds >= 0.3
    assert spent.output == b"done\n"
    assert 1_000_000 < spent.largest_rss_bytes < 100_000_000


def test_a_command_that_fails_is_not_measured() -> None:
    with pytest.raises(bench.Failed, match="exit code 3"):
        bench.metered([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(bench.Failed, match="not run"):
        bench.metered(["no-such-program-of-logdoctor"])
