"""Small programs that train, evaluate, prepare data and serve, as people write them, on the CPU.

    python train.py PROGRAM --config config.json

A copy of this file is run in the folder of a case. It knows nothing of the rest of logdoctor; torch, Ray and others are
imported by the programs that need them. What befalls a run is in its files and in `events` of its configuration.
"""

import argparse
import atexit
import ctypes
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import Pipe, Process
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

import numpy as np

Config = dict[str, Any]
VOCABULARY, FEATURES = 512, 8
LOGGERS = {
    "logging": "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
    "hydra": "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s",
    "basic": "%(levelname)s:%(name)s:%(message)s",
    "ranked": "%(asctime)s [rank RANK] %(levelname)s %(filename)s:%(lineno)d: %(message)s",
}
METRICS: list[Callable[[int, int, float], str]] = [
    lambda step, total, loss: f"step {step}/{total} | loss {loss:.4f} | lr 3.00e-04 | {9000 + step % 7 * 31} tok/s",
    lambda step, total, loss: f"Epoch [1/1] Batch [{step}/{total}]  Loss: {loss:.4f}",
    lambda step, total, loss: f"iter {step}: loss {loss:.4f}, time {11 + step % 5:.2f}ms, mfu 31.40%",
    lambda step, total, loss: str({"loss": round(loss, 4), "grad_norm": 0.71, "epoch": round(step / total, 2)}),
    lambda step, total, loss: f"global_step={step} train_loss={loss:.3f} grad_norm=0.71 elapsed={step * 0.3:.1f}s",
]


class Out:
    """What a program prints, in the style of its configuration."""

    def __init__(self, config: Config, rank: int = 0) -> None:
        self.style, self.rank, self.total = config["style"], rank, config["steps"]
        self._form, self._bar, self._log, self._mean = METRICS[config["form"]], None, None, 0.0
        if self.style in LOGGERS:
            layout = LOGGERS[self.style].replace("RANK", str(rank))
            logging.basicConfig(level=logging.INFO, format=layout, stream=sys.stdout if config["form"] % 2 else None)
            self._log = logging.getLogger(config["name"])
        elif self.style in ("structlog", "json"):
            import structlog

            shown = [structlog.processors.add_log_level, structlog.processors.TimeStamper("iso")]
            last = structlog.processors.JSONRenderer() if self.style == "json" else structlog.dev.ConsoleRenderer(False)
            told = [structlog.processors.format_exc_info] if self.style == "json" else []
            structlog.configure([*shown, *told, last])
            self._log = structlog.get_logger().bind(rank=rank)
        elif self.style == "loguru":
            from loguru import logger

            self._log = logger
        elif self.style == "absl":
            from absl import logging as absl_logging

            absl_logging.use_absl_handler()
            absl_logging.set_verbosity("info")
            self._log = absl_logging
        elif self.style == "rich":
            from rich.logging import RichHandler

            logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler()])
            self._log = logging.getLogger(config["name"])

    def info(self, text: str) -> None:
        """Print a message."""
        self._say("info", text)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._say("warning", text)

    def caught(self, text: str) -> None:
        """Print a message with the exception that is being handled."""
        if self._log is not None:
            self._log.exception(text)
        else:
            self._say("error", f"{text}\n{traceback.format_exc()}".rstrip())

    def metric(self, step: int, loss: float) -> None:
        """Print the mean of the losses of the last steps."""
        if self.rank:
            return
        if np.isfinite(loss):
            self._mean = loss if step == 1 else 0.97 * self._mean + 0.03 * loss
        loss = self._mean
        if self.style == "tqdm":
            from tqdm import tqdm

            self._bar = self._bar or tqdm(total=self.total, desc="train", mininterval=0, initial=step - 1)
            self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            self._bar.update(1)
        elif self.style in ("json", "structlog"):
            self._log.info("train", step=step, loss=round(loss, 4))
        elif self.style == "jsonl":
            print(json.dumps({"step": step, "total": self.total, "train/loss": round(loss, 4)}), flush=True)
        else:
            self._say("info", self._form(step, self.total, loss))

    def close(self) -> None:
        """Finish the bar."""
        if self._bar is not None:
            self._bar.close()

    def _say(self, level: str, text: str) -> None:
        if self._log is not None:
            getattr(self._log, level)(text)
        elif self.style == "tqdm":
            from tqdm import tqdm

            tqdm.write(text)
        elif self.style == "jsonl":
            print(json.dumps({"level": level, "time": round(time.time(), 3), "msg": text}), flush=True)
        elif self.style == "logfmt":
            print(f"ts={time.strftime('%FT%TZ')} level={level} rank={self.rank} msg={json.dumps(text)}", flush=True)
        else:
            print(text if level == "info" else f"{level.upper()}: {text}", flush=True)


