"""The probe that runs on a node: `python3 -c SOURCE --test ...`; one file, Python 3.8 or later, torch, nothing else.

A supervisor forks one process per GPU (one in all without GPUs); these gather from all nodes of the world and check the
result, and the supervisor writes one line of JSON to standard output. It never imports torch, so it keeps time and can
report whatever happens there.
"""
# ruff: noqa: B905, E402 -- `zip` knows no `strict` before Python 3.10; the path comes before all other imports

from __future__ import annotations

import sys

sys.path[:] = [folder for folder in sys.path if folder]  # `-c` adds the current folder, whatever is in it

import argparse
import contextlib
import ctypes
import datetime
import fcntl
import functools
import inspect
import itertools
import json
import os
import re
import selectors
import shutil
import signal
import socket
import struct
import time
from typing import Any, Callable, NoReturn  # noqa: UP035 -- Python 3.8

SETTLE = 5.0
"""Seconds that a node's other ranks have to report once one has failed."""

TRIES = 10
"""How often a speed is measured. For a gather the median counts, because a lossy link is fast now and then; for a
matrix product the best, because only the GPU affects it."""

GPU_SIZES = (1 << 24, 1 << 26, 1 << 28, 1 << 30)
CPU_SIZES = (1 << 18, 1 << 22)
LARGEST_ON_GPU, LARGEST_ON_CPU = 1 << 30, 1 << 26
"""Most bytes of a gather, which determine the memory of a rank."""

ASK = "ask for them (under Slurm LOGDOCTOR_SLURM_OPTIONS=--gres=gpu:N)"

KINDS = ("wrong data", "wrong product", "fewer GPUs", "error", "killed", "hangs", "connection", "no answer")
"""Kinds of failure, the most telling first; `why` begins with one of them. The last two may be the partner's fault."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Unusable(Exception):
    """The machine cannot run the test, which says nothing about its hardware."""


class ProbeFailure(Exception):
    """The test failed: its kind and what happened."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")


class Ended(Exception):
    """The probe must end early."""


# ---- the supervisor ----


def main(words: list[str]) -> int:
    """Run the test and write its one line of JSON; return 0 when the line was written."""
    began = time.monotonic()
    reading: dict[str, Any] = {"node": "", "ok": False, "stage": "start", "why": ""}
    reading["boot"] = _first_line("/proc/sys/kernel/random/boot_id")
    for number in SIGNALS:
        signal.signal(number, _end)
    try:
        options = _options(words)
        reading["node"] = options.node
        _write(2, f"logdoctor-probe started {options.node} {reading['boot']}\n")
        options.deadline = began + options.seconds
        reading.update(_test(options))
        _ignore_signals()  # only the line is left to write
    except Unusable as error:
        reading["unusable"] = _one_line(error)
    except (ProbeFailure, Ended) as error:
        reading["why"] = _one_line(error)
    except Exception as error:  # noqa: BLE001 -- whatever else goes wrong on this machine is reported, too
        reading["why"] = f"error: {_one_line(error)}"
    _ignore_signals()
    reading["seconds"] = round(time.monotonic() - began, 3)
    return 0 if _write(1, f"\n{json.dumps(reading)}\n") else 1  # other output may lack its newline


class _OptionParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Unusable(message)


def _options(words: list[str]) -> argparse.Namespace:
    parser = _OptionParser(add_help=False)
    parser.add_argument("--test", required=True)  # identifies, with the world, the process on its node
    parser.add_argument("--world", required=True)
    parser.add_argument("--node", required=True)  # `slurm`: take it from SLURMD_NODENAME
    parser.add_argument("--nodes", required=True)  # NAME=ADDRESS,..., in the order of ranks
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--sizes", default="")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--lifeline", action="store_true")
    options = parser.parse_args(words)
    for pair in options.env:
        name, _, value = pair.partition("=")
        os.environ[name] = value
    if options.node == "slurm":
        options.node = os.environ.get("SLURMD_NODENAME", "")
    places = [pair.partition("=") for pair in options.nodes.split(",")]
    options.nodes = [name for name, _, _ in places]
    options.addresses = [address for _, _, address in places]
    if options.node not in options.nodes:
        raise Unusable(f"node {options.node!r} is not in this world: {', '.join(options.nodes)}")
    options.place = options.nodes.index(options.node)
    try:
        options.sizes = [int(size) for size in options.sizes.split(",") if size]
    except ValueError:
        raise Unusable(f"--sizes {options.sizes} are not numbers") from None
    return options


