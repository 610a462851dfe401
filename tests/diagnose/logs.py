"""The pieces that the small logs of these tests are made of."""

from collections.abc import Callable, Iterable

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
OFF_THE_BUS = (
    "Mar 02 10:59:10 wn061 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=4182, name=python, GPU has fallen off the bus.\n"
)
TORCHRUN = """\
E0302 11:00:42.012 4000 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 4103) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2024-03-02_11:00:42
  host      : gpu-12
  rank      : 11 (local_rank: 3)
  exitcode  : 1 (pid: 4103)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""  # noqa: E501
TORN = (
    "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
    "[rank3]: ValueError: lattice 7 is bent\n"
)
"""Two errors of which neither explains the other."""
COMPLETED = "exiting program at iteration 500000\n"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def steps(first: int, last: int, loss: Callable[[int], float] = lambda step: 2.0, clock: int = 0) -> str:
    """Megatron's line for each step; a step takes two seconds, step 0 is made `clock` seconds after 11:00."""
    return "".join(
        f" [2024-03-02 {11 + (at := clock + 2 * step) // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}] "
        f"iteration {step:8d}/  500000 | consumed samples: {64 * step:12d} | "
        "elapsed time per iteration (ms): 2000.0 | learning rate: 1.0E-04 | global batch size:    64 | "
        f"lm loss: {loss(step):.6E} | loss scale: 1.0 | grad norm: 1.0 |\n"
        for step in range(first, last)
    )


def traceback(error: str, function: str = "step", file: str = "/opt/app/loop.py", line: int = 9) -> str:
    """A traceback with two frames."""
    return (
        "Traceback (most recent call last):\n"
        '  File "/opt/app/train.py", line 3, in <module>\n'
        "    main()\n"
        f'  File "{file}", line {line}, in {function}\n'
        "    run()\n"
        f"{error}\n"
    )


def prefixed(prefix: str, text: str) -> str:
    """The text with a prefix before each line."""
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def interleaved(*texts: str) -> str:
    """A line of each text in turn."""
    rows = [text.splitlines(keepends=True) for text in texts]
    return "".join(row[at] for at in range(max(map(len, rows))) for row in rows if at < len(row))


def nccl_timeout(ranks: Iterable[int], op: str = "ALLREDUCE") -> str:
    """What the watchdog of each rank prints when a collective does not end."""
    return "".join(
        f"[rank{rank}]:[E302 11:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum=41, OpType={op}, NumelIn=131072, NumelOut=131072, Timeout(ms)=600000) "
        "ran for 600081 milliseconds before timing out.\n"
        for rank in ranks
    )


def restarted(left: int) -> str:
    """torchrun starts the workers again."""
    return f"[default] worker group FAILED. {left}/3 attempts left; will restart worker group\n"
