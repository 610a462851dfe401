"""The launcher of Slurm against a real Slurm: `srun`, real gathers, real failures."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest

from logdoctor.errors import LaunchError
from logdoctor.nodes.launch.slurm import SlurmLauncher
from logdoctor.nodes.launching import OUTPUT_LIMIT, LaunchTask, ProbeAnswer, ProbeOptions, result
from logdoctor.types.nodes import Node, World
from tests import waiting
from tests.nodes.faults import faulty_python
from tests.nodes.launchers import LauncherContract
from tests.nodes.slurm_cluster import SlurmCluster, processes, slurm_cluster
from tests.ports import free_port

T = TypeVar("T")
T77 = "--test t77 --world 1 "
STARTED = "logdoctor-probe started"


@pytest.fixture(scope="module")
def shared() -> Iterator[SlurmCluster]:
    with slurm_cluster(nodes=6) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """The cluster, with all nodes idle."""
    monkeypatch.setattr("logdoctor.nodes.slurm._COMMAND_SECONDS", 300.0)
    monkeypatch.setattr("logdoctor.nodes.launch.slurm._CANCELLING", 300.0)
    shared.reset()
    return shared


@pytest.fixture
def stub(tmp_path: Path) -> Callable[[str], str]:
    """Makes a program that takes the place of `python3` on the nodes: it says that the probe started, then does what
    the given lines of shell say. `$NODE` is the node it runs on."""

    def make(script: str) -> str:
        path = tmp_path / "python-of-tests"
        path.write_text(f'#!/bin/sh\nNODE=$SLURMD_NODENAME\necho "{STARTED} $NODE" >&2\n{script}\n')
        path.chmod(0o755)
        return str(path)

    return make


def _task(
    *names: str, python: str = sys.executable, test: str = "t1", world: int = 1, seconds: float = 200.0
) -> LaunchTask:
    nodes = tuple(Node(name, "127.0.0.1") for name in names)
    probe = ProbeOptions(seconds=seconds, python=python)
    return LaunchTask(test, World(world, 1, names, "a test"), nodes, free_port(), probe)


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class TestContract(LauncherContract):
    nodes = ("n2", "n1")

    @pytest.fixture
    def launcher(self, cluster: SlurmCluster) -> SlurmLauncher:
        return cluster.launcher()


class TestInventory:
    def test_all_nodes_with_address_and_leaf_switch(self, cluster: SlurmCluster) -> None:
        nodes = _run(cluster.launcher().inventory([]))
        assert [node.name for node in nodes] == ["n1", "n2", "n3", "n4", "n5", "n6"]
        assert [node.group for node in nodes] == ["leaf1"] * 3 + ["leaf2"] * 3
        assert {node.address for node in nodes} == {"127.0.0.1"}

    def test_the_nodes_asked_for_in_their_order(self, cluster: SlurmCluster) -> None:
        assert [node.name for node in _run(cluster.launcher().inventory(["n5", "n2"]))] == ["n5", "n2"]

    def test_unknown_node(self, cluster: SlurmCluster) -> None:
        with pytest.raises(LaunchError, match="node 'n7' is unknown to Slurm"):
            _run(cluster.launcher().inventory(["n1", "n7"]))

    def test_of_an_allocation(self, cluster: SlurmCluster) -> None:
        with cluster.allocation("n2", "n3") as number:
            launcher = cluster.launcher(number)
            assert [node.name for node in _run(launcher.inventory([]))] == ["n2", "n3"]
            with pytest.raises(LaunchError, match="node n4 is not in the allocation"):
                _run(launcher.inventory(["n4"]))
        with pytest.raises(LaunchError, match=f"allocation {number} is not running|squeue"):
            _run(launcher.inventory([]))


class TestGathers:
    def test_worlds_of_a_round_pass_as_jobs_of_their_own(self, cluster: SlurmCluster) -> None:
        """The order of ranks is not the one in which Slurm sorts nodes."""
        tasks = [_task("n4", "n1"), _task("n6", "n2", "n3", world=2)]

        async def both() -> list[list[ProbeAnswer]]:
            return await asyncio.gather(*(cluster.launcher().run(task) for task in tasks))

        for task, answers in zip(tasks, _run(both()), strict=True):
            assert [answer.node for answer in answers] == list(task.world.nodes)
            ended = result(task, answers, 1.0)
            assert (ended.ended, ended.why) == ("passed", "")
            assert {reading.tool for reading in ended.readings} == {"torch/gloo"}

    def test_drained_nodes_pass_within_an_allocation(self, cluster: SlurmCluster) -> None:
        with cluster.allocation("n1", "n2", "n5") as number:
            cluster.command("scontrol", "update", "NodeName=n5", "State=DRAIN", "Reason=by others")
            assert cluster.state("n5") == "drng"
            task = _task("n5", "n1")
            ended = result(task, _run(cluster.launcher(number).run(task)), 1.0)
        assert (ended.ended, ended.why) == ("passed", "")

    def test_steps_of_one_allocation_run_at_once(
        self, cluster: SlurmCluster, stub: Callable[[str], str], tmp_path: Path
    ) -> None:
        with cluster.allocation("n1", "n2", "n3", "n4") as number:
            meet = tmp_path / "meet"  # each node waits here until all have come
            meet.mkdir()
            python = stub(f"touch {meet}/$NODE; until [ $(ls {meet} | wc -l) = 4 ]; do sleep 0.05; done; echo $NODE")
            tasks = [_task("n1", "n3", python=python), _task("n4", "n2", python=python, world=2)]

            async def both() -> list[list[ProbeAnswer]]:
                return await asyncio.gather(*(cluster.launcher(number).run(task) for task in tasks))

            answers = [answer for of_world in _run(both()) for answer in of_world]
        assert [(answer.node, answer.output, answer.exit) for answer in answers] == [
            (name, f"{name}\n".encode(), 0) for name in ("n1", "n3", "n4", "n2")
        ]


class TestFaults:
    def test_each_is_told_from_the_others(self, cluster: SlurmCluster, tmp_path: Path) -> None:
        """A probe that is killed, and one that sends wrong data."""
        python = faulty_python(tmp_path, {"n2": "probe killed", "n4": "sends wrong"})
        worlds = enumerate((("n1", "n2"), ("n3", "n4")), 1)
        tasks = [_task(*names, python=python, world=number) for number, names in worlds]

        async def both() -> list[list[ProbeAnswer]]:
            return await asyncio.gather(*(cluster.launcher().run(task) for task in tasks))

        killed, wrong = (result(task, of, 1.0) for task, of in zip(tasks, _run(both()), strict=True))
        assert (killed.ended, killed.unreached) == ("failed", ()) and killed.why.startswith("n2: killed: ")
        assert wrong.ended == "failed" and "wrong data" in wrong.why and "(n4)" in wrong.why


class TestWhatNodesPrint:
    def test_goes_to_the_node_that_printed_it(self, cluster: SlurmCluster, stub: Callable[[str], str]) -> None:
        """Also lines that are longer than srun leaves whole, and a last one without an end."""
        script = r"""
        python3 -c 'import os; n = os.environ["SLURMD_NODENAME"]
