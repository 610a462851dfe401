"""Real worlds of processes on this machine, healthy and with faults, and what is left when their launcher dies."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from logdoctor.errors import LaunchError
from logdoctor.nodes.launch.local import LocalLauncher
from logdoctor.nodes.launching import LaunchTask, ProbeAnswer, ProbeOptions, result
from logdoctor.types.nodes import Result, World
from tests import waiting
from tests.nodes.faults import Fault, ended, faulty_python, running
from tests.nodes.launchers import LauncherContract
from tests.nodes.times import IMPORTING, pass_time
from tests.ports import free_port

MINE = f"local-{uuid4()}"
WAITS = "import time; time.sleep(36000)"


def make_task(
    launcher: LocalLauncher, number: int, names: Sequence[str], options: ProbeOptions, test: str
) -> LaunchTask:
    """A world of these nodes."""
    nodes = asyncio.run(launcher.inventory(names))
    return LaunchTask(test, World(number, 1, tuple(names), "try", repeats=2), tuple(nodes), free_port(), options)


async def run_all(launcher: LocalLauncher, tasks: Sequence[LaunchTask]) -> list[Result]:
    """How worlds end that run at once."""

    answers = await asyncio.gather(*(launcher.run(task) for task in tasks))
    return [result(task, told, 1.0) for task, told in zip(tasks, answers, strict=True)]


def never_ending(folder: Path) -> ProbeOptions:
    """Options under which ranks never end by themselves, and start at once."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(WAITS)
    return ProbeOptions(3600, python=_python_with(folder))


def _python_with(folder: Path) -> str:
    wrapper = folder / "python3"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


class TestContract(LauncherContract):
    nodes = ("local-1", "local-0")

    @pytest.fixture
    def launcher(self) -> LocalLauncher:
        return LocalLauncher(2)


def test_inventory_is_what_was_asked_for_in_its_order() -> None:
    launcher = LocalLauncher(3)
    every = asyncio.run(launcher.inventory([]))
    assert [node.name for node in every] == ["local-0", "local-1", "local-2"]
    assert asyncio.run(launcher.inventory(["local-2", "local-0"])) == [every[2], every[0]]
    with pytest.raises(LaunchError, match="'local-3': the local launcher does not have it"):
        asyncio.run(launcher.inventory(["local-0", "local-3"]))


def test_healthy_nodes_pass_alone_in_pairs_and_in_threes() -> None:
    launcher = LocalLauncher(6)
    names = [node.name for node in asyncio.run(launcher.inventory([]))]
    worlds = (names[:1], names[1:3], names[3:])
    options = ProbeOptions(300, sizes=(1 << 16, 1 << 20))
    tasks = [make_task(launcher, number, one, options, MINE) for number, one in enumerate(worlds, 1)]
    alone, pair, three = asyncio.run(run_all(launcher, tasks))
    assert [one.ended for one in (alone, pair, three)] == ["passed"] * 3, (alone.why, pair.why, three.why)
    for one in (*alone.readings, *pair.readings, *three.readings):
        assert (one.stage, one.tool, one.why) == ("done", "torch/gloo", "")
        assert one.tflops and one.boot and one.seconds > 0
    assert alone.readings[0].bandwidth == {}, "nothing was sent"
    assert all(set(one.bandwidth) == {"65536", "1048576"} for one in (*pair.readings, *three.readings))
    assert ended(MINE)


SEEN_AT_ONCE: dict[Fault, tuple[str, str]] = {  # how the world of a faulty and a good node ends, and what is said
    "probe killed": ("failed", "FAULTY: killed: the probe ended with status -9 and said nothing"),
    "rank killed": ("failed", "FAULTY: killed: rank 1 was killed by SIGKILL in stage gather"),
    "sends wrong": ("failed", "wrong data: 1 of 32768 values of rank 1 (FAULTY)"),
    "receives wrong": ("failed", "FAULTY: wrong data: 1 of 32768 values of rank 0"),
    "slow": ("passed", ""),
}
SEEN_BY_TIME: dict[Fault, tuple[str, str]] = {
    "hangs": ("failed", "FAULTY: hangs: rank 1 is stopped in stage gather"),
    "blocked": ("failed", ": "),
    "crash": ("failed", "FAULTY: error: RuntimeError: libtorch is damaged"),
    "no torch": ("void", "FAULTY: unusable: "),
    "no python": ("void", "FAULTY: not started: "),
}