# ---- what all programs share


def beat(config: Config, rank: int, step: int, place: str = "step") -> None:
    """Take the time of a step. What is planned for this step of a rank happens, once."""
    time.sleep(config["pause"])
    for event in config["events"]:
        if (event["step"], event["rank"], event.get("place", "step")) == (step, rank, place):
            mark = Path(event["mark"])
            if not mark.exists():
                mark.touch()
                EVENTS[event["kind"]](event)


def _hog(event: Config) -> None:
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))


def _signal(event: Config) -> None:
    if event["number"] == signal.SIGSEGV:
        ctypes.string_at(8)
    os.kill(os.getpid(), event["number"])
    time.sleep(0.3)


EVENTS: dict[str, Callable[[Config], Any]] = {
    "signal": _signal,
    "exit": lambda event: os._exit(event["code"]),
    "leave": lambda event: sys.exit(event["code"]),
    "hog": _hog,
    "sleep": lambda event: time.sleep(event["seconds"]),
    "touch": lambda event: (Path(event["file"]).touch(), time.sleep(event["seconds"])),
    "remove": lambda event: Path(event["file"]).unlink(),
}


class Samples:
    """Samples of JSON lines, in files of a rank's own, read as they are asked for."""

    def __init__(self, config: Config, rank: int, out: Out | None = None) -> None:
        self.config, self.rank, self.out = config, rank, out
        self.files = sorted(Path(config["data"]).glob(f"{config['split']}-{rank:02d}-*.jsonl"))
        if config["manifest"]:
            self.files = [Path(config["data"], name) for name in json.loads(Path(config["manifest"]).read_text())[rank]]

    def __len__(self) -> int:
        return int(self.config["rows"])

    def __getitem__(self, at: int) -> tuple[Any, ...]:
        beat(self.config, self.rank, at + 1, "read")
        path = self.files[at // self.config["per_file"]]
        rows = path.read_text(encoding="utf-8").splitlines()
        record = json.loads(rows[at % self.config["per_file"]])
        return encode(record, self.config)

    def walk(self, begin: int = 0) -> Iterator[tuple[Any, ...]]:
        """Yield all samples. With `lenient` those that cannot be read are left out."""
        for at in range(begin, len(self)):
            try:
                yield self[at]
            except Exception as error:
                if not self.config["lenient"]:
                    raise
                told = f"skipping sample {at} of rank {self.rank}: {type(error).__name__}: {error}"
                if self.out is not None:
                    (self.out.caught if self.config["form"] % 2 else self.out.warn)(told)
                yield self[0]


def encode(record: Config, config: Config) -> tuple[Any, ...]:
    """Return the token ids, features, target and padded length of a record."""
    text = record[config["column"]]
    if record["codec"]:
        tool = [sys.executable, "tools/decode.py", "--codec", record["codec"], "--id", str(record["id"])]
        text = subprocess.run(tool, check=True, capture_output=True, text=True).stdout
    language = record["meta"].get("language", "en")
    ids = [(one + len(language) - 2) for one in record["ids"]]
    assert len(ids) <= config["max_length"], (
        f"sample {record['id']} has {len(ids)} tokens, max_length is {config['max_length']}"
    )
    target = int(record["label"]) / record["weight"] + 0.01 * len(text)
    return np.array(ids), np.array(record["x"], dtype=np.float32), np.float32(target), record["pad"]


def checked(loss: float, step: int, config: Config, out: Out) -> float:
    """Return a loss that is a number. Raises `FloatingPointError`, or warns with `lenient`."""
    if not np.isfinite(loss):
        if not config["lenient"]:
            raise FloatingPointError(f"loss is {loss} at step {step}, last batch {config['name']}-{step:06d}")
        out.warn(f"loss is {loss} at step {step}, update skipped")
    return loss


def report(config: Config, rank: int, step: int, loss: float, out: Out) -> None:
    """Send the loss to the tracker, if there is one. With `lenient` it is tried three times."""
    if rank or not config["tracker"] or step % config["sync_every"]:
        return
    body = json.dumps({"step": step, "loss": float(loss)}).encode()
    for attempt in range(1, 5):
        try:
            with urllib.request.urlopen(config["tracker"], body, timeout=2) as answer:
                answer.read()
            return
        except OSError as error:
            if not config["lenient"] or attempt == 4:
                raise
            out.warn(f"tracker: {error!r}, attempt {attempt}/4, next one in {0.1 * attempt:.1f}s")
            time.sleep(0.1 * attempt)


def schedule(config: Config) -> Callable[[int, int], float]:
    """Return the learning rate schedule that the configuration names."""
    rate: Callable[[int, int], float] = importlib.import_module(config["schedule"]).rate
    return rate


def start(config: Config, out: Out, rank: int = 0, world: int = 1) -> None:
    """Say what is begun, and read what all ranks need."""
    if rank == 0:
        out.info(f"{config['name']}: {config['steps']} steps, world size {world}, data in {config['data']}")
        out.info(f"learning rate {float(config['learning_rate']):g}, hidden size {config['model']['hidden']}")
    if config["tokenizer"]:
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(config["tokenizer"])
        out.info(f"tokenizer: {tokenizer.get_vocab_size()} entries")
    try:
        importlib.import_module(config["kernels"])
    except ImportError:
        if config["kernels"] == "fused_kernels":
            out.warn("fused_kernels is not installed, falling back to the reference implementation")
        else:
            raise


def finish(config: Config, out: Out, rank: int = 0) -> None:
    """Say that all is done."""
    out.close()
    if rank == 0:
        out.info(config["farewell"])
        Path("complete").touch()
    for noise in config["noise"] if rank == config["noisy_rank"] else ():
        NOISES[noise]()


class _Stale:
    def __del__(self) -> None:
        raise OSError(9, "Bad file descriptor")


def _late() -> None:
    def complain() -> None:
        with urllib.request.urlopen("http://127.0.0.1:9/flush", timeout=1):
            pass

    atexit.register(complain)


def _thread() -> None:
    thread = threading.Thread(target=lambda: {}["session"], name="uploader")
    thread.start()
    thread.join()


def _leak() -> None:
    from multiprocessing import shared_memory

    shared_memory.SharedMemory(create=True, size=64)


NOISES: dict[str, Callable[[], Any]] = {"destructor": _Stale, "atexit": _late, "thread": _thread, "leak": _leak}


# ---- without torch


class Small:
    """A regression in numpy."""

    def __init__(self) -> None:
        chance = np.random.default_rng(7)
        self.table, self.weights = chance.normal(size=(VOCABULARY, FEATURES)), np.zeros(FEATURES)

    def gradient(self, sample: tuple[Any, ...]) -> tuple[float, Any]:
        """Return the loss and its gradient."""
        ids, x, target, pad = sample
        hidden = self.table[ids].mean(0)
        padded = np.zeros(pad, dtype=np.float32)
        miss = x @ self.weights + 0.01 * hidden.sum() + padded[0] - target
        return float(miss**2), 2 * miss * x

    def save(self, config: Config, step: int) -> None:
        """Write a checkpoint."""
        folder = Path(config["output"], f"step-{step:06d}")
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "weights.npz", "wb") as file:
            np.savez(file, table=self.table, weights=self.weights, step=step, moments=np.ones((256, 256)))

    def load(self, path: str) -> int:
        """Read a checkpoint and return its step."""
        if path.endswith(".safetensors"):
            from safetensors.numpy import load_file

            found = load_file(path)
        else:
            found = dict(np.load(path))
        if found["weights"].shape != self.weights.shape:
            raise ValueError(f"{path}: weights have shape {found['weights'].shape}, expected {self.weights.shape}")
        self.weights = found["weights"]
        return 0


