"""Folders that somebody made to harm whoever reads them."""

import json
import os
import pickle
import shutil
import struct
import threading
import tracemalloc
import zipfile
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import CheckpointError
from logdoctor.job.recovery import catalogue
from logdoctor.job.recovery.catalogue import files, pickled, place, transformers
from logdoctor.job.recovery.catalogue.pickled import Name, NotRead, TooLarge, got, unpickled
from logdoctor.safe.budget import Budget
from tests.recovery import makers
from tests.soak import SOAKING


class Harm:
    """What makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def in_zip(path: Path, data: bytes) -> None:
    """A file as torch writes it, around any pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_calls_nothing(tmp_path: Path, protocol: int) -> None:
    harm = Harm(tmp_path / "made")
    data = pickle.dumps({"args": harm, "loops": [harm], "storage_data": {"x": harm}}, protocol)
    found = unpickled(data)
    assert got(found, "args").name in ("posix.mkdir", "os.mkdir")
    assert got(found, "args").arguments == (str(harm.target),)
    for number, make in enumerate(
        (
            lambda folder: in_zip(folder / "epoch=0-step=1.ckpt", data),
            lambda folder: (folder / "step-1").mkdir() or (folder / "step-1" / ".metadata").write_bytes(data),
            lambda folder: (
                (folder / "global_step1").mkdir()
                or in_zip(folder / "global_step1" / "mp_rank_00_model_states.pt", data)
            ),
            lambda folder: (folder / "iter_0000001").mkdir() or in_zip(folder / "iter_0000001" / "common.pt", data),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder)
        (found,) = catalogue.read(folder)
        catalogue.verify(found)
    assert not harm.target.exists()


def test_what_torch_pickles_is_read_as_data() -> None:
    class Inner:
        def __init__(self) -> None:
            self.number, self.text = 1 << 40, "ä"

    Inner.__qualname__ = "Inner"
    globals()["Inner"] = Inner
    value = {"a": [1, 2.5, None, True, b"x", -3, 70_000], "b": ({"c"}, frozenset("d")), "e": Inner(), "f": Inner}
    for protocol in (2, 3, 4, 5):
        found = unpickled(pickle.dumps(value, protocol))
        first, *rest = got(found, "a")
        assert (first, rest[:3], rest[4:]) == (1, [2.5, None, True], [-3, 70_000])
        assert (got(found, "e", "number"), got(found, "e", "text")) == (1 << 40, "ä")
        assert got(found, "f") == Name(f"{__name__}.Inner")


def test_tuples_in_each_other_are_not_hashed_nor_walked() -> None:
    key = b"\x80\x02})" + b"2\x86" * 400 + b"K\x01s."  # as the key of a dict: 2^400 steps, if it were hashed
    assert len(unpickled(key).pairs) == 1
    deep = b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s."
    assert len(unpickled(deep).pairs) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"\x80\x04",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
        b"\x80\x04\x8e" + struct.pack("<Q", (1 << 64) - 1) + b"x.",
        b"\x80\x04\x8b" + struct.pack("<I", 0xFFFFFFFF) + b"x.",
        b"\x80\x02jzzzz.",
        b"\x80\x02R.",
        b"\x80\x02u.",
        b"\x80\x02e.",
        b"cos\nsystem",
        b"I99999\n.",  # an opcode of protocol 0
        b"\x80\x02(K\x01\x86.",
    ],
)
def test_a_broken_pickle_is_an_error_of_its_own(data: bytes) -> None:
    with pytest.raises(NotRead):
        unpickled(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_pickle_or_not_read(data: bytes) -> None:
    try:
        unpickled(b"\x80\x04" + data)
    except NotRead:
        pass


def test_a_pickle_that_is_too_long_is_not_taken_for_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickled, "MOST_STEPS", 1000)
    with pytest.raises(TooLarge):
        unpickled(b"\x80\x02" + b"N" * 5000 + b".")
    makers.saved_by_torch(tmp_path / "step-1", 1)
    monkeypatch.setattr(pickled, "MOST_STEPS", 100)
    (found,) = catalogue.read(tmp_path)
    assert found.torn == "" and "sizes were not checked" in found.notes[0]


