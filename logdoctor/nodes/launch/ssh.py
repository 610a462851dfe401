"""SSH launcher: for clusters without a scheduler that could start the probes."""

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
from logdoctor.nodes.launching import OUTPUT_LIMIT, STARTED, LaunchTask, ProbeAnswer, answered
from logdoctor.text import decode, harmless
from logdoctor.types.nodes import Node, checked_name

_AT_ONCE = 64
"""Concurrent handshakes: each costs this process some 10 ms, and a jump host refuses more than its limit."""
_ALIVE_SECONDS = 5.0
_MISSED = 3
"""A connection is lost after this many keep-alive intervals (`_ALIVE_SECONDS`) without an answer."""
_PAUSES = (0.5, 1.5)
"""Seconds before each retry when a server hangs up before login, as it does when too many connect at once."""
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
"""Runs on a node: kills the processes whose arguments are those of a test's probe, and prints how many."""


class _SshTarget(NamedTuple):
    """Where the SSH server of a node is; None means as in the SSH configuration."""

    host: str
    user: str | None = None
    port: int | None = None


class _NotReached(Exception):
    """A node cannot be reached over SSH, for this reason."""


class _SshOutput(asyncssh.SSHClientSession[bytes]):
    """The output of a command on a node so far, at most `OUTPUT_LIMIT` of it, and how it ended."""

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

    `hosts` are the nodes, each as `[NAME=][USER@]HOST[:PORT]`; without them every requested name is a host. `nodes`
    give some of them an address for peers, if it differs, and a group. `user`, `port` and `key` apply unless a host has
    its own; everything else comes from the SSH configuration (`~/.ssh/config` unless another file is given) and the
    agent. Nothing asks for a password. A node whose host key is not in `known_hosts` (by default those of the user and
    the machine) is not reached, unless `check_host_keys` is off. A login may take `connect_seconds`. `python` runs on
    nodes to kill hanging probes. `LaunchError` for a host that cannot be parsed or is given twice.
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
        """Return the nodes of these names, in order; without names all given hosts.

        A node's address is its host name in the SSH configuration, unless `nodes` gives one. `LaunchError` for names
        that are not among the given hosts, and without any names or hosts.
        """
        if not names and not self._listed:
            raise LaunchError("SSH", "it has no node list of its own", "Name the nodes, or give their hosts.")
        wanted = tuple(names) or tuple(self._targets)
        hosts = [(await self._options(name)).host for name in wanted]
        return [self._nodes.get(name) or Node(name, host) for name, host in zip(wanted, hosts, strict=True)]

    async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
        """Return one answer per node, in rank order. As soon as one node fails to start, the others are ended, because
        they would wait for it in vain. A node whose SSH connection is lost counts as not reached."""
        options = [await self._options(node.name) for node in task.nodes]
        in_vain = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(self._run_node(task, rank, each, in_vain)) for rank, each in enumerate(options)]
        return [run.result() for run in runs]

    async def sweep(self, test: str) -> int:
        """End a test's leftover probes on the known nodes, if reachable; return how many processes."""
        async with asyncio.TaskGroup() as group:
            sweeps = [group.create_task(self._sweep_node(name, test)) for name in self._targets]
        return sum(each.result() for each in sweeps)

    async def close(self) -> None:
        """Do nothing: each world has its own connections."""

    async def _run_node(
        self, task: LaunchTask, rank: int, options: asyncssh.SSHClientConnectionOptions, in_vain: asyncio.Event
    ) -> ProbeAnswer:
        name, session, status = task.nodes[rank].name, _SshOutput(), None
        end = asyncio.get_running_loop().time() + task.deadline
        try:
            async with asyncio.timeout_at(end + _FORCE_SECONDS), self._connection(options) as connection:
                # `exec`, so that no shell is between the SSH server and the probe
                command = f"exec {shlex.join(task.command(rank, lifeline=True))}"
                channel = await _start(connection, command, session)
                try:
                    async with asyncio.timeout_at(end):
                        await _first(session.ended.wait(), _both(in_vain, session.started))
                    status = channel.get_returncode()
                    trouble = _trouble(session, status)
                except TimeoutError:  # past its own time-out: its supervisor hangs, and does not see the lifeline close
                    trouble = _unless_started(session)
                    with suppress(_NotReached):
                        await self._kill(connection, task.test, str(task.world.number))
        except _NotReached as error:
            trouble = str(error)
        except TimeoutError:
            trouble = _unless_started(session)
        if trouble:
            in_vain.set()
        return ProbeAnswer(name, not trouble, bytes(session.output), bytes(session.errors), status, trouble)

    async def _sweep_node(self, name: str, test: str) -> int:
        try:
            async with asyncio.timeout(_SWEEP_SECONDS), self._connection(await self._options(name)) as connection:
                return await self._kill(connection, test)
        except (_NotReached, TimeoutError, LaunchError):
            return 0

    async def _kill(self, connection: asyncssh.SSHClientConnection, test: str, world: str = "") -> int:
        """Kill the probes of a test on a node, or of one of its worlds; return how many processes."""
        session = _SshOutput()
        words = (self._python, "-c", _KILL, decode(STARTED), "--test", test, *(("--world", world) if world else ()))
        await _start(connection, shlex.join(words), session)
        await session.ended.wait()
        count = session.output[:20].strip()
        return int(count) if count.isdigit() else 0

    @asynccontextmanager
    async def _connection(
        self, options: asyncssh.SSHClientConnectionOptions
    ) -> AsyncIterator[asyncssh.SSHClientConnection]:
        """Connect to a node's server; at the end of the context, everything that runs over the connection loses its
        standard input."""
        connection = await self._connect(options)
        try:
            yield connection
        finally:
            connection.abort()

    async def _connect(self, options: asyncssh.SSHClientConnectionOptions) -> asyncssh.SSHClientConnection:
        """Return a connection after login; `_NotReached` says why it failed."""
        where = f"SSH to {options.username}@{options.host}:{options.port}"
        for pause in (*_PAUSES, None):
            try:
                async with self._door, asyncio.timeout(self._connect_seconds):
                    return await asyncssh.connect(options.orig_host, options=options, config=self._config_files)
            except TimeoutError:
                raise _NotReached(f"{where}: no answer within {self._connect_seconds:g} s") from None
            except (asyncssh.ConnectionLost, ConnectionResetError) as error:
                if pause is None:
                    raise _NotReached(f"{where}: {_one_line(error)}") from error
                await asyncio.sleep(pause)
            except asyncssh.HostKeyNotVerifiable as error:
                raise _NotReached(
                    f"{where}: its host key is not the one in known_hosts, or is not in it; check it and add it"
                ) from error
            except asyncssh.PermissionDenied as error:
                raise _NotReached(f"{where}: it rejected the available keys of this user") from error
            except (asyncssh.Error, OSError, ValueError) as error:
                raise _NotReached(f"{where}: {_one_line(error)}") from error
        raise AssertionError("the last try returns or raises")

    async def _options(self, name: str) -> asyncssh.SSHClientConnectionOptions:
        """Return the SSH options of a node; `LaunchError` when configuration or keys cannot be read."""
        if self._listed and name not in self._targets:
            raise LaunchError(f"node {name[:80]!r}", "is not among the given SSH hosts", "Check the name.")
        target = self._targets.setdefault(checked_name(name), _SshTarget(name))
        try:
            return await asyncio.to_thread(self._read_options, target)
        except (asyncssh.Error, OSError, ValueError) as error:
            raise LaunchError(
                "SSH", f"its configuration or keys cannot be read: {_one_line(error)}", "Check the files named for it."
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
        """Return the known host keys, or None to accept any. A file is read once for all nodes."""
        if not self._check_host_keys:
            return None
        if self._known_hosts:
            files = [self._known_hosts]
        else:
            named = options.known_hosts  # None is `UserKnownHostsFile none`: to OpenSSH no key is known
            files = [Path(each) for each in named] if isinstance(named, list) else []
            files = [] if named is None else files or list(_KNOWN_HOSTS)
            files = [file.expanduser() for file in files if file.expanduser().is_file()]
        version = tuple((str(file), file.stat().st_mtime) for file in files)
        trusted = self._trusted.get(version) or asyncssh.read_known_hosts([path for path, _ in version])
        self._trusted = {version: trusted}
        return trusted


async def _start(
    connection: asyncssh.SSHClientConnection, command: str, session: _SshOutput
) -> asyncssh.SSHClientChannel[bytes]:
    """Start a command on a node, without a terminal; `_NotReached` when its server refuses."""
    try:
        channel, _ = await connection.create_session(
            lambda: session, command, encoding=None, request_pty=False, x11_forwarding=False
        )
        return channel
    except (asyncssh.Error, OSError) as error:
        raise _NotReached(f"the SSH server does not run commands: {_one_line(error)}") from error


def _read_host(host: str) -> tuple[str, _SshTarget]:
    """Parse a node given as `[NAME=][USER@]HOST[:PORT]` into its name and target."""
    found = _HOST.fullmatch(host.strip())
    if not found:
        raise LaunchError(f"SSH host {host[:80]!r}", "it cannot be read", "Write it as [NAME=][USER@]HOST[:PORT].")
    place, port = found["v6"] or found["host"], int(found["port"]) if found["port"] else None
    if port is not None and not 0 < port < 65536:
        raise LaunchError(f"SSH host {host[:80]!r}", f"{port} is not a port", "Ports are 1 to 65535.")
    return checked_name(found["name"] or place), _SshTarget(place, found["user"], port)


def _trouble(session: _SshOutput, status: int | None) -> str:
    """Return why a node counts as not reached: the probe never reported its start, or the connection was lost before
    its answer; "" otherwise."""
    if session.ended.is_set() and status is None and not session.flooded and not answered(bytes(session.output)):
        return f"the SSH connection was lost: {_one_line(session.lost) if session.lost else 'the server ended it'}"
    if session.started.is_set():
        return ""
    if session.flooded:
        return f"it printed more than {OUTPUT_LIMIT >> 20} MiB instead of starting the probe"
    lines = [line for line in (session.errors or session.output).splitlines() if line.strip()]
    last = harmless(decode(bytes(lines[-1][: 4 * _WIDTH])), _WIDTH) if lines else "nothing"
    return f"the probe did not start; the command ended with status {status} and said: {last}"


def _unless_started(session: _SshOutput) -> str:
    """Return why a node without an answer before the deadline counts as not reached; "" otherwise."""
    return "" if session.started.is_set() else "no sign of the probe before the deadline"


def _one_line(error: Exception) -> str:
    """Return an error's message on one line, whatever a server put into it."""
    if isinstance(error, socket.gaierror):
        return "there is no host with this name"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return harmless(" ".join(str(error).split()) or type(error).__name__, _WIDTH)


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return as soon as one coroutine does; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _both(one: asyncio.Event, other: asyncio.Event) -> None:
    await one.wait()
    await other.wait()
