"""The sources on this node that are asked about a failed attempt."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from logdoctor.job.send.environment import Environment
from logdoctor.job.send.memory import MemoryKills, cgroup_of
from logdoctor.job.send.notices import PREFIX
from logdoctor.job.send.witnesses import Answer, Source, Told, host, output_of

_RECORD = re.compile(rb"^(?P<level>\d+),\d+,(?P<micros>\d+),[^;]*;(?P<text>[^\n]*)")
_RECORD_BYTES = 8192
_MOST_RECORDS = 100_000
_KILLED = re.compile(r"Kill(?:ed)? process (?P<pid>\d{1,10})\b|oom-kill:.*\bpid=(?P<told>\d{1,10})\b")
_GROUP = re.compile(r"\btask_memcg=(?P<path>[^,\s]+)")
_BUS = re.compile(r"(?i)\b(?:[0-9a-f]{4,8}:)?(?P<bus>[0-9a-f]{2}:[0-9a-f]{2})(?:\.0)?\b")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]{7,16})\)")
_WRONG = re.compile(
    r"(?i)^(?:Pending|Remapping Failure Occurred|Uncorrectable Error|Volatile Uncorrectable|Channel Repair Pending"
    r"|GPU Recovery Action|Reset Required|Drain and Reset Recommended|Double Bit ECC"
    r"|(?:DRAM|SRAM) (?:Uncorrectable(?: Parity| SEC-DED)?|Threshold Exceeded)) *: (?P<value>.+)$"
)
_FINE = frozenset(("no", "0", "none", "n/a", "not active", "[n/a]", "disabled"))
_FIELDS = (
    "JobId", "JobState", "Reason", "Requeue", "Restarts", "ExitCode", "DerivedExitCode", "RunTime", "TimeLimit",
    "StartTime", "EndTime", "PreemptTime", "NodeList", "FailedNode",
)  # fmt: skip
"""Fields of `scontrol show job` that say how it ended. Others, such as Command and Comment, may hold secrets."""
_BEFORE_SECONDS = 20.0  # for a look at the GPUs while the attempt begins
_MANAGED = re.compile(r"/(?:job_?|step_?|kubepods|docker|lxc|pod|libpod|crio|slice|scope)|\\.(?:slice|scope)")
"""Parts of the names that schedulers and containers give to groups."""
_STEP = ("JobID", "State", "ExitCode", "NodeList", "End")
Run = Callable[[Sequence[str], float], Answer]


def sources(environment: Environment, attempt_key: str = "") -> list[Source]:
    """Return the sources to ask on this node; none where another process asks them."""
    if not environment.witness_seconds:
        return []
    gpus = NvidiaSmi(seconds=_BEFORE_SECONDS if os.path.exists("/dev/nvidiactl") else 0.0)
    slurm_job = environment.slurm_job
    found: list[Source] = [MemoryKills(f"cgroup@{host()}"), KernelLog(gpus.devices), gpus, AmdGpus()]
    found += [Processes(attempt_key)] if attempt_key else []
    return [*found, *([SlurmRecord(slurm_job)] if slurm_job and slurm_job.isalnum() else [])]


class KernelLog:
    """The kernel's messages of the attempt's time, without those about processes and GPUs of other jobs.

    On a shared node the kernel also tells of strangers, who must neither decide nor be told. What is known to be of
    this job is marked by a line of ours.
    """

    def __init__(
        self,
        devices: Callable[[], frozenset[str]] = frozenset,
        log: str = "/dev/kmsg",
        group: str | None = None,
        run: Run = output_of,
    ) -> None:
        self.stream = f"kernel@{host()}"
        self._devices, self._log, self._run = devices, log, run
        self._group = cgroup_of() if group is None else group
        self._began, self._since = time.monotonic(), time.time()

    def ask(self, pid: int, until: float) -> Told:
        """Return the messages since it was made, from `/dev/kmsg` or the journal."""
        try:
            return self._told(pid, list(self._records(until)))
        except FileNotFoundError:
            return Told("absent")
        except PermissionError:
            with suppress(OSError):
                since = f"@{self._since:.0f}"
                answer = self._run(["journalctl", "-kqo", "short-iso", "--no-pager", "-n2000", "--since", since], until)
                if answer.code == 0 and answer.lines:
                    return self._told(pid, answer.lines)
            return Told("refused", said="the kernel's log may be read by root or group adm only")

    def _told(self, pid: int, lines: list[str]) -> Told:
        told, strangers = [], 0
        groups = {killed: path["path"] for line in lines if (killed := _killed(line)) and (path := _GROUP.search(line))}
        for line in lines:
            killed, xid = _killed(line), _XID.search(line)
            is_own = killed == pid or self._has(groups.get(killed, ""))
            if (killed and not is_own and self._is_other(groups.get(killed, ""))) or (xid and self._is_foreign(xid)):
                strangers += 1
                continue
            told.append(line)
            if is_own and "process" in line:
                told.append(f"{PREFIX}kernel: process {killed} of this job was killed for memory")
        said = f"{len(told):,} lines" + (f", {strangers:,} about other jobs left out" if strangers else "")
        return Told("read" if told else "empty", tuple(told), said if told or strangers else "")

    def _has(self, group: str) -> bool:
        return self._group not in ("", "/") and (group + "/").startswith(self._group + "/")

    def _is_other(self, group: str) -> bool:
        """Return whether a group is of another job or container; a program of this job may make one of its own."""
        return self._group not in ("", "/") and not self._has(group) and _MANAGED.search(group) is not None

    def _is_foreign(self, xid: re.Match[str]) -> bool:
        devices, bus = self._devices(), _BUS.search(xid["bus"])
        return bool(devices) and bus is not None and bus["bus"].lower() not in devices

    def _records(self, until: float) -> Iterable[str]:
        reading = os.open(self._log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        boot, name = time.time() - time.monotonic(), host()
        try:
            for _ in range(_MOST_RECORDS):
                try:
                    record = _RECORD.match(os.read(reading, _RECORD_BYTES) or b"")
                except BrokenPipeError:  # an overwritten one
                    continue
                except BlockingIOError:
                    return
                if record is None or time.monotonic() > until:
                    return
                seconds = int(record["micros"]) / 1e6
                if seconds > self._began and int(record["level"]) < 8:  # above: written by programs
                    yield f"{stamp(boot + seconds)} {name} kernel: {record['text'].decode('utf-8', 'replace')}"
        finally:
            os.close(reading)


class NvidiaSmi:
    """What `nvidia-smi -q` says is wrong with a GPU, and was not before the attempt."""

    def __init__(self, run: Run = output_of, seconds: float = 0.0) -> None:
        self.stream = f"nvidia-smi@{host()}"
        self._run, self._before = run, frozenset[str]()
        self._all: frozenset[str] = frozenset()
        if seconds:
            threading.Thread(target=self._look, args=(seconds,), name="logdoctor-gpus", daemon=True).start()

    def devices(self) -> frozenset[str]:
        """Return the buses of the GPUs that this job could see as it began; none when unknown."""
        return self._all

    def ask(self, pid: int, until: float) -> Told:
        """Return a line for each thing that is wrong."""
        try:
            answer = self._run(["nvidia-smi", "-q"], until)
        except OSError:
            return Told("absent")
        if answer.code is None:
            return Told("too late")
        unsure = "" if self._all else " (it may have been so before the attempt)"
        found = [line + unsure for line in _wrong(answer.lines) if line not in self._before]
        if answer.code:
            found += [line.strip() for line in answer.lines[:5] if line.strip() and not line.startswith(" ")]
        head = f"{stamp(time.time())} {host()} nvidia-smi: "
        state = "refused" if answer.code and not found else "read" if found else "empty"
        return Told(state, tuple(head + line for line in found))  # type: ignore[arg-type] # one of them

    def _look(self, seconds: float) -> None:
        with suppress(OSError):
            answer = self._run(["nvidia-smi", "-q"], time.monotonic() + seconds)
            if answer.code == 0:
                self._before = frozenset(_wrong(answer.lines))
                self._all = frozenset(
                    bus["bus"].lower()
                    for line in answer.lines
                    if line.startswith("GPU ") and (bus := _BUS.search(line))
                )


class AmdGpus:
    """The error counters of `rocm-smi --showrasinfo`."""

    def __init__(self, run: Run = output_of) -> None:
        self.stream = f"rocm-smi@{host()}"
        self._run = run

    def ask(self, pid: int, until: float) -> Told:
        """Return the lines that count uncorrectable errors."""
        try:
            answer = self._run(["rocm-smi", "--showrasinfo", "ue"], until)
        except OSError:
            return Told("absent")
        counts = [line.strip() for line in answer.lines if re.search(r"[1-9]\d*\s*$", line) and "GPU" in line]
        if answer.code:
            return Told("too late" if answer.code is None else "refused")
        return Told("read" if counts else "empty", tuple(f"{host()} rocm-smi: {line}" for line in counts))


class Processes:
    """Processes of the attempt that are left when its command has ended, and wait in the kernel."""

    def __init__(self, key: str, proc: str = "/proc") -> None:
        self.stream = f"processes@{host()}"
        self._mark, self._proc = f"LOGDOCTOR_ATTEMPT_KEY={key}".encode(), Path(proc)

    def ask(self, pid: int, until: float) -> Told:
        """Return a line for each that cannot be interrupted."""
        stuck: list[str] = []
        for one in self._proc.iterdir():
            if not one.name.isdigit() or time.monotonic() > until:
                continue
            with suppress(OSError, ValueError):
                state = (one / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
                variables = (one / "environ").read_bytes().split(b"\0") if state == "D" else []
                if self._mark in variables:
                    rank = next((v[5:].decode() for v in variables if v.startswith(b"RANK=")), "")
                    stuck.append(_stuck(one, rank))
        return Told("read" if stuck else "empty", tuple(stuck))


class SlurmRecord:
    """Slurm's record of the job: its state, exit codes of its steps, nodes that failed."""

    def __init__(self, job: str, run: Run = output_of) -> None:
        self.stream = f"slurm@{job}"
        self._job, self._run = job, run
        self._began = time.strftime("%Y-%m-%dT%H:%M:%S")

    def ask(self, pid: int, until: float) -> Told:
        """Return a line for the job and one for each step that did not end before this was made, as `Field=value`."""
        lines: list[str] = []
        said: list[str] = []
        for command, read in (
            (["scontrol", "--oneliner", "show", "job", self._job], _of_job),
            (["sacct", "-nPj", self._job, f"--format={','.join(_STEP)}"], partial(_of_steps, self._began)),
        ):
            with suppress(OSError):
                answer = self._run(command, until)
                lines += read(answer.lines) if answer.code == 0 else []
                said += [] if answer.code == 0 else ["too late" if answer.code is None else " ".join(answer.lines[:1])]
        if lines:
            return Told("read", tuple(lines))
        return Told("too late" if "too late" in said else "refused" if said else "absent", said="".join(said[:1]))


