"""Small trainings by other people's trainers, two ranks over gloo, with a fault on demand.

    FAULT=kill@37@1 torchrun --nproc-per-node 2 eval/trainers.py plain|fsdp|accelerate|trainer|deepspeed|lightning DIR

A fault strikes once, before a step of a rank; `key`, a bug, strikes each time. A checkpoint that the supervisor
announces is loaded, else the newest one. DIR/final gets the digest of the final weights.
"""

import ctypes
import hashlib
import os
import signal
import sys
import time
import urllib.error
from collections.abc import Callable
from http.client import HTTPMessage
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from logdoctor import resume

STEPS, SAVE_EVERY, STEP_SECONDS, FEATURES = 60, 10, 0.05, 8


class Fault:
    """The fault planned in `FAULT`: its kind, step and rank."""

    def __init__(self, folder: Path, rank: int) -> None:
        kind, at, who = (os.environ.get("FAULT") or "none@0@0").split("@")
        self._mark = folder / "struck"
        has_struck = self._mark.exists() and kind != "key"
        self._kind = kind if int(who) == rank and not has_struck else "none"
        self._at = int(at)

    def strike(self, step: int) -> None:
        """Strike if this is the step."""
        if step != self._at or self._kind == "none":
            time.sleep(STEP_SECONDS)
            return
        self._mark.touch()
        _STRIKES[self._kind]()


def _unavailable() -> None:
    raise urllib.error.HTTPError("https://storage.example.org/x", 503, "Service Unavailable", HTTPMessage(), None)


def _reset() -> None:
    raise ConnectionResetError(104, "Connection reset by peer")


def _bug() -> None:
    raise KeyError("tokens")


def _end_launcher() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def _end_rank() -> None:
    os.kill(os.getpid(), signal.SIGTERM)  # Lightning catches it, and ends in its own time
    time.sleep(1)


_STRIKES: dict[str, Callable[[], Any]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "quit": lambda: os._exit(3),
    "terminate": _end_rank,
    "launcher": _end_launcher,
    "unavailable": _unavailable,
    "reset": _reset,
    "key": _bug,
}


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the batch of a step and a rank."""
    chance = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(4, FEATURES, generator=chance)
    return x, x.cumsum(1)[:, -1:]


def network() -> torch.nn.Module:
    """Return the network, the same on each rank."""
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, FEATURES), torch.nn.Tanh(), torch.nn.Linear(FEATURES, 1))


def finish(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write the digest of the final weights."""
    digest = hashlib.sha256(b"".join(weights[name].cpu().numpy().tobytes() for name in sorted(weights)))
    (folder / "final").write_text(digest.hexdigest())


def plain(folder: Path) -> None:
    """Train with DDP and torch.save."""
    dist.init_process_group("gloo")
    rank, fault = dist.get_rank(), Fault(folder, dist.get_rank())
    dist.barrier()
    model = network()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    saved = max(folder.glob("ck_*.pt"), key=lambda path: int(path.stem[3:]), default=None)
    begin = 0
    if saved:
        found = torch.load(saved, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        begin = int(found["step"])
    for step in range(begin + 1, STEPS + 1):
        fault.strike(step)
        loss = _made(wrapped, optimizer, step, rank)
        if rank == 0:
            print(f"update {step} of {STEPS} :: cross-entropy {loss:.4f}", flush=True)
        if step % SAVE_EVERY == 0:
            if rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, folder / f"ck_{step}.tmp")
                (folder / f"ck_{step}.tmp").rename(folder / f"ck_{step}.pt")
            dist.barrier()
    if rank == 0:
        finish(folder, model.state_dict())
    dist.destroy_process_group()


def fsdp(folder: Path) -> None:
    """Train like torchtitan: FSDP2, and torch's distributed checkpoints in `step-N`."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    rank, fault = dist.get_rank(), Fault(folder, dist.get_rank())
    dist.barrier()
    model = network()
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    told = resume.announced().checkpoint
    steps = [int(path.parent.name[5:]) for path in (folder / "ckpt").glob("step-*/.metadata")]
    begin = int(Path(told).name[5:]) if told else max(steps, default=0)
    if begin:
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder / "ckpt" / f"step-{begin}")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    for step in range(begin + 1, STEPS + 1):
        fault.strike(step)
        loss = _made(model, optimizer, step, rank)
        if rank == 0:
            print(f"[titan] 2026-01-01 00:00:00,000 - root - INFO - step: {step:2}  loss: {loss:7.4f}", flush=True)
        if step % SAVE_EVERY == 0:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / "ckpt" / f"step-{step}")
    weights = {name: value.full_tensor() for name, value in model.state_dict().items()}
    if rank == 0:
        finish(folder, weights)
    dist.destroy_process_group()


def accelerate(folder: Path) -> None:
    """Train with accelerate and its own checkpoints."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    rank, fault = accelerator.process_index, Fault(folder, accelerator.process_index)
    accelerator.wait_for_everyone()
    model = network()
    wrapped, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    steps = [int(path.name[5:]) for path in (folder / "own").glob("step_*") if (path / "done").exists()]
    begin = max(steps, default=0)
    if begin:
        accelerator.load_state(str(folder / "own" / f"step_{begin}"))
    for step in range(begin + 1, STEPS + 1):
        fault.strike(step)
        loss = _made(wrapped, optimizer, step, rank, accelerator.backward)
        accelerator.print(f"[{step}/{STEPS}] loss={loss:.4f}", flush=True)
        if step % SAVE_EVERY == 0:
            accelerator.save_state(str(folder / "own" / f"step_{step}"))
            accelerator.wait_for_everyone()
            (folder / "own" / f"step_{step}" / "done").touch()
    if rank == 0:
        finish(folder, model.state_dict())
    accelerator.end_training()


