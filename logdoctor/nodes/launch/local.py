"""Local launcher: nodes are processes on this machine, for trying things out and for testing its GPUs."""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from logdoctor.errors import LaunchError
from logdoctor.nodes.launching import OUTPUT_LIMIT, STARTED, LaunchTask, ProbeAnswer
from logdoctor.types.nodes import Node

_LAST_WORDS = 5.0
"""Seconds to wait for the output of a killed process to end: its ranks hold it open while they live."""


class LocalLauncher:
    """Starts each node's probe as a process of this machine.

    The nodes are `local-0`, `local-1`, ...; each has its own GPU if the machine has enough, else none has one. A probe
    ends with this process, because its standard input does.
    """

    name = "local"

    def __init__(self, nodes: int) -> None:
        self._nodes = tuple(Node(f"local-{number}", "127.0.0.1") for number in range(nodes))
        self._has_gpus = len([file for file in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", file)]) >= nodes

    async def inventory(self, names: Sequence[str]) -> list[Node]:
        """Return the nodes of these names, in order; all without names. `LaunchError` for unknown ones."""
        known = {node.name: node for node in self._nodes}
        for name in names:
            if name not in known:
                last = self._nodes[-1].name if self._nodes else "none"
                cause = "the local launcher does not have it"
                raise LaunchError(f"node {name[:80]!r}", cause, f"The last one is {last}.")
        return [known[name] for name in names] if names else list(self._nodes)

    async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
        """Return one answer per node; what still runs at the deadline, or on cancellation, is killed."""
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(self._run_node(task, rank)) for rank in range(len(task.nodes))]
        return [run.result() for run in runs]

    async def sweep(self, test: str) -> int:
        """Kill the probes of a test that an earlier process left on this machine; return how many processes."""
        return sum(_kill_probe(int(entry), test) for entry in os.listdir("/proc") if entry.isdigit())

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    async def _run_node(self, task: LaunchTask, rank: int) -> ProbeAnswer:
        node = task.nodes[rank].name
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(task, rank),
                stdin=asyncio.subprocess.PIPE,  # the lifeline: nothing is ever written
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return ProbeAnswer(node, started=False, launch_error=f"{task.probe.python}: {error.strerror}")
        assert process.stdout and process.stderr
        output = asyncio.create_task(_bounded(process.stdout))
        errors = asyncio.create_task(_bounded(process.stderr))
        ended: int | None = None
        try:
            async with asyncio.timeout(task.deadline):
                ended = await process.wait()
        except TimeoutError:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the ranks die with their supervisor
            await asyncio.wait({output, errors, asyncio.create_task(process.wait())}, timeout=_LAST_WORDS)
        stderr = errors.result() if errors.done() else b""
        return ProbeAnswer(node, STARTED in stderr, output.result() if output.done() else b"", stderr, ended)

    def _command(self, task: LaunchTask, rank: int) -> tuple[str, ...]:
        python = sys.executable if task.probe.python == "python3" else task.probe.python
        number = task.nodes[rank].name.rpartition("-")[2]
        own = f"CUDA_VISIBLE_DEVICES={number if self._has_gpus else ''}"
        probe = task.probe._replace(python=python, env=(own, *task.probe.env))
        return task._replace(probe=probe).command(rank, lifeline=True)


def _kill_probe(process: int, test: str) -> bool:
    """Kill a process if it is a probe of this test; return whether it was."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if STARTED in b"".join(words[2:3]) and (b"--test", test.encode()) in itertools.pairwise(words):
            os.kill(process, signal.SIGKILL)
            return True
    except OSError:  # it has ended meanwhile
        pass
    return False


async def _bounded(stream: asyncio.StreamReader) -> bytes:
    """Return a stream's data up to its end, at most `OUTPUT_LIMIT` bytes; the rest is read and dropped, so that the
    writer does not block."""
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        kept += chunk[: OUTPUT_LIMIT - len(kept)]
    return bytes(kept)
