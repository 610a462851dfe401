"""Slurm launcher: each world is one `srun`, as a separate job or as a step in an allocation.

Slurm gives drained nodes to no new job, not even in a reservation. The nodes of an allocation can be tested, drained or
not; without one, a world with such a node is not started, and the answers say why.
"""

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import regex

from logdoctor.errors import InputError, LaunchError
from logdoctor.nodes.launching import OUTPUT_LIMIT, STARTED, LaunchTask, ProbeAnswer
from logdoctor.nodes.slurm import CommandResult, SlurmNode, environment, expanded, nodes_in, run
from logdoctor.nodes.topology import groups
from logdoctor.text import harmless
from logdoctor.types.nodes import Node, checked_name

_QUEUE = 10
"""Seconds that a world may wait in the queue; part of a task's grace."""
_EXPORTED = "PATH,HOME,LD_LIBRARY_PATH,PYTHONPATH"
"""The variables that the probes inherit; the rest of the service's environment stays here."""
_ENDING = 3.0
"""Seconds that `srun` has to end its tasks; then it is killed, and its job is cancelled."""
_CANCELLING = 10.0
_LINE = 1024
"""`srun --label` cuts lines after this many bytes, and adds a label and a newline at the cut."""
_LABELLED = regex.compile(rb" *([0-9]{1,6}): ?(.*)", regex.DOTALL)
_ENDED = regex.compile(r"srun: error: (\S+): tasks? ([0-9,-]+): (?:Exited with exit code ([0-9]+)|.*)")
_NOT_GIVEN = regex.compile(
    r"(?i)required node not available|requested nodes are busy|requested nodes not in this partition"
    r"|node configuration is not available|invalid node name|immediate"
)
"""What Slurm reports when it does not grant the nodes."""
_UNFIT = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "UNKNOWN", "POWERED_DOWN", "INVALID_REG"}
_CANCELLED = regex.compile(r"(?m)slurmstepd\S*: error: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT .*\*\*\*")
_TEST = regex.compile(r"[A-Za-z0-9][A-Za-z0-9._]{0,63}")


class _SrunOutput(NamedTuple):
    """The output of one `srun`: what each task printed, and what `srun` itself said."""

    output: dict[int, bytes]
    errors: dict[int, bytes]
    messages: str
    status: int | None


