"""A file of cordoned nodes: ours come and go, what others wrote stays byte for byte, and no reader sees half of it."""

import os
from pathlib import Path

import pytest

from logdoctor.errors import CordonError, CordonRefused, InputError
from logdoctor.nodes.cordon import file as module
from logdoctor.nodes.cordon.cordoner import reason_text
from logdoctor.nodes.cordon.dry_run import DryRun
from logdoctor.nodes.cordon.file import FileCordoner
from logdoctor.types.nodes import Mark, NodeState
from tests.at_once import at_once

FLEET = [f"gpu-{number}" for number in range(20)]
MARK = Mark("logdoctor", 45, 123, "wrong data")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cordoned"


@pytest.fixture
def cordoner(path: Path) -> FileCordoner:
    return FileCordoner(path, lambda: FLEET)


def test_a_cordon_is_a_line_that_can_be_undone(cordoner: FileCordoner, path: Path) -> None:
    assert [state.name for state in cordoner.nodes()] == FLEET and not any(one.cordoned for one in cordoner.nodes())
    cordoner.cordon("gpu-1", MARK)
    cordoner.cordon("gpu-1", MARK)
    assert path.read_text() == "gpu-1  # logdoctor cordon 45 verdict 123: wrong data\n"
    state = cordoner.node("gpu-1")
    assert state and state.cordoned and state.mark == MARK and state.reason == reason_text(MARK)
    cordoner.uncordon("gpu-1", MARK)
    assert path.read_text() == "" and cordoner.node("gpu-1") == NodeState("gpu-1", False)
    assert cordoner.node("gpu-99") is None


def test_lines_of_others_stay_as_they_are(cordoner: FileCordoner, path: Path) -> None:
    theirs = b"# out for good\r\n\n  gpu-2 # fan \xff\xfe\ngpu-3\ngpu-77 # gone\ngpu-4 # other cordon 45 verdict 123: x"
    path.write_bytes(theirs)
    path.chmod(0o640)
    for name in ("gpu-2", "gpu-3", "gpu-4"):
        with pytest.raises(CordonRefused, match="by others"):
            cordoner.cordon(name, MARK)
        with pytest.raises(CordonRefused):
            cordoner.uncordon(name, MARK)
    assert path.read_bytes() == theirs
    cordoner.cordon("gpu-1", MARK)
    cordoner.uncordon("gpu-1", MARK)
    assert path.read_bytes() == theirs + b"\n" and path.stat().st_mode & 0o777 == 0o640
    states = {state.name: state for state in cordoner.nodes()}
    assert len(states) == 20 and sum(state.cordoned for state in states.values()) == 3
    assert states["gpu-4"].mark == Mark("other", 45, 123, "x") and states["gpu-2"].reason == "fan \ufffd\ufffd"


def test_lines_of_others_may_name_several_nodes(cordoner: FileCordoner, path: Path) -> None:
    theirs = "gpu-[2-4]  # alice\ngpu-6,gpu-7\n[odd # x\n"
    path.write_text(theirs)
    out = [state.name for state in cordoner.nodes() if state.cordoned]
    assert out == ["gpu-2", "gpu-3", "gpu-4", "gpu-6", "gpu-7"]
    for name in out:
        with pytest.raises(CordonRefused):
            cordoner.cordon(name, MARK)
        with pytest.raises(CordonRefused):
            cordoner.uncordon(name, MARK)
    assert path.read_text() == theirs
    cordoner.cordon("gpu-5", MARK)
    cordoner.uncordon("gpu-5", MARK)
    assert path.read_text() == theirs
    path.write_text("gpu-[1-60000]\n" * 5)
    with pytest.raises(CordonError, match="names over"):
        cordoner.nodes()


def test_what_others_changed_is_left_to_them(cordoner: FileCordoner, path: Path) -> None:
    cordoner.cordon("gpu-1", MARK)
    ours = path.read_text()
    for text in (ours.replace("wrong data", "wrong data, and a fan"), ours + "gpu-1 # me too\n"):
        path.write_text(text)
        with pytest.raises(CordonRefused):
            cordoner.uncordon("gpu-1", MARK)
        with pytest.raises(CordonRefused):
            cordoner.cordon("gpu-1", MARK)
        assert path.read_text() == text
        path.write_text(ours)


def test_hostile_names_and_reasons_stay_in_their_line(cordoner: FileCordoner, path: Path) -> None:
    for name in ("a\ngpu-2", "a # b", "", "../x"):
        with pytest.raises(InputError):
            cordoner.cordon(name, MARK)
    cordoner.cordon("gpu-1", Mark("logdoctor", 45, None, "x\ngpu-2\r\n# gpu-3 \0\u2028gpu-4"))
    assert [state.name for state in cordoner.nodes() if state.cordoned] == ["gpu-1"]
    assert path.read_bytes().count(b"\n") == 1


def test_many_at_once_lose_nothing(path: Path) -> None:
    def cordon(number: int) -> None:
        FileCordoner(path, lambda: FLEET).cordon(f"gpu-{number}", Mark("logdoctor", number, None, ""))

    at_once(cordon, range(20))
    assert all(
        state.mark == Mark("logdoctor", n, None, "")
        for n, state in enumerate(FileCordoner(path, lambda: FLEET).nodes())
    )


def test_a_file_that_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 100)
    monkeypatch.setattr(module, "MAX_BYTES", 99)
    for name in ("pipe", "large", "missing/cordoned", "."):
        cordoner = FileCordoner(tmp_path / name, lambda: FLEET)
        with pytest.raises(CordonError, match="the file"):
            cordoner.cordon("gpu-1", MARK)
    assert (tmp_path / "large").read_bytes() == b"x" * 100


def test_a_lock_that_another_holds_ends_the_wait(cordoner: FileCordoner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.1)
    with cordoner._alone(), pytest.raises(CordonError, match="cannot be used"):
        cordoner.cordon("gpu-1", MARK)
    cordoner.cordon("gpu-1", MARK)


def test_a_link_is_followed_and_stays(cordoner: FileCordoner, path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("gpu-9\n")
    path.symlink_to(tmp_path / "real")
    cordoner.cordon("gpu-1", MARK)
    assert path.is_symlink() and (tmp_path / "real").read_text().startswith("gpu-9\ngpu-1  #")


def test_a_dry_run_touches_nothing(cordoner: FileCordoner, path: Path) -> None:
    path.write_text("gpu-2 # fan\n")
    dry = DryRun(cordoner)
    dry.cordon("gpu-1", MARK)
    dry.uncordon("gpu-1", MARK)
    with pytest.raises(CordonRefused, match="fan"):
        dry.cordon("gpu-2", MARK)
    with pytest.raises(CordonError, match=r"is in no list of nodes.*LOGDOCTOR_FLEET"):
        dry.cordon("gpu-99", MARK)
    assert path.read_text() == "gpu-2 # fan\n" and dry.nodes() == cordoner.nodes()
    alone = DryRun(fleet=lambda: ["a", "b", "a"])
    alone.cordon("a", MARK)
    assert alone.nodes() == [NodeState("a", False), NodeState("b", False)] and alone.node("c") is None
