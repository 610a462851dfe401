"""Messages of Python programs are read as tracebacks and loggers print them."""

from pathlib import Path

from eval.harvest.training import native, python
from tests.harvest.test_readers import PYTHON_SOURCE as SOURCE


def test_exceptions_stand_behind_their_module_and_logs_behind_a_prefix(tmp_path: Path) -> None:
    (tmp_path / "src" / "wandb").mkdir(parents=True)
    (tmp_path / "src" / "wandb" / "tea.py").write_text(SOURCE)
    (tmp_path / "src" / "wandb" / "tests").mkdir()
    (tmp_path / "src" / "wandb" / "tests" / "tea.py").write_text("raise ValueError('in a test')")
    texts = {message.text for message in python("wandb", "wandb/", tmp_path)}
    assert "wandb.tea.CupError: cup word-7 broke" in texts
    assert "wandb: ERROR kettle /data/run/part-3 is cold" in texts
    assert not any("in a test" in text for text in texts)
    assert not any("kettle is" in text for text in texts - {"wandb: ERROR kettle /data/run/part-3 is cold"})


def test_sentences_of_a_compiled_program(tmp_path: Path) -> None:
    program = tmp_path / "raylet"
    program.write_bytes(
        b"\0The raylet failed to find its cup\0raylet_failed_to_find_its_cup\0A cup of tea is in the pot\0"
    )
    assert [message.text for message in native("ray, native", program)] == ["The raylet failed to find its cup"]