def test_metadata_that_names_files_elsewhere_reads_none_of_them(tmp_path: Path) -> None:
    class _StorageInfo:
        relative_path, offset, length = "x", 0, 1

    globals()["_StorageInfo"] = _StorageInfo
    _StorageInfo.__qualname__ = "_StorageInfo"
    folder = tmp_path / "step-1"
    folder.mkdir()
    for name in ("../../../etc/passwd", "/etc/passwd", "a/../../b"):
        info = _StorageInfo()
        info.__dict__ |= {"relative_path": name, "offset": 0, "length": 1}
        (folder / ".metadata").write_bytes(pickle.dumps({"storage_data": {"w": info}}))
        (found,) = catalogue.read(tmp_path)
        assert found.torn == f"{name} is missing"


@pytest.mark.parametrize("name", ["manifest.json", ".metadata", "__0_0.distcp"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    path = makers.ours(tmp_path, 1) if name != ".metadata" else makers.saved_by_torch(tmp_path / "step-1", 1)
    (path / name).unlink()
    os.mkfifo(path / name)
    (found,) = catalogue.read(tmp_path)
    assert "missing" in found.torn
    (path / name).unlink()
    (path / name).symlink_to("/dev/zero")
    (found,) = catalogue.read(tmp_path)
    assert "missing" in found.torn


def test_a_manifest_that_lists_a_file_over_and_over_has_it_read_once_at_most(tmp_path: Path) -> None:
    place = makers.ours(tmp_path, 1)
    manifest = json.loads((place / "manifest.json").read_bytes())
    (place / "manifest.json").write_text(json.dumps(manifest | {"files": manifest["files"] * 3}))
    (one,) = catalogue.read(tmp_path)
    assert one.torn == "manifest.json lists a file twice"


def test_a_file_of_holes_is_not_read(tmp_path: Path) -> None:
    size = 2 << 40
    place = makers.ours(tmp_path, 1, files=[{"name": "a", "bytes": size, "xxh3_128": "0" * 32}])
    (place / "a").touch()
    os.truncate(place / "a", size)
    (one,) = catalogue.read(tmp_path)
    found = catalogue.verify(one)
    assert (found.torn, found.compared) == ("", 0) and "lie nowhere on the disk: it was not read" in found.notes[0]


def test_links_in_circles_are_no_checkpoints(tmp_path: Path) -> None:
    makers.ours(tmp_path, 1)
    (tmp_path / "step-2.attempt-1").symlink_to("step-3.attempt-1")
    (tmp_path / "step-3.attempt-1").symlink_to("step-2.attempt-1")
    (tmp_path / "step-4.attempt-1").symlink_to(".")
    (tmp_path / "step-5.attempt-1").symlink_to("..")
    (tmp_path / "step-6.attempt-1").symlink_to("nowhere")
    inside = tmp_path / "step-1.attempt-1"
    (inside / "again").symlink_to("..")
    (inside / "self").symlink_to("self")
    (found,) = catalogue.read(tmp_path)
    assert found.name == "step-1.attempt-1" and found.complete


def test_what_links_lead_to_is_looked_at_once_by_its_own_name(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    there = makers.trainer(tmp_path / "there", 10)
    for step in (*range(30), "last"):
        (folder / f"checkpoint-{step}").symlink_to(there)
    (found,) = catalogue.read(folder)
    assert (found.name, found.torn, found.linked) == (there.name, "", True)


def test_the_names_beside_a_checkpoint_are_read_once_for_all(tmp_path: Path) -> None:
    transformers._by_step.cache_clear()
    for step in range(10):
        makers.trainer(tmp_path, step)
    assert len(catalogue.read(tmp_path)) == 10
    assert transformers._by_step.cache_info().misses == 1


def test_links_lead_to_no_more_files_than_one_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(root: Path, most: int) -> files.Tree:
        found = files.tree(root, most)
        seen.append(found.seen)
        return found

    monkeypatch.setattr(files, "MOST_LINKED", 10)
    monkeypatch.setattr(place, "tree", counted)
    folder = tmp_path / "here"
    for step in range(20):
        makers.ours(folder, step)
        (folder / f"step-{step}.attempt-2").symlink_to(makers.ours(tmp_path / "there", step, 2))
    found = catalogue.read(folder)
    assert [one.complete for one in found if not one.linked] == [True] * 20
    assert len(found) == 40 and sum(one.complete for one in found if one.linked) == 3
    assert sum(seen) <= 20 * 3 + 10 + 20


def test_names_that_are_no_text_or_steer_a_terminal_are_names(tmp_path: Path) -> None:
    makers.lightning(tmp_path, 5, "epoch=0-step=5\x1b[2J\u202e.ckpt")
    os.rename(makers.lightning(tmp_path, 6, "x.ckpt"), os.fsencode(tmp_path) + b"/\xff\xfe.ckpt")
    (tmp_path / ("step-" + "9" * 200 + ".attempt-1")).mkdir()
    (tmp_path / ("iter_" + "9" * 240)).mkdir()
    found = catalogue.read(tmp_path)
    assert [one.step for one in found if one.complete] == [5, 6]
    assert [one.step for one in found if not one.complete] == [None, None]
    assert json.loads(json.dumps([one.name for one in found]))


def test_more_entries_than_a_folder_of_checkpoints_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_ENTRIES", 50)
    for number in range(51):
        (tmp_path / f"step-{number}.attempt-1").mkdir()
    with pytest.raises(CheckpointError, match="holds more than 50 entries"):
        catalogue.read(tmp_path)


def test_more_files_than_a_checkpoint_has_are_not_all_looked_at(tmp_path: Path) -> None:
    path = makers.ours(tmp_path, 1)
    for number in range(100):
        (path / f"file {number}").touch()
    found = files.tree(path, most=50)
    assert len(found.files) <= 50 and not found.whole
    deep = path
    for _ in range(40):
        deep = deep / "d"
        deep.mkdir()
    assert not files.tree(path).whole


def header(data: dict[str, Any] | bytes, length: int | None = None) -> bytes:
    """A file of safetensors that has only its header."""
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header({}, 1 << 63), "cut off in its header"),
        (header(b"[" * 100_000), "no JSON of safetensors"),
        (header(b"{" * 30), "no JSON of safetensors"),
        (header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 70]}}), "its header names"),
        (header({"w": {"data_offsets": ["a", "b"]}}), "no numbers"),
        (header({"w": {"data_offsets": []}}), "no JSON of safetensors"),
        (header({"w": 3}), "no JSON of safetensors"),
        (header(b"[1, 2]"), "no JSON of safetensors"),
    ],
)
def test_a_header_of_safetensors_may_be_anything(tmp_path: Path, data: bytes, words: str) -> None:
    path = makers.trainer(tmp_path, 10)
    shard = sorted(path.glob("model-*.safetensors"))[0]
    shard.write_bytes(data)
    (found,) = catalogue.read(tmp_path)
    assert words in found.torn