def _test(options: argparse.Namespace) -> dict[str, Any]:
    """Run the test; return the fields of the line, except those that `main` fills in."""
    there = _gpus()
    if options.gpus > there:
        raise ProbeFailure("fewer GPUs", f"{there} here, {options.gpus} requested")
    options.gpus = options.gpus or there
    largest = LARGEST_ON_GPU if options.gpus else LARGEST_ON_CPU
    options.sizes = [min(size, largest) for size in options.sizes] or (GPU_SIZES if options.gpus else CPU_SIZES)
    if options.place == 0:
        _check_port(options.port)
    state = _state(options) if options.gpus else []
    found = None
    if options.gpus and shutil.which("all_gather_perf") and _mpi_processes() == len(options.nodes):
        found = _run_nccl_tests(options)
    return {"gpus": options.gpus, "state": state, **(found or _run_torch(options))}


def _run_torch(options: argparse.Namespace) -> dict[str, Any]:
    """Return the combined result of this node's ranks: the worst of each."""
    backend = "nccl" if options.gpus else "gloo"
    ranks = [ProbeChild(functools.partial(_rank, options, local)) for local in range(options.gpus or 1)]
    _watch(ranks, options.deadline, options.lifeline)
    reports = [_report_of(rank, options, local) for local, rank in enumerate(ranks)]
    found = {"tool": f"torch/{backend}", "gpu": reports[0].get("gpu", "")}
    unusable = [report["unusable"] for report in reports if "unusable" in report]
    if unusable:
        return dict(found, unusable=unusable[0])
    bad = [report for report in reports if report["why"]]
    if bad:
        worst = min(bad, key=lambda report: KINDS.index(report["why"].partition(":")[0]))
        if any(report.get("late") for report in bad) and worst["why"].startswith(KINDS[-2:]):
            # a slow disk, or other load, which also explains the other ranks' reports
            return dict(found, unusable=f"torch was not imported within {options.seconds:g} s")
        return dict(found, stage=worst["stage"], why=worst["why"])
    bandwidth = {size: min(report["bandwidth"][size] for report in reports) for size in reports[0]["bandwidth"]}
    tflops = min(report["tflops"] for report in reports)
    return dict(found, ok=True, stage="done", bandwidth=bandwidth, tflops=tflops)


def _report_of(rank: ProbeChild, options: argparse.Namespace, local: int) -> dict[str, Any]:
    """Return a rank's report, with a reason if it failed."""
    report: dict[str, Any] = {"stage": "start", "why": "", "bandwidth": {}}
    for line in rank.output.decode("utf-8", "replace").splitlines():
        with contextlib.suppress(ValueError):  # a killed rank may leave half a line
            report.update(json.loads(line))
    if not report["why"] and "unusable" not in report and rank.status != 0:
        kind, what = rank.end()
        report["late"] = kind == "no answer" and report["stage"] == "start"
        report["why"] = f"{kind}: rank {options.place * (options.gpus or 1) + local} {what} in stage {report['stage']}"
    return report