class SlurmLauncher:
    """Starts the probes of a world with one `srun`.

    With `allocation` (a job's number) worlds are steps of that job and share its resources; without, each is a job with
    exclusive nodes, which must be granted within 10 seconds. `options` are appended to the `srun` options
    (`--partition=...`, `--account=...`, `--reservation=...`, `--gres=...`). `env` is inherited by the commands.
    """

    name = "slurm"

    def __init__(self, env: Mapping[str, str], allocation: str = "", options: tuple[str, ...] = ()) -> None:
        if allocation and not regex.fullmatch(r"[0-9]{1,12}", allocation):
            raise LaunchError(f"allocation {allocation[:40]!r}", "is not a job id", "Give it SLURM_JOB_ID.")
        self._env = environment(env)
        self._allocation = allocation
        self._options = options

    async def inventory(self, names: Sequence[str]) -> list[Node]:
        """Return the nodes of these names, in order; without names all of the allocation or the cluster.

        `LaunchError` for a node that Slurm does not know or that is not in the allocation.
        """
        known = {node.name: node for node in nodes_in(await self._output_of("scontrol", "show", "node"))}
        within = await self._allocated() if self._allocation else list(known)
        for name in names:
            if name not in known:
                raise LaunchError(f"node {name[:80]!r}", "is unknown to Slurm", "Check the name with `sinfo -N`.")
            if name not in within:
                cause = f"is not in the allocation {self._allocation}"
                raise LaunchError(f"node {name}", cause, "Leave it out, or test it in a separate job.")
        leaves = await self._leaves()
        wanted = [known[name] for name in (names or within) if name in known]
        try:
            return [Node(checked_name(of.name), of.address, leaves.get(of.name, ""), of.gpu) for of in wanted]
        except InputError as error:
            raise LaunchError(error.thing, error.cause, error.next_step) from error

    async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
        """Return one answer per node, in rank order; `LaunchError` when Slurm rejects the world, or when it was
        cancelled, preempted, or its `srun` killed.

        The world ends with this process, because the standard input of the probes does; by the deadline; and by the
        time limit passed to Slurm.
        """
        process = await self._begin(task)
        try:
            printed = await _read_output(process, task)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._end(process, task)))
        if ended := _ended_by_others(printed):
            raise LaunchError(f"world {task.world.number}", ended, "Run the test again; it says nothing of its nodes.")
        answers = _answers(task, printed)
        if any(answer.started for answer in answers) or printed.status is None:
            return answers
        return await self._not_launched(task, answers, printed.messages)

    async def sweep(self, test: str) -> int:
        """Cancel a test's leftover jobs and steps, wait for their end, and return how many; `LaunchError` when Slurm
        has not ended them in 10 seconds."""
        ours = regex.compile(regex.escape(_job_name(test, "")) + "[0-9]+")
        found = await self._cancel(ours)
        limit = asyncio.get_running_loop().time() + _CANCELLING
        while left := await self._running(ours):
            if asyncio.get_running_loop().time() > limit:
                step = "Cancel them with `scancel`, as their user or as a Slurm administrator."
                raise LaunchError(f"test {test}", f"Slurm does not cancel its jobs {', '.join(left[:20])}", step)
            await asyncio.sleep(0.1)
        return found

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    async def _begin(self, task: LaunchTask) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *self._command(task),
                stdin=asyncio.subprocess.PIPE,  # the lifeline: nothing is ever written
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
                start_new_session=True,
            )
        except OSError as error:
            cause = f"cannot be started ({error.strerror})"
            raise LaunchError("srun", cause, "Install Slurm's client where logdoctor runs.") from error

    def _command(self, task: LaunchTask) -> tuple[str, ...]:
        names = [checked_name(node.name) for node in task.nodes]
        minutes = math.ceil(task.deadline / 60) + 1
        place = ("--overlap", f"--jobid={self._allocation}") if self._allocation else ("--exclusive",)
        return (
            "srun",
            *place,
            f"--job-name={_job_name(task.test, str(task.world.number))}",
            f"--nodelist={','.join(names)}",
            f"--nodes={len(names)}",
            f"--ntasks={len(names)}",
            "--ntasks-per-node=1",
            "--mem=0",  # all memory of the node or the allocation
            "--cpu-bind=none",  # a probe with eight GPUs needs more than the one core of a task
            f"--immediate={_QUEUE}",
            f"--time={minutes}",
            "--label",
            "--wait=0",
            "--kill-on-bad-exit=0",  # the other tasks continue and report what they saw
            "--no-kill",
            "--propagate=NONE",  # a service's limits, such as that of locked memory, are not those of jobs
            "--chdir=/",
            f"--export={_EXPORTED}",
            *self._options,
            "/usr/bin/env",  # else srun would resolve Python here, which may differ from the nodes'
            *task.command("slurm", lifeline=True),
        )

    async def _end(self, process: asyncio.subprocess.Process, task: LaunchTask) -> None:
        """End what is left of a world, if anything."""
        if process.stdin:
            process.stdin.close()
        if process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_ENDING):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            with contextlib.suppress(TimeoutError, LaunchError):
                async with asyncio.timeout(_ENDING):
                    await self._cancel(regex.compile(regex.escape(_job_name(task.test, str(task.world.number)))))

    async def _not_launched(self, task: LaunchTask, answers: Sequence[ProbeAnswer], messages: str) -> list[ProbeAnswer]:
        """Return, per node, why no probe of a world started; `LaunchError` when the nodes are not the reason, or Slurm
        does not answer."""
        shown = {node.name: node for node in nodes_in(await self._output_of("scontrol", "show", "node"))}
        unfit = {node.name: _unfit(shown.get(node.name)) for node in task.nodes}
        causes = [f"{name}: {why}" for name, why in unfit.items() if why]
        if not causes and not _NOT_GIVEN.search(messages) and not _ENDED.search(messages):
            step = "Check the options for srun, the partition and the account, and that Slurm answers here."
            cause = harmless("; ".join(_complaints(messages)), 300) or "ended without a message"
            raise LaunchError("srun", cause, step)
        shared = harmless("; ".join(causes), 300)
        return [answer._replace(launch_error=unfit[answer.node] or shared or answer.launch_error) for answer in answers]

    async def _cancel(self, ours: regex.Pattern[str]) -> int:
        found = await self._running(ours)
        if found:
            await self._ran("scancel", *found)  # complains about jobs that have ended meanwhile
        return len(found)

    async def _running(self, ours: regex.Pattern[str]) -> list[str]:
        """Return the ids of jobs, and of steps in other jobs, with names of ours."""
        states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"
        jobs = _named(await self._output_of("squeue", "--me", "--noheader", states, "--format=%i %j"), ours)
        steps = _named(await self._output_of("squeue", "--me", "--noheader", "--steps", "--format=%i %j"), ours)
        return jobs + [step for step in steps if step.partition(".")[0] not in jobs]

    async def _allocated(self) -> list[str]:
        hosts = await self._output_of(
            "squeue", f"--jobs={self._allocation}", "--noheader", "--states=RUNNING", "--format=%N"
        )
        try:
            names = expanded(hosts.strip())
        except InputError as error:
            raise LaunchError(error.thing, error.cause, error.next_step) from error
        if not names:
            cause = "is not running"
            raise LaunchError(
                f"allocation {self._allocation}", cause, "Allocate nodes with `salloc`, or unset SLURM_JOB_ID."
            )
        return names

    async def _leaves(self) -> dict[str, str]:
        try:
            return groups((await self._ran("scontrol", "show", "topology")).output)
        except InputError:  # the topology only helps to tell links from nodes
            return {}

    async def _output_of(self, *command: str) -> str:
        """Return what a command prints; `LaunchError` when it fails."""
        ran = await self._ran(*command)
        if ran.status != 0:
            step = f"Check that `{command[0]}` answers where logdoctor runs."
            raise LaunchError(command[0], ran.complaint, step)
        return ran.output

    async def _ran(self, *command: str) -> CommandResult:
        return await asyncio.to_thread(run, command, self._env)


