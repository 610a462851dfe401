"""Each framework's checkpoints: what is read of them, and what makes one torn."""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from logdoctor.job.recovery import catalogue
from logdoctor.job.recovery.catalogue import Checkpoint
from tests.recovery import makers

WORLD = {
    "logdoctor": (80, "", 2),
    "torch-dcp": (None, "", 1),
    "megatron": (320, "samples", 8),
    "megatron distributed": (320, "samples", 16),
    "deepspeed": (160, "samples", 4),
    "transformers": (None, "", 2),
    "lightning": (40, "batches", None),
    "nemo": (320, "samples", 16),
}
"""Data position, its unit and the world size of each, at step 10."""


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint of each framework."""
    folder = tmp_path_factory.mktemp("templates")
    for name, make in makers.MAKERS.items():
        (folder / name).mkdir()
        make(folder / name)
    return folder


@pytest.fixture
def made(templates: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A folder with one checkpoint of a framework."""

    def copied(name: str) -> Path:
        shutil.copytree(templates / name, tmp_path / name)
        return tmp_path / name

    return copied


def only(folder: Path) -> Checkpoint:
    (found,) = catalogue.read(folder)
    return found


@pytest.mark.parametrize("name", makers.MAKERS)
def test_a_whole_checkpoint_is_complete(made: Callable[[str], Path], name: str) -> None:
    folder = made(name)
    found = only(folder)
    assert (found.framework, found.step, found.torn, found.notes) == (name.split()[0], 10, "", ()) or (
        name == "megatron distributed" and not found.torn
    )
    assert (found.data_position, found.data_unit, found.world_size) == WORLD[name]
    files = [path for path in (folder / found.name, *(folder / found.name).rglob("*")) if path.is_file()]
    assert found.bytes == sum(path.stat().st_size for path in files)
    assert found.path == str(folder / found.name) and found.saved_at
    assert catalogue.best([found]) == found
    verified = catalogue.verify(found)
    assert verified.torn == "" and verified.compared >= 1


@pytest.mark.parametrize(
    ("name", "file", "words"),
    [
        ("logdoctor", "manifest.json", "the save did not end"),
        ("logdoctor", "__1_0.distcp", "__1_0.distcp is missing"),
        ("torch-dcp", ".metadata", "the save did not end"),
        ("torch-dcp", "__0_1.distcp", "__0_1.distcp is missing"),
        ("megatron", "mp_rank_01_000/model_optim_rng.pt", "mp_rank_01_000/model_optim_rng.pt is missing"),
        ("megatron", "mp_rank_00_001/distrib_optim.pt", "mp_rank_00_001/distrib_optim.pt is missing"),
        ("megatron", "../latest_checkpointed_iteration.txt", "written when a save has ended"),
        ("megatron distributed", "metadata.json", "the save did not end"),
        ("megatron distributed", ".metadata", "the save did not end"),
        ("megatron distributed", "__0_0.distcp", "__0_0.distcp is missing"),
        ("deepspeed", "mp_rank_00_model_states.pt", "no model states"),
        ("deepspeed", "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt", "1 of 4 optimizer states are missing"),
        ("transformers", "trainer_state.json", "the save did not end"),
        ("transformers", "model-00002-of-00005.safetensors", "model-00002-of-00005.safetensors is missing"),
        ("transformers", "rng_state_0.pth", "1 of 2 states of random generators are missing"),
        ("nemo", "weights/metadata.json", "the save did not end"),
        ("nemo", "weights/__0_0.distcp", "__0_0.distcp is missing"),
    ],
)
def test_a_missing_file_makes_it_torn(made: Callable[[str], Path], name: str, file: str, words: str) -> None:
    folder = made(name)
    path = Path(only(folder).path)
    if name == "transformers" and file.startswith("model-"):
        shards = sorted(one.name for one in path.glob("model-*.safetensors"))
        assert len(shards) > 2
        file, words = shards[1], f"{shards[1]} is missing"
    (path / file).unlink()
    found = only(folder)
    assert words in found.torn
    assert isinstance(catalogue.best([found]), catalogue.Refused)
    assert catalogue.verify(found).torn == found.torn


