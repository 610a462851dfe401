"""Programs that really fail on a GPU: their logs with labels, in the form that `logdoctor eval` scores.

    python -m eval.gpu_failures FOLDER [--only NAME ...]

Needs a machine with an NVIDIA GPU, PyTorch, and for some programs JAX, CuPy and transformers; programs that lack one
are left out. Two ranks of NCCL share the GPU: each is told that it is on a host of its own. Labels were written before
anything ran; eval/corpus/README.md tells how they are decided. FOLDER gets `cases.jsonl` and a log of each program.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from logdoctor.taxonomy import REASONS

SECONDS = 150.0  # that a program may run
AT_ONCE = 8


class Failure(NamedTuple):
    """A program that fails, its environment, and its log's label. `evidence` stands on the line of the cause; `also`
    and `recovery_also` are what else a careful person could defend."""

    run: Callable[[], None]
    reason: str
    recovery: str
    evidence: str
    user_fault: bool = True
    also: tuple[str, ...] = ()
    recovery_also: tuple[str, ...] = ()
    ranks: int = 1
    rank: int | None = None  # whose error came first
    env: tuple[tuple[str, str], ...] = ()
    is_alone: bool = False  # needs the whole GPU


def trained(steps: int, model: Any = None) -> Any:
    """Train a model for some steps, print them, and return it."""
    import torch

    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(1, steps + 1):
        loss = (model(torch.randn(64, 512, device="cuda")) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}/1000 | loss {loss.item():.4f} | lr 1.0e-03", flush=True)
    return model


def joined() -> tuple[int, Any]:
    """Join a world of NCCL; return this rank and torch.distributed."""
    import datetime

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(0)
    seconds = float(os.environ.get("COLLECTIVE_SECONDS", "60"))
    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=seconds), device_id=torch.device("cuda", 0))
    return dist.get_rank(), dist


def reduced(dist: Any, steps: int) -> None:
    """Make steps that each end with a collective."""
    import torch

    for step in range(1, steps + 1):
        gradients = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(gradients)
        torch.cuda.synchronize()
        if dist.get_rank() == 0 and step % 10 == 0:
            print(f"step {step}/1000 | grad norm {gradients.norm().item():.1f}", flush=True)


def out_of_memory() -> None:
    """Keep activations by mistake."""
    import torch

    trained(20)
    kept = []
    for _ in range(10_000):
        kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))


def out_of_its_share() -> None:
    """Use too large a batch in a process with a limited share of the memory."""
    import torch

    torch.cuda.set_per_process_memory_fraction(0.02)
    model = trained(20)
    model(torch.randn(1 << 21, 512, device="cuda"))


def no_memory_for_cublas() -> None:
    """Ask for the first product when all memory is taken."""
    import torch

    left, size, kept = torch.ones(64, 64, device="cuda"), 1 << 30, []
    while size >= 1 << 16:
        try:
            kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            size >>= 1
    print("buffers allocated, training starts", flush=True)
    print((left @ left).sum().item())


def token_beyond_the_vocabulary() -> None:
    """Look up a token that the embedding lacks."""
    import torch

    trained(30)
    embedding = torch.nn.Embedding(32_000, 256).cuda()
    tokens = torch.randint(0, 32_064, (8, 4096), device="cuda")
    print(f"step 31/1000 | loss {embedding(tokens).pow(2).mean().item():.4f}", flush=True)


def class_beyond_the_last() -> None:
    """Use a label as large as the number of classes."""
    import torch

    model = trained(30)
    logits = model(torch.randn(64, 512, device="cuda"))
    loss = torch.nn.functional.cross_entropy(logits, torch.full((64,), 512, device="cuda"))
    loss.backward()
    torch.cuda.synchronize()


def llama_with_another_tokenizer() -> None:
    """Use a tokenizer with more tokens than the model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).cuda()
    for step in range(5):
        tokens = torch.randint(0, 1000 if step < 4 else 1100, (4, 128), device="cuda")
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        print({"loss": round(loss.item(), 4), "epoch": step / 10}, flush=True)


KERNELS = {
    "wild": 'extern "C" __global__ void attend(float* out, long far) { out[far * threadIdx.x] = 1.0f; }',
    "trap": 'extern "C" __global__ void attend(float* out, long far) { if (threadIdx.x == 7) __trap(); out[0] = far; }',
}


def _launched(kernel: str) -> None:
    import cupy
    import torch

    trained(30)
    out = cupy.zeros(32, dtype=cupy.float32)
    cupy.RawKernel(KERNELS[kernel], "attend")((1,), (32,), (out, 1 << 40))
    print("step 31/1000 | fused attention", flush=True)
    trained(5)
    torch.cuda.synchronize()


