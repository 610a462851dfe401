"""Env files are read strictly: what is not plainly NAME=value is an error with its line."""

from pathlib import Path

import pytest

from logdoctor.errors import SettingsError
from logdoctor.safe.env_file import read_env_file


def read(tmp_path: Path, text: str | bytes) -> dict[str, str]:
    path = tmp_path / "env"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return {name: variable.value for name, variable in read_env_file(path).items()}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("A=", ""),
        ("A=  b c  ", "b c"),
        ("  A=b\r", "b"),
        ("A=b#c # d", "b#c # d"),
        ("A='b c'", "b c"),
        ('A="b $C"', "b $C"),
        ("A='b\\n\"'", 'b\\n"'),
        ("A=b'c", "b'c"),
        ("A=''", ""),
        ("A=x=y", "x=y"),
        ("A=caf\u00e9", "caf\u00e9"),
    ],
)
def test_a_value_is_what_stands_there(tmp_path: Path, line: str, value: str) -> None:
    assert read(tmp_path, f"\ufeff# a comment\n\n{line}\n  # another\n") == {"A": value}


@pytest.mark.parametrize(
    "line", ["A", "export A=b", "A =b", "=b", "1A=b", "A-B=c", "A='b", "A=\"b", "A='", "A='b' # c", 'A="b\\n"']
)  # fmt: skip
def test_anything_else_names_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(SettingsError, match=r"env, line 2 (is not NAME=value|has quotes)") as caught:
        read(tmp_path, f"B=1\n{line}\n")
    assert caught.value.next_step


def test_a_name_that_comes_twice_names_both_lines(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="line 3: sets A, as line 1 does"):
        read(tmp_path, "A=1\nB=2\nA=1\n")


@pytest.mark.parametrize(
    ("raw", "cause"), [(b"\xff", "is not UTF-8"), (b"A=\0", "is no text"), (b"#" * (1 << 20) + b"#", "is no text")]
)
def test_what_is_no_text_is_refused(tmp_path: Path, raw: bytes, cause: str) -> None:
    with pytest.raises(SettingsError, match=cause):
        read(tmp_path, raw)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SettingsError, match=f"the env file {path} cannot be read"):
            read_env_file(path)
