"""Folders of checkpoints as each framework writes them: with the real library where it is here, else in its layout."""

import argparse
import json
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
import xxhash
from transformers import LlamaConfig, LlamaForCausalLM, TrainerState

from logdoctor.job.recovery.catalogue.times import timestamp

NOON = 1_795_435_200.0
"""When a first checkpoint was saved: 2026-11-23 12:00:00 UTC."""


def ours(folder: Path, step: int, attempt: int = 1, /, **said: Any) -> Path:
    """Our own checkpoint, with two small files; `said` goes before what its manifest says by itself."""
    path = folder / f"step-{step}.attempt-{attempt}"
    path.mkdir(parents=True)
    files = []
    for rank in range(2):
        data = f"{step} {rank}".encode() * 50
        (path / f"__{rank}_0.distcp").write_bytes(data)
        files.append({"name": f"__{rank}_0.distcp", "bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)})
    manifest = {
        "format": "logdoctor-checkpoint/1",
        "step": step,
        "attempt": attempt,
        "data_position": step * 8,
        "loss": 2.0,
        "saved_at": timestamp(NOON + 60 * step),
        "seconds": 1.5,
        "world_size": 2,
        "files": files,
    }
    (path / "manifest.json").write_text(json.dumps(manifest | said))
    return path


def state(step: int) -> dict[str, Any]:
    """A small state, different at each step."""
    model = {"w": torch.full((64, 16), float(step)), "b": torch.arange(16.0) + step}
    return {"model": model, "optimizer": {"lr": 0.1, "moments": [torch.zeros(64, 16), step]}}


def saved_by_torch(path: Path, step: int) -> Path:
    """What torch.distributed.checkpoint writes: two files of data and the metadata."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process only
        dcp.save(state(step), storage_writer=dcp.FileSystemWriter(path, thread_count=2))
    return path


def megatron(folder: Path, step: int, ranks: tuple[str, ...] = ("00_000", "00_001", "01_000", "01_001")) -> Path:
    """The older form of Megatron-LM, with the mark that the save has ended."""
    path = folder / f"iter_{step:07d}"
    arguments = argparse.Namespace(consumed_train_samples=step * 32, world_size=8)
    for rank in ranks:
        (path / f"mp_rank_{rank}").mkdir(parents=True)
        saved = {"args": arguments, "iteration": step, "checkpoint_version": 3.0, "model": state(step)["model"]}
        torch.save(saved, path / f"mp_rank_{rank}" / "model_optim_rng.pt")
        torch.save(OrderedDict(state(step)["optimizer"]), path / f"mp_rank_{rank}" / "distrib_optim.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
    return path


def megatron_distributed(path: Path, step: int) -> Path:
    """The form `torch_dist` of Megatron-LM."""
    saved_by_torch(path, step)
    arguments = argparse.Namespace(consumed_train_samples=step * 32, world_size=16)
    torch.save({"args": arguments, "iteration": step}, path / "common.pt")
    config = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch"}
    (path / "metadata.json").write_text(json.dumps(config))
    return path


def deepspeed(folder: Path, step: int, data: int = 4, tag: str | None = None) -> Path:
    """A checkpoint of ZeRO 1 on so many data-parallel ranks."""
    tag = tag or f"global_step{step}"
    path = folder / tag
    path.mkdir(parents=True)
    told = {"global_steps": step, "global_samples": step * 16, "dp_world_size": data, "mp_world_size": 1}
    torch.save({"module": state(step)["model"], **told}, path / "mp_rank_00_model_states.pt")
    for rank in range(data):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state(step)["optimizer"]}, path / name)
    (folder / "latest").write_text(tag)
    return path


def trainer(folder: Path, step: int, losses: dict[int, float] | None = None, ranks: int = 2) -> Path:
    """A checkpoint of the Trainer: a sharded model, optimizer, states of random generators, state."""
    path = folder / f"checkpoint-{step}"
    shape = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 64}
    config = LlamaConfig(**shape, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2)
    LlamaForCausalLM(config).save_pretrained(path, max_shard_size="6KB")
    torch.save({"state": state(step)["optimizer"]}, path / "optimizer.pt")
    torch.save({"last_epoch": step}, path / "scheduler.pt")
    for rank in range(ranks):
        torch.save({"cpu": torch.random.get_rng_state()}, path / f"rng_state_{rank}.pth")
    history = [{"step": at, "loss": loss, "epoch": 0.1} for at, loss in (losses or {step: 2.0}).items()]
    TrainerState(global_step=step, log_history=[*history, {"step": step, "eval_loss": 2.5}]).save_to_json(
        str(path / "trainer_state.json")
    )
    return path


def lightning(folder: Path, step: int, name: str | None = None) -> Path:
    """A file of Lightning."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name or f"epoch=0-step={step}.ckpt")
    progress = {"total": {"ready": step * 4, "completed": step * 4}, "current": {"ready": 4, "completed": 4}}
    loops = {"fit_loop": {"state_dict": {}, "epoch_loop.batch_progress": progress}}
    torch.save({"epoch": 0, "global_step": step, "state_dict": state(step)["model"], "loops": loops}, path)
    return path


def nemo(folder: Path, step: int, last: str = "") -> Path:
    """A folder of NeMo 2: `context` and, in `weights`, a checkpoint of Megatron's form."""
    path = folder / f"gpt--val_loss=2.53-step={step}-consumed_samples={step * 32}.0{last}"
    (path / "context").mkdir(parents=True)
    (path / "context" / "model.yaml").write_text("model: gpt\n")
    megatron_distributed(path / "weights", step)
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    "logdoctor": lambda folder: ours(folder, 10),
    "torch-dcp": lambda folder: saved_by_torch(folder / "step-10", 10),
    "megatron": lambda folder: megatron(folder, 10),
    "megatron distributed": lambda folder: megatron_distributed(folder / "iter_0000010", 10),
    "deepspeed": lambda folder: deepspeed(folder, 10),
    "transformers": lambda folder: trainer(folder, 10),
    "lightning": lambda folder: lightning(folder, 10),
    "nemo": lambda folder: nemo(folder, 10),
}
"""A checkpoint of step 10 in a new folder, by framework and form."""


def aged(path: Path, at: float) -> Path:
    """A checkpoint whose files were all last written at a time."""
    for one in (path, *path.rglob("*")) if path.is_dir() else (path,):
        if one.is_file():
            os.utime(one, (at, at))
    return path


def cut(path: Path, left: float = 0.5) -> None:
    """Leave only the beginning of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * left)])