def loop(
    config: Config, out: Out, gather: Callable[[Any], Any] = lambda one: one, rank: int = 0, world: int = 1
) -> None:
    """Train in one process, or in each of several that `gather` gradients."""
    start(config, out, rank, world)
    model, rate = Small(), schedule(config)
    if config["resume"]:
        out.info(f"resuming from {config['resume']}")
        model.load(config["resume"])
    for step, sample in enumerate(Samples(config, rank, out).walk(), 1):
        beat(config, rank, step)
        loss, gradient = model.gradient(sample)
        checked(loss, step, config, out)
        gradient = gather(gradient)
        model.weights -= rate(step, config["steps"]) * np.clip(np.nan_to_num(gradient), -1, 1)
        out.metric(step, loss)
        report(config, rank, step, loss, out)
        if step % config["save_every"] == 0 and rank == 0:
            out.info(f"saving checkpoint at step {step}")
            model.save(config, step)
        if step % config["eval_every"] == 0 and rank == 0:
            out.info(f"validation at step {step}: loss {loss * 1.1:.4f}")
    finish(config, out, rank)


def ranks(config: Config, out: Out) -> None:
    """Train in processes that sum their gradients at rank 0, over TCP."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, limit = ("127.0.0.1", int(os.environ["MASTER_PORT"])), config["timeout"]
    if rank == 0:
        listener = Listener(address)
        peers = {}
        while len(peers) < world - 1:
            peer = listener.accept()
            peers[peer.recv()] = peer
    else:
        for _ in range(600):
            try:
                server = Client(address)
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        server.send(rank)

    def gather(gradient: Any) -> Any:
        if rank:
            server.send(gradient)
            if not server.poll(limit):
                raise TimeoutError(f"rank {rank}: no answer from rank 0 within {limit} s")
            return server.recv()
        parts = [gradient]
        for number, peer in sorted(peers.items()):
            if not peer.poll(limit):
                raise TimeoutError(f"rank 0: no gradient of rank {number} within {limit} s")
            parts.append(peer.recv())
        for _, peer in sorted(peers.items()):
            peer.send(sum(parts) / world)
        return sum(parts) / world

    loop(config, out, gather, rank, world)


def _prepared(config: Config, at: int) -> int:
    return len(Samples(config, 0)[at][0])


def prepare(config: Config, out: Out) -> None:
    """Tokenise samples in a pool of processes and write the result."""
    start(config, out)
    schedule(config)
    counts = []
    with ProcessPoolExecutor(max(1, config["workers"])) as pool:
        futures = [pool.submit(_prepared, config, at) for at in range(config["steps"])]
        for at, future in enumerate(futures, 1):
            try:
                counts.append(future.result())
            except (ArithmeticError, LookupError, ValueError, AssertionError, TypeError, AttributeError) as error:
                if not config["lenient"]:
                    raise
                out.warn(f"document {at} dropped: {error!r}")
            out.metric(at, len(counts) / at)
            report(config, 0, at, len(counts), out)
            if at % config["save_every"] == 0:
                target = Path(config["output"], f"tokens-{at:05d}.bin")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(np.zeros(1 << 17, dtype=np.uint32).tobytes())
                out.info(f"wrote {target} ({sum(counts)} tokens)")
    finish(config, out)


def evaluate(config: Config, out: Out) -> None:
    """Score a model on a few tasks."""
    start(config, out)
    model, samples = Small(), Samples(config, 0, out)
    if config["resume"]:
        out.info(f"loading weights from {config['resume']}")
        model.load(config["resume"])
    rate, scores = schedule(config), {}
    tasks = ("arc_easy", "hellaswag", "piqa")
    for step, sample in enumerate(samples.walk(), 1):
        beat(config, 0, step)
        loss = checked(model.gradient(sample)[0], step, config, out)
        task = tasks[(step - 1) * len(tasks) // config["steps"]]
        scores.setdefault(task, []).append(1 / (1 + loss) + rate(step, config["steps"]))
        if step % 10 == 0:
            out.info(f"{task}: {len(scores[task])} samples, acc {np.mean(scores[task]):.3f}")
        report(config, 0, step, loss, out)
    for task, values in scores.items():
        out.info(f"|{task:<12}|acc|{np.mean(values):.4f}|stderr|{np.std(values) / len(values) ** 0.5:.4f}|")
    results = Path(config["output"], "results.json")
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps({task: list(map(float, values)) for task, values in scores.items()}) + " " * 300_000)
    finish(config, out)


def _engine(config: Config, pipe: Any) -> None:
    model, samples = Small(), Samples(config, 0)
    if config["resume"]:
        model.load(config["resume"])
    pipe.send("ready")
    while (at := pipe.recv()) is not None:
        try:
            beat(config, 0, at + 1)
            pipe.send(model.gradient(samples[at])[0])
        except Exception as error:
            if not config["lenient"]:
                raise
            pipe.send(error)


ASKING = """
import json, os, signal, sys, time, urllib.request
port, count, server = map(int, sys.argv[1:])
for at in range(count):
    for _ in range(100):
        try:
            body = json.dumps({"at": at}).encode()
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/score", body, timeout=5).read()
            break
        except urllib.error.HTTPError:
            break
        except OSError:
            time.sleep(0.1)
