"""How far a save is, told by its files."""

from pathlib import Path

from logdoctor.job.recovery.catalogue.progress import Progress, Watch
from tests.recovery.makers import ours

MiB = 1 << 20


def begun(folder: Path, step: int, size: int) -> Path:
    """A save of ours that has written so much."""
    place = folder / f"step-{step}.attempt-1"
    place.mkdir(parents=True, exist_ok=True)
    (place / "__0_0.distcp").write_bytes(bytes(size))
    return place


def ended(place: Path) -> None:
    (place / ".metadata").write_bytes(b"m")
    (place / "manifest.json").write_text("{}")


def test_stages_bytes_and_bandwidth(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    ours(folder, 10)
    whole = sum(path.stat().st_size for path in (folder / "step-10.attempt-1").iterdir())
    watch = Watch(folder)
    assert watch.look(0.0) == []
    place, name = begun(folder, 20, 1 * MiB), "step-20.attempt-1"
    assert watch.look(1.0) == [Progress(name, 20, "writing", MiB, whole, 0.0, 0.0)]
    begun(folder, 20, 5 * MiB)
    assert watch.look(3.0) == [Progress(name, 20, "writing", 5 * MiB, whole, 2.0 * MiB, 2.0)]
    (place / ".metadata").write_bytes(b"m")
    (one,) = watch.look(4.0)
    assert (one.stage, one.bytes) == ("finishing", 5 * MiB + 1)
    assert [one.stage for at in (13.9, 14.1) for one in watch.look(at)] == ["finishing", "standing still"]
    (place / "manifest.json").write_text("{}")
    assert watch.look(21.0) == [
        Progress(name, 20, "complete", 5 * MiB + 3, 5 * MiB + 3, round((5 * MiB + 3) / 20, 1), 20)
    ]
    assert watch.look(22.0) == []


def test_a_save_that_failed_is_gone_and_one_that_was_quick_is_seen(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    place = begun(tmp_path, 1, 100)
    (one,) = watch.look(0.0)
    assert one.expected is None
    (place / "__0_0.distcp").unlink()
    place.rmdir()
    assert [(one.stage, one.bytes) for one in watch.look(1.0)] == [("gone", 100)]
    ended(begun(tmp_path, 2, 100))
    assert [(one.stage, one.name) for one in watch.look(2.0)] == [("complete", "step-2.attempt-1")]
    (tmp_path / "step-x.attempt-1").mkdir()
    (tmp_path / "other").mkdir()
    assert watch.look(3.0) == []