for size in (1021, 1022, 1023, 1024, 1025, 2048, 5000): print(n + "x" * (size - 2))
print(n, end="")'
        exit ${NODE#n}"""
        answers = _run(cluster.launcher().run(_task("n5", "n3", "n4", python=stub(script))))
        for answer in answers:
            lines = answer.output.decode().split("\n")
            assert [len(line) for line in lines] == [1021, 1022, 1023, 1024, 1025, 2048, 5000, 2, 0]
            assert all(line.startswith(answer.node) for line in lines[:-1])
            assert answer.started and answer.exit == int(answer.node[1:])
            assert f"task {['n3', 'n4', 'n5'].index(answer.node)}: Exited with exit code" in answer.launch_error

    def test_is_bounded_and_may_be_anything(self, cluster: SlurmCluster, stub: Callable[[str], str]) -> None:
        script = (
            "if [ $NODE = n1 ]; then head -c 3000000 /dev/urandom; else echo 0: forged; echo srun: error: forged; fi"
        )
        flood, forger = _run(cluster.launcher().run(_task("n1", "n2", python=stub(script))))
        assert len(flood.output) == OUTPUT_LIMIT
        assert forger.output == b"0: forged\nsrun: error: forged\n"
        assert (forger.exit, forger.launch_error) == (0, "")

    def test_nodes_inherit_no_secrets(self, cluster: SlurmCluster, stub: Callable[[str], str]) -> None:
        secrets = {"LOGDOCTOR_LLM_KEY": "secret-1", "OPENAI_API_KEY": "secret-2", "AWS_TOKEN": "secret-3"}
        steering = {"SLURM_JOB_ID": "77", "SLURM_HOSTFILE": "/nowhere", "SLURM_NTASKS": "9", "SLURM_DISTRIBUTION": "9"}
        launcher = SlurmLauncher({**cluster.env, **secrets, **steering})
        (answer,) = _run(launcher.run(_task("n2", python=stub("env"))))
        assert b"SLURMD_NODENAME=n2" in answer.output and b"PATH=" in answer.output
        assert b"secret" not in answer.output and b"/nowhere" not in answer.output


class TestNotLaunched:
    """Whatever goes wrong before the probe runs proves nothing about nodes."""

    def _void(self, cluster: SlurmCluster, *names: str, options: tuple[str, ...] = ()) -> dict[str, str]:
        task = _task(*names)
        answers = _run(cluster.launcher(options=options).run(task))
        assert [answer.started for answer in answers] == [False] * len(names)
        assert result(task, answers, 1.0).ended == "void"
        return {answer.node: answer.launch_error for answer in answers}

    def test_unknown_node(self, cluster: SlurmCluster) -> None:
        told = self._void(cluster, "n1", "n9")
        assert told == {"n1": "n9: Slurm does not know this node", "n9": "Slurm does not know this node"}

    def test_node_drained_by_others(self, cluster: SlurmCluster) -> None:
        cluster.command("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=bad DIMM")
        told = self._void(cluster, "n1", "n2", options=("--immediate=1",))
        assert told["n2"] == "Slurm does not schedule jobs on it: IDLE+DRAIN, bad DIMM"
        assert told["n1"] == f"n2: {told['n2']}"

    def test_node_down(self, cluster: SlurmCluster) -> None:
        cluster.command("scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=power")
        assert "DOWN" in self._void(cluster, "n3", "n4", options=("--immediate=1",))["n3"]

    def test_node_that_another_job_holds(self, cluster: SlurmCluster) -> None:
        with cluster.allocation("n4"):
            told = self._void(cluster, "n4", "n5", options=("--immediate=1",))
        assert "busy" in told["n4"] or "not available" in told["n4"]

    def test_node_outside_of_the_allocation(self, cluster: SlurmCluster) -> None:
        with cluster.allocation("n1", "n2") as number:
            answers = _run(cluster.launcher(number).run(_task("n1", "n6")))
        assert not any(answer.started for answer in answers)
        assert "not available" in answers[0].launch_error

    def test_allocation_that_is_over(self, cluster: SlurmCluster) -> None:
        with cluster.allocation("n1", "n2") as number:
            pass
        with pytest.raises(LaunchError, match=r"^srun: .*job"):
            _run(cluster.launcher(number).run(_task("n1", "n2")))

    def test_reserved_nodes_need_the_reservation(self, cluster: SlurmCluster, stub: Callable[[str], str]) -> None:
        command = ("scontrol", "create", "reservation", "ReservationName=held", "Nodes=n5,n6", "Users=root")
        cluster.command(*command, "StartTime=now", "Duration=10", "Flags=IGNORE_JOBS")
        try:
            self._void(cluster, "n5", "n6", options=("--immediate=1",))
            launcher = cluster.launcher(options=("--reservation=held",))
            answers = _run(launcher.run(_task("n5", "n6", python=stub("echo ran"))))
            assert [answer.output for answer in answers] == [b"ran\n"] * 2
            cluster.command("scontrol", "update", "NodeName=n5", "State=DRAIN", "Reason=test")
            told = self._void(cluster, "n5", "n6", options=("--reservation=held", "--immediate=1"))
            assert "IDLE+DRAIN" in told["n5"]
        finally:
            cluster.command("scontrol", "delete", "ReservationName=held")

    def test_no_python_on_a_node(self, cluster: SlurmCluster) -> None:
        task = _task("n1", "n2", python="/nowhere/python3")
        answers = _run(cluster.launcher().run(task))
        assert result(task, answers, 1.0).unreached == ("n1", "n2")
        assert all("No such file or directory" in answer.launch_error for answer in answers)

    def test_slurmd_gone_from_a_node(self, cluster: SlurmCluster, stub: Callable[[str], str]) -> None:
        """Slurm has not noticed yet: the node looks idle."""
        cluster.kill_slurmd("n2")
        task = _task("n1", "n2", python=stub("cat > /dev/null"))
        answers = _run(cluster.launcher().run(task))
        assert not answers[1].started and "n2" in answers[1].launch_error
        assert result(task, answers, 1.0).ended == "void"

    @pytest.mark.parametrize(
        ("option", "told"),
        [
            ("--nosuch", "unrecognized option '--nosuch'"),
            ("--partition=nosuch", "invalid partition specified: nosuch"),
            ("--reservation=nosuch", "Requested reservation is invalid"),
        ],
    )
    def test_options_that_slurm_refuses(self, cluster: SlurmCluster, option: str, told: str) -> None:
        with pytest.raises(LaunchError, match=rf"^srun: .*{told}"):
            _run(cluster.launcher(options=(option,)).run(_task("n1", "n2")))

    def test_options_are_heeded(self, cluster: SlurmCluster, stub: Callable[[str], str]) -> None:
        launcher = cluster.launcher(options=("--partition=side",))
        (answer,) = _run(launcher.run(_task("n6", python=stub("echo $SLURM_JOB_PARTITION"))))
        assert answer.output == b"side\n"


class _Brief(LaunchTask):
    """A world without grace at its end."""

    @property
    def deadline(self) -> float:
        return self.probe.seconds


class TestNothingIsLeft:
    STUBBORN = "trap '' TERM INT HUP; while :; do sleep 0.2; done # "

    def _gone(self, cluster: SlurmCluster, marker: str) -> None:
        cluster.wait_for(lambda: not cluster.processes(marker), "no process is left")
        cluster.wait_for(lambda: not cluster.command("squeue", "--noheader"), "no job is left")

    @pytest.mark.parametrize("inside", [False, True])
    def test_at_the_deadline(self, cluster: SlurmCluster, stub: Callable[[str], str], inside: bool) -> None:
        """Also when the probe does not heed signals; what it printed before counts."""
        python = stub(f"echo early; {self.STUBBORN}")
        names = ("n1", "n2")
        with cluster.allocation(*names) if inside else nullcontext("") as number:
            launcher, seconds = cluster.launcher(number), 1.0
            while True:  # on a busy machine it comes before Slurm has brought what was printed
                answers = _run(launcher.run(_Brief(*_task(*names, python=python, seconds=seconds))))
                cluster.wait_for(lambda: not cluster.processes(python), "no process is left")
                if all(answer.output for answer in answers) or seconds > 60:
                    break
                seconds *= 4
        assert [(a.started, a.output, a.exit) for a in answers] == [(True, b"early\n", None)] * 2
        assert result(_task(*names), answers, 1.0).ended == "failed"
        self._gone(cluster, python)

    def test_when_cancelled(self, cluster: SlurmCluster, stub: Callable[[str], str]) -> None:
        python = stub(self.STUBBORN)

        async def cancelled() -> None:
            run = asyncio.create_task(cluster.launcher().run(_task("n1", "n2", python=python)))
            await asyncio.to_thread(cluster.wait_for, lambda: len(cluster.processes(python)) >= 3, "all of it runs")
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert not cluster.processes(f"^srun .*{python}")

        _run(cancelled())
        self._gone(cluster, python)

    def test_when_cancelled_while_it_waits_for_nodes(self, cluster: SlurmCluster, stub: Callable[[str], str]) -> None:
        async def cancelled() -> None:
            run = asyncio.create_task(cluster.launcher().run(_task("n1", "n2", python=stub("sleep 3000"))))
            pending = ("squeue", "--noheader", "--states=PENDING", "--format=%j")
            await asyncio.to_thread(
                cluster.wait_for, lambda: "logdoctor-t1-w1" in cluster.command(*pending), "it waits"
            )
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

        with cluster.allocation("n2"):
            _run(cancelled())
        self._gone(cluster, "python-of-tests")

    def test_when_logdoctor_is_killed(self, cluster: SlurmCluster) -> None:
        """Real probes: their lifeline is the standard input of `srun`."""
        logdoctor = _logdoctor(cluster, "n1", "n2")
        cluster.wait_for(lambda: len(cluster.processes(T77)) >= 3, "the probes run")
        logdoctor.kill()
        logdoctor.communicate()
        self._gone(cluster, T77)

    def test_when_others_cancel_it(self, cluster: SlurmCluster, stub: Callable[[str], str]) -> None:
        """Which is no failure of nodes."""
        sleep = _long_sleep()
        python = stub(f"exec {sleep}")

        async def cancelled() -> None:
            run = asyncio.create_task(cluster.launcher().run(_task("n1", "n2", python=python)))
            await asyncio.to_thread(cluster.wait_for, lambda: len(cluster.processes(sleep)) == 2, "both run")
            cluster.command("scancel", "--name=logdoctor-t1-w1")
            with pytest.raises(LaunchError, match=r"world 1: Slurm ended it .*CANCELLED"):
                await run

        _run(cancelled())
        self._gone(cluster, sleep)

    def test_when_srun_is_killed(self, cluster: SlurmCluster) -> None:
        """Which is no failure of nodes."""
        logdoctor = _logdoctor(cluster, "n1", "n2")
        cluster.wait_for(lambda: len(cluster.processes(T77)) >= 3, "the probes run")
        os.kill(min(cluster.processes("^srun .*--job-name=logdoctor-t77-w1 ")), signal.SIGKILL)
        assert "LaunchError: world 1: its srun was killed by signal 9" in logdoctor.communicate()[1]
        self._gone(cluster, T77)

    @pytest.mark.parametrize("inside", [False, True])
    def test_after_a_sweep(self, cluster: SlurmCluster, inside: bool) -> None:
        """Of this test's jobs and steps alone."""
        names = ("t5-w1", "t5-w22", "t55-w1")
        sleep = _long_sleep()
        running = rf"^\S*{sleep}"
        with cluster.allocation("n4", "n5", "n6") as number:
            place = (f"--jobid={number}", "--overlap") if inside else ("--exclusive",)
            nodes = ("n4", "n5", "n6") if inside else ("n1", "n2", "n3")
            runs = [
                subprocess.Popen(
                    ["srun", *place, f"--job-name=logdoctor-{name}", "-N1", "-n1", f"-w{node}", *sleep.split()],
                    env=cluster.env,
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for name, node in zip(names, nodes, strict=True)
            ]
            cluster.wait_for(lambda: len(cluster.processes(running)) == 3, "three of them run")
            launcher = cluster.launcher(number if inside else "")
            assert _run(launcher.sweep("t5")) == 2
            cluster.wait_for(lambda: len(cluster.processes(running)) == 1, "one of them runs")
            assert _run(launcher.sweep("t5")) == 0
            assert _run(launcher.sweep("t55")) == 1
            for run in runs:
                run.wait()
        self._gone(cluster, running)


def _long_sleep() -> str:
    """A command that lasts for hours, like no other one of this machine."""
    return f"sleep 4{secrets.randbelow(10**12):012}"


def _logdoctor(cluster: SlurmCluster, *names: str) -> subprocess.Popen[str]:
    """A process that runs a world and then ends."""
    script = (
        "import asyncio, sys\nfrom tests.nodes.story_slurm import _task\n"
        "from logdoctor.nodes.launch.slurm import SlurmLauncher\nimport os\n"
        f"asyncio.run(SlurmLauncher(dict(os.environ)).run(_task(*{names!r}, test='t77')))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=cluster.env,
        cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE,
        text=True,
    )


class TestTheCluster:
    def test_two_at_once(self, cluster: SlurmCluster) -> None:
        with slurm_cluster(nodes=2, select="select/cons_tres") as other:
            assert other.command("srun", "-N2", "-wn[1-2]", "hostname").count("\n") == 2
            assert cluster.command("sinfo", "-hN").count("n") > other.command("sinfo", "-hN").count("n")

    def test_without_slurm_it_says_how_to_install_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.nodes.slurm_cluster.PATH", "/nowhere")
        with pytest.raises(pytest.fail.Exception, match="apt-get install slurm-wlm munge"), slurm_cluster(nodes=2):
            pass

    def test_nothing_of_it_outlives_tests_that_are_killed(self, tmp_path: Path) -> None:
        sleep = _long_sleep()
        script = (
            "import time\nfrom tests.nodes.slurm_cluster import slurm_cluster\n"
            "with slurm_cluster(nodes=2) as cluster:\n"
            " import subprocess\n"
            f" subprocess.Popen(['srun', '-N2', 'sh', '-c', 'setsid {sleep}'], env=cluster.env)\n"
            " print(cluster.folder, flush=True)\n time.sleep(3600)\n"
        )
        command = [sys.executable, "-c", script]
        tests = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert tests.stdout
        folder = Path(tests.stdout.readline().strip())
        waiting.until(lambda: len(processes(folder, f"^{sleep}")) == 2)
        daemons = _daemons(folder)
        assert len(daemons) == 4
        tests.kill()
        tests.wait()
        waiting.until(lambda: not folder.exists() and not _daemons(folder) and not processes(folder, ""))


def _daemons(folder: Path) -> list[bytes]:
    """The daemons of the cluster in a folder."""
    return subprocess.run(["pgrep", "-f", f"^(munged|slurmctld|slurmd) .*{folder}"], capture_output=True).stdout.split()