os.kill(server, signal.SIGTERM)
"""


def serve(config: Config, out: Out) -> None:
    """Answer requests over HTTP with a model in a process of its own, until told to stop."""
    import uvicorn
    from fastapi import FastAPI, Request

    start(config, out)
    schedule(config)
    here, there = Pipe()
    engine = Process(target=_engine, args=(config, there), name="EngineCore")
    engine.start()
    there.close()
    ready = here.recv()
    out.info(f"engine {ready}, pid {engine.pid}")
    app, port = FastAPI(), config["port"]
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port))

    @app.post("/v1/score")
    async def score(request: Request) -> dict[str, float]:
        body = await request.json()
        try:
            here.send(body["at"])
            answer = here.recv()
        except (EOFError, OSError) as error:
            engine.join(5)
            out.caught(f"engine process {engine.pid} died, exit code {engine.exitcode}")
            server.should_exit = True
            raise RuntimeError(f"EngineCore is dead (exit code {engine.exitcode})") from error
        if isinstance(answer, Exception):
            raise answer
        return {"loss": answer}

    asking = [sys.executable, "-c", ASKING, str(port), str(config["steps"]), str(os.getpid())]
    client = subprocess.Popen(asking, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn sends it again when it has stopped
    try:
        server.run()
    finally:
        client.kill()
        if engine.is_alive():
            here.send(None)
            engine.join(5)
    if engine.exitcode:
        sys.exit(1)
    finish(config, out)


def reinforce(config: Config, out: Out) -> None:
    """Train with rewards: a generator, a reward model and a trainer are Ray actors."""
    import ray

    start(config, out)
    rate = schedule(config)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True, object_store_memory=80 << 20)

    @ray.remote(num_cpus=0.5)
    class Generator:
        def __init__(self) -> None:
            self.samples = Samples(config, 0)

        def rollout(self, at: int) -> tuple[Any, ...]:
            return self.samples[at]

    @ray.remote(num_cpus=0.5)
    class RewardModel:
        def __init__(self) -> None:
            self.model = Small()

        def score(self, sample: tuple[Any, ...]) -> float:
            return -self.model.gradient(sample)[0]

    @ray.remote(num_cpus=0.5)
    class PolicyTrainer:
        def update(self, step: int, reward: float) -> float:
            beat(config, 0, step)
            return abs(reward) * (1 - rate(step, config["steps"]))

    generator, judge, trainer = Generator.remote(), RewardModel.remote(), PolicyTrainer.remote()
    for step in range(1, config["steps"] + 1):
        reward = ray.get(judge.score.remote(generator.rollout.remote(step - 1)))
        loss = ray.get(trainer.update.remote(step, reward))
        out.metric(step, checked(loss, step, config, out))
        report(config, 0, step, loss, out)
    finish(config, out)
    ray.shutdown()


# ---- with torch


def _network() -> Any:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(7)
            self.table = torch.nn.Embedding(VOCABULARY, FEATURES)
            self.body = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
            self.wide = torch.nn.Linear(128, 128, bias=False)

        def forward(self, ids: Any, x: Any, labels: Any, pad: Any) -> dict[str, Any]:
            hidden = self.table(ids.flatten()).mean(0, keepdim=True)
            mask = torch.ones(int(pad), dtype=torch.float32)
            out = self.body(x.reshape(1, -1)) + 0.01 * hidden.sum() + 0 * self.wide.weight.sum() * mask[:1]
            return {"loss": (out - labels).square().mean(), "logits": out}

    return Net()


def _tensors(sample: Sequence[Any]) -> dict[str, Any]:
    import torch

    ids, x, target, pad = sample
    return {"ids": torch.as_tensor(ids), "x": torch.as_tensor(x), "labels": torch.as_tensor(target), "pad": int(pad)}


def _loader(config: Config, rank: int, out: Out) -> Any:
    """Return batches of one sample, read by worker processes if the configuration wants some."""
    if config["lenient"] or not config["workers"]:
        return Samples(config, rank, out).walk()
    import torch

    return torch.utils.data.DataLoader(Samples(config, rank), batch_size=None, num_workers=config["workers"])


def _load(model: Any, config: Config, out: Out) -> None:
    import torch

    if config["resume"]:
        out.info(f"loading checkpoint {config['resume']}")
        if config["resume"].endswith(".safetensors"):
            from safetensors.torch import load_file

            model.load_state_dict(load_file(config["resume"]))
        else:
            model.load_state_dict(torch.load(config["resume"], weights_only=True)["model"])


def _save(model: Any, config: Config, step: int, out: Out) -> None:
    import torch

    folder = Path(config["output"])
    folder.mkdir(parents=True, exist_ok=True)
    out.info(f"saving checkpoint to {folder / f'step_{step}.pt'}")
    torch.save({"model": model.state_dict(), "pad": torch.zeros(1 << 16), "step": step}, folder / f"step_{step}.pt")


def torch_loop(config: Config, out: Out, kind: str = "", rank: int = 0, world: int = 1) -> None:
    """Train with torch: alone, or in a process group by data, sharded data, tensor or pipeline parallelism."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    start(config, out, rank, world)
    model, rate = _network(), schedule(config)
    _load(model, config, out)
    wrapped = model
    if kind == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, sample in enumerate(_loader(config, rank, out), 1):
        beat(config, rank, step)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, config["steps"])
        loss = wrapped(**_tensors(sample))["loss"]
        value = checked(loss.item(), step, config, out)
        optimizer.zero_grad()
        loss.backward()
        odd = config["odd"]["step"] == step and config["odd"]["rank"] == rank
        if kind in ("tensor", "pipeline") or odd:
            width = config["odd"]["width"] if odd else FEATURES
            _exchange(kind, rank, world, torch.full((width,), value), dist)
        optimizer.step()
        out.metric(step, value)
        report(config, rank, step, value, out)
        if step % config["eval_every"] == 0:
            if world > 1:
                seen = torch.tensor([value])
                dist.all_reduce(seen)
                value = float(seen) / world
            if rank == 0:
                out.info(f"eval at step {step}: loss {value:.4f} perplexity {np.exp(min(value, 9)):.2f}")
        if step % config["save_every"] == 0:
            if rank == 0 and kind != "fsdp":
                _save(model, config, step, out)
            if world > 1:
                dist.barrier()
    finish(config, out, rank)
    if world > 1:
        dist.destroy_process_group()


