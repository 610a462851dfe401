"""The launcher protocol: what launchers get and return, and how their answers decide a world.

A launcher starts `nodes/probe.py` on every node of a world at once, returns what each printed, and leaves nothing
running. The answers are interpreted here, in one place for all launchers.
"""

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Protocol

import msgspec

from logdoctor.nodes.probe import KINDS
from logdoctor.text import harmless
from logdoctor.types.nodes import Node, Reading, Result, World

GRACE = 15.0
"""Seconds that a launcher has on top of the probe's own time-out, to start processes and return answers."""

OUTPUT_LIMIT = 1 << 20
"""Bytes kept of a node's output, and of its errors."""

STARTED = b"logdoctor-probe started "
"""What a probe writes to standard error at once, followed by its node and the kernel's boot id; it proves that the node
was reached."""

_WIDTH = 300
_CANDIDATES = 1000
"""Most lines searched for the answer."""


@functools.cache
def source() -> str:
    """Return the source of the probe, which is passed in command lines."""
    return Path(__file__).with_name("probe.py").read_text()


class ProbeOptions(NamedTuple):
    """How the probe runs on every node: its hard time-out in seconds, the bytes per gather (empty: what fits the
    device), the GPUs per node (0: all), `K=V` for its environment, and which Python runs it."""

    seconds: float = 60.0
    sizes: tuple[int, ...] = ()
    gpus: int = 0
    env: tuple[str, ...] = ()
    python: str = "python3"


class LaunchTask(NamedTuple):
    """What a launcher starts: one probe on each node of a world, all at once.

    `test` is the test's name, fit for job names and labels. `nodes` are in rank order; the first one listens on `port`.
    """

    test: str
    world: World
    nodes: tuple[Node, ...]
    port: int
    probe: ProbeOptions

    @property
    def deadline(self) -> float:
        """Return the seconds after its start at which the launcher kills the world."""
        return self.probe.seconds + GRACE

    def command(self, rank: int | Literal["slurm"], lifeline: bool) -> tuple[str, ...]:
        """Return the command line that runs the probe on the node of this rank.

        With `slurm` it is the same on all nodes: the probe gets its node from SLURMD_NODENAME, and its rank is that
        node's place in the world whatever SLURM_PROCID says, because `srun` sorts its nodes. With `lifeline` the probe
        ends when its standard input does.
        """
        return (
            self.probe.python,
            "-c",
            source(),
            *("--test", self.test),
            *("--world", str(self.world.number)),
            *("--node", rank if rank == "slurm" else self.nodes[rank].name),
            *("--nodes", ",".join(f"{node.name}={node.address or node.name}" for node in self.nodes)),
            *("--port", str(self.port)),
            *("--seconds", f"{self.probe.seconds:g}"),
            *("--repeats", str(self.world.repeats)),
            *(("--sizes", ",".join(map(str, self.probe.sizes))) if self.probe.sizes else ()),
            *("--gpus", str(self.probe.gpus)),
            *(word for pair in self.probe.env for word in ("--env", pair)),
            *(("--lifeline",) if lifeline else ()),
        )


class ProbeAnswer(NamedTuple):
    """The answer of one node: whether the probe started, its standard output and error (at most `OUTPUT_LIMIT` each),
    its exit status (None: unknown, or killed), and why it could not be launched."""

    node: str
    started: bool
    output: bytes = b""
    errors: bytes = b""
    exit: int | None = None
    launch_error: str = ""


class Launcher(Protocol):
    """A way to start probes on nodes."""

    name: str

    async def inventory(self, names: Sequence[str]) -> list[Node]:
        """Return the nodes of these names, in order; without names all known nodes. `LaunchError` for unknown ones, and
        when the launcher cannot list them."""

    async def run(self, task: LaunchTask) -> list[ProbeAnswer]:
        """Return one answer per node, in rank order, at latest `task.deadline` after the call. Killing may take a
        second or two more. `LaunchError` when the launcher itself fails. When cancelled, it first ends all that it
        started."""

    async def sweep(self, test: str) -> int:
        """End what an earlier process left running of a test; return how many things."""

    async def close(self) -> None:
        """Close connections, after everything has ended."""


class _ProbeLine(msgspec.Struct):
    """The probe's JSON line: a `Reading` with all fields bounded, and `unusable`."""

    node: Annotated[str, msgspec.Meta(max_length=253)]
    ok: bool
    stage: Literal["start", "connect", "gather", "bandwidth", "compute", "done"]
    why: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    unusable: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    tool: Annotated[str, msgspec.Meta(max_length=40)] = ""
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    gpu: Annotated[str, msgspec.Meta(max_length=100)] = ""
    bandwidth: Annotated[
        dict[
            Annotated[str, msgspec.Meta(pattern=r"\A[0-9]{1,15}\Z")],
            Annotated[float, msgspec.Meta(gt=0, le=1e6)],
        ],
        msgspec.Meta(max_length=32),
    ] = {}
    tflops: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None
    state: Annotated[list[Annotated[str, msgspec.Meta(max_length=400)]], msgspec.Meta(max_length=64)] = []
    boot: Annotated[str, msgspec.Meta(max_length=64)] = ""
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0


