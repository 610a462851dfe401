"""Real training of two ranks over gloo with faults, under our supervisor and other launchers.

    python -m eval.bench_recovery [--runs exit=12 hang=6 ...] [--by logdoctor torchrun ft_launcher] [--seed 0]
        [--ft-launcher PATH] [--limit 180] [--json [FILE]]
        [--trainers [plain fsdp accelerate trainer deepspeed lightning]]

The trainer is tests/recovery/gloo.py: 300 steps, a checkpoint every 20. Where a fault strikes, and which rank, come
from the seed. torchrun and NVRx's ft_launcher get `--max-restarts 3`; the trainer loads the newest checkpoint.
A run that has not ended after `--limit` seconds is ended and counts as not recovered.

    right        runs that ended as expected: after a transient fault the job is done, with the model of an undisturbed
                 training (bit by bit; after a spike within 2 % of its loss, and exactly the announced batches absent),
                 and of a hang we name the rank; after a lasting fault it is not restarted, or only within the limits
    restarts     of all runs
    wrong        restarts after a fault that a restart meets again, or whose cause is not known
    lost steps   most steps that were repeated
    detection    most seconds from the last step of a hang to the end of its attempt

With `--trainers` other people's trainers (eval/trainers.py: 60 steps, a checkpoint every 10) are run with each fault
of `STRIKES` instead; `same` are runs that end with the weights of an undisturbed one, bit by bit.

Nothing is asserted; nothing here runs on GPUs.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from eval.trainers import TRAINERS
from logdoctor.job.recovery.contract import ASK, DONE, FIX_FIRST
from logdoctor.job.recovery.skipping import read_ranges
from tests.recovery import gloo
from tests.recovery.gloo import GLOBAL_BATCH, SAVE_EVERY, STEPS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "eval" / "results" / "bench_recovery.json"
S3 = "botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: https://s3.example.org"
BUGS = ("NameError: name 'mask' is not defined", "KeyError: 'tokens'", "TypeError: forward() got 2 arguments")
MAX_RESTARTS = 3
SLOW = {"step_seconds": 0.1, "save_seconds": 0.5}
RUNS = {
    "exit": 12,
    "bug": 10,
    "unknown": 8,
    "kill": 8,
    "memory": 6,
    "disk": 6,
    "loop": 2,
    "hang": 6,
    "nan": 3,
    "spike": 3,
}
STRIKES = {
    "kill": DONE,
    "crash": DONE,
    "abort": DONE,
    "terminate": DONE,
    "launcher": DONE,
    "unavailable": DONE,
    "reset": DONE,
    "quit": ASK,
    "key": FIX_FIRST,
}
"""Faults of eval/trainers.py, and the exit code that we should end with."""
KNOWN_FOLDERS = ("fsdp", "trainer", "deepspeed", "lightning")
"""Trainers whose checkpoints our catalogue reads; the others find their own."""
_WITHOUT_CONFIG = "--ignore-missing-fault-tol-cfg"
console = Console(highlight=False, width=140)


class Fault(NamedTuple):
    """A fault: its plan for the trainer, whether it is transient, and the exit code that we should end with."""

    plan: dict[str, Any]
    passes: bool
    code: int = DONE


def fault(kind: str, seed: int) -> Fault:
    """Return a fault of a kind; the seed gives its step and rank."""
    chance = random.Random(f"{kind} {seed}")
    where = {"at": chance.randrange(SAVE_EVERY + 5, STEPS), "rank": chance.randrange(2)}
    late = {"at": chance.randrange(10 * SAVE_EVERY, STEPS), "rank": chance.randrange(2)}  # by then, its pace is known
    onset = chance.randrange(4 * SAVE_EVERY, STEPS - 60)
    match kind:
        case "exit":
            return Fault({"attempts": [{"fault": "exit", "say": S3, **where}, {"fault": "none"}]}, True)
        case "kill":
            return Fault({"attempts": [{"fault": "kill", **where}, {"fault": "none"}]}, True)
        case "loop":
            return Fault({"attempts": [{"fault": "exit", "say": S3, **where}]}, False, ASK)
        case "bug":
            said = BUGS[seed % len(BUGS)]
            return Fault({"attempts": [{"fault": "exit", "say": said, **where}]}, False, FIX_FIRST)
        case "unknown":
            return Fault({"attempts": [{"fault": "quit", "say": "the loom is jammed", **where}]}, False, ASK)
        case "hang":
            return Fault({"attempts": [{"fault": "hang", **late}, {"fault": "none"}], **SLOW}, True)
        case "nan" | "spike":
            by = "nan" if kind == "nan" else "size"
            poison = {"poison": [onset, onset + 40], "poison_by": by, "step_seconds": 0.1}
            return Fault({"attempts": [{"fault": "none"}], **poison}, True)
    return Fault({"attempts": [{"fault": kind, **where}]}, False, FIX_FIRST)


class Ran(NamedTuple):
    """How a run ended: its exit code (None if it was ended), its seconds, and its folder."""

    code: int | None
    seconds: float
    folder: Path

    @property
    def attempts(self) -> int:
        """How many attempts reached their first step."""
        return len(list(self.folder.glob("samples-*-0")))

    def steps(self, attempt: int, rank: int = 0) -> dict[int, list[int]]:
        """Return the samples of each step by a rank in an attempt."""
        lines = (self.folder / f"samples-{attempt}-{rank}").read_text().splitlines()
        return {step: samples for step, samples in map(json.loads, lines)}

    def lost(self) -> int:
        """Return the most steps that an attempt repeated."""
        every = [steps for attempt in range(self.attempts) if (steps := self.steps(attempt))]
        return max((max(a) - min(b) + 1 for a, b in pairwise(every)), default=0)

    def model(self) -> dict[str, torch.Tensor] | None:
        """Return the final model; None without one."""
        path = self.folder / "final.pt"
        return torch.load(path, weights_only=True) if path.exists() else None

    def events(self) -> list[dict[str, Any]]:
        """Return the events that our supervisor recorded."""
        path = self.folder / "state" / "gloo" / "record.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def detection(self) -> float | None:
        """Return seconds from the first attempt's last step to its end; None if never ended."""
        ended = next((event["at"] for event in self.events() if event["event"] == "ended"), None)
        stepped = max((self.folder / f"samples-0-{rank}").stat().st_mtime for rank in range(2))
        return None if ended is None else float(ended) - stepped


