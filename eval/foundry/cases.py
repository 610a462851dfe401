"""Cases: what is run, how it is started and how it prints, drawn from a seed."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import msgspec

LIGHT = ("loop", "ranks", "prepare", "evaluate", "serve", "reinforce")
TORCH = ("torch", "ddp", "fsdp", "tensor", "pipeline", "trainer", "lightning", "deepspeed")
GLOO = ("ddp", "fsdp", "tensor", "pipeline")
STYLES = (
    "plain", "plain", "logging", "hydra", "basic", "ranked", "structlog", "json", "jsonl", "logfmt", "loguru", "absl",
    "rich", "tqdm", "tqdm",
)  # fmt: skip
LAUNCHERS = {
    "ranks": ("env", "env-prefix"),
    "trainer": ("direct", "bash", "torchrun"),
    "lightning": ("direct", "bash", "torchrun"),
    "deepspeed": ("torchrun",),
    **dict.fromkeys(GLOO, ("torchrun", "torchrun", "tee", "env", "env-prefix", "spawn")),
}
ONE = ("direct", "bash", "timeout")
_WEIGHTS = (18, 16, 11, 11, 9, 3, 7, 8, 3, 4, 3, 3, 3, 2)
_NAMES = ("pretrain", "finetune", "sft", "train", "run_clm", "main", "launch_job", "reward_model")
_FAREWELLS = ("training finished", "done.", "Finished in {}s", "all {} steps complete, exiting", "saved final model")


class Case(msgspec.Struct, frozen=True):
    """One run of a program with one fault, or none. `step` counts from 1; `token` is a number that the cause carries
    where programs print one: a sample, a file, a name."""

    number: int
    seed: int
    program: str
    launcher: str
    style: str
    form: int
    crash: str
    world: int
    workers: int
    steps: int
    fault: str
    step: int
    rank: int
    token: int
    name: str
    farewell: str

    @property
    def id(self) -> str:
        return f"c{self.number:05d}"

    @property
    def split(self) -> str:
        """`open` or `validation`, by program and fault together."""
        digest = hashlib.sha256(f"{self.program}/{self.fault}".encode()).digest()
        return "validation" if digest[0] < 77 else "open"


def draw(seed: int, number: int, faults: dict[str, Any], without: frozenset[str] = frozenset()) -> Case:
    """Return a case; the same seed and number give the same one. A third have a fault that fails nothing, or none."""
    chance = random.Random(f"{seed}-{number}")
    harmless = chance.random() < 1 / 3
    groups = [name for name, fault in faults.items() if fault.harmless == harmless]
    while True:
        program = chance.choices((*LIGHT, *TORCH), _WEIGHTS)[0]
        launcher = chance.choice(LAUNCHERS.get(program, ONE))
        fitting = [name for name in groups if faults[name].fits(program, launcher)]
        if fitting and program not in without:
            break
    steps, token = chance.randrange(24, 60), chance.randrange(1000, 10000)
    world = (
        1 if program not in LAUNCHERS or launcher in ONE else chance.choice((2, 2, 3) if program == "ranks" else (2,))
    )
    return Case(
        number=number,
        seed=seed,
        program=program,
        launcher=launcher,
        style=chance.choice(STYLES),
        form=chance.randrange(5),
        crash=chance.choice(("raw", "raw", "logged")),
        world=world,
        workers=chance.choice((0, 2)),
        steps=steps,
        fault=chance.choice(fitting),
        step=chance.randrange(6, steps - 4),
        rank=chance.randrange(world),
        token=token,
        name=chance.choice(_NAMES),
        farewell=chance.choice(_FAREWELLS).format(steps),
    )


class Making(msgspec.Struct):
    """What a case is run with, to be changed by its fault: files in `folder`, the configuration of the program, words
    before and after its command, its environment, and what the tracker answers from request `tracker_from` on."""

    case: Case
    folder: Path
    chance: random.Random
    config: dict[str, Any]
    records: list[list[dict[str, Any]]]
    raw: dict[tuple[int, int], bytes] = {}
    wrap: list[str] = []
    arguments: list[str] = []
    env: dict[str, str] = {}
    tracker: str = ""
    tracker_from: int = 0
    port_taken: bool = False
    extra_ranks: int = 0
    memory_limit: int = 0
    runs: int = 1
    good_first: bool = False
    max_restarts: int = 0
    cut: float = 1.0
    locked: list[str] = []
    schedule: str = "    return BASE * 0.5 * (1 + math.cos(math.pi * step / total))"
    end_with: int = 0

    def file(self, rank: int, at: int) -> str:
        """Return the name of the file with a sample of a rank."""
        return f"train-{rank:02d}-{self.case.token + at // self.config['per_file']:06d}.jsonl"

    def event(self, kind: str, place: str = "step", **more: Any) -> None:
        """Let something happen at the step of the case, once."""
        case = self.case
        mark = str(self.folder / f".mark{len(self.config['events'])}")
        event = {"kind": kind, "step": case.step, "rank": case.rank, "place": place, "mark": mark}
        self.config["events"].append(event | more)

    @property
    def record(self) -> dict[str, Any]:
        """The sample that the rank of the case reads for its step."""
        return self.records[self.case.rank][self.at]

    @property
    def at(self) -> int:
        """The place of that sample. The Trainer deals the samples out to its ranks."""
        case = self.case
        return (case.step - 1) * case.world + case.rank if case.program == "trainer" else case.step - 1


def making(case: Case, folder: Path) -> Making:
    """Return a run in which nothing goes wrong."""
    chance = random.Random(f"{case.seed}-{case.number}-making")
    column = f"{chance.choice(('text', 'content', 'prompt'))}_{chance.randrange(100)}"
    rows = case.steps * (case.world if case.program == "trainer" else 1)
    records = [[_record(chance, column) for _ in range(rows)] for _ in range(case.world)]
    config = {
        "style": case.style, "form": case.form, "crash": case.crash, "name": case.name, "steps": case.steps,
        "world": case.world, "workers": case.workers, "pause": 0.01, "data": "data", "split": "train", "per_file": 16,
        "manifest": "data/manifest.json" if chance.random() < 0.5 else "", "column": column, "max_length": 64,
        "learning_rate": "3e-4", "model": {"hidden": 64}, "tokenizer": "", "resume": "", "output": "output",
        "kernels": chance.choice(("math", "math", "fused_kernels")), "schedule": "lr_schedule", "save_every": 10,
        "eval_every": 12, "sync_every": 5, "timeout": 60, "tracker": "", "events": [], "lenient": False, "noise": [],
        "noisy_rank": chance.randrange(case.world), "farewell": case.farewell, "graceful": False, "port": 0,
        "odd": {"step": -1, "rank": 0, "width": 8}, "rows": rows,
    }  # fmt: skip
    return Making(case, folder, chance, config, records)


def _record(chance: random.Random, column: str) -> dict[str, Any]:
    return {
        "id": chance.randrange(10**5, 10**6),
        column: " ".join(chance.choices(("the", "model", "reads", "a", "sample"), k=4)),
        "ids": [chance.randrange(500) for _ in range(8)],
        "x": [round(chance.gauss(0, 1), 4) for _ in range(8)],
        "label": chance.choice("45"),
        "weight": 1.0,
        "meta": {"language": "en"},
        "codec": "",
        "pad": 8,
    }


def write(made: Making) -> None:
    """Write the files of a case."""
    data, config = made.folder / "data", made.config
    for folder in (data, made.folder / "tools"):
        folder.mkdir(parents=True, exist_ok=True)
    manifest = []
    for rank, rows in enumerate(made.records):
        names = []
        for begin in range(0, len(rows), config["per_file"]):
            lines = [
                made.raw.get((rank, at), json.dumps(rows[at]).encode())
                for at in range(begin, min(begin + config["per_file"], len(rows)))
            ]
            names.append(made.file(rank, begin))
            (data / names[-1]).write_bytes(b"\n".join(lines) + b"\n")
        manifest.append(names)
    (data / "manifest.json").write_text(json.dumps(manifest))
    (made.folder / "tools" / "decode.py").write_text("import sys\nsys.exit(3)\n")
    schedule = f"import math\n\nBASE = 0.01\n\n\ndef rate(step, total):\n{made.schedule}\n"
    (made.folder / "lr_schedule.py").write_text(schedule)
    (made.folder / "config.json").write_text(json.dumps(config, indent=1))
    (made.folder / f"{made.case.name}.py").write_bytes(Path(__file__).with_name("programs.py").read_bytes())