def test_a_zip_that_unpacks_to_more_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "epoch=0-step=3.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (80 << 20))
    (found,) = catalogue.read(tmp_path)
    assert found.step == 3 and path.stat().st_size < 1 << 20
    assert "unreadable" in found.torn and "16 MiB of memory" not in found.torn
    assert catalogue.verify(found).torn == found.torn


TEXT = b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x00"
BOMBS = {
    "names": TEXT + b"h\x00h\x00\x93" * 300,
    "dicts": b"}" * 400_000,
    "lists": b"]" * 400_000,
    "tuples": b")" + b"\x85" * 400_000,
    "a memo": b"N" + b"\x94" * 400_000,
    "calls": b"N" + b"N\x81" * 250_000,
    "pairs": b"}(" + b"NN" * 400_000 + b"u",
}


OTHERWISE = product(BOMBS if SOAKING else ("dicts", "pairs"), [zipfile.ZIP_STORED, zipfile.ZIP_BZIP2])


@pytest.mark.more_in_soak
@pytest.mark.parametrize(("name", "compression"), [*((name, zipfile.ZIP_DEFLATED) for name in BOMBS), *OTHERWISE])
def test_a_pickle_that_would_fill_the_memory_is_left_alone(tmp_path: Path, name: str, compression: int) -> None:
    """Each makes a thousand times its bytes on the disk, or a hundred times where it is not compressed."""
    good = makers.lightning(tmp_path, 2)
    path = tmp_path / "epoch=0-step=3.ckpt"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + BOMBS[name] + b".")
    tracemalloc.start()
    try:
        first, second = catalogue.read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < (40 << 20) + 64 * path.stat().st_size
    finally:
        tracemalloc.stop()
    assert first.path == str(good) and first.complete and second.step == 3
    if compression == zipfile.ZIP_DEFLATED:
        assert second.torn.startswith("it is unreadable: epoch=0-step=3.ckpt ")
        chosen = catalogue.best([first, second])
        assert isinstance(chosen, catalogue.Checkpoint) and chosen.name == first.name


