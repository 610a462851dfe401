"""Nodes that are network namespaces of this machine: each with its own address, its own OpenSSH server and its own
processes, in groups on switches of their own, and faults of their links that can be made and healed.

    with namespaces(nodes=6, groups=2) as net:
        net.cut_between("n1", "n4")
        conclusion = conduct(net.launcher(), net.nodes, ...)

Every node has two links, as nodes of a cluster do: `management`, over which SSH comes, and `fabric`, over which the
nodes talk to each other. The faults are of the fabric unless said otherwise, so that a faulty fabric is found and not
hidden behind an SSH connection that fails.

It needs root, and Debian's openssh-server and iproute2; the addresses are of 198.18.0.0/15 (RFC 2544), which no real
network has. Runs at the same time do not meet: each takes a number, and the kernel lets one bridge have its name.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import asyncssh

from logdoctor.nodes.launch.ssh import SshLauncher
from logdoctor.types.nodes import Node
from tests import waiting

MANAGEMENT, FABRIC = "management", "fabric"
_FIRST = 11
"""The last number of the first node's addresses; .1 is this machine's."""
_SBIN = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_OWNER = "logdoctor tests"
_TC_OK, _TC_SHOT = 0, 2
_RANDOM = 0xFFFFF000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM: where a classic BPF program reads a random number."""


class NamespaceError(RuntimeError):
    """The nodes cannot be made on this machine, or a fault not in this kernel."""


class _Node(NamedTuple):
    node: Node
    host: str
    netns: str
    server: subprocess.Popen[bytes]


class _Port(NamedTuple):
    """An end of a link: the name of a device in a namespace ("" is this machine's own)."""

    netns: str
    device: str


class _Shape(NamedTuple):
    """What a link does to the packets that cross it."""

    loss: float = 0.0
    delay: float = 0.0
    rate: float = 0.0