def kernel_writes_anywhere() -> None:
    """Write beyond an array in a custom kernel."""
    _launched("wild")


def kernel_traps() -> None:
    """Trap in a custom kernel."""
    _launched("trap")


def shapes_that_do_not_fit() -> None:
    """Feed a layer another width than it was made for."""
    import torch

    trained(30)(torch.randn(8, 768, device="cuda"))


def tensors_on_two_devices() -> None:
    """Leave the batch on the host."""
    import torch

    trained(30)(torch.randn(8, 512))


def checkpoint_of_another_width() -> None:
    """Load the checkpoint of a narrower model."""
    import torch

    torch.nn.Linear(256, 256).cuda().load_state_dict(torch.nn.Linear(128, 128).cuda().state_dict())


def gpu_that_is_not_there() -> None:
    """Start more ranks than there are GPUs."""
    import torch

    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "3")))


def no_gpu_is_visible() -> None:
    """Run a job that was given no GPU."""
    trained(10)


class Samples:
    """Samples that a function makes by number."""

    def __init__(self, sample: Callable[[int], Any]) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, place: int) -> Any:
        return self._sample(place)


def trained_on(sample: Callable[[int], Any]) -> None:
    """Train on samples that two workers load."""
    import torch

    model, samples = trained(10), cast(Any, Samples(sample))
    for step, batch in enumerate(torch.utils.data.DataLoader(samples, batch_size=64, num_workers=2)):
        loss = model(batch.cuda()).pow(2).mean()
        print(f"step {step + 10}/1000 | loss {loss.item():.4f}", flush=True)


def worker_is_killed() -> None:
    """Kill a worker that loads data."""
    import torch

    def sample(place: int) -> Any:
        if place == 3000:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(512)

    trained_on(sample)


def loss_is_nan() -> None:
    """Train at far too high a rate, in half precision."""
    import torch

    model = torch.nn.Linear(512, 512).cuda().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=3e3)
    for step in range(1, 200):
        loss = (model(torch.randn(64, 512, device="cuda").half()) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}/1000 | loss {loss.item():.4f} | lr 3.0e+03", flush=True)
        if step > 60 and loss.isnan():
            raise SystemExit("loss is NaN for too many steps, giving up")


def jax_out_of_memory() -> None:
    """Make an array larger than the GPU."""
    import jax
    import jax.numpy as jnp

    print(f"devices: {jax.devices()}", flush=True)
    print("step 1 loss", jnp.ones((1 << 10, 1 << 10)).mean(), flush=True)
    print(jnp.ones((1 << 20, 1 << 20)).sum(), flush=True)


def cupy_out_of_memory() -> None:
    """Make an array larger than the GPU."""
    import cupy

    print("features:", cupy.ones((1 << 20, 1 << 19), dtype=cupy.float32).sum())


def two_ranks_on_one_gpu() -> None:
    """Let two ranks of one host take the same GPU."""
    _, dist = joined()
    reduced(dist, 20)


def no_such_interface() -> None:
    """Let NCCL use an interface that the host lacks."""
    _, dist = joined()
    reduced(dist, 20)


def meanwhile(does: Callable[[], object]) -> None:
    """Train with two ranks; `does` ends one of them while the other waits."""
    rank, dist = joined()
    reduced(dist, 30)
    if rank == 1:
        does()
    reduced(dist, 10)


def one_rank_is_late() -> None:
    """Delay one rank at a collective beyond the timeout."""
    meanwhile(lambda: time.sleep(90))


def one_rank_raises() -> None:
    """Let one rank meet a sample that it cannot read."""

    def read() -> None:
        raise ValueError("sample 81923 of shard 7 has 0 tokens")

    meanwhile(read)


def one_rank_is_gone() -> None:
    """End one rank's process without a word."""
    meanwhile(lambda: os._exit(17))


def ranks_that_differ() -> None:
    """Call the same collective with tensors of different sizes, under torch's own check."""
    import torch

    rank, dist = joined()
    reduced(dist, 10)
    dist.all_reduce(torch.ones(10 + rank, device="cuda"))
    torch.cuda.synchronize()


def one_rank_runs_out() -> None:
    """Give one rank a longer sequence than its memory holds."""
    import torch

    def forward() -> None:
        torch.cuda.set_per_process_memory_fraction(0.02)
        torch.randn(1 << 30, device="cuda")

    meanwhile(forward)


def one_rank_asserts() -> None:
    """Give one rank a token beyond the vocabulary."""
    import torch

    meanwhile(lambda: torch.nn.Embedding(1000, 8).cuda()(torch.tensor([1003], device="cuda")).sum().item())