def test_a_pickle_of_millions_of_steps_is_left_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "epoch=0-step=3.ckpt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"N0" * 3_000_000 + b".")
    assert catalogue.read(tmp_path)[0].torn.startswith("it is unreadable: epoch=0-step=3.ckpt ")


@pytest.mark.parametrize("place", ["mp_rank_00_model_states.pt", "common.pt", ".metadata"])
def test_what_would_fill_the_memory_is_told_of_each_framework(tmp_path: Path, place: str) -> None:
    data = b"\x80\x02" + b"}" * 1_000_000 + b"."
    if place == ".metadata":
        path = makers.saved_by_torch(tmp_path / "step-1", 1) / place
        path.write_bytes(data)
    else:
        make = makers.deepspeed if place.startswith("mp") else makers.megatron_distributed
        path = make(*((tmp_path, 1) if place.startswith("mp") else (tmp_path / "iter_0000001", 1))) / place
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", data)
    (found,) = catalogue.read(tmp_path)
    assert found.step == 1 and f"{place} holds a pickle that would fill more than" in found.torn
    assert catalogue.verify(found).torn == found.torn


def test_metadata_of_torch_are_within_what_is_made_of_a_pickle(tmp_path: Path) -> None:
    data = (makers.saved_by_torch(tmp_path / "step-1", 1) / ".metadata").read_bytes()
    budget = Budget(len(data), 1000, 1 << 40)
    before = budget.left
    unpickled(data, budget)
    assert before - budget.left < 48 * len(data), "64 are allowed"


