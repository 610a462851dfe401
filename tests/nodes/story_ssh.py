"""Probes over SSH, on nodes that are network namespaces with an OpenSSH server each."""

import asyncio
import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
import uvloop

from logdoctor.errors import LaunchError
from logdoctor.nodes.launch.ssh import SshLauncher
from logdoctor.nodes.launching import OUTPUT_LIMIT, LaunchTask, ProbeAnswer, ProbeOptions, result
from logdoctor.types.nodes import Node, Result, World
from tests import waiting
from tests.nodes.launchers import LauncherContract
from tests.nodes.namespaces import MANAGEMENT, Network, namespaces
from tests.nodes.times import pass_time, with_time_enough

SIZES = (65536, 1048576)
LONG = 3600.0
"""Seconds of a world that is over long before."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with namespaces(nodes=4, groups=2) as made:
        yield made


@pytest.fixture
def net(network: Network) -> Iterator[Network]:
    yield network
    network.heal()


PORTS = itertools.count(29_400)
"""The nodes have their own: no other test is met there, but what an earlier world left."""


def task(
    net: Network, *names: str, test: str = "t1", seconds: float = LONG, kind: type[LaunchTask] = LaunchTask
) -> LaunchTask:
    of = {node.name: node for node in net.nodes}
    world = World(1, 1, names, "to see")
    return kind(test, world, tuple(of[name] for name in names), next(PORTS), ProbeOptions(seconds=seconds, sizes=SIZES))


def command(*words: str) -> type[LaunchTask]:
    """A task that runs other words than the probe's, so that a node does what no probe would."""

    class Other(LaunchTask):
        def command(self, rank: Any, lifeline: bool) -> tuple[str, ...]:
            return words

    return Other


def shell(script: str) -> type[LaunchTask]:
    return command("sh", "-c", script)


STARTED = "echo logdoctor-probe started it >&2; "


def run(launcher: SshLauncher, given: LaunchTask) -> tuple[list[ProbeAnswer], Result]:
    answers = asyncio.run(launcher.run(given))
    return answers, result(given, answers, 1.0)


def broken(launcher: SshLauncher, net: Network, *names: str, seconds: float = 5.0) -> Result:
    """How a world ends that cannot pass, and lasts until its time is up."""
    return with_time_enough(lambda seconds: run(launcher, task(net, *names, seconds=seconds))[1], seconds)


async def come(truth: Callable[[], object]) -> None:
    """Wait until something is true, while worlds run."""
    await asyncio.to_thread(waiting.until, truth)


def processes(net: Network, name: str) -> dict[int, list[bytes]]:
    """The processes on a node, with their arguments."""
    found = {}
    for pid in net.pids(name):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return found


def probes(net: Network, name: str, test: str = "t1") -> list[int]:
    """The processes on a node whose arguments are those of a probe of a test."""
    return [
        pid
        for pid, words in processes(net, name).items()
        if words[1:2] == [b"-c"] and (b"--test", test.encode()) in itertools.pairwise(words)
    ]


def idle(net: Network) -> bool:
    """Whether nothing runs on the nodes but their SSH servers, which are two processes each: unshare and sshd."""
    return all(len(net.pids(node.name)) == 2 for node in net.nodes)


class TestContract(LauncherContract):
    nodes = ("n2", "n1")

    @pytest.fixture
    def launcher(self, net: Network) -> SshLauncher:
        return net.launcher()


# -- worlds


def test_two_nodes_gather_through_their_own_addresses(net: Network) -> None:
    answers, ended = run(net.launcher(), task(net, "n1", "n2"))
    assert ended.ended == "passed", ended
    assert [reading.node for reading in ended.readings] == ["n1", "n2"]
    assert all(reading.tool == "torch/gloo" and reading.bandwidth for reading in ended.readings)
    assert [answer.exit for answer in answers] == [0, 0]
    waiting.until(lambda: idle(net))


def test_worlds_of_a_round_run_at_once_and_under_uvloop(net: Network) -> None:
    launcher = net.launcher()
    given = [task(net, "n1", "n3"), task(net, "n2", "n4")]

    async def both() -> list[list[ProbeAnswer]]:
        return await asyncio.gather(*(launcher.run(each) for each in given))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answers = runner.run(both())
    assert [result(each, told, 1.0).ended for each, told in zip(given, answers, strict=True)] == ["passed", "passed"]