@pytest.mark.parametrize(("faults", "seconds"), [(SEEN_AT_ONCE, 300.0), (SEEN_BY_TIME, 24.0)])
def test_every_kind_of_fault_ends_its_world_as_it_must(
    faults: dict[Fault, tuple[str, str]], seconds: float, tmp_path: Path
) -> None:
    launcher, test = LocalLauncher(2 * len(faults)), f"{MINE}-faults-{seconds:g}"
    faulty = {fault: f"local-{2 * place + 1}" for place, fault in enumerate(faults)}
    python = faulty_python(tmp_path, {node: fault for fault, node in faulty.items()})
    while True:
        tasks = [
            make_task(launcher, place, (f"local-{2 * place}", node), ProbeOptions(seconds, python=python), test)
            for place, node in enumerate(faulty.values())
        ]
        ends = asyncio.run(run_all(launcher, tasks))
        if not any(IMPORTING in world.why for world in ends) or seconds > 200:
            break
        seconds *= 3
    for (fault, node), world in zip(faulty.items(), ends, strict=True):
        how, why = faults[fault]
        said = (fault, world.ended, world.why)
        assert world.ended == how and why.replace("FAULTY", node) in world.why, said
        assert world.unreached == ((node,) if how == "void" else ()), said
        good = next(one for one in world.readings if one.node != node)
        assert good.why.partition(":")[0] in ("", "connection", "no answer", "wrong data"), "a good node blames itself"
        if fault == "slow":  # 256 KiB in more than a fifth of a second
            assert all(one.bandwidth["262144"] < 0.001 for one in world.readings)
    assert ended(test)


def test_node_whose_program_is_missing_is_not_started() -> None:
    launcher = LocalLauncher(2)
    task = make_task(launcher, 1, ("local-0",), ProbeOptions(python="/nonexistent/python3"), MINE)
    assert asyncio.run(launcher.run(task)) == [
        ProbeAnswer("local-0", False, launch_error="/nonexistent/python3: No such file or directory")
    ]


def test_probe_that_outlives_its_time_is_killed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "python3").write_text(f"#!/bin/sh\necho logdoctor-probe started x >&2; touch {runs}; exec sleep 3600\n")
    (tmp_path / "python3").chmod(0o755)
    launcher = LocalLauncher(1)
    task = make_task(launcher, 1, ("local-0",), ProbeOptions(1800, python=str(tmp_path / "python3")), MINE)

    async def outlive() -> list[Result]:
        running = asyncio.create_task(run_all(launcher, [task]))
        await asyncio.to_thread(waiting.until, runs.exists)
        pass_time(task.deadline)
        return await running

    (world,) = asyncio.run(outlive())
    assert (world.ended, world.why) == ("failed", "local-0: no answer: the probe said nothing before the deadline")


def test_output_is_bounded_and_the_writer_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nhead -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; exit 3\n")
    (tmp_path / "python3").chmod(0o755)
    launcher = LocalLauncher(1)
    task = make_task(launcher, 1, ("local-0",), ProbeOptions(python=str(tmp_path / "python3")), MINE)
    (answer,) = asyncio.run(launcher.run(task))
    assert (len(answer.output), len(answer.errors), answer.exit, answer.started) == (1 << 20, 1 << 20, 3, False)


def test_cancelled_run_leaves_nothing(tmp_path: Path) -> None:
    launcher, test = LocalLauncher(2), f"{MINE}-cancel"
    task = make_task(launcher, 1, ("local-0", "local-1"), never_ending(tmp_path), test)

    async def cancel() -> None:
        run = asyncio.create_task(launcher.run(task))
        await asyncio.to_thread(waiting.until, lambda: len(running(test)) == 4)  # two supervisors and two ranks
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(cancel())
    assert ended(test)


LAUNCH = """
import asyncio, sys
from pathlib import Path
from tests.nodes.story_local import LocalLauncher, make_task, never_ending
launcher = LocalLauncher(2)
task = make_task(launcher, 1, ("local-0", "local-1"), never_ending(Path(sys.argv[1])), sys.argv[2])
asyncio.run(launcher.run(task))
"""


def _launched(folder: Path, test: str) -> "subprocess.Popen[bytes]":
    """A process that runs a world, once all of the world's processes are there."""
    process = subprocess.Popen([sys.executable, "-c", LAUNCH, str(folder), test], cwd=Path(__file__).parents[2])
    waiting.until(lambda: len(running(test)) == 4)
    return process


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    test = f"{MINE}-orphan"
    process = _launched(tmp_path, test)
    assert len(running(test)) == 4
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert ended(test)


def test_sweep_ends_what_is_left_of_this_test_alone(tmp_path: Path) -> None:
    test, other = f"{MINE}-sweep", f"{MINE}-other"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    mine, others = _launched(tmp_path / "a", test), _launched(tmp_path / "b", other)
    try:
        launcher = LocalLauncher(2)
        assert asyncio.run(launcher.sweep(test)) >= 2
        assert ended(test) and len(running(other)) == 4
        assert asyncio.run(launcher.sweep(test)) == 0
    finally:
        mine.kill(), others.kill()
        mine.wait(), others.wait()
    assert ended(other)
