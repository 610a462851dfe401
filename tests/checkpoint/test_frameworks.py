"""Lightning and the Trainer of transformers: what they would have saved themselves, saved here, and gone on from."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from logdoctor.checkpoint import folders
from logdoctor.checkpoint import mirror as mirror_module
from logdoctor.checkpoint.lightning import LightningCheckpoints
from logdoctor.checkpoint.mirror import Mirror
from logdoctor.checkpoint.transformers import TrainerCheckpoints
from logdoctor.errors import CheckpointError
from tests import waiting
from tests.checkpoint.conftest import Gate

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products are faster so, beside other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Broken(Exception):
    """What ends a training."""


class Net(pl.LightningModule):  # type: ignore[misc]
    """A network that needs everything to be restored: dropout, momenta, a schedule, its hyper-parameters."""

    def __init__(self, width: int = 200) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, width), torch.nn.Linear(width, width), torch.nn.Linear(width, 1)
        )
        self.end_at = 10**9

    def training_step(self, batch: Any, place: int) -> Any:
        if self.global_step == self.end_at:
            raise Broken
        return (self.net(batch[0]) - 1).square().mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        milestones = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 9], 0.5)
        return [optimizer], [{"scheduler": milestones, "interval": "step"}]


def test_both_go_on_from_a_mirror_on_another_machine(tmp_path: Path) -> None:
    mirror = f"file://{tmp_path}/mirror"
    fit(tmp_path / "a", LightningCheckpoints(tmp_path / "a/ours", mirror=f"{mirror}/pl"))
    moved = LightningCheckpoints(tmp_path / "b/ours", mirror=f"{mirror}/pl")
    assert moved.latest() == moved.latest() == str(tmp_path / "b/ours/step-20.attempt-1")
    with TrainerCheckpoints(tmp_path / "c", mirror=f"{mirror}/hf") as saving:
        saving._checkpoints.save(
            {"trainer": "{}", "model": {"a": torch.ones(2)}, "scheduler": ({},), "optimizer": {"groups": ({},)}}, step=7
        )
    with TrainerCheckpoints(tmp_path / "d", mirror=f"{mirror}/hf") as saving:
        assert saving.resume() == str(tmp_path / "d/.resume/checkpoint-7")


def fit(
    folder: Path, saving: LightningCheckpoints | None, end_at: int = 10**9, ckpt_path: str | None = None, ranks: int = 1
) -> tuple[Net, pl.Trainer]:
    pl.seed_everything(3, verbose=False)
    model = Net()
    model.end_at = end_at
    data = DataLoader(TensorDataset(torch.arange(12 * 4 * 8.0).reshape(-1, 8) / 100), batch_size=4)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        plugins=[saving] if saving else [],
        callbacks=[ModelCheckpoint(dirpath=folder / "theirs", every_n_train_steps=5, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(model, data, ckpt_path=saving.latest() if saving else ckpt_path)
    return model, trainer


def values(model: torch.nn.Module) -> list[Any]:
    return [each.flatten().tolist() for each in model.state_dict().values()]


def test_lightning_goes_on_as_from_a_file_of_its_own(tmp_path: Path) -> None:
    saving = LightningCheckpoints(tmp_path / "b/ours", keep=9)
    for folder, each in (("a", None), ("b", saving)):
        with pytest.raises(Broken):
            fit(tmp_path / folder, each, end_at=17)
    expected, _ = fit(tmp_path / "a", None, ckpt_path=str(tmp_path / "a/theirs/epoch=1-step=15.ckpt"))
    assert saving.latest() == str(tmp_path / "b/ours/step-15.attempt-1")
    model, trainer = fit(tmp_path / "b", saving)
    assert values(model) == values(expected)
    assert trainer.global_step == 24 and trainer.lr_scheduler_configs[0].scheduler.last_epoch == 24
    assert not list(tmp_path.glob("b/theirs/*.ckpt"))
    found = {name.partition(".")[0] for name in folders.names(tmp_path / "b/ours")}
    assert found == {"step-5", "step-10", "step-15", "step-20"}


def test_lightning_does_not_wait_for_the_disk(tmp_path: Path, storage: Gate) -> None:
    """The first save is held up for ever; training goes on to where the second one is due."""
    saving = LightningCheckpoints(tmp_path / "ours", patience=0.5)
    _, trainer = fit(tmp_path, saving)
    assert storage.reached.is_set() and trainer.global_step == 24


def test_lightning_loads_files_of_its_own(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "old.ckpt")
    saving = LightningCheckpoints(tmp_path / "ours")
    assert saving.latest() is None and saving.load_checkpoint(tmp_path / "old.ckpt") == {"state_dict": {}}
    with pytest.raises(CheckpointError, match="has no good checkpoint"):
        saving.load_checkpoint(tmp_path / "ours/step-1.attempt-1")


def test_lightning_loads_the_one_before_where_the_latest_is_damaged(tmp_path: Path) -> None:
    saving = LightningCheckpoints(tmp_path)
    for step in (1, 2):
        saving.save_checkpoint({"state_dict": {"w": torch.full((3,), step)}, "global_step": step}, "")
    saving.teardown()
    path = tmp_path / "step-2.attempt-1"
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[len(data) // 2] ^= 1
    (path / "__0_0.distcp").write_bytes(data)
    with pytest.raises(CheckpointError, match="has no good checkpoint"):
        LightningCheckpoints(tmp_path).load_checkpoint(path)  # somebody has named it
    saving = LightningCheckpoints(tmp_path)
    assert saving.latest() == str(path) and saving.load_checkpoint(path)["global_step"] == 1


class EndAt(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **of: Any) -> None:
        if state.global_step == self.step:
            raise Broken


def train(folder: Path, end_at: int = -1, **changed: Any) -> LlamaForCausalLM:
    """Train a small model with dropout over shuffled data; the state of its random numbers decides."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.2,
    )
    model = LlamaForCausalLM(config)
    tokens = torch.arange(24 * 6).reshape(24, 6) * 7 % 64
    data = [{"input_ids": each, "labels": each} for each in tokens]
    options: dict[str, Any] = {
        "output_dir": str(folder / "theirs"),
        "max_steps": 18,
        "save_steps": 5,
        "per_device_train_batch_size": 2,
        "learning_rate": 0.01,
        "logging_steps": 5,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    arguments = TrainingArguments(**options | changed)
    with TrainerCheckpoints(folder / "ours", keep=9) as saving:
        trainer = Trainer(
            model, arguments, train_dataset=data, eval_dataset=data[:2], callbacks=[saving, EndAt(end_at)]
        )
        trainer.train(resume_from_checkpoint=saving.resume())
    return model


@pytest.mark.parametrize("changed", [{}, {"save_strategy": "epoch", "gradient_accumulation_steps": 2}], ids=str)
def test_the_trainer_goes_on_as_if_it_had_not_ended(tmp_path: Path, changed: dict[str, Any]) -> None:
    expected = train(tmp_path / "a", **changed)
    with pytest.raises(Broken):
        train(tmp_path / "b", end_at=14, **changed)
    ended = sorted(folders.complete(tmp_path / "b/ours"), key=lambda each: each.order)
    assert [each.step for each in ended] == ([6, 12] if changed else [5, 10])
    samples = 4 if changed else 2
    assert [each.data_position for each in ended] == [samples * each.step for each in ended]
    model = train(tmp_path / "b", **changed)
    assert values(model) == values(expected)
    assert not list(tmp_path.glob("*/theirs/checkpoint-*")) and not (tmp_path / "b/ours/.resume").exists()
    assert {each.step for each in folders.complete(tmp_path / "b/ours")} == (
        {6, 12, 18} if changed else {5, 10, 15, 18}
    )


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 5}, "load_best"),
        (
            {"save_strategy": "best", "metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 5},
            "'best'",
        ),
    ],
)
def test_what_would_not_be_saved_whole_is_refused(tmp_path: Path, changed: dict[str, Any], what: str) -> None:
    with pytest.raises(CheckpointError, match=f"this training: uses .*{what}"):
        train(tmp_path, **changed)


def test_lightning_deletes_nothing_that_it_could_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = f"memory://{tmp_path.name}"

    def saved(folder: str, *steps: int, look: bool = False) -> None:
        saving = LightningCheckpoints(tmp_path / folder, keep=1, mirror=mirror)
        if look:
            monkeypatch.setattr(mirror_module, "_PAUSES", ())
            with monkeypatch.context() as patched:
                patched.setattr(MemoryFileSystem, "ls", _away)
                assert str(saving.latest()).endswith("step-1.attempt-1")
        for step in steps:
            saving.save_checkpoint({"state_dict": {"weight": torch.ones(3)}, "global_step": step}, "")
            assert saving._checkpoints and saving._checkpoints.wait(600)
            waiting.until(lambda s=saving._checkpoints.stats, step=step: s.last_mirrored_step == step)  # type: ignore[misc]
        saving.teardown()

    saved("a", 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    saved("a", 9)
    saved("b", 2, 3, look=True)
    assert {each.step for each in Mirror(mirror).complete()} >= {3, 9}


def _away(*_: Any, **__: Any) -> Any:
    raise OSError("no route")