def trainer(folder: Path) -> None:
    """Train with transformers' Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            out = self.net(x)
            return {"loss": (out - labels).square().mean(), "logits": out}

    class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return STEPS * 8

        def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
            x, y = batch(at, 0)
            return {"x": x[0], "labels": y[0]}

    class Faulty(TrainerCallback):
        def on_step_begin(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            fault.strike(state.global_step + 1)

    arguments = TrainingArguments(
        output_dir=str(folder / "ckpt"), max_steps=STEPS, save_steps=SAVE_EVERY, logging_steps=1, use_cpu=True,
        per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], ddp_backend="gloo", seed=7,
    )  # fmt: skip
    fault = Fault(folder, int(os.environ["RANK"]))
    made = Trainer(Model(), arguments, train_dataset=Data(), callbacks=[Faulty()])
    told = resume.announced().checkpoint
    made.train(resume_from_checkpoint=told or get_last_checkpoint(arguments.output_dir))
    if arguments.process_index == 0:
        finish(folder, made.model.state_dict())


def deepspeed(folder: Path) -> None:
    """Train with DeepSpeed: ZeRO stage 1, its own checkpoints in `global_stepN` behind the file `latest`."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed as ds

    ds.init_distributed("gloo")
    rank, fault = dist.get_rank(), Fault(folder, dist.get_rank())
    dist.barrier()
    model = network()
    settings = {
        "train_micro_batch_size_per_gpu": 4,
        "steps_per_print": 1,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    engine, *_ = ds.initialize(model=model, model_parameters=list(model.parameters()), config=settings)
    told = resume.announced().checkpoint
    if told or (folder / "ckpt" / "latest").exists():
        engine.load_checkpoint(str(folder / "ckpt"), tag=Path(told).name if told else None)
    for step in range(engine.global_steps + 1, STEPS + 1):
        fault.strike(step)
        x, y = batch(step, rank)
        loss = (engine(x) - y).square().mean()
        engine.backward(loss)
        engine.step()
        if step % SAVE_EVERY == 0:
            engine.save_checkpoint(str(folder / "ckpt"))
    if rank == 0:
        finish(folder, model.state_dict())
    dist.destroy_process_group()


def lightning(folder: Path) -> None:
    """Train with Lightning's Trainer."""
    import lightning as pl
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, pair: Any, _: int) -> torch.Tensor:
            x, y = pair
            loss: torch.Tensor = (self.net(x) - y).square().mean()
            if self.global_rank == 0:
                print(f"global_step={self.global_step + 1} nll={loss.item():.4f}", flush=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    class Faulty(Callback):
        def on_train_batch_start(self, running: Any, *_: Any) -> None:
            fault.strike(running.global_step + 1)

    fault = Fault(folder, int(os.environ["RANK"]))
    pairs = [tuple(value[0] for value in batch(at, 0)) for at in range(STEPS * 8)]
    saver = ModelCheckpoint(folder / "ckpt", every_n_train_steps=SAVE_EVERY, save_top_k=-1)
    made = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=STEPS, callbacks=[Faulty(), saver], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    told = resume.announced().checkpoint
    newest = max((folder / "ckpt").glob("*.ckpt"), key=lambda path: path.stat().st_mtime, default=None)
    module = Module()
    data: Any = torch.utils.data.DataLoader(pairs, batch_size=4)  # type: ignore[arg-type]
    made.fit(module, data, ckpt_path=told or (str(newest) if newest else None))
    if made.global_rank == 0:
        finish(folder, module.net.state_dict())


def _made(
    model: torch.nn.Module,
    optimizer: Any,
    step: int,
    rank: int,
    backward: Callable[[torch.Tensor], Any] = torch.Tensor.backward,
) -> float:
    """Make a step and return its loss."""
    x, y = batch(step, rank)
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    backward(loss)
    optimizer.step()
    return float(loss)


TRAINERS: dict[str, Callable[[Path], None]] = {
    "plain": plain,
    "fsdp": fsdp,
    "accelerate": accelerate,
    "trainer": trainer,
    "deepspeed": deepspeed,
    "lightning": lightning,
}

if __name__ == "__main__":
    TRAINERS[sys.argv[1]](Path(sys.argv[2]))