def test_a_cut_fabric_fails_the_world_and_both_nodes_are_heard(net: Network) -> None:
    net.cut("n2")
    ended = broken(net.launcher(), net, "n1", "n2")
    assert (ended.ended, ended.unreached) == ("failed", ())
    assert len(ended.readings) == 2


def test_two_good_nodes_that_cannot_reach_each_other_reach_all_others(net: Network) -> None:
    net.cut_between("n1", "n3")
    launcher = net.launcher()
    assert broken(launcher, net, "n1", "n3").ended == "failed"
    assert run(launcher, task(net, "n1", "n4"))[1].ended == "passed"


def bandwidth(ended: Result) -> float:
    """The bus bandwidth in GB/s that both nodes of a world had at least."""
    assert ended.ended == "passed", ended
    return min(reading.bandwidth[str(SIZES[-1])] for reading in ended.readings)


def test_a_node_that_loses_packets_is_much_slower_or_fails(net: Network) -> None:
    launcher = net.launcher()
    healthy = bandwidth(run(launcher, task(net, "n1", "n2"))[1])
    net.loss("n2", 8)
    ended = broken(launcher, net, "n1", "n2", seconds=12.0)
    assert ended.ended == "failed" or bandwidth(ended) < healthy / 4
    net.loss("n2", 60)
    assert broken(launcher, net, "n1", "n2").ended == "failed"


def test_a_node_with_a_slow_link_is_as_slow_as_that(net: Network) -> None:
    launcher = net.launcher()
    net.rate("n2", 50)
    assert bandwidth(run(launcher, task(net, "n1", "n2"))[1]) < 50e6 / 8 / 1e9 * 1.2
    net.rate("n2", 1)
    assert broken(launcher, net, "n1", "n2").ended == "failed"


# -- nodes that are not reached


def refused(launcher: SshLauncher, given: LaunchTask) -> str:
    """Why n2 was not reached; n1 was, and was not made to wait for it, which would be for an hour."""
    answers, ended = run(launcher, given)
    assert (answers[0].started, answers[0].launch_error) == (True, "")
    assert (answers[1].started, answers[1].exit) == (False, None)
    assert (ended.ended, ended.unreached) == ("void", ("n2",)), ended
    assert answers[1].launch_error in ended.why
    assert answers[1].launch_error.isprintable()
    return answers[1].launch_error


def other_hosts(net: Network, n2: str) -> list[str]:
    return [f"n1=root@{net.hosts['n1']}", f"n2={n2}"]


def test_a_node_whose_link_is_cut(net: Network) -> None:
    net.cut("n2", link=MANAGEMENT)
    told = refused(net.launcher(connect_seconds=2.0), task(net, "n1", "n2"))
    assert told == f"SSH to root@{net.hosts['n2']}:22: no answer within 2 s"
    waiting.until(lambda: not probes(net, "n1"))


def test_a_port_that_refuses(net: Network) -> None:
    hosts = other_hosts(net, f"root@{net.hosts['n2']}:23")
    assert refused(net.launcher(hosts=hosts), task(net, "n1", "n2")) == (
        f"SSH to root@{net.hosts['n2']}:23: Connection refused"
    )


def test_a_user_whose_key_is_wrong(net: Network) -> None:
    hosts = other_hosts(net, f"daemon@{net.hosts['n2']}")
    told = refused(net.launcher(hosts=hosts), task(net, "n1", "n2"))
    assert told == f"SSH to daemon@{net.hosts['n2']}:22: it rejected the available keys of this user"


def test_a_key_that_nobody_knows(net: Network, tmp_path: Path) -> None:
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "key")
    answers, ended = run(net.launcher(key=tmp_path / "key"), task(net, "n1", "n2"))
    assert (ended.ended, ended.unreached) == ("void", ("n1", "n2"))
    assert "rejected the available keys" in answers[0].launch_error


@pytest.mark.parametrize("known", ["unknown", "changed"])
def test_a_host_key_that_is_not_known(net: Network, tmp_path: Path, known: str) -> None:
    lines = net.known_hosts.read_text().splitlines()
    first = [line for line in lines if line.startswith(net.hosts["n1"] + " ")]
    if known == "changed":
        first.append(f"{net.hosts['n2']} {first[0].split(' ', 1)[1]}")
    (tmp_path / "known").write_text("\n".join(first) + "\n")
    told = refused(net.launcher(known_hosts=tmp_path / "known"), task(net, "n1", "n2"))
    assert told.endswith("its host key is not the one in known_hosts, or is not in it; check it and add it")