@pytest.mark.parametrize("name", makers.MAKERS)
def test_each_file_that_is_cut_off_makes_it_torn(made: Callable[[str], Path], name: str) -> None:
    folder = made(name)
    path = Path(only(folder).path)
    files = [path] if path.is_file() else [one for one in sorted(path.rglob("*")) if one.is_file()]
    of_no_weight = {"config.json", "generation_config.json", "model.yaml"}
    tried = 0
    for file in files:
        if file.name in of_no_weight:
            continue
        whole = file.read_bytes()
        for left in (0, 1, len(whole) // 2, len(whole.rstrip(b"\n")) - 1):
            file.write_bytes(whole[:left])
            assert only(folder).torn, f"{file.name} cut to {left} of {len(whole)}"
            tried += 1
        file.write_bytes(whole)
    assert tried and not only(folder).torn


@pytest.mark.parametrize("name", [name for name in makers.MAKERS if name != "transformers"])
def test_a_changed_byte_is_found_when_checksums_are_compared(made: Callable[[str], Path], name: str) -> None:
    folder = made(name)
    path = Path(only(folder).path)
    files = [path] if path.is_file() else [*path.rglob("*.distcp"), *path.rglob("*.pt")]
    for file in files:
        whole = file.read_bytes()
        at = whole.find(b"\x80?") if name != "logdoctor" else 10  # inside a tensor's numbers, else in the middle
        at = len(whole) // 2 if at < 0 else at
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = only(folder)
        assert found.torn or catalogue.verify(found).torn, file.name
        file.write_bytes(whole)
    assert not catalogue.verify(only(folder)).torn


def test_every_beginning_of_metadata_is_torn_and_no_change_of_it_is_an_error(made: Callable[[str], Path]) -> None:
    folder = made("torch-dcp")
    file = Path(only(folder).path) / ".metadata"
    whole = file.read_bytes()
    for left in range(0, len(whole), 7):
        file.write_bytes(whole[:left])
        assert only(folder).torn
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        only(folder)


def test_an_older_save_with_data_of_a_broken_later_one_is_torn_or_said_to_be_doubtful(
    made: Callable[[str], Path],
) -> None:
    folder = made("torch-dcp")
    path = Path(only(folder).path)
    metadata = path / ".metadata"
    before = metadata.stat().st_mtime
    os.utime(path / "__0_0.distcp", (before + 60, before + 60))
    assert "a later save into the same folder did not end" in only(folder).notes[0]
    makers.cut(path / "__0_0.distcp")
    assert "it was cut off" in only(folder).torn


def test_metadata_that_was_not_renamed_says_so(made: Callable[[str], Path]) -> None:
    folder = made("torch-dcp")
    path = Path(only(folder).path)
    (path / ".metadata").rename(path / ".metadata.tmp")
    assert "never renamed" in only(folder).torn


def test_a_save_that_the_mark_of_megatron_does_not_name_did_not_end(tmp_path: Path) -> None:
    for step in (10, 20):
        makers.megatron(tmp_path, step)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10\n")
    ten, twenty = catalogue.read(tmp_path)
    assert (ten.torn, ten.latest, twenty.latest) == ("", True, False)
    assert "names 10: this save did not end" in twenty.torn
    assert catalogue.best([ten, twenty]) == ten


def test_a_release_of_megatron_is_of_step_0(tmp_path: Path) -> None:
    makers.megatron(tmp_path, 0, ("00", "01")).rename(tmp_path / "release")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    found = only(tmp_path)
    assert (found.name, found.step, found.torn, found.latest) == ("release", 0, "", True)
    shutil.rmtree(tmp_path / "release" / "mp_rank_00")
    assert "1 of 2 folders of ranks are missing" in only(tmp_path).torn


def test_a_tag_of_deepspeed_may_have_any_name_and_its_step_is_inside(tmp_path: Path) -> None:
    makers.deepspeed(tmp_path, 30, tag="before the merge")
    found = only(tmp_path)
    assert (found.name, found.step, found.data_position, found.latest) == ("before the merge", 30, 480, True)


def test_stage_3_of_deepspeed_has_model_states_of_each_rank(tmp_path: Path) -> None:
    path = makers.deepspeed(tmp_path, 10)
    whole = (path / "mp_rank_00_model_states.pt").read_bytes()
    (path / "mp_rank_00_model_states.pt").unlink()
    for rank in range(4):
        (path / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt").write_bytes(whole)
    assert (only(tmp_path).torn, only(tmp_path).world_size) == ("", 4)
    (path / "zero_pp_rank_3_mp_rank_00_model_states.pt").unlink()
    assert only(tmp_path).torn == "1 of 4 model states are missing"


def test_a_save_after_the_one_that_deepspeed_names_did_not_end(tmp_path: Path) -> None:
    makers.deepspeed(tmp_path, 10)
    makers.deepspeed(tmp_path, 20)
    (tmp_path / "latest").write_text("global_step10")
    assert [found.torn for found in catalogue.read(tmp_path)] == [
        "",
        "latest names global_step10: this save did not end",
    ]
    (tmp_path / "latest").unlink()
    assert all("nothing tells that the save ended" in found.notes[0] for found in catalogue.read(tmp_path))


def test_deepspeed_and_fsdp_inside_a_trainers_checkpoint_are_examined(made: Callable[[str], Path]) -> None:
    folder = made("transformers")
    path = Path(only(folder).path)
    for shard in path.glob("model*"):
        shard.unlink()
    makers.deepspeed(path, 10)
    assert only(folder).torn == ""
    (path / "global_step10" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    assert only(folder).torn.startswith("global_step10: 1 of 4")
    shutil.rmtree(path / "global_step10")
    (path / "latest").unlink()
    assert only(folder).torn == "it holds no weights"
    makers.saved_by_torch(path / "pytorch_model_fsdp_0", 10)
    assert only(folder).torn == ""
    (path / "pytorch_model_fsdp_0" / "__0_1.distcp").unlink()
    assert only(folder).torn == "pytorch_model_fsdp_0: __0_1.distcp is missing"


def test_a_trainers_checkpoint_without_optimizer_says_so(made: Callable[[str], Path]) -> None:
    folder = made("transformers")
    (Path(only(folder).path) / "optimizer.pt").unlink()
    assert only(folder).torn == "" and "only the model can be loaded" in only(folder).notes[0]


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt"])
def test_a_trainers_checkpoint_without_a_file_that_those_beside_it_have_is_torn(tmp_path: Path, file: str) -> None:
    for step in (10, 20, 30):
        makers.trainer(tmp_path, step)
    assert [one.torn for one in catalogue.read(tmp_path)] == [""] * 3
    (tmp_path / "checkpoint-30" / file).unlink()
    assert [one.torn for one in catalogue.read(tmp_path)][:2] == [""] * 2
    assert catalogue.read(tmp_path)[2].torn == f"{file} is missing, which 2 of 2 checkpoints beside it have"
    chosen = catalogue.best(catalogue.read(tmp_path))
    assert isinstance(chosen, catalogue.Checkpoint) and chosen.step == 20
    for step in (10, 20):
        (tmp_path / f"checkpoint-{step}" / file).unlink()
    assert [one.torn for one in catalogue.read(tmp_path)] == [""] * 3, "the model alone was to be saved"


def test_weights_of_another_size_than_their_header_says_are_torn(made: Callable[[str], Path]) -> None:
    folder = made("transformers")
    path = Path(only(folder).path)
    shard = sorted(path.glob("model-*.safetensors"))[0]
    with shard.open("ab") as file:
        file.write(b"more")
    assert f"{shard.name} has" in only(folder).torn and "its header names" in only(folder).torn


def test_a_trainers_checkpoint_that_was_renamed_is_not_taken_for_another_step(made: Callable[[str], Path]) -> None:
    folder = made("transformers")
    (folder / "checkpoint-10").rename(folder / "checkpoint-99")
    assert "of step 10" in only(folder).torn


def test_what_lies_beside_an_unfinished_nemo_checkpoint_makes_it_torn(tmp_path: Path) -> None:
    makers.nemo(tmp_path, 10)
    last = makers.nemo(tmp_path, 20, "-last")
    Path(f"{last}-unfinished").touch()
    ten, twenty = catalogue.read(tmp_path)
    assert (ten.step, ten.torn, ten.loss) == (10, "", 2.53)
    assert (twenty.step, twenty.name.endswith("-last")) == (20, True) and "the save did not end" in twenty.torn


def test_a_file_of_nemo_1_has_its_marker_without_the_suffix(tmp_path: Path) -> None:
    path = makers.lightning(tmp_path, 10, "gpt--val_loss=2.1-step=10-consumed_samples=320.0.ckpt")
    assert (only(tmp_path).framework, only(tmp_path).data_position, only(tmp_path).torn) == ("nemo", 320, "")
    Path(str(path).removesuffix(".ckpt") + "-unfinished").touch()
    assert "the save did not end" in only(tmp_path).torn


def test_lightning_tells_the_step_whatever_the_file_is_called(tmp_path: Path) -> None:
    makers.lightning(tmp_path, 70, "last.ckpt")
    assert (only(tmp_path).step, only(tmp_path).data_position) == (70, 280)


def test_a_sharded_lightning_checkpoint_needs_the_file_that_is_written_last(tmp_path: Path) -> None:
    path = makers.saved_by_torch(tmp_path / "epoch=0-step=10.ckpt", 10)
    assert "meta.pt is missing" in only(tmp_path).torn
    torch.save({"global_step": 10, "epoch": 0}, path / "meta.pt")
    assert (only(tmp_path).framework, only(tmp_path).step, only(tmp_path).torn) == ("lightning", 10, "")


def test_a_link_to_a_checkpoint_beside_it_is_no_second_one(tmp_path: Path) -> None:
    makers.lightning(tmp_path, 10)
    (tmp_path / "last.ckpt").symlink_to("epoch=0-step=10.ckpt")
    assert only(tmp_path).name == "epoch=0-step=10.ckpt" and only(tmp_path).latest


def test_a_link_to_a_checkpoint_elsewhere_is_one(tmp_path: Path) -> None:
    makers.ours(tmp_path / "disk", 10)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "step-10.attempt-1").symlink_to(tmp_path / "disk" / "step-10.attempt-1")
    assert only(tmp_path / "run").complete


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"format": "logdoctor-checkpoint/2"}, "has the format"),
        ({"step": 11}, "is of step 11"),
        ({"files": []}, "lists no files"),
        ({"files": [{"name": "../x", "bytes": 1, "xxh3_128": ""}]}, "../x is missing"),
        ({"files": [{"name": "__0_0.distcp", "bytes": 1, "xxh3_128": ""}]}, "lists 1"),
        ({"world_size": "two"}, "another form"),
    ],
)
def test_a_manifest_that_does_not_fit_its_folder_makes_it_torn(tmp_path: Path, said: object, words: str) -> None:
    assert isinstance(said, dict)
    makers.ours(tmp_path, 10, **said)
    assert words in only(tmp_path).torn