def _job_name(test: str, world: str) -> str:
    if not _TEST.fullmatch(test):
        raise LaunchError(f"test {test[:40]!r}", "cannot be part of a job's name", "Use letters, digits, '.' and '_'.")
    return f"logdoctor-{test}-w{world}"


def _named(rows: str, ours: regex.Pattern[str]) -> list[str]:
    pairs = (row.strip().partition(" ") for row in rows.splitlines())
    return [number for number, _, name in pairs if ours.fullmatch(name.strip())]


async def _read_output(process: asyncio.subprocess.Process, task: LaunchTask) -> _SrunOutput:
    """Return all output of a world until it ends or reaches its deadline; the latter leaves its status None."""
    assert process.stdout and process.stderr
    output, errors = _Parted(len(task.nodes)), _Parted(len(task.nodes))
    status = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(task.deadline), asyncio.TaskGroup() as group:
            group.create_task(output.read(process.stdout))
            group.create_task(errors.read(process.stderr))
            status = await process.wait()
    return _SrunOutput(output.whole(), errors.whole(), errors.unlabelled(), status)


class _Parted:
    """The output of `srun --label`, split by task and bounded for each."""

    def __init__(self, tasks: int) -> None:
        self._of = {task: bytearray() for task in range(tasks)}
        self._unlabelled = bytearray()

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Read a stream to its end."""
        held = b""
        while chunk := await stream.read(1 << 16):
            *lines, held = (held + chunk).split(b"\n")
            for line in lines:
                self._take(line)
            if len(held) > 1 << 16:
                self._take(held)
                held = b""
        if held:
            self._take(held)

    def _take(self, line: bytes) -> None:
        found = _LABELLED.fullmatch(line)
        kept = self._of.get(int(found[1])) if found else None
        if found is None or kept is None:
            self._unlabelled += (line + b"\n")[: OUTPUT_LIMIT - len(self._unlabelled)]
        else:
            piece = found[2] if len(found[2]) == _LINE else found[2] + b"\n"
            kept += piece[: OUTPUT_LIMIT - len(kept)]

    def whole(self) -> dict[int, bytes]:
        """Return each task's output, with cut lines joined again."""
        return {task: bytes(kept) for task, kept in self._of.items()}

    def unlabelled(self) -> str:
        """Return the messages of `srun` itself."""
        return self._unlabelled.decode(errors="replace")