def test_host_keys_are_not_checked_when_told_so(net: Network, tmp_path: Path) -> None:
    (tmp_path / "known").write_text("")
    launcher = net.launcher(known_hosts=tmp_path / "known", check_host_keys=False)
    assert run(launcher, task(net, "n1", "n2", kind=shell(STARTED + "true")))[0][0].started


def test_no_known_hosts_file_in_the_configuration_trusts_nobody(net: Network) -> None:
    net_config = net.config.read_text().replace(str(net.known_hosts), "none")
    config = net.config.with_name("trusting")
    config.write_text(net_config)
    answers, _ = run(SshLauncher(config=config), task(net, "n1", "n2"))
    assert ["host key" in answer.launch_error for answer in answers] == [True, True]


def test_a_host_that_does_not_exist(net: Network) -> None:
    told = refused(net.launcher(hosts=other_hosts(net, "a" * 70)), task(net, "n1", "n2"))
    assert told.startswith(f"SSH to root@{'a' * 70}:22: ")


def test_a_server_that_hangs_up_and_one_that_talks_nonsense(net: Network) -> None:
    async def serve() -> tuple[str, str]:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.close()

        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-\x1b[31mred\r\n" + bytes(range(256)) * 100)

        told = []
        for serve in (hang_up, babble):
            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                launcher = net.launcher(hosts=other_hosts(net, f"root@127.0.0.1:{port}"), connect_seconds=1.5)
                told.append((await launcher.run(task(net, "n1", "n2")))[1])
        assert all(not answer.started and answer.launch_error.isprintable() for answer in told)
        return told[0].launch_error, told[1].launch_error

    hung_up, _ = asyncio.run(serve())
    assert hung_up.endswith(("Connection lost", "Connection reset by peer"))


def test_a_node_without_the_python_named(net: Network) -> None:
    given = task(net, "n1", "n2")
    given = given._replace(probe=given.probe._replace(python="python9"))
    answers, ended = run(net.launcher(), given)
    assert (ended.ended, ended.unreached) == ("void", ("n1", "n2"))
    assert "python9" in answers[0].launch_error and "status 127" in answers[0].launch_error


def test_a_connection_that_is_lost_is_no_failure_of_the_node(net: Network) -> None:
    launcher = net.launcher()

    async def lose() -> list[ProbeAnswer]:
        kind = shell(STARTED + "echo Welcome; sleep 3600")
        running = asyncio.create_task(launcher.run(task(net, "n1", "n2", kind=kind)))
        for name in ("n1", "n2"):
            await come(lambda name=name: [b"sleep", b"3600", b""] in processes(net, name).values())
        for pid, words in processes(net, "n2").items():
            if words[0].startswith(b"sshd: root"):  # that of the session, not that which listens
                os.kill(pid, signal.SIGKILL)
        return await running

    answers = asyncio.run(lose())
    assert (answers[1].started, answers[1].exit) == (False, None)
    assert answers[1].launch_error.startswith("the SSH connection was lost")
    assert (answers[0].started, answers[0].launch_error) == (True, "")
    for name in ("n1", "n2"):
        for pid, words in processes(net, name).items():
            if words[0] == b"sleep":
                os.kill(pid, signal.SIGKILL)


# -- ends


def test_a_probe_that_is_killed_fails_its_world(net: Network) -> None:
    launcher = net.launcher()

    async def kill(given: LaunchTask) -> list[ProbeAnswer]:
        running = asyncio.create_task(launcher.run(given))
        await come(lambda: len(probes(net, "n2")) > 1)
        os.kill(min(probes(net, "n2")), signal.SIGKILL)
        return await running

    def killed(seconds: float) -> Result:
        given = task(net, "n1", "n2", seconds=seconds)
        return result(given, asyncio.run(kill(given)), 1.0)

    ended = with_time_enough(killed, 10.0)
    assert (ended.ended, ended.unreached) == ("failed", ())
    assert ended.why.startswith("n2: killed")
    waiting.until(lambda: idle(net))


def test_a_probe_that_hangs_is_killed_at_the_deadline(net: Network) -> None:
    given = task(net, "n1", "n2")

    async def stop() -> list[ProbeAnswer]:
        running = asyncio.create_task(net.launcher().run(given))
        await come(lambda: len(probes(net, "n2")) > 1)
        for pid in probes(net, "n2"):
            os.kill(pid, signal.SIGSTOP)  # neither its time-out nor its lifeline ends it
        await come(lambda: len(probes(net, "n1")) > 1)
        pass_time(given.deadline)
        return await running

    answers = asyncio.run(stop())
    assert (answers[1].started, answers[1].exit, answers[1].output) == (True, None, b"")
    assert result(given, answers, 4.0).ended == "failed"
    waiting.until(lambda: idle(net))


def test_a_command_that_never_says_it_started_is_not_waited_for_beyond_the_deadline(net: Network) -> None:
    given = task(net, "n1", "n2", kind=shell("cat"))

    async def wait() -> list[ProbeAnswer]:
        running = asyncio.create_task(net.launcher().run(given))
        for name in ("n1", "n2"):
            await come(lambda name=name: [b"cat", b""] in processes(net, name).values())
        pass_time(given.deadline)
        return await running

    answers = asyncio.run(wait())
    ended = result(given, answers, 1.0)
    assert [answer.launch_error for answer in answers] == ["no sign of the probe before the deadline"] * 2
    assert ended.ended == "void"
    waiting.until(lambda: idle(net))


def test_a_cancelled_run_leaves_nothing_on_the_nodes(net: Network) -> None:
    async def cancel() -> None:
        running = asyncio.create_task(net.launcher().run(task(net, "n1", "n2")))
        await come(lambda: all(len(probes(net, name)) > 1 for name in ("n1", "n2")))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    waiting.until(lambda: idle(net))  # long before it would end by itself


def test_a_killed_client_leaves_nothing_on_the_nodes(net: Network) -> None:
    script = f"""
import asyncio, pathlib
from logdoctor.nodes.launch.ssh import SshLauncher
from logdoctor.nodes.launching import LaunchTask, ProbeOptions
from logdoctor.types.nodes import Node, World
nodes = tuple(Node(name, address) for name, address in {[(node.name, node.address) for node in net.nodes[:2]]})
launcher = SshLauncher({other_hosts(net, "root@" + net.hosts["n2"])},
    key=pathlib.Path("{net.key}"), known_hosts=pathlib.Path("{net.known_hosts}"))
asyncio.run(launcher.run(LaunchTask("t1", World(1, 1, ("n1", "n2"), ""), nodes, {next(PORTS)}, ProbeOptions({LONG}))))
"""
    client = subprocess.Popen([sys.executable, "-c", script])
    waiting.until(lambda: all(len(probes(net, name)) > 1 for name in ("n1", "n2")))
    client.kill()
    client.wait()
    waiting.until(lambda: idle(net))


def test_a_sweep_ends_the_orphans_of_a_test_and_no_others(net: Network) -> None:
    class Orphan(LaunchTask):
        """A probe that does not end with its connection."""

        def command(self, rank: Any, lifeline: bool) -> tuple[str, ...]:
            return super().command(rank, lifeline=False)

    async def leave(given: LaunchTask) -> None:
        running = asyncio.create_task(net.launcher().run(given))
        await come(lambda: all(len(probes(net, name, given.test)) > 1 for name in given.world.nodes))
        running.cancel()

    async def sweep() -> tuple[int, int]:
        launcher = net.launcher(connect_seconds=2.0)
        net.cut("n4", link=MANAGEMENT)  # one that cannot be reached does not keep the others from being swept
        return await launcher.sweep("t7"), await launcher.sweep("t7")

    net.cut_between("n1", "n2")  # so that they wait for each other
    net.cut_between("n3", "n4")
    asyncio.run(leave(task(net, "n1", "n2", test="t7", kind=Orphan)))
    asyncio.run(leave(task(net, "n3", "n4", test="t77", kind=Orphan)))
    assert probes(net, "n1", "t7") and probes(net, "n3", "t77")
    first, second = asyncio.run(sweep())
    assert first >= 2 and second == 0
    assert not probes(net, "n1", "t7") and not probes(net, "n2", "t7")
    assert probes(net, "n3", "t77")
    net.heal()
    assert asyncio.run(net.launcher().sweep("t77")) >= 1
    waiting.until(lambda: idle(net))


# -- what nodes print


def test_endless_output_is_cut_off(net: Network) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers, ended = run(
        net.launcher(), task(net, "n1", "n2", kind=shell(STARTED + "exec head -c 100000000000 /dev/zero"))
    )
    assert [len(answer.output) for answer in answers] == [OUTPUT_LIMIT] * 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB
    assert ended.ended == "void", "the answer may be in what was not kept"
    waiting.until(lambda: idle(net))


def test_endless_errors_instead_of_a_start_are_a_launch_failure(net: Network) -> None:
    answers, _ = run(net.launcher(), task(net, "n1", "n2", kind=shell("exec cat /dev/zero >&2")))
    assert answers[0].launch_error == "it printed more than 1 MiB instead of starting the probe"
    assert len(answers[0].errors) == OUTPUT_LIMIT


def test_what_a_node_says_cannot_harm_a_terminal(net: Network) -> None:
    script = r"printf '\033[2J\033]0;title\007\302\233red \377\000\n' >&2; exit 7"
    answers, ended = run(net.launcher(), task(net, "n1", "n2", kind=shell(script)))
    assert answers[0].launch_error.isprintable() and "status 7" in answers[0].launch_error
    assert ended.why.isprintable()


def test_login_messages_do_not_hide_the_answer(net: Network) -> None:
    given = task(net, "n1", "n2")
    words = [" ".join(map(asyncssh_quoted, given.command(rank, lifeline=True))) for rank in (0, 1)]

    class Greeting(LaunchTask):
        def command(self, rank: Any, lifeline: bool) -> tuple[str, ...]:
            return ("sh", "-c", f"echo Welcome to this node; {words[rank]}")

    answers, ended = run(net.launcher(), Greeting(*given))
    assert answers[0].output.startswith(b"Welcome")
    assert ended.ended == "passed", ended


def asyncssh_quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


# -- hosts


def test_hosts_of_an_ssh_configuration(net: Network) -> None:
    launcher = SshLauncher(config=net.config)
    nodes = asyncio.run(launcher.inventory(["n2", "n1"]))
    assert [(node.name, node.address) for node in nodes] == [(name, net.hosts[name]) for name in ("n2", "n1")]
    assert asyncio.run(net.launcher().inventory(["n4", "n1"])) == [net.nodes[3], net.nodes[0]]
    answers, _ = run(launcher, task(net, "n2", "n1", kind=shell(STARTED + "echo '{}'")))
    assert [answer.output for answer in answers] == [b"{}\n", b"{}\n"]


def test_hosts_behind_a_jump_host(net: Network) -> None:
    config = net.config.with_name("jumping")
    config.write_text(f"Host n2\n  ProxyJump n1\n{net.config.read_text()}")
    answers, _ = run(SshLauncher(config=config), task(net, "n2", "n3", kind=shell(STARTED + "echo $SSH_CLIENT")))
    assert answers[0].output.startswith(net.hosts["n1"].encode())
    waiting.until(lambda: idle(net))


@pytest.mark.parametrize("option", ["key", "config", "known_hosts"])
def test_files_that_are_missing(net: Network, tmp_path: Path, option: str) -> None:
    with pytest.raises(LaunchError, match="cannot be read"):
        run(net.launcher(**{option: tmp_path / "missing"}), task(net, "n1", "n2"))


def test_many_connections_at_once(net: Network, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(96)]
    addresses = list(net.hosts.values())
    hosts = [f"{name}=root@{addresses[number % 4]}" for number, name in enumerate(names)]
    come_in = f"touch {tmp_path}/$(cat /proc/sys/kernel/random/uuid)"
    kind = shell(f"{come_in}; {STARTED} until [ -e {tmp_path}/all ]; do sleep 0.5; done; echo '{{}}'")
    given = kind("t1", World(1, 1, tuple(names), ""), tuple(map(Node, names)), 1, ProbeOptions(LONG))

    async def meet() -> list[ProbeAnswer]:
        running = asyncio.create_task(net.launcher(hosts=hosts).run(given))
        await come(lambda: len(list(tmp_path.iterdir())) == 96)
        (tmp_path / "all").touch()
        return await running

    answers = asyncio.run(meet())
    assert [answer.output for answer in answers] == [b"{}\n"] * 96, [a for a in answers if not a.started][:3]