def one_rank_is_killed() -> None:
    """Kill the process of one rank."""
    meanwhile(lambda: os.kill(os.getpid(), signal.SIGKILL))


def ranks_take_other_paths() -> None:
    """Let one rank evaluate while the other trains."""
    import torch

    rank, dist = joined()
    reduced(dist, 30)
    if rank == 1:
        dist.all_gather([torch.empty(1 << 18, device="cuda") for _ in range(2)], torch.ones(1 << 18, device="cuda"))
        time.sleep(60)
    reduced(dist, 10)
    time.sleep(60)


def parameters_that_are_not_used() -> None:
    """Let DDP wait for the gradients of a layer that only some batches use."""
    import torch

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

        def forward(self, batch: Any, step: int) -> Any:
            return self.sometimes(self.always(batch)) if step % 5 else self.always(batch)

    joined()
    model = torch.nn.parallel.DistributedDataParallel(Gated().cuda())
    for step in range(1, 20):
        loss = model(torch.randn(8, 64, device="cuda"), step).pow(2).mean()
        loss.backward()
        print(f"step {step}/1000 | loss {loss.item():.4f}", flush=True)


def checkpoint_is_cut_off() -> None:
    """Load a truncated checkpoint."""
    import torch

    path = Path(os.environ["SCRATCH"]) / "step_1000.pt"
    torch.save(trained(10).state_dict(), path)
    os.truncate(path, path.stat().st_size // 2)
    print(f"resuming from {path}", flush=True)
    torch.load(path)


def weights_are_cut_off() -> None:
    """Load a truncated file of weights."""
    from safetensors.torch import load_file, save_file

    path = Path(os.environ["SCRATCH"]) / "model-00001-of-00002.safetensors"
    save_file(trained(10).state_dict(), path)
    os.truncate(path, path.stat().st_size // 2)
    load_file(path, device="cuda:0")


def files_may_not_grow() -> None:
    """Save a checkpoint larger than the file system allows."""
    import resource

    import torch

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    model = trained(30)
    print("saving checkpoint of step 30", flush=True)
    torch.save(model.state_dict(), Path(os.environ["SCRATCH"]) / "step_30.pt")


def sample_without_labels() -> None:
    """Let a data loader's worker meet a sample that lacks a field."""
    import torch

    def sample(place: int) -> Any:
        fields = {"input_ids": torch.ones(512), **({} if place == 400 else {"labels": torch.ones(512)})}
        return fields["labels"]

    trained_on(sample)


def worker_uses_the_gpu() -> None:
    """Touch the GPU in a forked data loader's worker."""
    import torch

    trained_on(lambda place: torch.ones(512, device="cuda"))


def graph_that_breaks() -> None:
    """Read a value in a model that is compiled as a whole."""
    import torch

    @torch.compile(fullgraph=True)
    def scaled(batch: Any) -> Any:
        return batch * 2 if batch.sum().item() > 0 else batch

    trained(10)
    scaled(torch.randn(8, 8, device="cuda"))


def kernel_that_is_not_c() -> None:
    """Compile an invalid kernel."""
    import cupy

    cupy.RawKernel('extern "C" __global__ void attend(float* out) { out[0] = missing + 1 }', "attend")(
        (1,), (32,), (cupy.zeros(4, dtype=cupy.float32),)
    )


def kernel_of_too_many_threads() -> None:
    """Launch a kernel with more threads than a block may have."""
    import cupy

    kernel = cupy.RawKernel('extern "C" __global__ void attend(float* out) { out[0] = 1; }', "attend")
    kernel((1,), (4096,), (cupy.zeros(4, dtype=cupy.float32),))


def types_that_differ() -> None:
    """Mix weights in half precision with a batch in single."""
    import torch

    torch.nn.Linear(512, 512).cuda().bfloat16()(torch.randn(8, 512, device="cuda"))


def nobody_told_the_rank() -> None:
    """Start a launcher's program without the launcher."""
    joined()


def nobody_answers() -> None:
    """Wait for a leading host that does not listen."""
    import datetime

    import torch.distributed as dist

    dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=10))


