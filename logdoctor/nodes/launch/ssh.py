"""Nodes reached over SSH: for clusters that no scheduler starts processes on."""

import asyncio
import os
import re
import shlex
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import asyncssh

from logdoctor.errors import LaunchError
from logdoctor.node_types import Node, checked_name
from logdoctor.nodes.launching import OUTPUT_LIMIT, STARTED, LaunchTask, ProbeAnswer, answered
from logdoctor.text import decode, harmless

_AT_ONCE = 64
"""Handshakes at the same time: each costs this process some 10 ms, and a jump host refuses more than it was set to."""
_ALIVE_SECONDS = 5.0
_MISSED = 3
"""A connection is lost when it gave no sign of life for so many times `_ALIVE_SECONDS`."""
_PAUSES = (0.5, 1.5)
"""Seconds before each new try when a server hangs up before it let us in: it does so when too many come at once."""
_SWEEP_SECONDS = 20.0
_FORCE_SECONDS = 3.0
_WIDTH = 300
_KNOWN_HOSTS = (Path("~/.ssh/known_hosts"), Path("/etc/ssh/ssh_known_hosts"))
_HOST = re.compile(
    r"(?:(?P<name>[^=@\[\]]+)=)?(?:(?P<user>[^-@=\s][^@=\s]*)@)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^-:@=\[\]\s][^:@=\[\]\s]*))(?::(?P<port>\d{1,5}))?"
)
_KILL = """
import os, signal, sys
marker, wanted = sys.argv[1].encode(), [word.encode() for word in sys.argv[2:]]
ended = 0
for entry in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open("/proc/" + entry + "/cmdline", "rb").read().split(b"\\0")
        pairs = list(zip(words[3:], words[4:]))
        if marker in b"".join(words[2:3]) and all(pair in pairs for pair in zip(wanted[::2], wanted[1::2])):
            os.kill(int(entry), signal.SIGKILL)
            ended += 1
    except OSError:
        pass
print(ended)
"""
"""Run on a node, kills the processes whose arguments are those of a probe of a test, and prints how many."""


class _SshTarget(NamedTuple):
    """Where the SSH server of a node is; what is None is as the SSH configuration has it."""

    host: str
    user: str | None = None
    port: int | None = None


class _NotReached(Exception):
    """A node cannot be reached over SSH, for this reason."""


class _SshOutput(asyncssh.SSHClientSession[bytes]):
    """What a command on a node printed so far, and how it ended; no more than `OUTPUT_LIMIT` of it is kept."""

    def __init__(self) -> None:
        self.output, self.errors = bytearray(), bytearray()
        self.flooded = False
        self.lost: Exception | None = None
        self.started, self.ended = asyncio.Event(), asyncio.Event()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        kept = self.errors if datatype == asyncssh.EXTENDED_DATA_STDERR else self.output
        room = OUTPUT_LIMIT - len(kept)
        kept += data[:room]
        if len(data) > room:
            self.flooded = True
            self.ended.set()
        if not self.started.is_set() and STARTED in self.errors:
            self.started.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        self.ended.set()