def test_a_manifest_may_say_that_the_loss_was_nan_and_it_is_suspect(tmp_path: Path) -> None:
    makers.ours(tmp_path, 10, loss=float("nan"))
    found = only(tmp_path)
    assert (found.torn, found.loss, found.health, found.suspect) == ("", None, "suspect", "its loss is NaN")


def test_hashes_are_not_compared_without_xxhash_and_it_says_so(
    made: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = only(made("logdoctor"))
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    verified = catalogue.verify(found)
    assert (verified.torn, verified.compared, verified.files) == ("", 0, 2)
    assert "xxhash is not installed" in verified.notes[0]


def test_a_state_with_nan_in_its_history_is_read(tmp_path: Path) -> None:
    path = makers.trainer(tmp_path, 10, {5: 2.0, 10: float("nan")})
    assert "NaN" in (path / "trainer_state.json").read_text()
    assert json.loads((path / "trainer_state.json").read_text())["global_step"] == 10
    assert only(tmp_path).suspect == "its loss is NaN"


def test_a_complete_one_of_each_form_of_torch_loads(tmp_path: Path) -> None:
    makers.saved_by_torch(tmp_path / "step-3", 3)
    makers.lightning(tmp_path, 4)
    three, four = catalogue.read(tmp_path)
    assert three.complete and four.complete
    state = {"model": {"w": torch.zeros(64, 16), "b": torch.zeros(16)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=three.path)
    assert bool((state["model"]["w"] == 3.0).all())
    assert torch.load(four.path, weights_only=True)["global_step"] == four.step