def _ended_by_others(printed: _SrunOutput) -> str:
    """Return how somebody else ended a world before its deadline, no failure of its nodes; "" when nobody did.

    Slurm itself cancels a world that it could not start on all nodes: then the answers say more.
    """
    if printed.status is not None and printed.status < 0:
        return f"its srun was killed by signal {-printed.status}"
    if printed.status is None or all(printed.output.values()) or not all(map(_started, printed.errors.values())):
        return ""
    texts = (printed.messages, *(errors.decode(errors="replace") for errors in printed.errors.values()))
    found = next(filter(None, map(_CANCELLED.search, texts)), None)
    if found is None or "NODE FAIL" in found[0]:
        return ""
    return f"Slurm ended it ({harmless(found[0], 120)})"


def _answers(task: LaunchTask, printed: _SrunOutput) -> list[ProbeAnswer]:
    """Return the answer of each node; tasks are mapped to nodes by the probes' reports, or by `srun` for failed
    ones."""
    names = [node.name for node in task.nodes]
    exits = _exits(printed.messages)
    of: dict[str, int] = {}
    for number, stderr in printed.errors.items():
        where = _started(stderr) or exits.get(number, ("", None))[0]
        if where in names and where not in of:
            of[where] = number
    free = [number for number in printed.errors if number not in of.values()]
    messages = _complaints(printed.messages)
    answers = []
    for name in names:
        number = of[name] if name in of else free.pop(0)
        stderr = printed.errors[number]
        started = _started(stderr) == name
        own = [line for line in messages if regex.search(rf"\b{regex.escape(name)}\b", line)]
        trouble = "" if started and printed.status == 0 else "; ".join(own or ([] if started else messages))
        if not started:
            trouble = "; ".join(filter(None, (stderr.decode(errors="replace").strip().replace("\n", "; "), trouble)))
        ended = exits.get(number, ("", 0 if printed.status is not None else None))[1]
        answers.append(ProbeAnswer(name, started, printed.output[number], stderr, ended, harmless(trouble, 300)))
    return answers


def _complaints(messages: str) -> list[str]:
    """Return `srun`'s error lines; all lines when there are none."""
    lines = [line for line in messages.splitlines() if line.strip()]
    return [line for line in lines if "error:" in line] or lines


def _exits(messages: str) -> dict[int, tuple[str, int | None]]:
    """Return the node and exit status (None: ended by a signal) of each failed task, as `srun` reports them."""
    found: dict[int, tuple[str, int | None]] = {}
    for ended in _ENDED.finditer(messages):
        for piece in ended[2].split(",")[:1000]:
            first, _, last = piece.partition("-")
            if first.isdigit() and (not last or last.isdigit()):
                for number in range(int(first), min(int(last or first), int(first) + 1000) + 1):
                    found[number] = (ended[1], int(ended[3]) if ended[3] else None)
    return found


def _started(errors: bytes) -> str:
    """Return the node on which a probe reports its start; "" without a report."""
    _, _, rest = errors.partition(STARTED)
    return rest.split(b"\n", 1)[0].decode(errors="replace").strip().partition(" ")[0]


def _unfit(node: SlurmNode | None) -> str:
    """Return why Slurm does not grant a node; "" when its state does not say."""
    if node is None:
        return "Slurm does not know this node"
    if not node.states & _UNFIT:
        return ""
    return f"Slurm does not schedule jobs on it: {node.raw}{f', {harmless(node.reason, 120)}' if node.reason else ''}"