class ProbeChild:
    """A process of this probe, in its own process group, and its output so far.

    It dies with the supervisor. `work` is a function that returns its exit status, or the command line to execute.
    """

    def __init__(self, work: Callable[[RankReport], int] | list[str]) -> None:
        self.output = bytearray()
        self.status: int | None = None
        self.killed_as = ""
        self.pipe, writing = os.pipe()
        supervisor = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _become_child(supervisor)
                if isinstance(work, list):
                    os.dup2(writing, 1)
                    os.execvp(work[0], work)
                os.dup2(2, 1)  # only the supervisor writes to standard output
                code = work(RankReport(writing))
            finally:
                os._exit(code)
        os.close(writing)

    def read(self) -> bool:
        """Read what the process has written; return False at its end."""
        data = os.read(self.pipe, 1 << 16)
        self.output += data[: (1 << 20) - len(self.output)]
        return bool(data)

    def reap(self) -> bool:
        """Return whether the process has ended."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is not None

    def kill(self) -> None:
        """Kill the process and its children, and remember its state."""
        if not self.reap():
            self.killed_as = re.sub(r".*\) ", "", _first_line(f"/proc/{self.pid}/stat"))[:1] or "?"
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)  # it may not be in its own group yet

    def end(self) -> tuple[str, str]:
        """Return the kind of failure and the end of a process that left no report."""
        if self.killed_as in ("T", "t", "D"):
            return "hangs", "is stopped" if self.killed_as in "Tt" else "waits in the kernel"
        if self.killed_as:
            return "no answer", "did not end"
        assert self.status is not None
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            # NCCL's watchdog aborts the process when it loses the others
            kind = "connection" if number == signal.SIGABRT else "killed"
            return kind, f"was killed by {signal.Signals(number).name}"
        return "killed", f"ended with status {os.WEXITSTATUS(self.status)}"


class RankReport:
    """Sends a rank's results and its current stage to the supervisor."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.stage = "start"

    def send(self, **fields: Any) -> None:
        """Send fields; later ones replace earlier ones."""
        os.write(self.pipe, (json.dumps(fields) + "\n").encode())

    def reach(self, stage: str) -> None:
        """Enter a stage."""
        self.stage = stage
        self.send(stage=stage)


def _become_child(supervisor: int) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != supervisor:
        os._exit(1)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # the lifeline is the supervisor's


def _watch(children: list[ProbeChild], deadline: float, lifeline: bool) -> None:
    """Wait for the children, and kill the rest: at the deadline, soon after one has failed, or when the probe must end
    early."""
    try:
        with selectors.DefaultSelector() as selector:
            for child in children:
                selector.register(child.pipe, selectors.EVENT_READ, child)
            if lifeline:
                selector.register(0, selectors.EVENT_READ, None)
            running = len(children)
            while running and time.monotonic() < deadline:
                for key, _ in selector.select(deadline - time.monotonic()):
                    child = key.data
                    if child is None:
                        if not os.read(0, 1 << 16):
                            raise Ended("killed: the launcher went away")
                    elif not child.read():
                        selector.unregister(child.pipe)
                        running -= 1
                        _wait(child, 2.0)
                        if child.status != 0:
                            deadline = min(deadline, time.monotonic() + SETTLE)
    finally:
        for child in children:
            child.kill()
        for child in children:
            _wait(child, 2.0)


def _wait(child: ProbeChild, seconds: float) -> None:
    """Wait until a process has ended, but not for one stuck in the kernel."""
    limit = time.monotonic() + seconds
    while not child.reap() and time.monotonic() < limit:
        time.sleep(0.005)


def _end(number: int, _frame: Any) -> NoReturn:
    _ignore_signals()
    raise Ended(f"killed: the probe was ended by {signal.Signals(number).name}")


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _write(file: int, text: str) -> bool:
    """Write all of a text; return whether that succeeded."""
    data = text.encode("ascii", "backslashreplace")
    try:
        while data:
            data = data[os.write(file, data) :]
    except OSError:
        return False
    return True


def _one_line(error: BaseException) -> str:
    # cut torch's source locations, gloo's boilerplate, and the stack, which names libtorch_cuda whatever went wrong
    text = str(error).partition("Exception raised from ")[0]
    text = re.sub(r"\[\S+\.\w+:\d+\] | This is typically caused by .*", "", text)
    text = text.encode("utf-8", "backslashreplace").decode()  # a lone surrogate would make the line unreadable
    words = " ".join(text.split()) or "no reason given"
    if not isinstance(error, (Unusable, ProbeFailure, Ended)):
        words = f"{type(error).__name__}: {words}"
    return words[:280]


def _first_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def _check_port(port: int) -> None:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("", port))
        except OSError as error:
            raise Unusable(f"port {port} cannot be opened: {error.strerror}") from None


# ---- what the driver says ----