_DECODER = msgspec.json.Decoder(_ProbeLine)


def result(task: LaunchTask, answers: Sequence[ProbeAnswer], seconds: float) -> Result:
    """Return how a world ended, from its nodes' answers after `seconds`. Never raises: output may be anything.

    `void` as soon as one node was not started, reports that it is unusable, or answers as another node: its partners
    could not gather, so their reports prove nothing, and the next world shows again what is wrong with any of them.
    `passed` when every node reports that it is done and all was right, `failed` otherwise; `why` is then the most
    telling report of any node.

    A node that started and left no answer counts as failed when it was killed or was silent to the end. If its probe
    ended by itself, the answer was lost or garbled on the way, which makes the world void.
    """
    of = {answer.node: answer for answer in answers}
    missing = ProbeAnswer("", started=False, launch_error="the launcher returned no answer for it")
    unreached: dict[str, str] = {}
    readings: list[Reading] = []
    for name in task.world.nodes:
        reading, trouble = _reading(name, of.get(name, missing))
        if reading is not None:
            readings.append(reading)
        if trouble:
            unreached[name] = trouble
    if unreached:
        ended: Literal["passed", "failed", "void"] = "void"
        nodes_of = {cause: [name for name in unreached if unreached[name] == cause] for cause in unreached.values()}
        why = "; ".join(f"{', '.join(names)}: {cause}" for cause, names in nodes_of.items())
    elif all(reading.ok for reading in readings):
        ended, why = "passed", ""
    else:
        worst = min((reading for reading in readings if not reading.ok), key=_kind_order)
        ended, why = "failed", f"{worst.node}: {worst.why}"
    return Result(task.world, ended, harmless(why, 2 * _WIDTH), tuple(unreached), tuple(readings), seconds)


def _reading(name: str, answer: ProbeAnswer) -> tuple[Reading | None, str]:
    """Return the reading of a reached node, and why its world is void, if so."""
    if not answer.started:
        cause = answer.launch_error or answer.errors[-_WIDTH:].decode("utf-8", "replace").strip().rpartition("\n")[2]
        return None, f"not started: {harmless(cause, _WIDTH) or 'no sign of the probe'}"
    line = _line(answer.output)
    if isinstance(line, str):
        if len(answer.output) < OUTPUT_LIMIT and (answer.exit is None or not 0 <= answer.exit <= 128):
            return Reading(name, ok=False, why=_end(answer), boot=_boot(answer.errors)), ""
        return None, f"answer lost: {harmless(line, _WIDTH)}"
    if line.unusable:
        return None, f"unusable: {harmless(line.unusable, _WIDTH)}"
    if line.node != name:
        return None, f"the answer came from {harmless(line.node, 80)!r}"
    ok = line.ok and line.stage == "done"
    reading = Reading(
        name,
        ok=ok,
        stage=line.stage,
        why=harmless(line.why or ("" if ok else "error: no reason given"), _WIDTH),
        tool=harmless(line.tool, 40),
        gpus=line.gpus,
        gpu=harmless(line.gpu, 100),
        bandwidth=line.bandwidth,
        tflops=line.tflops,
        state=tuple(harmless(text, _WIDTH) for text in line.state),
        boot=harmless(line.boot, 64),
        seconds=line.seconds,
    )
    return reading, ""


def _line(output: bytes) -> _ProbeLine | str:
    """Return the probe's last line in a node's output, or why it is missing.

    Other lines are skipped: login messages, prologues and loggers print to the same place.
    """
    why = f"it printed {len(output)} bytes, but no line that looks like an answer"
    lines = (line for line in reversed(output[:OUTPUT_LIMIT].split(b"\n")) if line.startswith(b"{"))
    for place, line in enumerate(itertools.islice(lines, _CANDIDATES)):
        try:
            return _DECODER.decode(line)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            if place == 0:
                why = f"it cannot be read ({error})"
    return why


def answered(output: bytes) -> bool:
    """Return whether a node's output contains a probe's answer."""
    return isinstance(_line(output), _ProbeLine)


def _boot(errors: bytes) -> str:
    """Return the boot id reported by a probe at its start: all that is known of a node that then died."""
    words = errors.partition(STARTED)[2].split(b"\n", 1)[0].split()
    return harmless(words[1][:64].decode("utf-8", "replace"), 64) if len(words) > 1 else ""


def _end(answer: ProbeAnswer) -> str:
    """Return how a probe ended that started and left no answer, as a `Reading.why`."""
    if answer.launch_error:
        return f"killed: {harmless(answer.launch_error, _WIDTH)}"
    if answer.exit is None:
        return "no answer: the probe said nothing before the deadline"
    return f"killed: the probe ended with status {answer.exit} and said nothing"


def _kind_order(reading: Reading) -> int:
    """Return the rank of a failure among the kinds of failure, the most telling first; unknown kinds rank as
    "error"."""
    kind = reading.why.partition(":")[0]
    return KINDS.index(kind if kind in KINDS else "error")
