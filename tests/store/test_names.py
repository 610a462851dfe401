"""Names from outside become file names that stay in their folder, or are refused."""

import os
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import LogdoctorError, NameRefused
from logdoctor.store.names import MAX_ATTEMPT, MAX_NAME, Key, checked, checked_attempt, file_name, key

_ANY = st.text(st.characters(codec=None), max_size=230)  # lone surrogates, too
_TRICKY = st.text("aA.~%2Ef-_ é\u00b2\U0001f600", min_size=1, max_size=40).filter(lambda name: accepted(name))


def accepted(name: str) -> bool:
    """Whether the name may be used; nothing but `NameRefused` says no."""
    try:
        return checked("job", name) == name
    except NameRefused as error:
        str(error).encode()  # fit to be sent and shown
        return False


@given(st.one_of(_ANY, _TRICKY))
def test_an_accepted_name_gives_a_file_name_that_stays_in_its_folder(name: str) -> None:
    if not accepted(name):
        return
    assert not set(name) & set("/\\\0\n\ufffd") and not any(0xD800 <= ord(c) < 0xE000 for c in name)
    quoted = file_name(name)
    assert os.path.normpath(os.path.join("/top/folder", quoted)) == f"/top/folder/{quoted}"
    assert quoted.isascii() and "/" not in quoted and not quoted.startswith(".")
    assert len(quoted.encode()) <= 240
    assert unquote(quoted) == name


@given(_TRICKY, _TRICKY)
def test_different_names_give_different_file_names(one: str, other: str) -> None:
    assert (file_name(one) == file_name(other)) == (one == other)


@given(_TRICKY)
def test_a_file_of_that_name_is_found_again(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = Path(tmp_path_factory.getbasetemp())
    path = folder / (file_name(name) + ".state.new")  # the longest suffix
    path.touch()
    assert [unquote(found.name.removesuffix(".state.new")) for found in folder.glob("*.state.new")] == [name]
    path.unlink()


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "/", "a/b", "../a", "\\", "a\\b", " a", "a ", "\ta", "a\n", "a\x00b", "\x7f", "a\x85b"),
        *("\ufffd", "a\ud800", "\udcff", "\ue000", "a\u200bb", "\u202ea", "\xa0", "a" * (MAX_NAME + 1), "é" * 81),
    ],
)
def test_a_name_is_refused_with_an_error_that_can_be_shown(name: str) -> None:
    with pytest.raises(NameRefused) as refused:
        checked("stream", name)
    assert str(refused.value).encode() and len(str(refused.value)) < 3000
    assert isinstance(refused.value, LogdoctorError)


@pytest.mark.parametrize("name", ["a", "a b", ".a", "...", "~", "%2E", "a" * MAX_NAME, "é" * 40, "日本", "²", "-rf"])
def test_a_name_is_accepted(name: str) -> None:
    assert checked("stream", name) == name


@pytest.mark.parametrize("attempt", [-1, MAX_ATTEMPT + 1, 10**30])
def test_an_attempt_out_of_range_is_refused(attempt: int) -> None:
    with pytest.raises(NameRefused):
        checked_attempt(attempt)


def test_a_key_is_checked_in_all_its_parts() -> None:
    assert key("job", 0, "rank 0") == Key("job", 0, "rank 0")
    for job, attempt, stream in (("a/b", 0, "s"), ("j", -1, "s"), ("j", 0, "..")):
        with pytest.raises(NameRefused):
            key(job, attempt, stream)
