"""Nodes that are network namespaces: they do not meet those of others, and nothing is left of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nodes import namespaces as module
from tests.nodes.namespaces import NamespaceError, Network, namespaces


def left_of(net: Network) -> list[str]:
    """What there still is of the bridges and namespaces of a network."""
    names = [path.name for folder in ("/sys/class/net", "/run/netns") for path in Path(folder).iterdir()]
    prefix = net.bridge
    return [name for name in names if name == prefix or name.startswith((f"{prefix}-", f"{prefix}m"))]


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


def test_two_networks_at_once_do_not_meet_and_leave_nothing() -> None:
    with namespaces(nodes=1) as one, namespaces(nodes=3, groups=2) as other:
        assert {node.address for node in one.nodes}.isdisjoint(node.address for node in other.nodes)
        assert [node.group for node in other.nodes] == ["switch1", "switch1", "switch2"]
        assert [node.group for node in one.nodes] == [""]
        assert reached(one, "n1", one.nodes[0].address, other.nodes[0].address) == {one.nodes[0].address}
        assert left_of(one) and left_of(other)
    assert not left_of(one) and not left_of(other)


def test_nothing_is_left_when_a_test_fails() -> None:
    with pytest.raises(ZeroDivisionError), namespaces(nodes=2) as net:
        net.loss("n1", 1)
        raise ZeroDivisionError
    assert not left_of(net)
    assert all(member.server.poll() is not None for member in net._of.values())


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


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_SBIN", str(tmp_path))
    with pytest.raises(NamespaceError, match="apt-get install openssh-server iproute2"), namespaces():
        pass
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NamespaceError, match="need root"), namespaces():
        pass
