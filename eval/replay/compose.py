"""Logs of composed kinds: healthy training of a framework, the failure, and its consequences."""

import random
import re
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from eval.replay.catalogue import Saying, Specimen, StackFrame, TracebackForm
from eval.replay.endings import ENDINGS, echoes
from eval.replay.heads import HealthyHead
from eval.replay.label import FailureLabel, ReplayLog
from eval.replay.site import Site

_HEADS = {
    "hf": ("hf_trainer", "real"),
    "accelerate": ("hf_trainer",),
    "trl": ("hf_trainer", "llamafactory"),
    "eval": ("real", "hf_trainer"),
    "custom": ("torchtitan", "olmo", "real", "megatron", "lightning"),
    "fairseq": ("metaseq",),
    "openrlhf": ("verl",),
    "megatron": ("megatron", "megatron_deepspeed"),
}
"""Healthy training before a failure, by framework; unlisted frameworks have their own."""
_DIRECT = "The above exception was the direct cause of the following exception:"
_FIELD = re.compile(
    r"@(mnt|user|run|corpus|model|step|shard|hash|host|addr|ip|port|rank|me|link|local|pid|bus|glog|iso|job|d3|n|N)"
)
_OF_A_RANK = frozenset({"rank", "me", "local", "pid", "host", "glog"})
_WORKER = (
    StackFrame("site/torch/utils/data/dataloader.py", "__next__", "data = self._next_data()"),
    StackFrame("site/torch/utils/data/dataloader.py", "_next_data", "return self._process_data(data)"),
    StackFrame("site/torch/utils/data/dataloader.py", "_process_data", "data.reraise()"),
    StackFrame("site/torch/_utils.py", "reraise", "raise exception"),
)
_IN_WORKER = (
    StackFrame("site/torch/utils/data/_utils/worker.py", "_worker_loop", "data = fetcher.fetch(index)"),
    StackFrame(
        "site/torch/utils/data/_utils/fetch.py", "fetch", "data = [self.dataset[idx] for idx in possibly_batched]"
    ),
)
_RAY_GET = (
    StackFrame("site/ray/_private/client_mode_hook.py", "wrapper", "return func(*args, **kwargs)"),
    StackFrame("site/ray/_private/worker.py", "get", "raise value.as_instanceof_cause()"),
)
_NOISE = (
    "[W@glog socket.cpp:464] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97 - Address family"
    " not supported by protocol).",
    "wandb: WARNING retrying upload of history (1/3): 502 Bad Gateway; retry succeeded",
    "UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors.",
    "FutureWarning: You are using `torch.load` with `weights_only=False` (the current default value).",
    "WARNING: checkpoint upload attempt 1/5 failed (timed out), attempt 2/5 succeeded",
    "@host:@pid:@pid [@local] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_@local:1 Got async event : client"
    " reregistration",
    "Token indices sequence length is longer than the specified maximum sequence length for this model (@N > 131072).",
    "INFO: connection to metrics gateway lost, reconnected after 2 s",
)
_ECHOED = 0.55  # chance that ranks which did not fail report the end of the others


class ComposedLine(NamedTuple):
    """A line of a failure, and whether it proves the cause."""

    text: str
    proof: bool = False


class Composed:
    """The kind of one specimen."""

    def __init__(self, specimen: Specimen, heads: dict[str, list[HealthyHead]]) -> None:
        self.id = specimen.id
        self.label: FailureLabel = specimen.label
        self._specimen = specimen
        names = _HEADS.get(specimen.framework, (specimen.framework,))
        self._heads = [head for name in names for head in heads[name]]

    def log(self, rng: random.Random) -> ReplayLog:
        """Return healthy training of some length, then the failure as some ranks print it."""
        specimen = self._specimen
        before = rng.choice(self._heads).before(rng, specimen.training)
        site = Site(rng, before.style, before.time)
        scene = _Scene(rng, site, specimen)
        lines = scene.lines()
        text = "\n".join([before.text, *(line.text for line in lines)])
        first = before.text.count("\n") + 2
        evidence = tuple(first + n for n, line in enumerate(lines) if line.proof)
        return ReplayLog(text.encode("latin-1", "replace") + b"\n", evidence)