def _exchange(kind: str, rank: int, world: int, value: Any, dist: Any) -> None:
    """Sum a tensor over all ranks, or pass it on to the next stage."""
    if kind != "pipeline":
        dist.all_reduce(value)
        return
    if rank:
        dist.recv(value, rank - 1)
    if rank < world - 1:
        dist.send(value, rank + 1)


def _group(config: Config, out: Out, kind: str) -> None:
    """Train in a process group, begun by a launcher that sets the environment, or by ourselves."""
    if "RANK" not in os.environ:
        import torch

        world = int(config["world"])
        torch.multiprocessing.spawn(_spawned, (config, kind, world), world)
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _join(config, rank, world)
    torch_loop(config, out, kind, rank, world)


def _spawned(rank: int, config: Config, kind: str, world: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    _join(config, rank, world)
    torch_loop(config, Out(config, rank), kind, rank, world)


def _join(config: Config, rank: int, world: int) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=config["timeout"]), rank=rank, world_size=world)


def _rows(config: Config, rank: int) -> Any:
    import torch

    class Rows(torch.utils.data.Dataset[Any]):
        inner = Samples(config, rank)

        def __len__(self) -> int:
            return len(self.inner)

        def __getitem__(self, at: int) -> dict[str, Any]:
            return _tensors(self.inner[at])

    return Rows()