def test_json_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    state = makers.trainer(tmp_path, 2) / "trainer_state.json"
    state.write_bytes(b'{"global_step": 2, "log_history": [' + b"{}," * 2_000_000 + b"{}]}")
    header_of = sorted((makers.trainer(tmp_path, 3)).glob("model-*.safetensors"))[0]
    header_of.write_bytes(header(b'{"__metadata__": [' + b"{}," * 2_000_000 + b"{}]}"))
    tracemalloc.start()
    try:
        first, second = catalogue.read(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 90 << 20
    finally:
        tracemalloc.stop()
    assert "trainer_state.json would fill more than" in first.torn
    assert f"{header_of.name} has a header that would fill more than" in second.torn


def test_a_folder_of_small_files_makes_no_more_than_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 40 checkpoints would make 12 MiB, which one alone may, of some kilobytes."""
    made = 0
    spend = Budget.spend

    def counted(self: Budget, some: int) -> None:
        nonlocal made
        spend(self, some)
        made += some

    monkeypatch.setattr(Budget, "spend", counted)
    for step in range(1, 41):
        with zipfile.ZipFile(tmp_path / f"epoch=0-step={step}.ckpt", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02" + b"}" * 80_000 + b".")
    good = makers.lightning(tmp_path, 41)
    *harmful, last = catalogue.read(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert made < (16 << 20) + 41 * (80 << 10) + 64 * size
    assert (last.path, last.torn) == (str(good), "") and sum(one.torn != "" for one in harmful) == 39


def test_a_long_history_of_losses_is_read(tmp_path: Path) -> None:
    path = makers.trainer(tmp_path, 2) / "trainer_state.json"
    row = {"epoch": 0.1, "grad_norm": 1.25, "learning_rate": 1e-05, "loss": 2.5, "step": 1}
    path.write_text(json.dumps({"global_step": 2, "log_history": [row] * 100_000}))
    (found,) = catalogue.read(tmp_path)
    assert found.complete and found.loss == 2.5


def test_a_zip_whose_parts_overlap_is_not_read_over_and_over(tmp_path: Path) -> None:
    path = tmp_path / "epoch=0-step=3.ckpt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"N." * 50_000)
    data = path.read_bytes()
    end = data.rfind(b"PK\x05\x06")
    (begin,) = struct.unpack("<I", data[end + 16 : end + 20])
    directory = data[begin:end] * 50
    tail = data[end : end + 8] + struct.pack("<HHII", 50, 50, len(directory), begin) + data[end + 20 :]
    path.write_bytes(data[:begin] + directory + tail)
    (found,) = catalogue.read(tmp_path)
    assert not found.torn and "more bytes than it has" in catalogue.verify(found).torn


def test_json_may_be_anything(tmp_path: Path) -> None:
    path = makers.ours(tmp_path, 1)
    for text in ("[" * 100_000, "{}", "null", '{"format": ' + "9" * 10_000 + "}", "\x00", '"\ud800"', "[NaN]"):
        (path / "manifest.json").write_text(text, errors="surrogatepass")
        (found,) = catalogue.read(tmp_path)
        assert "manifest.json" in found.torn
    shutil.rmtree(path)
    for said in ({"loss": 10**400}, {"loss": []}, {"seconds": -5}, {"seconds": 10**400}, {"data_position": 10**400}):
        makers.ours(tmp_path, 3, **said)
        (found,) = catalogue.read(tmp_path)
        assert found.loss is None or said.keys() != {"loss"}
        assert found.seconds is None or "seconds" not in said
        shutil.rmtree(found.path)
    state = makers.trainer(tmp_path, 2) / "trainer_state.json"
    for text in (
        "[]",
        "{}",
        '{"global_step": 2, "log_history": 3}',
        '{"global_step": 2, "log_history": [3, {"step": "x"}]}',
    ):
        state.write_text(text)
        catalogue.read(tmp_path)


def test_a_checkpoint_that_is_removed_while_it_is_read_is_no_error(tmp_path: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            path = makers.ours(tmp_path / "run", 7)
            for file in list(path.iterdir()):
                file.unlink()
            path.rmdir()

    (tmp_path / "run").mkdir()
    writer = threading.Thread(target=churn)
    writer.start()
    try:
        for _ in range(200):
            for one in catalogue.read(tmp_path / "run"):
                catalogue.verify(one)
    finally:
        stop.set()
        writer.join()


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        catalogue.read(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be read"):
        catalogue.read(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert catalogue.read(tmp_path / "empty") == []


def test_links_of_others_have_no_file_elsewhere_written_or_removed(tmp_path: Path) -> None:
    """The name of a note is that of the checkpoint, which DeepSpeed lets anybody choose."""
    folder, home = tmp_path / "lk", tmp_path / "home"
    makers.deepspeed(folder, 7, tag="authorized_keys")
    home.mkdir()
    (home / "authorized_keys").write_bytes(b"ssh-ed25519 mine")
    (folder / ".logdoctor").mkdir()
    for name in ("pins", ".logdoctor/history", ".logdoctor/removing"):
        (folder / name).symlink_to(home)
    (found,) = catalogue.read(folder)
    assert found.name == "authorized_keys" and found.pinned and "is a link" in found.pinned.why
    for use in (
        lambda: catalogue.pin(found, "me"),
        lambda: catalogue.unpin(folder, found.name),
        lambda: catalogue.tried(found),
        lambda: catalogue.suspected(found, "it is"),
    ):
        with pytest.raises(CheckpointError, match=r"(pins|history) cannot be written \(is a link to another place"):
            use()
    (folder / "pins").unlink()
    with pytest.raises(CheckpointError, match=r"removing cannot be removed \(is a link to another place"):
        catalogue.remove([found])
    assert [path.read_bytes() for path in home.iterdir()] == [b"ssh-ed25519 mine"]
    assert (folder / found.name).is_dir()


def test_a_state_that_is_its_own_is_asked_no_further() -> None:
    assert unpickled(b"\x80\x02}q\x00h\x00b.").get("epoch") is None
    assert unpickled(b"\x80\x02" + b"}" * 5000 + b"b" * 4999 + b".").get("epoch") is None
