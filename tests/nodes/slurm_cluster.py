"""A real Slurm cluster on this machine: its own munged, slurmctld, and one slurmd for each node.

    with slurm_cluster(nodes=6) as cluster:
        cluster.launcher(), cluster.cordoner(), cluster.command("sinfo", "-N")

Nodes are n1, n2, ...; the first half hangs on the switch leaf1, the others on leaf2. Several clusters can run at once.
All is gone at the end, however it comes: the daemons and what they started belong to `slurm_keeper.py`.
"""

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from logdoctor.nodes.cordon.slurm import SlurmCordoner
from logdoctor.nodes.launch.slurm import SlurmLauncher
from tests import waiting

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scontrol", "sinfo", "squeue", "scancel", "salloc")
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
KEEPER = Path(__file__).with_name("slurm_keeper.py")

_PORTS = range(17_000, 31_000, 40)
"""Blocks of ports, below those that the kernel gives to outgoing connections."""

_CONF = """\
ClusterName=logdoctor
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType={select}
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=1
KillWait=2
MessageTimeout=3
SlurmdTimeout=300
MinJobAge=2
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
TopologyPlugin=topology/tree
NodeName={names} NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=side Nodes=ALL Default=NO MaxTime=INFINITE State=UP OverSubscribe=NO
"""


class SlurmCluster(NamedTuple):
    """A running cluster: its nodes, the environment in which Slurm's commands reach it, and where its logs are."""

    names: tuple[str, ...]
    env: dict[str, str]
    folder: Path
    keeper: subprocess.Popen[str]
    daemons: dict[str, int]

    def launcher(self, allocation: str = "", options: tuple[str, ...] = ()) -> SlurmLauncher:
        """A launcher for this cluster; its jobs wait for Slurm longer than usual, on a busy machine."""
        return SlurmLauncher(self.env, allocation, ("--immediate=300", *options))

    def cordoner(self) -> SlurmCordoner:
        """A cordoner for this cluster."""
        return SlurmCordoner(self.env)

    def command(self, *words: str, ok: bool = True) -> str:
        """What a command prints, errors included; with `ok` the test fails when the command does."""
        done = subprocess.run(
            words, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=600
        )
        if ok and done.returncode != 0:
            pytest.fail(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def state(self, node: str) -> str:
        """The state of a node as `sinfo` shows it: idle, alloc, drain, down, ..."""
        return self._state(node).rstrip("*")  # the star: Slurm waits to hear from it

    def _state(self, node: str) -> str:
        return self.command("sinfo", "--noheader", "--nodes", node, "--partition=all", "--format=%t").strip()

    @contextmanager
    def allocation(self, *names: str) -> Iterator[str]:
        """The number of a job that holds these nodes."""
        told = self.command("salloc", "--no-shell", "--immediate=300", f"--nodelist={','.join(names)}")
        number = told.partition("Granted job allocation ")[2].split()[0]
        try:
            yield number
        finally:
            self.command("scancel", number)
            self.wait_for(lambda: number not in self.command("squeue", "--noheader", "--format=%i"), "allocation ends")

    def kill_slurmd(self, node: str) -> None:
        """Kills a node's slurmd, so that Slurm cannot reach it; `start_slurmd` brings it back."""
        os.kill(self.daemons[node], 9)

    def start_slurmd(self, node: str) -> None:
        """Starts a node's slurmd."""
        command = ["slurmd", "-D", "-N", node, "-f", f"{self.folder}/slurm.conf"]
        self.daemons[node] = _start(self.keeper, self.folder / f"slurmd.{node}.log", command)

    def start_slurmctld(self) -> None:
        """Starts the controller, without the jobs of an earlier one."""
        command = ["slurmctld", "-D", "-c", "-f", f"{self.folder}/slurm.conf"]
        self.daemons["slurmctld"] = _start(self.keeper, self.folder / "slurmctld.log", command)

    def reset(self, heard: bool = True) -> None:
        """Ends all jobs and brings all nodes back, for the next test; with `heard` Slurm has heard from them again,
        which may take a second, so that jobs start at once."""
        self.command("scancel", "--user", str(os.getuid()), ok=False)
        for name in self.names:
            if not Path(f"/proc/{self.daemons[name]}").exists():
                self.start_slurmd(name)
        self.wait_for(lambda: not self.command("squeue", "--noheader").strip(), "all jobs end")
        for name in self.names:
            if "idle" != self.state(name):
                self.command("scontrol", "update", f"NodeName={name}", "State=RESUME", ok=False)
        idle = self._state if heard else self.state
        self.wait_for(lambda: all(idle(name) == "idle" for name in self.names), "all nodes are idle")

    def wait_for(self, truth: Callable[[], bool], what: str) -> None:
        """Returns when something has come true; what the daemons say is shown when it does not."""
        try:
            waiting.until(truth, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.command('sinfo', '-N', '-l')}{self.logs()}") from error

    def processes(self, pattern: str) -> list[int]:
        """The processes of this cluster's users (commands, and what runs on nodes) whose command line matches."""
        return processes(self.folder, pattern)

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return _logs(self.folder)


def processes(folder: Path, pattern: str) -> list[int]:
    """The processes whose Slurm is configured in a folder, and whose command line matches."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and f"SLURM_CONF={folder}/".encode() in (process / "environ").read_bytes():
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found += [int(process.name)] * bool(re.search(pattern, words))
    return found


@contextmanager
def slurm_cluster(nodes: int = 6, select: str = "select/linear") -> Iterator[SlurmCluster]:
    """A Slurm cluster with so many idle nodes; nothing of it is left afterwards."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if missing:
        pytest.fail(f"{', '.join(missing)} not found: run `apt-get install slurm-wlm munge`")
    folder = Path(tempfile.mkdtemp(prefix="logdoctor-slurm-"))
    try:
        with _ports(nodes + 1) as ports, _keeper(folder) as keeper:
            cluster = _configured(folder, ports, nodes, select, keeper)
            _begin(cluster)
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _configured(
    folder: Path, ports: Sequence[int], nodes: int, select: str, keeper: subprocess.Popen[str]
) -> SlurmCluster:
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    half = (nodes + 1) // 2
    (folder / "state").mkdir()
    for name in names:
        (folder / f"spool.{name}").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o400)
    (folder / "slurm.conf").write_text(
        _CONF.format(
            folder=folder,
            port=ports[0],
            ports=f"[{ports[1]}-{ports[nodes]}]",
            names=f"n[1-{nodes}]",
            select=select,
            user=subprocess.check_output(["id", "-un"], text=True).strip(),
        )
    )
    (folder / "topology.conf").write_text(
        f"SwitchName=leaf1 Nodes=n[1-{half}]\nSwitchName=leaf2 Nodes=n[{half + 1}-{nodes}]\n"
        "SwitchName=spine Switches=leaf[1-2]\n"
        if nodes > 1
        else "SwitchName=leaf1 Nodes=n1\n"
    )
    env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}
    return SlurmCluster(names, env, folder, keeper, {})