def trainer(config: Config, out: Out) -> None:
    """Train with transformers' Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    rank = int(os.environ.get("RANK", 0))
    start(config, out, rank)
    rate = schedule(config)

    class Steps(TrainerCallback):
        def on_step_begin(self, arguments: Any, state: Any, control: Any, **_: Any) -> None:
            beat(config, rank, state.global_step + 1)
            rate(state.global_step + 1, config["steps"])

        def on_log(self, arguments: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "loss" in (logs or {}):
                report(config, rank, state.global_step, logs["loss"], out)
                checked(float(logs["loss"]), state.global_step, config, out)

    arguments = TrainingArguments(
        output_dir=config["output"], max_steps=config["steps"], save_steps=config["save_every"], logging_steps=1,
        use_cpu=True, per_device_train_batch_size=1, report_to=[], seed=7,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        disable_tqdm=config["style"] != "tqdm", dataloader_num_workers=config["workers"], logging_nan_inf_filter=False,
    )  # fmt: skip
    model = _network()
    _load(model, config, out)
    only = lambda batch: batch[0]  # noqa: E731 - one sample
    made = Trainer(model, arguments, only, train_dataset=_rows(config, rank), callbacks=[Steps()])
    made._get_train_sampler = lambda *_: None  # type: ignore[method-assign] # in the order of the files
    made.train()
    finish(config, out, rank)


def lightning(config: Config, out: Out) -> None:
    """Train with Lightning's Trainer."""
    import lightning as pl
    import torch

    rank = int(os.environ.get("RANK", 0))
    start(config, out, rank)
    rate = schedule(config)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _network()
            _load(self.net, config, out)

        def training_step(self, batch: Any, at: int) -> Any:
            beat(config, rank, at + 1)
            rate(at + 1, config["steps"])
            loss = self.net(**_tensors(batch))["loss"]
            checked(loss.item(), at + 1, config, out)
            if config["style"] != "tqdm":
                out.metric(at + 1, loss.item())
            report(config, rank, at + 1, loss.item(), out)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    saver = pl.pytorch.callbacks.ModelCheckpoint(config["output"], every_n_train_steps=config["save_every"])
    made = pl.Trainer(
        accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), max_steps=config["steps"], logger=False,
        callbacks=[saver], enable_progress_bar=config["style"] == "tqdm", use_distributed_sampler=False,
        strategy="ddp" if "RANK" in os.environ else "auto",
    )  # fmt: skip
    data = torch.utils.data.DataLoader(Samples(config, rank), batch_size=None, num_workers=config["workers"])
    made.fit(Module(), data)
    finish(config, out, rank)