def stamp(seconds: float) -> str:
    """Return a time as this node's clock shows it, which is what most programs print."""
    local = time.localtime(seconds)
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{int(seconds % 1 * 1e6):06}%z", local)


def _killed(line: str) -> int:
    found = _KILLED.search(line)
    return int(found["pid"] or found["told"]) if found else 0


def _wrong(lines: Sequence[str]) -> list[str]:
    """Return what is wrong by `nvidia-smi -q`, each with its GPU and heading."""
    found, gpu, headings = [], "", list[tuple[int, str]]()
    for line in lines:
        if line.startswith("GPU "):
            gpu, headings = line.strip(), []
            continue
        depth, text = len(line) - len(line.lstrip()), " ".join(line.split())
        while headings and headings[-1][0] >= depth:
            headings.pop()
        if ":" not in text:
            headings.append((depth, text))
        elif (field := _WRONG.match(text)) and field["value"].strip().lower() not in _FINE and gpu:
            found.append(f"{gpu}: {' / '.join([*(name for _, name in headings), text])}")
    return found


def _stuck(process: Path, rank: str) -> str:
    where = ""
    with suppress(OSError):
        where = (process / "wchan").read_text("ascii", "replace").strip("0")
    at = f" at {where}" if where else ""
    if rank.isdecimal():
        return (
            f"{PREFIX}kernel wait: missing ranks: {rank}: in the kernel, uninterruptible (process {process.name}){at}"
        )
    return f"{PREFIX}process {process.name} is in the kernel, uninterruptible{at}"


def _of_job(lines: Sequence[str]) -> list[str]:
    pairs = (pair.partition("=") for pair in " ".join(lines).split())
    told = " ".join(f"{name}={value}" for name, _, value in pairs if name in _FIELDS)
    return [f"slurm: {told}"] if "JobState=" in told else []


def _of_steps(began: str, lines: Sequence[str]) -> list[str]:
    rows = (line.split("|") for line in lines[:1000])
    ours = (row for row in rows if len(row) == len(_STEP) and not (row[-1][:1].isdigit() and row[-1] < began))
    return [f"slurm: {' '.join(map('='.join, zip(_STEP, row)))}" for row in ours]  # noqa: B905 # of one length
