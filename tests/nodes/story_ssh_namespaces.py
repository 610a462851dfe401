"""Nodes that are network namespaces: faults are of the links named, and what a killed run left is ended by the next."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import namespaces as module
from tests.nodes.namespaces import Network, namespaces


def runs(pid: str) -> bool:
    """Whether a process is there, and is not a zombie that nobody has waited for yet."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


_REACH = """
import select, socket, sys
calls = {}
for address in sys.argv[1:]:
    call = socket.socket()
    call.setblocking(False)
    call.connect_ex((address, 9))
    calls[call] = address
waiting = set(calls)
while waiting:
    done = select.select([], list(waiting), [], 0.3)[1]
    for call in done:
        if call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 111:
            print(calls[call])
    waiting -= set(done)
    if not done:
        break
"""


def reached(net: Network, name: str, *addresses: str) -> set[str]:
    """The addresses from which a node gets an answer, which is that nothing listens there."""
    return set(net.run(name, sys.executable, "-c", _REACH, *addresses).split())


def test_what_a_killed_run_left_is_ended_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = f"logdoctor test {os.getpid()}"  # so that other tests that begin meanwhile do not end it
    monkeypatch.setattr(module, "_OWNER", owner)
    script = (
        "import os, signal\nfrom tests.nodes import namespaces as module\n"
        f"module._OWNER = {owner!r}\n"
        "with module.namespaces(nodes=2) as net:\n    print(net.bridge, *net.pids('n1'), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    bridge, *pids = done.stdout.split()
    assert Path("/sys/class/net", bridge).exists() and pids
    with namespaces(nodes=1):
        pass
    assert not Path("/sys/class/net", bridge).exists()
    assert not list(Path("/run/netns").glob(f"{bridge}-*"))
    assert not any(runs(pid) for pid in pids)


def test_faults_are_of_the_links_named_and_heal() -> None:
    with namespaces(nodes=4, groups=2) as net:
        of = {node.address: node.name for node in net.nodes}

        def parted() -> set[tuple[str, str]]:
            found = {(one, of[address]) for one in of.values() for address in set(of) - reached(net, one, *of)}
            assert found == {(other, one) for one, other in found}
            return {(one, other) for one, other in found if one < other}

        assert parted() == set()
        net.cut_between("n1", "n3")
        assert parted() == {("n1", "n3")}
        net.cut("n4")
        assert parted() == {("n1", "n3"), ("n1", "n4"), ("n2", "n4"), ("n3", "n4")}
        net.heal()
        assert parted() == set()
        net.cut_trunk()
        assert parted() == {("n1", "n3"), ("n1", "n4"), ("n2", "n3"), ("n2", "n4")}
        net.heal()
        net.loss("n2", 100)
        assert parted() == {("n1", "n2"), ("n2", "n3"), ("n2", "n4")}
        net.heal()
        assert parted() == set()