def gradients_are_nan() -> None:
    """Torch looks for the operation that gave NaN, and finds it."""
    import torch

    weight = torch.zeros(8, device="cuda", requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        loss = (weight.sqrt() * weight).sum()
        print(f"step 1/1000 | loss {loss.item():.4f}", flush=True)
        loss.backward()


APART = ("NCCL_HOSTID", "rank {rank}")
SOCKETS = (APART, ("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_IB_DISABLE", "1"))
CUDA, MEMORY, ISOLATE = "CUDA Error", "Out of Memory Error", "isolate_and_restart"

FAILURES = {
    each.run.__name__: each
    for each in (
        Failure(out_of_memory, MEMORY, "fix_first", "CUDA out of memory", is_alone=True),
        Failure(out_of_its_share, MEMORY, "fix_first", "CUDA out of memory"),
        Failure(no_memory_for_cublas, MEMORY, "fix_first", "ALLOC_FAILED", is_alone=True),
        Failure(token_beyond_the_vocabulary, CUDA, "fix_first", "device-side assert", also=("Index Error",)),
        Failure(class_beyond_the_last, CUDA, "fix_first", "device-side assert", also=("Index Error",)),
        Failure(llama_with_another_tokenizer, CUDA, "fix_first", "device-side assert", also=("Index Error",)),
        Failure(kernel_writes_anywhere, CUDA, "fix_first", "illegal memory access", recovery_also=(ISOLATE,)),
        Failure(kernel_traps, CUDA, "fix_first", "launch failure", recovery_also=(ISOLATE,)),
        Failure(shapes_that_do_not_fit, "Runtime Error", "fix_first", "cannot be multiplied"),
        Failure(tensors_on_two_devices, "Runtime Error", "fix_first", "on the same device"),
        Failure(checkpoint_of_another_width, "Model Loading Error", "fix_first", "loading state_dict"),
        Failure(
            gpu_that_is_not_there,
            CUDA,
            "fix_first",
            "invalid device ordinal",
            also=("Runtime Error",),
            recovery_also=(ISOLATE,),
        ),
        Failure(
            no_gpu_is_visible,
            CUDA,
            "fix_first",
            "No CUDA GPUs",
            also=("Runtime Error", "Node Failure"),
            recovery_also=(ISOLATE,),
            env=(("CUDA_VISIBLE_DEVICES", ""),),
        ),
        Failure(worker_is_killed, "Dataloader Killed", "restart", "DataLoader worker", user_fault=False),
        Failure(
            loss_is_nan,
            "Loss Spike",
            "rollback_and_skip",
            "loss nan",
            also=("Runtime Error",),
            recovery_also=("fix_first",),
        ),
        Failure(
            jax_out_of_memory, MEMORY, "fix_first", "RESOURCE_EXHAUSTED", env=(("XLA_PYTHON_CLIENT_PREALLOCATE", "0"),)
        ),
        Failure(cupy_out_of_memory, MEMORY, "fix_first", "OutOfMemoryError"),
        Failure(
            two_ranks_on_one_gpu, "Runtime Error", "fix_first", "Duplicate GPU", also=(CUDA, "Value Error"), ranks=2
        ),
        Failure(
            no_such_interface,
            "Network Error",
            "fix_first",
            "interface",
            also=("Runtime Error",),
            recovery_also=(ISOLATE,),
            ranks=2,
            env=(APART, ("NCCL_SOCKET_IFNAME", "ib7")),
        ),
        Failure(
            one_rank_is_late,
            "NCCL Timeout Error",
            ISOLATE,
            "ran for",
            user_fault=False,
            recovery_also=("restart",),
            ranks=2,
            env=(*SOCKETS, ("COLLECTIVE_SECONDS", "20")),
        ),
        Failure(one_rank_raises, "Value Error", "fix_first", "ValueError: sample", ranks=2, rank=1, env=SOCKETS),
        Failure(
            one_rank_is_gone,
            "NCCL Remote Error",
            "restart",
            "remote process exited",
            user_fault=False,
            also=("Unknown",),
            recovery_also=(ISOLATE, "fix_first"),
            ranks=2,
            rank=1,
            env=SOCKETS,
        ),
        Failure(
            ranks_that_differ,
            "Runtime Error",
            "fix_first",
            "mismatch between collectives",
            ranks=2,
            env=(*SOCKETS, ("TORCH_DISTRIBUTED_DEBUG", "DETAIL")),
        ),
        Failure(one_rank_runs_out, MEMORY, "fix_first", "CUDA out of memory", ranks=2, rank=1, env=SOCKETS),
        Failure(
            one_rank_asserts,
            CUDA,
            "fix_first",
            "device-side assert",
            also=("Index Error",),
            ranks=2,
            rank=1,
            env=SOCKETS,
        ),
        Failure(
            one_rank_is_killed,
            "NCCL Remote Error",
            "restart",
            "remote process exited",
            user_fault=False,
            also=("Unknown", MEMORY),
            recovery_also=(ISOLATE, "fix_first"),
            ranks=2,
            rank=1,
            env=SOCKETS,
        ),
        Failure(
            ranks_take_other_paths,
            "NCCL Timeout Error",
            "fix_first",
            "ran for",
            also=("Runtime Error",),
            recovery_also=(ISOLATE, "restart"),
            ranks=2,
            env=(*SOCKETS, ("COLLECTIVE_SECONDS", "20")),
        ),
        Failure(parameters_that_are_not_used, "Runtime Error", "fix_first", "finished reduction", ranks=2, env=SOCKETS),
        Failure(checkpoint_is_cut_off, "Model Loading Error", "fix_first", "PytorchStreamReader"),
        Failure(weights_are_cut_off, "Model Loading Error", "fix_first", "SafetensorError"),
        Failure(files_may_not_grow, "OS Error", "fix_first", "File too large", also=("Runtime Error",)),
        Failure(sample_without_labels, "Key Error", "fix_first", "KeyError: 'labels'"),
        Failure(worker_uses_the_gpu, "Runtime Error", "fix_first", "re-initialize CUDA"),
        Failure(graph_that_breaks, "Runtime Error", "fix_first", "Unsupported"),
        Failure(kernel_that_is_not_c, "Syntax Error", "fix_first", "error:", also=("Runtime Error", CUDA)),
        Failure(kernel_of_too_many_threads, CUDA, "fix_first", "CUDA_ERROR_INVALID_VALUE"),
        Failure(types_that_differ, "Runtime Error", "fix_first", "same dtype"),
        Failure(nobody_told_the_rank, "Value Error", "fix_first", "expected, but not set", also=("Argument Error",)),
        Failure(
            nobody_answers,
            "Connection Error",
            "restart",
            "timed out after",
            user_fault=False,
            recovery_also=("fix_first", ISOLATE),
            env=(("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29699")),
        ),
        Failure(
            gradients_are_nan,
            "Loss Spike",
            "fix_first",
            "returned nan values",
            also=("Runtime Error",),
            recovery_also=("rollback_and_skip",),
        ),
    )
}


def ended(command: list[str], log: IO[bytes], scratch: str) -> int:
    """Run a program, 150 s at most, and return its exit code; 0 if it took longer. Its children are killed."""
    environment = {**os.environ, "SCRATCH": scratch}
    program = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    try:
        return program.wait(SECONDS)
    except subprocess.TimeoutExpired:
        return 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)