class SshLauncher:
    """Starts probes over SSH.

    `hosts` are the nodes, each as `[NAME=][USER@]HOST[:PORT]`; without them every name asked for is taken for a host.
    `nodes` say of some where their peers reach them, if it is not there, and in what group they are.
    `user`, `port` and `key` hold for all of them that do not say otherwise; what nobody says is taken from the SSH
    configuration, `~/.ssh/config` when no file is named, and from the agent. Nothing asks for a password. A node whose
    host key is not in `known_hosts` (without it, those of the user and of the machine) is not reached, unless
    `check_host_keys` is off. A node has `connect_seconds` to let us in. `python` is what runs on nodes to kill probes
    that hang. `LaunchError` for a host that cannot be read and for one named twice.
    """

    name = "ssh"

    def __init__(
        self,
        hosts: Sequence[str] = (),
        *,
        nodes: Sequence[Node] = (),
        user: str | None = None,
        port: int | None = None,
        key: Path | None = None,
        config: Path | None = None,
        known_hosts: Path | None = None,
        check_host_keys: bool = True,
        connect_seconds: float = 10.0,
        python: str = "python3",
    ) -> None:
        self._targets: dict[str, _SshTarget] = {}
        for host in hosts:
            name, target = _read_host(host)
            if name in self._targets:
                raise LaunchError(f"SSH host {name}", "it is named twice", "Name each node once.")
            self._targets[name] = target
        self._listed = bool(hosts)
        self._nodes = {node.name: node for node in nodes}
        self._user, self._port, self._key = user, port, key
        self._config_files = [str(config)] if config else ()  # the latter is the user's
        self._known_hosts, self._check_host_keys, self._python = known_hosts, check_host_keys, python
        self._trusted: dict[tuple[tuple[str, float], ...], asyncssh.SSHKnownHosts] = {}
        self._connect_seconds = connect_seconds
        self._door = asyncio.Semaphore(_AT_ONCE)

    async def inventory(self, names: Sequence[str]) -> list[Node]:
        """The nodes of these names, in their order; all hosts given when there are none. A node's address is the host
        name that the SSH configuration has for it, unless `nodes` says more. `LaunchError` for names that are not
        among the hosts given, and when neither names nor hosts are."""
        if not names and not self._listed:
            raise LaunchError("SSH", "it has no node list of its own", "Name the nodes, or give their hosts.")
        wanted = tuple(names) or tuple(self._targets)
        hosts = [(await self._options(name)).host for name in wanted]
        return [self._nodes.get(name) or Node(name, host) for name, host in zip(wanted, hosts, strict=True)]

    async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
        """One answer for each node, in the order of ranks. As soon as one node is found not to start, the others are
        ended as well, since they would wait for it in vain. A node whose SSH connection gets lost was not reached."""
        options = [await self._options(node.name) for node in task.nodes]
        in_vain = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(self._run_node(task, rank, each, in_vain)) for rank, each in enumerate(options)]
        return [run.result() for run in runs]

    async def sweep(self, test: str) -> int:
        """Ends the probes of a test that an earlier process left on the nodes known, as far as they can be reached;
        how many processes."""
        async with asyncio.TaskGroup() as group:
            sweeps = [group.create_task(self._sweep_node(name, test)) for name in self._targets]
        return sum(each.result() for each in sweeps)

    async def close(self) -> None:
        """There is nothing to let go of: each world has connections of its own."""

    async def _run_node(
        self, task: LaunchTask, rank: int, options: asyncssh.SSHClientConnectionOptions, in_vain: asyncio.Event
    ) -> ProbeAnswer:
        name, heard, status = task.nodes[rank].name, _SshOutput(), None
        end = asyncio.get_running_loop().time() + task.deadline
        try:
            async with asyncio.timeout_at(end + _FORCE_SECONDS), self._connection(options) as connection:
                # `exec`, so that no shell stands between the SSH server and the probe
                command = f"exec {shlex.join(task.command(rank, lifeline=True))}"
                channel = await _start(connection, command, heard)
                try:
                    async with asyncio.timeout_at(end):
                        await _first(heard.ended.wait(), _both(in_vain, heard.started))
                    status = channel.get_returncode()
                    trouble = _trouble(heard, status)
                except TimeoutError:  # past its own time-out: its supervisor hangs, and does not see its lifeline
                    trouble = _unless_started(heard)
                    with suppress(_NotReached):
                        await self._kill(connection, task.test, str(task.world.number))
        except _NotReached as error:
            trouble = str(error)
        except TimeoutError:
            trouble = _unless_started(heard)
        if trouble:
            in_vain.set()
        return ProbeAnswer(name, not trouble, bytes(heard.output), bytes(heard.errors), status, trouble)

    async def _sweep_node(self, name: str, test: str) -> int:
        try:
            async with asyncio.timeout(_SWEEP_SECONDS), self._connection(await self._options(name)) as connection:
                return await self._kill(connection, test)
        except (_NotReached, TimeoutError, LaunchError):
            return 0

    async def _kill(self, connection: asyncssh.SSHClientConnection, test: str, world: str = "") -> int:
        """Kills the probes of a test on a node, or those of one world of it; how many processes."""
        heard = _SshOutput()
        words = (self._python, "-c", _KILL, decode(STARTED), "--test", test, *(("--world", world) if world else ()))
        await _start(connection, shlex.join(words), heard)
        await heard.ended.wait()
        count = heard.output[:20].strip()
        return int(count) if count.isdigit() else 0

    @asynccontextmanager
    async def _connection(
        self, options: asyncssh.SSHClientConnectionOptions
    ) -> AsyncIterator[asyncssh.SSHClientConnection]:
        """A connection to a node's server; when its context ends, all that runs over it loses its standard input."""
        connection = await self._connect(options)
        try:
            yield connection
        finally:
            connection.abort()

    async def _connect(self, options: asyncssh.SSHClientConnectionOptions) -> asyncssh.SSHClientConnection:
        """A connection that was let in; `_NotReached` says why there is none."""
        where = f"SSH to {options.username}@{options.host}:{options.port}"
        for pause in (*_PAUSES, None):
            try:
                async with self._door, asyncio.timeout(self._connect_seconds):
                    return await asyncssh.connect(options.orig_host, options=options, config=self._config_files)
            except TimeoutError:
                raise _NotReached(f"{where}: no answer within {self._connect_seconds:g} s") from None
            except (asyncssh.ConnectionLost, ConnectionResetError) as error:
                if pause is None:
                    raise _NotReached(f"{where}: {_words(error)}") from error
                await asyncio.sleep(pause)
            except asyncssh.HostKeyNotVerifiable as error:
                raise _NotReached(
                    f"{where}: its host key is not the one in known_hosts, or is not in it; check it and add it"
                ) from error
            except asyncssh.PermissionDenied as error:
                raise _NotReached(f"{where}: it rejected the available keys of this user") from error
            except (asyncssh.Error, OSError, ValueError) as error:
                raise _NotReached(f"{where}: {_words(error)}") from error
        raise AssertionError("the last try returns or raises")

    async def _options(self, name: str) -> asyncssh.SSHClientConnectionOptions:
        """How the SSH server of a node is reached; `LaunchError` when configuration or keys cannot be read."""
        if self._listed and name not in self._targets:
            raise LaunchError(f"node {name[:80]!r}", "is not among the given SSH hosts", "Check the name.")
        target = self._targets.setdefault(checked_name(name), _SshTarget(name))
        try:
            return await asyncio.to_thread(self._read_options, target)
        except (asyncssh.Error, OSError, ValueError) as error:
            raise LaunchError(
                "SSH", f"its configuration or keys cannot be read: {_words(error)}", "Check the files named for it."
            ) from error

    def _read_options(self, target: _SshTarget) -> asyncssh.SSHClientConnectionOptions:
        user, port = target.user or self._user, target.port or self._port
        options = asyncssh.SSHClientConnectionOptions(
            host=target.host,
            username=user if user is not None else (),
            port=port if port is not None else (),
            client_keys=[str(self._key)] if self._key else (),
            config=self._config_files,
            keepalive_interval=_ALIVE_SECONDS,
            keepalive_count_max=_MISSED,
            agent_forwarding=False,
        )
        options.update(known_hosts=self._hosts_to_trust(options))
        return options

    def _hosts_to_trust(self, options: asyncssh.SSHClientConnectionOptions) -> asyncssh.SSHKnownHosts | None:
        """The host keys that are known; None: any will do. A file is read once, not again for each of many nodes."""
        if not self._check_host_keys:
            return None
        if self._known_hosts:
            files = [self._known_hosts]
        else:
            named = options.known_hosts  # None is `UserKnownHostsFile none`: to OpenSSH, that none is known
            files = [Path(each) for each in named] if isinstance(named, list) else []
            files = [] if named is None else files or list(_KNOWN_HOSTS)
            files = [file.expanduser() for file in files if file.expanduser().is_file()]
        version = tuple((str(file), file.stat().st_mtime) for file in files)
        trusted = self._trusted.get(version) or asyncssh.read_known_hosts([path for path, _ in version])
        self._trusted = {version: trusted}
        return trusted