def quality(model: dict[str, torch.Tensor]) -> float:
    """Return the loss on samples that no training has seen."""
    pairs = [gloo.sample(number, {}) for number in range(1_000_000, 1_000_500)]
    x, y = torch.stack([pair[0] for pair in pairs]), torch.stack([pair[1] for pair in pairs])
    return float((x @ model["weight"].T + model["bias"] - y[:, None]).square().mean())


class Bench:
    """Runs of all kinds by all launchers, in a folder."""

    def __init__(self, folder: Path, limit: float, ft_launcher: str) -> None:
        self._folder, self._limit, self._ft_launcher = folder, limit, ft_launcher
        self._launchers: dict[str, Callable[[Path, str], list[str]]] = {
            "logdoctor": self._ours,
            "torchrun": lambda folder, _: [sys.executable, "-m", "torch.distributed.run", *self._restarting(folder)],
            "ft_launcher": lambda folder, _: [ft_launcher, _WITHOUT_CONFIG, *self._restarting(folder)],
        }

    def _trainer(self, folder: Path) -> list[str]:
        return ["--nproc-per-node", "2", gloo.__file__, str(folder), str(folder / "plan.json")]

    def _restarting(self, folder: Path) -> list[str]:
        return ["--standalone", "--max-restarts", str(MAX_RESTARTS), *self._trainer(folder)]

    def _ours(self, folder: Path, kind: str) -> list[str]:
        ended_on = {
            "hang": ["--end-on", "hang", "--stacks", "faulthandler,flight-recorder"],
            "nan": ["--end-on", "loss-spike"],
            "spike": ["--end-on", "loss-spike"],
        }
        options = ["--checkpoints", str(folder / "ckpt"), "--skip-batches", "50", *ended_on.get(kind, [])]
        supervisor = ["logdoctor.job.recovery", "run", "--restart", "--delay", "0", "--grace", "20", *options, "--"]
        launch = ["torch.distributed.run", "--standalone", *self._trainer(folder)]
        return [sys.executable, "-m", *supervisor, sys.executable, "-m", *launch]

    @cached_property
    def _clean(self) -> dict[str, torch.Tensor]:
        """The final model of an undisturbed training."""
        model = self.run("torchrun", "clean", {"attempts": [{"fault": "none"}]}).model()
        assert model is not None, "the trainer fails without a fault"
        return model

    def run(self, by: str, name: str, plan: dict[str, Any], kind: str = "") -> Ran:
        """Run a plan by a launcher until it ends or its time is over."""
        folder = self._folder / f"{by}-{name}"
        (folder / "ckpt").mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(plan))
        return self._launched(folder, self._launchers[by](folder, kind), {})

    def other(self, by: str, trainer: str, fault: str, name: str) -> Ran:
        """Run another trainer with a fault, such as `kill@37@1`, by a launcher."""
        folder = self._folder / f"{by}-{trainer}-{name}"
        (folder / "ckpt").mkdir(parents=True)
        training = ["--nproc-per-node", "2", str(ROOT / "eval" / "trainers.py"), trainer, str(folder)]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        commands = {
            "torchrun": [*launch, "--max-restarts", str(MAX_RESTARTS), *training],
            "ft_launcher": [self._ft_launcher, _WITHOUT_CONFIG, "--max-restarts", str(MAX_RESTARTS), *training],
            "logdoctor": [
                *(sys.executable, "-m", "logdoctor.cli", "run", "--restart", "--delay", "0", "--grace", "20"),
                *(("--checkpoints", str(folder / "ckpt")) if trainer in KNOWN_FOLDERS else ()),
                *("--", *launch, *training),
            ],
        }
        return self._launched(folder, commands[by], {"FAULT": fault})

    def _launched(self, folder: Path, command: list[str], given: dict[str, str]) -> Ran:
        told = {"PYTHONPATH": str(ROOT), "LOGDOCTOR_JOB": "gloo", "LOGDOCTOR_STATE_DIR": str(folder / "state"), **given}
        environment = {**os.environ, **told, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environment.pop("LOGDOCTOR_URL", None)
        began = time.monotonic()
        with (folder / "out").open("wb") as out:
            process = subprocess.Popen(
                command, env=environment, cwd=folder, stdout=out, stderr=out, start_new_session=True
            )
            code = self._await(process)
        return Ran(code, time.monotonic() - began, folder)

    def _await(self, process: subprocess.Popen[bytes]) -> int | None:
        """Return the exit code; None if the process had to be ended."""
        try:
            return process.wait(self._limit)
        except subprocess.TimeoutExpired:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for group in Path("/sys/fs/cgroup/memory").glob("logdoctor-*"):
                with suppress(OSError):  # one in use
                    group.rmdir()

    def is_right(self, by: str, kind: str, wanted: Fault, ran: Ran) -> bool:
        """Return whether a run ended as expected."""
        if not wanted.passes:
            code = ran.code == wanted.code if by == "logdoctor" else ran.code not in (0, None)
            return code and self.wrong_restarts(kind, wanted, ran) == 0
        model = ran.model()
        if ran.code != 0 or model is None:
            return False
        if kind in ("nan", "spike"):
            return self._left_behind(kind, wanted, ran, by) and quality(model) < 1.02 * quality(self._clean)
        if kind == "hang" and by == "logdoctor":
            said = (ran.folder / "out").read_text(errors="replace")
            if f"its verdict is Hang (rank {wanted.plan['attempts'][0]['rank']})" not in said:
                return False
        return all(torch.equal(model[name], self._clean[name]) for name in self._clean)

    def _left_behind(self, kind: str, wanted: Fault, ran: Ran, by: str) -> bool:
        """Return whether exactly the announced batches are missing from the final model."""
        if by != "logdoctor":
            return True
        starts = [event["start"] for event in ran.events() if event["event"] == "started"]
        ranges = read_ranges(starts[-1]["skip"])
        if len(ranges) != 1:
            return False
        (skipped,) = ranges
        onset = wanted.plan["poison"][0]
        kept: dict[int, set[int]] = {}
        for attempt in range(ran.attempts):
            parts = [ran.steps(attempt, rank) for rank in range(2)]
            kept = {step: samples for step, samples in kept.items() if step < min(parts[0])}
            kept |= {step: set(samples) | set(parts[1].get(step, ())) for step, samples in parts[0].items()}
        seen = {sample // GLOBAL_BATCH + 1 for samples in kept.values() for sample in samples}
        absent = set(range(skipped.first, skipped.last + 1))
        every = set(range(1, STEPS + len(absent) + 1))
        return skipped.first <= onset <= skipped.last and seen == every - absent

    @staticmethod
    def wrong_restarts(kind: str, wanted: Fault, ran: Ran) -> int:
        """Count the restarts that could not help."""
        if wanted.passes:
            return 0
        allowed = 3 if kind == "loop" else 0  # its message is of a transient fault: three attempts without progress
        return max(ran.attempts - 1 - allowed, 0)


def main() -> None:
    """Run what is asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", nargs="*", default=[], metavar="KIND=COUNT", help=f"default: {RUNS}")
    parser.add_argument("--by", nargs="*", default=["logdoctor"], choices=["logdoctor", "torchrun", "ft_launcher"])
    parser.add_argument("--ft-launcher", default="ft_launcher", help="the program of nvidia-resiliency-ext")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run; default: 0")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds that a run may take; default: 180")
    parser.add_argument("--trainers", nargs="*", choices=list(TRAINERS), help="run these instead of our own trainer")
    parser.add_argument("--json", nargs="?", type=Path, const=RESULTS, help=f"write the figures; default: {RESULTS}")
    given = parser.parse_args()
    counts = {kind: int(count) for kind, count in (one.split("=") for one in given.runs)} or RUNS
    with tempfile.TemporaryDirectory(prefix="bench-recovery-") as folder:
        bench = Bench(Path(folder), given.limit, given.ft_launcher)
        if given.trainers is None:
            rows = [row for by in given.by for row in _rows(bench, by, counts, given.seed)]
        else:
            rows = [row for by in given.by for row in _others(bench, by, given.trainers or _installed(), given.seed)]
    (_show if given.trainers is None else _show_others)(rows)
    if given.json:
        given.json.parent.mkdir(exist_ok=True)
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


def _rows(bench: Bench, by: str, counts: dict[str, int], first: int) -> list[dict[str, Any]]:
    rows = []
    for kind, count in counts.items():
        done: list[tuple[Fault, Ran, bool]] = []
        for seed in range(first, first + count):
            wanted = fault(kind, seed)
            ran = bench.run(by, f"{kind}-{seed}", wanted.plan, kind)
            right = bench.is_right(by, kind, wanted, ran)
            done.append((wanted, ran, right))
            said = [event["why"] for event in ran.events() if event["event"] == "decided"]
            shown = "right" if right else "WRONG"
            console.print(f"{by} {kind} seed {seed}: {shown}, exit code {ran.code}, {ran.seconds:.0f} s {said}")
            if not right:
                console.print((ran.folder / "out").read_text(errors="replace")[-1500:])
        found = [found for _, ran, _ in done if kind == "hang" and (found := ran.detection()) is not None]
        rows.append(
            {
                "by": by,
                "fault": kind,
                "runs": len(done),
                "right": sum(right for _, _, right in done),
                "restarts": sum(ran.attempts - 1 for _, ran, _ in done),
                "wrong": sum(bench.wrong_restarts(kind, wanted, ran) for wanted, ran, _ in done),
                "lost": max((ran.lost() for _, ran, _ in done if kind not in ("nan", "spike")), default=0),
                "detection": round(max(found), 1) if found else None,
                "seconds": round(sum(ran.seconds for _, ran, _ in done) / max(len(done), 1), 1),
            }
        )
    return rows


def _installed() -> list[str]:
    """Return the trainers that can run here. DeepSpeed is in no extra: whoever installs it builds it."""
    if find_spec("deepspeed"):
        return list(TRAINERS)
    console.print("deepspeed is left out: it is not installed (pip install --no-build-isolation deepspeed)")
    return [name for name in TRAINERS if name != "deepspeed"]


def _others(bench: Bench, by: str, trainers: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Return a row per trainer and fault; the seed gives its step and rank."""
    rows = []
    for trainer in trainers:
        clean = (bench.other("torchrun", trainer, "none@0@0", f"clean-{by}").folder / "final").read_text()
        for kind, code in STRIKES.items():
            chance = random.Random(f"{trainer} {kind} {seed}")
            ran = bench.other(by, trainer, f"{kind}@{chance.randrange(12, 60)}@{chance.randrange(2)}", kind)
            final = ran.folder / "final"
            wanted = (0,) if code == DONE else (code,) if by == "logdoctor" else (1,)
            starts = sum(event["event"] == "started" for event in ran.events()) if by == "logdoctor" else None
            right = ran.code in wanted and final.exists() == (code == DONE) and (code == DONE or starts in (None, 1))
            said = [event["why"] for event in ran.events() if event["event"] == "decided"]
            console.print(
                f"{by} {trainer} {kind}: {'right' if right else 'WRONG'}, {ran.code}, {ran.seconds:.0f} s {said}"
            )
            if not right:
                console.print((ran.folder / "out").read_text(errors="replace")[-1500:], markup=False)
            same = final.exists() and final.read_text() == clean
            row = {"by": by, "trainer": trainer, "fault": kind, "right": right, "same": same if code == DONE else None}
            rows.append({**row, "starts": starts, "code": ran.code, "seconds": round(ran.seconds, 1)})
    return rows


def _show_others(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("by", "trainer", "fault", "right", "same weights", "starts", "exit code", "s")
    for row in rows:
        same = "-" if row["same"] is None else "yes" if row["same"] else "no"
        found = ("yes" if row["right"] else "NO", same, row["starts"] or "-", row["code"], row["seconds"])
        table.add_row(row["by"], row["trainer"], row["fault"], *map(str, found))
    console.print(table)
    for by in dict.fromkeys(row["by"] for row in rows):
        own = [row for row in rows if row["by"] == by]
        console.print(f"{by}: right {sum(row['right'] for row in own)} of {len(own)}")


def _show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("by", "fault", "right", "restarts", "wrong", "lost steps", "detection s", "s a run")
    for row in rows:
        shown = (f"{row['right']} / {row['runs']}", row["restarts"], row["wrong"], row["lost"])
        found = "-" if row["detection"] is None else row["detection"]
        table.add_row(row["by"], row["fault"], *map(str, shown), str(found), str(row["seconds"]))
    console.print(table)
    for by in dict.fromkeys(row["by"] for row in rows):
        own = [row for row in rows if row["by"] == by]
        right, runs, wrong = (sum(row[name] for row in own) for name in ("right", "runs", "wrong"))
        console.print(f"{by}: right {right} of {runs}, wrong restarts {wrong}")


if __name__ == "__main__":
    main()