def made(name: str, folder: Path) -> dict[str, Any] | None:
    """Run a program that should fail; return its log's label. None when it did not fail, or lacks a module."""
    failure, path = FAILURES[name], folder / f"{name}.log"
    command = [sys.executable, "-m", "eval.gpu_failures", "--rank-of", name]
    if failure.ranks > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={failure.ranks}"]
        command = [*launcher, *command[1:]]
    with path.open("wb") as log, tempfile.TemporaryDirectory() as scratch:
        code = ended(command, log, scratch)
    print(f"{name}: exit code {code}, {path.stat().st_size} bytes", flush=True)
    if code == 0 or b"ModuleNotFoundError" in path.read_bytes():
        path.unlink()
        return None
    lines = enumerate(path.read_text(errors="replace").split("\n"), 1)
    return {
        "id": name,
        "file": path.name,
        "reason": failure.reason,
        "category": REASONS[failure.reason].category,
        "also_acceptable": failure.also,
        "evidence_lines": [number for number, line in lines if failure.evidence in line],
        "evidence_text": [failure.evidence],
        "user_fault": failure.user_fault,
        "recovery": failure.recovery,
        "recovery_also": failure.recovery_also,
        "first_failing_rank": failure.rank,
        "exit_code": code,
    }


def main() -> int:
    """Make the logs, or run one rank; return 1 if a program was left out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--only", nargs="+", choices=FAILURES, default=list(FAILURES))
    parser.add_argument("--rank-of", choices=FAILURES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank_of:
        for key, value in FAILURES[given.rank_of].env:
            os.environ[key] = value.format(rank=os.environ.get("RANK", "0"))
        FAILURES[given.rank_of].run()
        return 0
    if given.folder is None:
        parser.error("name a folder for the logs")
    given.folder.mkdir(parents=True, exist_ok=True)
    together = [name for name in given.only if not FAILURES[name].is_alone]
    alone = [name for name in given.only if FAILURES[name].is_alone]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        labels = list(pool.map(lambda name: made(name, given.folder), together))
    labels += [made(name, given.folder) for name in alone]
    lines = [json.dumps(label) + "\n" for label in labels if label]
    (given.folder / "cases.jsonl").write_text("".join(lines))
    return int(len(lines) < len(given.only))


if __name__ == "__main__":
    sys.exit(main())