async def _start(
    connection: asyncssh.SSHClientConnection, command: str, heard: _SshOutput
) -> asyncssh.SSHClientChannel[bytes]:
    """Starts a command on a node, without a terminal; `_NotReached` when its server does not."""
    try:
        channel, _ = await connection.create_session(
            lambda: heard, command, encoding=None, request_pty=False, x11_forwarding=False
        )
        return channel
    except (asyncssh.Error, OSError) as error:
        raise _NotReached(f"the SSH server does not run commands: {_words(error)}") from error


def _read_host(host: str) -> tuple[str, _SshTarget]:
    """The name and the place of a node given as `[NAME=][USER@]HOST[:PORT]`."""
    found = _HOST.fullmatch(host.strip())
    if not found:
        raise LaunchError(f"SSH host {host[:80]!r}", "it cannot be read", "Write it as [NAME=][USER@]HOST[:PORT].")
    place, port = found["v6"] or found["host"], int(found["port"]) if found["port"] else None
    if port is not None and not 0 < port < 65536:
        raise LaunchError(f"SSH host {host[:80]!r}", f"{port} is not a port", "Ports are 1 to 65535.")
    return checked_name(found["name"] or place), _SshTarget(place, found["user"], port)


def _trouble(heard: _SshOutput, status: int | None) -> str:
    """Why a node counts as not reached, when it does: the probe never said that it started, or the connection was lost
    before its answer came."""
    if heard.ended.is_set() and status is None and not heard.flooded and not answered(bytes(heard.output)):
        return f"the SSH connection was lost: {_words(heard.lost) if heard.lost else 'the server ended it'}"
    if heard.started.is_set():
        return ""
    if heard.flooded:
        return f"it printed more than {OUTPUT_LIMIT >> 20} MiB instead of starting the probe"
    said = [line for line in (heard.errors or heard.output).splitlines() if line.strip()]
    last = harmless(decode(bytes(said[-1][: 4 * _WIDTH])), _WIDTH) if said else "nothing"
    return f"the probe did not start; the command ended with status {status} and said: {last}"


def _unless_started(heard: _SshOutput) -> str:
    """Why a node that gave no answer before the deadline counts as not reached, when it does."""
    return "" if heard.started.is_set() else "no sign of the probe before the deadline"


def _words(error: Exception) -> str:
    """What an error says, on one line, whatever a server put into it."""
    if isinstance(error, socket.gaierror):
        return "there is no host with this name"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return harmless(" ".join(str(error).split()) or type(error).__name__, _WIDTH)


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Returns as soon as one of them does; the others are dropped."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _both(one: asyncio.Event, other: asyncio.Event) -> None:
    await one.wait()
    await other.wait()
