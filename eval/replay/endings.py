"""What other ranks print after a failure, and launchers at the end of a job."""

import random
from collections.abc import Callable, Iterator, Sequence

from eval.replay.site import Site

_RULE, _LINE = "=" * 60, "-" * 60
_ADVICE = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


def echoes(rng: random.Random, site: Site, guilty: int, others: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield (rank, line) of other ranks after one has gone."""
    form = rng.choice((_watchdog, _peer_closed, _broken_pipe, _gloo))
    for rank in others:
        yield from ((rank, text) for text in form(rng, site, rank, guilty))


def _glog(rng: random.Random, site: Site) -> str:
    return f"{site.later():%m%d %H:%M:%S}.{rng.randint(0, 999_999_999):09d}"


def _watchdog(rng: random.Random, site: Site, rank: int, guilty: int) -> Iterator[str]:
    site.time += 600 / 4
    work = f"WorkNCCL(SeqNum={rng.randint(900, 90_000)}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)"
    yield (
        f"[E{_glog(rng, site)} ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation timeout:"
        f" {work} ran for 600{rng.randint(10, 999):03d} milliseconds before timing out."
    )


def _peer_closed(rng: random.Random, site: Site, rank: int, guilty: int) -> Iterator[str]:
    yield (
        f"{site.host(rank)}:{site.pid(rank)}:{site.pid(rank) + 211} [{rank % 8}] misc/socket.cc:{rng.randint(40, 90)}"
        f" NCCL WARN socketProgress: Connection closed by remote peer {site.host(guilty)}"
        f"<{rng.randint(30_000, 60_000)}>"
    )


def _broken_pipe(rng: random.Random, site: Site, rank: int, guilty: int) -> Iterator[str]:
    where = f"[{site.host(rank)}]:{rng.randint(30_000, 60_000)}, remote=[{site.host(0)}]:29500"
    yield (
        f"[W{_glog(rng, site)} TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd={rng.randint(3, 99)},"
        f" addr={where}): Broken pipe"
    )


def _gloo(rng: random.Random, site: Site, rank: int, guilty: int) -> Iterator[str]:
    yield (
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
        f" [{site.ip(guilty)}]:{rng.randint(10_000, 60_000)}"
    )


def _torchrun(rng: random.Random, site: Site, failing: Sequence[int]) -> Iterator[str]:
    """Yield the output of a node's agent: the processes it ends, its traceback, the table of failures."""
    guilty = failing[0]
    node = range(guilty // 8 * 8, guilty // 8 * 8 + 8)
    mine = [rank for rank in node if rank in failing]
    new = rng.random() < 0.6
    for rank in node:
        if rank not in mine and rng.random() < 0.8:
            yield _agent(rng, site, "W", new) + f"Sending process {site.pid(rank)} closing signal SIGTERM"
    python = site.path("lib/")[:-1] + "/bin/python"
    failed = f"failed (exitcode: 1) local_rank: {guilty % 8} (pid: {site.pid(guilty)}) of binary: {python}"
    yield _agent(rng, site, "E", new) + failed
    yield "Traceback (most recent call last):"
    run = site.path("site/torch/distributed/run.py")
    yield f'  File "{run}", line {rng.randint(780, 910)}, in main'
    yield "    run(args)"
    launcher = site.path("site/torch/distributed/launcher/api.py")
    yield f'  File "{launcher}", line {rng.randint(240, 280)}, in launch_agent'
    yield "    raise ChildFailedError("
    yield "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    yield _RULE
    yield f"{rng.choice(('train.py', 'pretrain_gpt.py', 'main.py', 'run_clm.py'))} FAILED"
    yield _LINE
    yield "Failures:"
    if len(mine) < 2:
        yield "  <NO_OTHER_FAILURES>"
    for number, rank in enumerate(mine[1:], 1):
        yield from _entry(site, number, rank)
    yield _LINE
    yield "Root Cause (first observed failure):"
    yield from _entry(site, 0, mine[0])
    yield _RULE


def _agent(rng: random.Random, site: Site, level: str, new: bool) -> str:
    """Return the prefix of an agent's line, in a new or an old version."""
    if not new:
        return {"W": "WARNING", "E": "ERROR"}[level] + ":torch.distributed.elastic.multiprocessing.api:"
    clock = f"{site.later():%m%d %H:%M:%S}.{rng.randint(0, 999_999):06d}"
    place = f"torch/distributed/elastic/multiprocessing/api.py:{rng.randint(800, 900)}"
    return f"{level}{clock} {site.pid(0) - 90} site-packages/{place}] "


def _entry(site: Site, number: int, rank: int) -> Iterator[str]:
    yield f"[{number}]:"
    yield f"  time      : {site.later():%Y-%m-%d_%H:%M:%S}"
    yield f"  host      : {site.host(rank)}"
    yield f"  rank      : {rank} (local_rank: {rank % 8})"
    yield f"  exitcode  : 1 (pid: {site.pid(rank)})"
    yield "  error_file: <N/A>"
    yield f"  traceback : {_ADVICE}"


def _slurm(rng: random.Random, site: Site, failing: Sequence[int]) -> Iterator[str]:
    guilty = failing[0]
    yield f"srun: error: {site.host(guilty)}: task {guilty}: Exited with exit code 1"
    if rng.random() < 0.7:
        yield f"srun: Terminating StepId={site.job}.0"
        now = f"{site.later():%Y-%m-%dT%H:%M:%S}"
        yield f"slurmstepd: error: *** STEP {site.job}.0 ON {site.hosts[0]} CANCELLED AT {now} ***"
    for host in site.hosts[:4]:
        if rng.random() < 0.4:
            first = 8 * site.hosts.index(host)
            yield f"srun: error: {host}: tasks {first}-{first + 7}: Terminated"
    if rng.random() < 0.4:
        yield "srun: Force Terminated StepId=" + site.job + ".0"


def _deepspeed(rng: random.Random, site: Site, failing: Sequence[int]) -> Iterator[str]:
    guilty = failing[0]
    for rank in range(guilty // 8 * 8, guilty // 8 * 8 + 8):
        now = f"{site.later():%Y-%m-%d %H:%M:%S},{rng.randint(0, 999):03d}"
        yield f"[{now}] [INFO] [launch.py:{rng.randint(300, 330)}:sigkill_handler] Killing subprocess {site.pid(rank)}"
    now = f"{site.later():%Y-%m-%d %H:%M:%S},{rng.randint(0, 999):03d}"
    command = f"['{site.path('lib/')[:-1]}/bin/python', '-u', 'train.py', '--local_rank={guilty % 8}']"
    yield f"[{now}] [ERROR] [launch.py:{rng.randint(300, 330)}:sigkill_handler] {command} exits with return code = 1"
    if len(site.hosts) > 1:
        yield f"pdsh@{site.hosts[0]}: {site.host(guilty)}: ssh exited with exit code 1"


def _accelerate(rng: random.Random, site: Site, failing: Sequence[int]) -> Iterator[str]:
    yield "Traceback (most recent call last):"
    yield f'  File "{site.path("bin/accelerate")}", line 8, in <module>'
    yield "    sys.exit(main())"
    launch = site.path("site/accelerate/commands/launch.py")
    yield f'  File "{launch}", line {rng.randint(600, 1100)}, in simple_launcher'
    yield "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)"
    yield (
        f"subprocess.CalledProcessError: Command '['{site.path('lib/')[:-1]}/bin/python', 'train.py', '--config',"
        f" 'conf/{site.name}.yaml']' returned non-zero exit status 1."
    )


def _mpi(rng: random.Random, site: Site, failing: Sequence[int]) -> Iterator[str]:
    guilty = failing[0]
    bar = "-" * 74
    yield bar
    yield "Primary job  terminated normally, but 1 process returned"
    yield "a non-zero exit code. Per user-direction, the job has been aborted."
    yield bar
    yield bar
    yield "mpirun detected that one or more processes exited with non-zero status, thus causing"
    yield "the job to be terminated. The first process to do so was:"
    yield ""
    yield f"  Process name: [[{rng.randint(2000, 60_000)},1],{guilty}]"
    yield "  Exit code:    1"
    yield bar


def _ray(rng: random.Random, site: Site, failing: Sequence[int]) -> Iterator[str]:
    if rng.random() < 0.5:
        yield f"(raylet, ip={site.ip(0)}) worker {rng.getrandbits(64):016x} of job {rng.randint(1, 9):02d}000000 exits"
    if rng.random() < 0.5:
        now = f"{site.later():%Y-%m-%d %H:%M:%S},{rng.randint(0, 999):03d}"
        yield f"{now}\tERR cli.py:68 -- Job 'raysubmit_{site.name}' failed"


ENDINGS: dict[str, Callable[[random.Random, Site, Sequence[int]], Iterator[str]]] = {
    "torchrun": _torchrun,
    "slurm": _slurm,
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
    "mpi": _mpi,
    "ray": _ray,
}
"""The last words of each launcher."""