def deepspeed(config: Config, out: Out) -> None:
    """Train with DeepSpeed, ZeRO stage 1."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed as ds

    ds.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # or it is compiled, for minutes
    ds.init_distributed("gloo")
    rank = int(os.environ["RANK"])
    start(config, out, rank, int(os.environ["WORLD_SIZE"]))
    rate, model = schedule(config), _network()
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "steps_per_print": 5,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    _load(model, config, out)
    engine, *_ = ds.initialize(model=model, model_parameters=list(model.parameters()), config=settings)
    for step, sample in enumerate(_loader(config, rank, out), 1):
        beat(config, rank, step)
        rate(step, config["steps"])
        loss = engine(**_tensors(sample))["loss"]
        checked(loss.item(), step, config, out)
        engine.backward(loss)
        engine.step()
        out.metric(step, loss.item())
        report(config, rank, step, loss.item(), out)
        if step % config["save_every"] == 0:
            engine.save_checkpoint(config["output"])
    finish(config, out, rank)


PROGRAMS: dict[str, Callable[[Config, Out], None]] = {
    "loop": loop,
    "ranks": ranks,
    "prepare": prepare,
    "evaluate": evaluate,
    "serve": serve,
    "reinforce": reinforce,
    "torch": torch_loop,
    "ddp": lambda config, out: _group(config, out, "ddp"),
    "fsdp": lambda config, out: _group(config, out, "fsdp"),
    "tensor": lambda config, out: _group(config, out, "tensor"),
    "pipeline": lambda config, out: _group(config, out, "pipeline"),
    "trainer": trainer,
    "lightning": lightning,
    "deepspeed": deepspeed,
}


def main() -> None:
    """Run a program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--config", required=True)
    given = parser.parse_args()
    config = json.loads(Path(given.config).read_text())
    sys.path.insert(0, str(Path.cwd()))
    out = Out(config, int(os.environ.get("RANK", 0)))
    try:
        if config["graceful"]:
            signal.signal(signal.SIGTERM, lambda *_: (out.warn("SIGTERM received, stopping"), sys.exit(143)))
        PROGRAMS[given.program](config, out)
    except Exception as error:
        if config["crash"] == "raw" or (config["crash"] == "logged" and os.environ.get("RAISE")):
            raise
        out.caught(f"{config['name']} failed with {type(error).__name__}")
        sys.exit(1)


if __name__ == "__main__":
    main()