class Network:
    """Nodes, and the faults that they can be given; made by `namespaces`.

    `nodes` are as a launcher's inventory gives them, with the address of the fabric and the switch as group; `hosts`
    maps their names to their SSH servers' addresses. `key`, `known_hosts` and `config` are files for SSH clients.
    `bridge` is this machine's link to all of them.
    """

    def __init__(self, number: int, folder: Path, groups: int, megabits: float) -> None:
        self.nodes: list[Node] = []
        self.hosts: dict[str, str] = {}
        self.key, self.known_hosts, self.config = folder / "key", folder / "known_hosts", folder / "config"
        self.bridge = _bridge(number)
        self._number, self._folder, self._groups = number, folder, groups
        self._of: dict[str, _Node] = {}
        self._usual = {FABRIC: _Shape(rate=megabits), MANAGEMENT: _Shape()}
        self._shapes: dict[tuple[str, str], _Shape] = {}
        self._refused: dict[str, set[str]] = {}
        self._cut: set[_Port] = set()
        self._netem: bool | None = None

    # -- for tests

    def launcher(self, **options: Any) -> SshLauncher:
        """A launcher of probes on these nodes; `options` of `SshLauncher` replace what fits these nodes."""
        fitting: dict[str, Any] = {
            "hosts": [f"{name}=root@{host}" for name, host in self.hosts.items()],
            "nodes": self.nodes,
            "key": self.key,
            "known_hosts": self.known_hosts,
        }
        return SshLauncher(**(fitting | options))

    def loss(self, name: str, percent: float, link: str = FABRIC) -> None:
        """So many percent of the packets to and from a node get lost."""
        self._reshape(name, link, loss=percent)

    def delay(self, name: str, milliseconds: float, link: str = FABRIC) -> None:
        """Packets to and from a node come later; `NamespaceError` when the kernel has no netem."""
        if not self._has_netem():
            raise NamespaceError("this kernel has no netem, and nothing else delays packets")
        self._reshape(name, link, delay=milliseconds)

    def rate(self, name: str, megabits: float, link: str = FABRIC) -> None:
        """No more than so many Mbit/s go to a node, and from it."""
        self._reshape(name, link, rate=megabits)

    def cut(self, name: str, link: str = FABRIC) -> None:
        """The cable of a node is pulled; with `link=MANAGEMENT`, SSH does not reach it any more."""
        self._down(self._ports(name, link)[1])

    def cut_between(self, one: str, other: str) -> None:
        """Two nodes do not reach each other, and all others reach both: the switch drops what the one sends the
        other."""
        self._refused.setdefault(one, set()).add(self._node(other).address)
        self._refused.setdefault(other, set()).add(self._node(one).address)
        for name in (one, other):
            self._apply(name, FABRIC)

    def cut_trunk(self) -> None:
        """The switches are parted: no node reaches one of another group."""
        for group in range(1, self._groups):
            self._down(_Port(self._switches, f"trunk{group}"))

    def heal(self) -> None:
        """All faults of links are undone."""
        touched = {(name, FABRIC) for name in self._refused} | set(self._shapes)
        self._shapes.clear()
        self._refused.clear()
        for name, link in sorted(touched):
            self._apply(name, link)
        for port in self._cut:
            _ip(port.netns, [f"link set {port.device} up"])
        self._cut.clear()
        for member in self._of.values():  # what they learned of addresses while the fault lasted
            _ip(member.netns, ["neigh flush all", "tcp_metrics flush all"])

    def pids(self, name: str) -> list[int]:
        """The processes on a node, its SSH server's included, as this machine numbers them."""
        return _pids(self._of[name].netns)

    def run(self, name: str, *command: str) -> str:
        """What a command prints that is run on a node; `CalledProcessError` when it fails."""
        return _output("ip", "netns", "exec", self._of[name].netns, *command)

    # -- making and ending

    @property
    def _switches(self) -> str:
        return f"{self.bridge}-switches"

    def add(self, names: Sequence[str]) -> None:
        """Nodes of these names are made; their SSH servers answer."""
        subprocess.run([_tool("ip"), "netns", "add", self._switches], check=True)
        switch = ["link set lo up"]
        for group in range(self._groups):
            switch += [f"link add group{group} type bridge", f"link set group{group} up"]
        for group in range(1, self._groups):  # in a star around the first
            switch += [
                f"link add trunk{group} type veth peer name up{group}",
                f"link set trunk{group} master group{group} up",
                f"link set up{group} master group0 up",
            ]
        _ip(self._switches, switch)
        key = asyncssh.generate_private_key("ssh-ed25519")
        key.write_private_key(self.key)
        self.key.chmod(0o600)
        key.write_public_key(self._folder / "authorized_keys")
        for index, name in enumerate(names):
            self._add_node(index, name, index * self._groups // len(names))
        self._write_client_files()
        for name in names if self._usual[FABRIC].rate else ():
            self._apply(name, FABRIC)
        for member in self._of.values():
            self._await_server(member)

    def _add_node(self, index: int, name: str, group: int) -> None:
        netns, port = f"{self.bridge}-{name}", f"{self.bridge}m{index}"
        host, address = f"198.18.{self._number}.{_FIRST + index}", f"198.19.{self._number}.{_FIRST + index}"
        subprocess.run([_tool("ip"), "netns", "add", netns], check=True)
        _ip(
            "",
            [
                f"link add {port} type veth peer name management netns {netns}",
                f"link set {port} master {self.bridge} up",
            ],
        )
        _ip(self._switches, [f"link add port{index} type veth peer name fabric netns {netns}"])
        _ip(self._switches, [f"link set port{index} master group{group} up"])
        _ip(
            netns,
            [
                "link set lo up",
                f"address add {host}/24 dev management",
                f"address add {address}/24 dev fabric",
                "link set management up",
                "link set fabric up",
            ],
        )
        self.nodes.append(Node(name, address, f"switch{group + 1}" if self._groups > 1 else ""))
        self.hosts[name] = host
        self._of[name] = _Node(self.nodes[-1], host, netns, self._serve(name, netns, host))

    def _serve(self, name: str, netns: str, host: str) -> subprocess.Popen[bytes]:
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(self._folder / f"{name}.key")
        (self._folder / f"{name}.key").chmod(0o600)
        config = self._folder / f"{name}.sshd"
        config.write_text(
            f"ListenAddress {host}\nHostKey {self._folder}/{name}.key\nPidFile none\n"
            f"AuthorizedKeysFile {self._folder}/authorized_keys\nStrictModes no\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nUseDNS no\nPrintMotd no\n"
            f"MaxStartups 200\nSetEnv HOME={self._folder} PATH={Path(sys.executable).parent}:/usr/bin:/bin\n"
        )
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(  # own processes as well: a node sees its own alone, and all end with the server
                [
                    *(_tool("ip"), "netns", "exec", netns),
                    *(_tool("unshare"), "--pid", "--fork", "--mount-proc", "--kill-child"),
                    *(_tool("sshd"), "-D", "-e", "-f", str(config)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _write_client_files(self) -> None:
        keys = {name: asyncssh.read_private_key(self._folder / f"{name}.key") for name in self._of}
        self.known_hosts.write_text(
            "".join(f"{self.hosts[name]} {key.export_public_key().decode()}" for name, key in keys.items())
        )
        self.config.write_text(
            "".join(f"Host {name}\n  HostName {host}\n" for name, host in self.hosts.items())
            + f"Host *\n  User root\n  IdentityFile {self.key}\n  UserKnownHostsFile {self.known_hosts}\n"
        )

    def _await_server(self, member: _Node) -> None:
        def answers() -> bool:
            try:
                socket.create_connection((member.host, 22), timeout=1).close()
                return True
            except OSError as error:
                if member.server.poll() is not None:
                    log = (self._folder / f"{member.node.name}.log").read_text(errors="replace")[-2000:]
                    raise NamespaceError(f"sshd of {member.node.name} ended ({error}): {log}") from error
            return False

        waiting.until(answers, f"sshd of {member.node.name} answers")

    def reap(self) -> None:
        """The servers that `_end` killed are waited for."""
        for member in self._of.values():
            member.server.kill()
            member.server.wait()

    # -- faults

    def _node(self, name: str) -> Node:
        return self._of[name].node

    def _ports(self, name: str, link: str) -> tuple[_Port, _Port]:
        """Both ends of a node's link: its own, and the switch's."""
        index = self.nodes.index(self._node(name))
        if link == MANAGEMENT:
            return _Port(self._of[name].netns, MANAGEMENT), _Port("", f"{self.bridge}m{index}")
        return _Port(self._of[name].netns, FABRIC), _Port(self._switches, f"port{index}")

    def _down(self, port: _Port) -> None:
        self._cut.add(port)
        _ip(port.netns, [f"link set {port.device} down"])

    def _reshape(self, name: str, link: str, **changes: float) -> None:
        self._shapes[name, link] = self._shapes.get((name, link), self._usual[link])._replace(**changes)
        self._apply(name, link)

    def _apply(self, name: str, link: str) -> None:
        """Both ends of a link do what its shape says to what they send; the switch also drops what is refused."""
        shape = self._shapes.get((name, link), self._usual[link])
        refused = self._refused.get(name, set()) if link == FABRIC else set()
        for port, dropped in zip(self._ports(name, link), (set[str](), refused), strict=True):
            # each packet by itself: without this a "packet" of a virtual link is up to 64 kB
            _ip(port.netns, [f"link set {port.device} gso_max_segs {1 if any(shape) else 65535}"])
            _tc(port, "qdisc", "del", "root", check=False)
            _tc(port, "qdisc", "del", "clsact", check=False)
            loss = shape.loss
            if any(shape) and self._has_netem():
                loss = 0.0
                _tc(port, "qdisc", "add", "root", *_netem(shape))
            elif shape.rate:
                burst = max(4000, round(shape.rate * 500))  # bytes; what it lets through in 4 ms
                _tc(port, "qdisc", "add", "root", *f"tbf rate {shape.rate}mbit burst {burst} latency 200ms".split())
            if loss or dropped:
                _tc(port, "qdisc", "add", "clsact")
                program = _dropping(loss, dropped)
                _tc(port, "filter", "add", "egress", "protocol", "all", "bpf", "da", "bytecode", program)

    def _has_netem(self) -> bool:
        """Whether the kernel has netem; small kernels of virtual machines do without."""
        if self._netem is None:
            port = _Port(self._switches, "lo")
            self._netem = _tc(port, "qdisc", "add", "root", "netem", "loss", "1%", check=False)
            _tc(port, "qdisc", "del", "root", check=False)
        return self._netem


def _netem(shape: _Shape) -> list[str]:
    words = ["netem", "limit", "10000"]
    words += ["loss", f"{shape.loss}%"] if shape.loss else []
    words += ["delay", f"{shape.delay}ms"] if shape.delay else []
    return words + (["rate", f"{shape.rate}mbit"] if shape.rate else [])


def _dropping(loss: float, senders: set[str]) -> str:
    """A classic BPF program, as tc takes it, that drops so many percent of all packets, and all IPv4 packets of some
    senders."""
    lines: list[tuple[int, int, int, int]] = []
    if loss:
        lines += [
            (0x20, 0, 0, _RANDOM),  # A = a random number
            (0x35, 1, 0, min(int(loss / 100 * 2**32), 2**32 - 1)),  # pass when A is as large as this
            (0x06, 0, 0, _TC_SHOT),
        ]
    if senders:
        lines += [(0x28, 0, 0, 12), (0x15, 0, 1 + 2 * len(senders), 0x0800), (0x20, 0, 0, 26)]  # A = IPv4 sender
        for sender in sorted(senders):
            lines += [(0x15, 0, 1, int.from_bytes(socket.inet_aton(sender), "big")), (0x06, 0, 0, _TC_SHOT)]
    lines.append((0x06, 0, 0, _TC_OK))
    return f"{len(lines)}," + ",".join(" ".join(map(str, line)) for line in lines)


@contextmanager
def namespaces(nodes: int = 2, groups: int = 1, megabits: float = 0.0) -> Iterator[Network]:
    """Nodes n1, n2, ..., spread over groups as evenly as can be, with SSH servers that answer; all is gone afterwards.

    With `megabits` every fabric link has so many Mbit/s, so that it and not the load of this machine decides how fast
    healthy nodes are. `NamespaceError` says what is missing on this machine.
    """
    _check()
    _sweep_dead()
    with ExitStack() as stack:
        number = _take_number()
        stack.callback(_end, number)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="logdoctor-nodes-")))
        network = Network(number, folder, groups, megabits)
        stack.callback(network.reap)
        network.add([f"n{index + 1}" for index in range(nodes)])
        yield network


def _bridge(number: int | str = "") -> str:
    """The name of the bridge of a number; those of all that belongs to it begin so."""
    return f"lds{number}"


def _check() -> None:
    if os.geteuid() != 0:
        raise NamespaceError("nodes as network namespaces need root: run the tests as root")
    for tool in ("ip", "tc", "sshd", "unshare"):
        _tool(tool)
    os.makedirs(
        "/run/sshd", mode=0o755, exist_ok=True
    )  # sshd parts with its rights there, and refuses to start without


def _tool(name: str) -> str:
    path = shutil.which(name, path=_SBIN)
    if path is None:
        raise NamespaceError(f"{name} is missing: apt-get install openssh-server iproute2 util-linux")
    return path


def _take_number() -> int:
    """A number that no other run has: the bridge of this name is ours now."""
    for offset in range(254):
        number = (os.getpid() + offset) % 254 + 1
        bridge = _bridge(number)
        if subprocess.run([_tool("ip"), "link", "add", bridge, "type", "bridge"], capture_output=True).returncode == 0:
            alias = f"{_OWNER} {os.getpid()} {_started(os.getpid())}"
            subprocess.run([_tool("ip"), "link", "set", bridge, "alias", alias], check=True)
            _ip("", [f"address add 198.18.{number}.1/24 dev {bridge}", f"link set {bridge} up"])
            return number
    raise NamespaceError("no bridge can be made for the nodes: this machine allows no network namespaces")


def _sweep_dead() -> None:
    """What a run left that was killed is ended."""
    for link in json.loads(_output("ip", "-json", "link", "show", "type", "bridge") or "[]"):
        words = str(link.get("ifalias", "")).removeprefix(_OWNER).split()
        if str(link.get("ifalias", "")).startswith(_OWNER) and len(words) == 2 and _started(int(words[0])) != words[1]:
            _end(int(str(link["ifname"]).removeprefix(_bridge())))


def _started(pid: int) -> str:
    """When a process began, in ticks since the machine did; "" when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def _end(number: int) -> None:
    """All processes, namespaces and links of a number are ended; what is gone already is no failure."""
    names = [path.name for path in Path("/run/netns").glob(f"{_bridge(number)}-*")]
    for name in names:
        for pid in _pids(name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    for name in names:
        subprocess.run([_tool("ip"), "netns", "delete", name], capture_output=True)
    for link in json.loads(_output("ip", "-json", "link", "show", "master", _bridge(number), check=False) or "[]"):
        subprocess.run([_tool("ip"), "link", "delete", str(link["ifname"])], capture_output=True)
    subprocess.run([_tool("ip"), "link", "delete", _bridge(number)], capture_output=True)


def _pids(netns: str) -> list[int]:
    return [int(word) for word in _output("ip", "netns", "pids", netns, check=False).split()]


def _ip(netns: str, lines: Sequence[str]) -> None:
    """Commands of ip, run in a namespace."""
    where = ["-netns", netns] if netns else []
    done = subprocess.run(
        [_tool("ip"), *where, "-batch", "-"], input="\n".join(lines), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise NamespaceError(f"ip ({netns or 'this machine'}) failed: {done.stderr.strip()[:500]}")


def _tc(port: _Port, kind: str, verb: str, *words: str, check: bool = True) -> bool:
    """A command of tc for a device; whether it did it."""
    where = ["-netns", port.netns] if port.netns else []
    done = subprocess.run(
        [_tool("tc"), *where, kind, verb, "dev", port.device, *words], text=True, capture_output=True, check=False
    )
    if check and done.returncode:
        raise NamespaceError(f"tc {kind} {verb} {' '.join(words)} failed: {done.stderr.strip()[:500]}")
    return done.returncode == 0


def _output(*command: str, check: bool = True) -> str:
    return subprocess.run([_tool(command[0]), *command[1:]], text=True, capture_output=True, check=check).stdout