class _Scene:
    """The failure in one arrival."""

    def __init__(self, rng: random.Random, site: Site, specimen: Specimen) -> None:
        self._rng, self._site, self._specimen = rng, site, specimen
        self._drift = rng.choice((0, 0, 0, rng.randint(-9, 40)))
        self._fixed: dict[str, str] = {}

    def lines(self) -> list[ComposedLine]:
        """Return all lines, from harmless noise to the launcher's last words."""
        rng, site, specimen = self._rng, self._site, self._specimen
        failing = self._failing()
        lines = [*self._noise()]
        late: list[ComposedLine] = []
        kernel_last = rng.random() < 0.3
        for say in specimen.says:
            said = self._said(say, failing)
            (late if kernel_last and say.who == "K" else lines).extend(said)
        if len(failing) < site.world and rng.random() < _ECHOED and not self._peers_spoke():
            others = rng.sample([r for r in range(site.world) if r not in failing], min(site.world - len(failing), 4))
            lines += [ComposedLine(self._mark(rank, text)) for rank, text in echoes(rng, site, failing[0], others)]
        ending = ENDINGS[site.launcher]
        lines += [ComposedLine(text) for text in ending(rng, site, failing)] if rng.random() < 0.9 else []
        return [*lines, *late]

    def _failing(self) -> list[int]:
        """Return the ranks that report the failure, in order."""
        world = self._site.world
        most = {"all": min(world, 12), "few": min(world, 4), "one": 1}[self._specimen.speakers]
        return self._rng.sample(range(world), self._rng.randint(min(2, most), most))

    def _peers_spoke(self) -> bool:
        return any(say.who in "PQ" for say in self._specimen.says)

    def _noise(self) -> list[ComposedLine]:
        if self._rng.random() < 0.5:
            return []
        texts = self._rng.sample(_NOISE, self._rng.randint(1, 2))
        rank = self._rng.randrange(self._site.world)
        return [ComposedLine(self._mark(rank, self._filled(text, rank))) for text in texts]

    def _said(self, say: Saying, failing: Sequence[int]) -> list[ComposedLine]:
        rng, site = self._rng, self._site
        guilty = failing[0]
        if say.who in "PQ":
            others = [rank for rank in range(site.world) if rank != guilty] or [guilty]
            chosen = rng.sample(others, rng.randint(1, min(len(others), 8)))
        else:
            chosen = list(failing) if say.who == "T" else [guilty]
        if say.report is not None:
            return self._merged([self._printed(say.report, rank) for rank in chosen], chosen)
        lines: list[ComposedLine] = []
        for rank in chosen:
            parts = self._filled(say.text, rank).split("\n")
            lines += [ComposedLine(self._by(say.who, rank, text), say.proof and n == 0) for n, text in enumerate(parts)]
        return lines

    def _by(self, who: str, rank: int, text: str) -> str:
        """Return a line as its writer prints it."""
        site = self._site
        if who == "K":
            return site.kernel(site.host(rank), text)
        if who == "H":
            return site.daemon(site.host(rank), text)
        return text if who == "L" or text.startswith(f"[rank{rank}]") else self._mark(rank, text)

    def _mark(self, rank: int, text: str) -> str:
        return self._site.mark(rank) + text

    def _merged(self, reports: list[list[ComposedLine]], ranks: Sequence[int]) -> list[ComposedLine]:
        """Return several ranks' reports: interleaved if lines are marked, else one after another."""
        marked = [
            [ComposedLine(self._mark(rank, line.text), line.proof) for line in printed]
            for rank, printed in zip(ranks, reports, strict=True)
        ]
        if not self._site.mixes or len(marked) == 1:
            return [line for printed in marked for line in printed]
        merged: list[ComposedLine] = []
        left = [printed for printed in marked if printed]
        while left:
            printed = self._rng.choice(left)
            for _ in range(min(len(printed), self._rng.randint(1, 9))):
                merged.append(printed.pop(0))
            left = [one for one in left if one]
        return merged

    # ---- a Python report

    def _printed(self, report: TracebackForm, rank: int) -> list[ComposedLine]:
        """Return the report as one rank prints it."""
        message = [self._filled(text, rank) for text in report.message]
        named = [ComposedLine(text, n in report.proof) for n, text in enumerate(message)]
        dress: Callable[[TracebackForm, int, list[ComposedLine]], list[ComposedLine]] = {
            "": self._plain,
            "worker": self._in_worker,
            "ray": self._in_ray,
            "argparse": self._usage,
        }.get(report.dress, self._wrapped)
        return dress(report, rank, named)

    def _plain(self, report: TracebackForm, rank: int, named: list[ComposedLine]) -> list[ComposedLine]:
        return [*self._traceback((*report.outer, *report.inner)), *named]

    def _in_worker(self, report: TracebackForm, rank: int, named: list[ComposedLine]) -> list[ComposedLine]:
        exception = _class_of(named[0].text)
        loops = _WORKER[:1] if self._fix("old", ("", "old")) else _WORKER
        inner = (*_IN_WORKER, *report.inner)
        return [
            *self._traceback((*report.outer[:-1], *loops)),
            ComposedLine(f"{exception}: Caught {exception} in DataLoader worker process {self._rng.randrange(8)}."),
            *(ComposedLine(line.text.replace("Traceback", "Original Traceback")) for line in self._traceback(inner)),
            *named,
            ComposedLine(""),
        ]

    def _in_ray(self, report: TracebackForm, rank: int, named: list[ComposedLine]) -> list[ComposedLine]:
        exception = _class_of(named[0].text)
        task = self._fix("task", ("TaskRunner.run", "WorkerDict.actor_rollout_init_model", "WorkerDict.actor_update"))
        head = (
            f"ray.exceptions.RayTaskError({exception.rsplit('.', 1)[-1]}): ray::{task}() (pid={self._site.pid(rank)},"
        )
        return [
            ComposedLine(f"Error executing job with overrides: ['trainer.nnodes={self._site.world // 8}']"),
            *self._traceback((*report.outer[:2], *_RAY_GET)),
            ComposedLine(f"{head} ip={self._site.ip(rank)}, actor_id={self._rng.getrandbits(96):024x})"),
            *self._traceback((*report.outer[2:], *report.inner))[1:],
            *named,
        ]

    def _usage(self, report: TracebackForm, rank: int, named: list[ComposedLine]) -> list[ComposedLine]:
        script = named[0].text.split(":", 1)[0]
        return [ComposedLine(f"usage: {script} [-h] [--config CONFIG] [--lr LR] [--seed SEED] ..."), *named]

    def _wrapped(self, report: TracebackForm, rank: int, named: list[ComposedLine]) -> list[ComposedLine]:
        """Return the report, and another one raised from it."""
        message = named[0].text.split(": ", 1)[-1]
        return [
            *self._plain(report, rank, named),
            ComposedLine(""),
            ComposedLine(_DIRECT),
            ComposedLine(""),
            *self._traceback(report.outer),
            ComposedLine(f"{report.dress}: rank {rank} could not finish: {message}"),
        ]

    def _traceback(self, frames: Sequence[StackFrame]) -> list[ComposedLine]:
        lines = [ComposedLine("Traceback (most recent call last):")]
        for frame in frames:
            path = self._site.path(frame.path)
            number = zlib.crc32(f"{frame.path}{frame.function}".encode()) % 900 + 20
            number += self._drift if "site/" in frame.path else 0
            lines.append(ComposedLine(f'  File "{path}", line {max(number, 3)}, in {frame.function}'))
            if frame.code:
                lines.append(ComposedLine(f"    {frame.code}"))
                if self._site.carets:
                    lines.append(ComposedLine("    " + "^" * min(len(frame.code), 60)))
        return lines

    # ---- fields of a text

    def _fix(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices, the same throughout the scene."""
        if name not in self._fixed:
            self._fixed[name] = self._rng.choice(choices)
        return self._fixed[name]

    def _filled(self, text: str, rank: int) -> str:
        """Fill in a text's fields: some differ by rank, others are the same for all."""
        place = 0

        def value(match: re.Match[str]) -> str:
            nonlocal place
            place += 1
            name = match[1]
            if name in _OF_A_RANK:
                return self._site.of_rank(name, rank)
            return self._fix(f"{name} {place} {text}", (self._site.of_job(name),))

        return _FIELD.sub(value, text)


def _class_of(text: str) -> str:
    """Return the class named by a report's last line."""
    return text.split(":", 1)[0].strip()