def _begin(cluster: SlurmCluster) -> None:
    folder, start = cluster.folder, cluster.daemons
    files = {"socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log", "seed-file": "munged.seed"}
    munged = [
        "munged",
        "-F",
        "-f",
        f"--key-file={folder}/munge.key",
        *(f"--{k}={folder}/{v}" for k, v in files.items()),
    ]
    start["munged"] = _start(cluster.keeper, folder / "munged.out", munged)
    cluster.wait_for((folder / "munge.sock").exists, "munged listens")
    cluster.start_slurmctld()
    for name in cluster.names:
        cluster.start_slurmd(name)
    cluster.wait_for(lambda: cluster.command("scontrol", "ping", ok=False).count(" UP") == 1, "slurmctld answers")
    cluster.reset()


@contextmanager
def _ports(count: int) -> Iterator[Sequence[int]]:
    """Ports next to each other that are free now, and that no other cluster of tests takes meanwhile."""
    for base in _PORTS:
        with _lock(base) as free:
            ports = range(base, base + count)
            if free and all(map(_is_free, ports)):
                yield ports
                return
    pytest.fail("no free ports for a Slurm cluster")


@contextmanager
def _lock(base: int) -> Iterator[bool]:
    with socket.socket(socket.AF_UNIX) as lock:  # an abstract name: it ends with the process that bound it
        try:
            lock.bind(f"\0logdoctor-slurm-ports-{base}")
        except OSError:
            yield False
        else:
            yield True


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@contextmanager
def _keeper(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(KEEPER), str(folder)]
    keeper = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, env={"PATH": PATH}
    )
    try:
        yield keeper
    finally:
        assert keeper.stdin
        keeper.stdin.close()
        keeper.wait()


def _start(keeper: subprocess.Popen[str], log: Path, command: Sequence[str]) -> int:
    assert keeper.stdin and keeper.stdout
    print(json.dumps([str(log), *command]), file=keeper.stdin, flush=True)
    return int(keeper.stdout.readline())


def _logs(folder: Path) -> str:
    lines = {log.name: log.read_text(errors="replace").splitlines()[-6:] for log in sorted(folder.glob("*.log"))}
    return "".join(f"\n--- {name}\n" + "\n".join(line[:200] for line in last) for name, last in lines.items())