def _gpus() -> int:
    """Return how many GPUs processes here may use. Device files are counted, because they stay when a GPU is lost."""
    files = [f"/dev/{name}" for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named == "NoDevFiles" and files:  # Slurm's value
        raise Unusable(f"this job was given none of the {len(files)} GPUs: {ASK}")
    if named is not None:
        # CUDA stops at the first word that names no device
        return len(list(itertools.takewhile(re.compile(r" *(\d+|(GPU|MIG)-.+)").match, named.split(","))))
    ours = [file for file in files if os.access(file, os.R_OK | os.W_OK)]  # cgroups deny access to the others
    if files and not ours:
        raise Unusable(f"this process may open none of {len(files)} GPUs: {ASK}")
    return len(ours)


SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")


def _state(options: argparse.Namespace) -> list[str]:
    """Return warnings of the driver, as far as it answers within a few seconds."""
    reasons = ",".join(f"clocks_throttle_reasons.{reason}" for reason in SLOWDOWNS)
    smi = ["nvidia-smi", "--format=csv,noheader,nounits"]
    commands = (
        [*smi, f"--query-gpu=index,ecc.errors.uncorrected.volatile.total,temperature.gpu,{reasons}"],
        [*smi, "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure"],
        ["nvidia-smi", "nvlink", "--status"],
        ["nvidia-smi", "nvlink", "--errorcounters"],
        ["sh", "-c", "(dmesg || journalctl -qkb --no-pager) 2>&1 | grep -o 'NVRM: Xid.*' | tail -n 10"],
    )
    children = [ProbeChild(words) for words in commands]
    _watch(children, time.monotonic() + min(5.0, options.seconds / 4), options.lifeline)
    gpus, rows, links, errors, xids = (
        child.output.decode("utf-8", "replace").splitlines() if child.status == 0 else [] for child in children
    )
    warnings = []
    for index, ecc, heat, *slow in (line.split(", ") for line in gpus if line.count(", ") == 2 + len(SLOWDOWNS)):
        if ecc.isdigit() and int(ecc):
            warnings.append(f"GPU {index}: {ecc} uncorrected ECC errors since the driver was loaded")
        warnings += [f"GPU {index}: {name}, {heat} C" for name, on in zip(SLOWDOWNS, slow) if on == "Active"]
    for uuid, pending, failure in (line.split(", ") for line in rows if line.count(", ") == 2):
        warnings += [f"{uuid}: rows are waiting to be remapped"] * (pending in ("Yes", "1"))
        warnings += [f"{uuid}: a row could not be remapped"] * (failure in ("Yes", "1"))
    for lines, sign in ((links, r"Link \d+: <inactive>"), (errors, r"(Replay|Recovery|CRC) Errors?: *[1-9]")):
        gpu = ""
        for line in lines:
            gpu = line.split(":")[0] if line.startswith("GPU ") else gpu
            warnings += [f"{gpu}: NVLink {line.strip()}"] * bool(re.search(sign, line))
    return [text[:200] for text in warnings[:40] + xids]


# ---- nccl-tests ----


def _mpi_processes() -> int:
    """Return how many processes an MPI launcher started; 0 without one."""
    names = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") + (("SLURM_STEP_NUM_TASKS",) if "PMIX_RANK" in os.environ else ())
    sizes = [os.environ[name] for name in names if os.environ.get(name, "").isdigit()]
    return int(sizes[0]) if sizes else 0


def _run_nccl_tests(options: argparse.Namespace) -> dict[str, Any] | None:
    """Run `all_gather_perf` across all nodes and return its result; None when it ran on this node alone, built without
    MPI."""
    words = ["all_gather_perf", "-b", str(options.sizes[0]), "-e", str(options.sizes[-1]), "-f", "4"]
    child = ProbeChild([*words, "-g", str(options.gpus), "-c", str(options.repeats)])
    _watch([child], options.deadline, options.lifeline)
    lines = child.output.decode("utf-8", "replace").splitlines()
    ranks = len([line for line in lines if re.match(r"# +Rank +\d+ ", line)])
    if ranks and ranks != options.gpus * len(options.nodes):
        if ranks == options.gpus:  # built without MPI, which all nodes notice alike
            return None
        raise Unusable(f"all_gather_perf ran on {ranks} GPUs, and {options.gpus} of each node were to take part")
    found: dict[str, Any] = {"tool": "nccl-tests", "stage": "gather"}
    if child.killed_as:
        return dict(found, why="no answer: all_gather_perf did not end")
    rows = [line.split() for line in lines if re.match(r" *\d+ +\d+ ", line)]
    rows = [row for row in rows if len(row) >= 13]
    wrong = [row for row in rows if any(row[i].isdigit() and int(row[i]) for i in (8, 12))]
    if wrong:
        return dict(found, why=f"wrong data: all_gather_perf found wrong values with {wrong[0][0]} bytes")
    if child.status != 0:
        return dict(found, why=f"connection: all_gather_perf {child.end()[1]}")
    # it rounds sizes down to a multiple of the ranks; readings of all worlds must use the same names
    nominal = [options.sizes[0] * 4**step for step in range(len(rows))]
    bandwidth = {str(size): float(row[7]) for size, row in zip(nominal, rows) if float(row[7]) > 0}
    return dict(found, ok=True, stage="done", bandwidth=bandwidth)


# ---- a rank ----


def _rank(options: argparse.Namespace, local: int, report: RankReport) -> int:
    """Test one GPU, or the processor; return the exit status of the process."""
    try:
        wrong = _stages(options, local, report)
        if wrong:
            report.send(stage="gather", why=f"wrong data: {wrong}")
        return int(bool(wrong))
    except Unusable as error:
        report.send(unusable=_one_line(error))
    except ProbeFailure as error:
        report.send(why=_one_line(error))
    except Exception as error:  # noqa: BLE001 -- torch raises anything
        report.send(**_meaning(error, report.stage))
    return 1


def _meaning(error: Exception, stage: str) -> dict[str, str]:
    """Return what an error of torch means: a fault of this machine, or of the path to the others."""
    text = _one_line(error)
    if "out of memory" in text:
        return {"unusable": f"the memory is taken: {text}"}
    if "EADDRINUSE" in text:
        return {"unusable": text}
    message = text.partition("Exception raised from")[0]  # stack frames name libtorch_cuda
    own = stage not in ("connect", "gather", "bandwidth") or re.search("cuda", message, re.I)
    if own or not isinstance(error, RuntimeError):
        return {"why": f"error: {text}"}
    return {"why": f"{'no answer' if re.search('timed? ?-?out', text, re.I) else 'connection'}: {text}"}


def _stages(options: argparse.Namespace, local: int, report: RankReport) -> str:
    """Run all stages; return what was wrong with the gathered data, "" when nothing was.

    A rank that gathered wrong data continues to the end, so that its partners do not take it for dead.
    """
    torch = _torch(options)
    torch.set_num_threads(1)
    device = torch.device("cuda", local) if options.gpus else torch.device("cpu")
    report.reach("connect")
    if options.gpus:
        torch.cuda.set_device(device)
        report.send(gpu=torch.cuda.get_device_name(device)[:100])
    rank, ranks = _connect(torch, options, local, device)
    report.reach("gather")
    buffers = [_Buffers(torch, size, rank, ranks, device) for size in options.sizes]
    wrong = [_check(one, repeat, options) for repeat in range(options.repeats) for one in buffers]
    report.reach("bandwidth")
    if ranks > 1:
        report.send(bandwidth={str(size): _bandwidth(torch, one) for size, one in zip(options.sizes, buffers)})
        wrong += [_difference(one, options.repeats - 1, options) for one in buffers]
    report.reach("compute")
    del buffers
    report.send(tflops=_multiply(torch, device))
    return next(filter(None, wrong), "")


def _torch(options: argparse.Namespace) -> Any:
    """Return the torch module, which must be able to use the node's devices."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        import torch
        import torch.distributed
    except ModuleNotFoundError as error:
        raise Unusable(f"{sys.executable} has no torch: {error}") from None
    backend = "nccl" if options.gpus else "gloo"
    if not torch.distributed.is_available() or not getattr(torch.distributed, f"is_{backend}_available")():
        raise Unusable(f"torch {torch.__version__} was built without {backend}")
    if options.gpus and not torch.cuda.is_available():
        why = "it gives no reason"
        try:
            torch.cuda.init()
        except Exception as error:  # noqa: BLE001 -- torch raises anything
            why = _one_line(error)
        if re.search("driver.*(too old|insufficient)|not compiled with", why):
            raise Unusable(f"torch {torch.__version__} does not match the driver: {why}")
        raise ProbeFailure("error", f"torch cannot use CUDA, and there are GPUs: {why}")
    return torch


def _connect(torch: Any, options: argparse.Namespace, local: int, device: Any) -> tuple[int, int]:
    """Join the world; return this rank and the world size. The nodes first exchange their numbers of GPUs."""
    dist = torch.distributed
    patience = max(10.0, options.seconds / 2)
    store = dist.TCPStore(
        options.addresses[0],
        options.port,
        is_master=options.place == 0 and local == 0,
        wait_for_workers=False,
        timeout=_limit(options, patience),
    )
    _require_equal_gpus(store, options, local)
    here = options.gpus or 1
    rank, ranks = options.place * here + local, len(options.nodes) * here
    more = {}
    if options.gpus:
        # a collective that fails or takes too long then raises here, instead of a watchdog ending the process
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        if "device_id" in inspect.signature(dist.init_process_group).parameters:  # since torch 2.3
            more = {"device_id": device}
    else:
        interface = _interface(options.addresses[1 if options.place == 0 and len(options.nodes) > 1 else 0])
        if interface:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    dist.init_process_group(
        "nccl" if options.gpus else "gloo",
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=_limit(options, patience),
        **more,
    )
    return rank, ranks


def _require_equal_gpus(store: Any, options: argparse.Namespace, local: int) -> None:
    """Raise `ProbeFailure` unless all nodes of the world have equally many GPUs."""
    if local == 0:
        store.set(f"gpus/{options.place}", str(options.gpus))
    counts = [int(store.get(f"gpus/{place}")) for place in range(len(options.nodes))]
    if len(set(counts)) > 1:
        store.set(f"seen/{options.place}", "")
        if options.place == 0:  # the store ends with its process
            with contextlib.suppress(Exception):
                store.wait([f"seen/{place}" for place in range(len(counts))], _limit(options, SETTLE))
        listed = ", ".join(f"{node} has {count}" for node, count in zip(options.nodes, counts))
        raise ProbeFailure("fewer GPUs" if options.gpus < max(counts) else "connection", f"GPUs differ: {listed}")


def _limit(options: argparse.Namespace, seconds: float) -> datetime.timedelta:
    """Return a time-out that ends before the supervisor's; the rank can still report."""
    return datetime.timedelta(seconds=max(1.0, min(seconds, options.deadline - time.monotonic() - 2)))


def _interface(address: str) -> str:
    """Return the network interface that leads to an address; gloo would use that of the host's own name."""
    try:
        family, kind, _, _, peer = socket.getaddrinfo(address, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as trial:
            trial.connect(peer)  # sends nothing
            own = trial.getsockname()[0].partition("%")[0]
            if own.startswith("127."):
                return "lo"
            if family == socket.AF_INET6:
                packed = socket.inet_pton(family, own).hex()
                with open("/proc/net/if_inet6") as table:
                    return next((line.split()[5] for line in table if line.startswith(packed)), "")
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):  # it has no address
                    answer = fcntl.ioctl(trial, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
                    if socket.inet_ntoa(answer[20:24]) == own:
                        return name
    except OSError:
        pass
    return ""


class _Buffers:
    """The buffers of one gather: `size` bytes in all, an equal part for each rank.

    Values depend only on rank, place and repeat, so that every rank knows what every other must have sent.
    """

    def __init__(self, torch: Any, size: int, rank: int, ranks: int, device: Any) -> None:
        self.torch, self.rank, self.ranks = torch, rank, ranks
        dist = torch.distributed
        self.all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the older name
        self.size = max(1, size // (4 * ranks))
        places = torch.arange(self.size, dtype=torch.int64, device=device)
        self.values = ((places * 2654435761 & 0xFFFFFFFF) - (1 << 31)).to(torch.int32)
        self.all = torch.zeros(self.size * ranks, dtype=torch.int32, device=device)
        self.part = torch.zeros_like(self.values)

    def expected(self, rank: int, repeat: int) -> Any:
        """Return what a rank sends in a repeat."""
        key = ((rank + 1) * 40503 + repeat * 9973) * 2654435761
        return self.values ^ ((key & 0xFFFFFFFF) - (1 << 31))

    def gather(self, times: int) -> None:
        """Gather `times` times, on a GPU without pauses."""
        at_once = times if self.all.is_cuda else 1
        for _ in range(times // at_once):
            for work in [self.all_gather(self.all, self.part, async_op=True) for _ in range(at_once)]:
                work.wait()
        if self.all.is_cuda:
            self.torch.cuda.synchronize()


def _check(buffers: _Buffers, repeat: int, options: argparse.Namespace) -> str:
    """Gather and compare every value; return what was wrong, "" when nothing was."""
    buffers.part.copy_(buffers.expected(buffers.rank, repeat))
    buffers.gather(1)
    return _difference(buffers, repeat, options)


def _difference(buffers: _Buffers, repeat: int, options: argparse.Namespace) -> str:
    """Return how the last gathered data differs from the expected; "" when it does not."""
    for rank, part in enumerate(buffers.all.split(buffers.size)):
        expected = buffers.expected(rank, repeat)
        if not buffers.torch.equal(part, expected):
            places = (part != expected).nonzero()
            node = options.nodes[rank // (options.gpus or 1)]
            return (
                f"{len(places)} of {buffers.size} values of rank {rank} ({node}) as rank {buffers.rank} has them, "
                f"the first at {int(places[0])}, in repeat {repeat + 1}"
            )
    return ""


def _bandwidth(torch: Any, buffers: _Buffers) -> float:
    """Return the bus bandwidth of a gather in GB/s (10^9), the median of several tries."""

    def seconds(times: int) -> float:
        began = time.monotonic()
        buffers.gather(times)
        return (time.monotonic() - began) / times

    trial = torch.tensor([seconds(1), seconds(2)], device=buffers.all.device)
    torch.distributed.all_reduce(trial, torch.distributed.ReduceOp.MAX)  # all ranks must gather equally often
    once = max(float(trial[1]), 1e-6)
    times = int(min(20, max(1, 0.05 / once)))
    tries = int(min(TRIES, max(2, 1.0 / (once * times))))
    received: int = buffers.size * 4 * (buffers.ranks - 1)
    speed = received / sorted(seconds(times) for _ in range(tries))[tries // 2] / 1e9
    return float(f"{speed:.6g}")


def _multiply(torch: Any, device: Any) -> float:
    """Return the TFLOP/s of a matrix product with a known result. It has half precision on a GPU, single on the
    processor. Every value of the product is a sum over the whole inner dimension, small enough to be exact in any
    precision."""
    on_gpu = device.type == "cuda"
    size, kind, times = (8192, torch.float16, 4) if on_gpu else (256, torch.float32, 1)
    synchronize: Callable[[], None] = torch.cuda.synchronize if on_gpu else lambda: None
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    places = torch.arange(size, device=device)
    left, right = places % 7 + 1, places * 3 % 7 + 1
    swing = 1 - 2 * (places // 16 % 2)
    signs = torch.where(places % 16 < 7, -1, 1)  # their sum is an eighth of the size
    first = torch.outer(left, swing).to(kind)
    second = torch.outer(swing * signs, right).to(kind)
    product = torch.mm(first, second)
    expected = (torch.outer(left, right) * (size // 8)).to(kind)
    best = float("inf")
    for _ in range(TRIES):
        synchronize()
        began = time.monotonic()
        for _ in range(times):
            torch.mm(first, second, out=product)
        synchronize()
        best = min(best, (time.monotonic() - began) / times)
    if not torch.equal(product, expected):
        count = int((product != expected).sum())
        raise ProbeFailure("wrong product", f"{count} of {size * size} values of a matrix product on {device}")
    return float(f"{2 * size**3 / best / 1e12:.6g}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
