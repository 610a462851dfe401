"""What trials are about: sets of samples, shards of sets, how long they take, and results."""

from typing import NamedTuple

import msgspec


class Model(msgspec.Struct, frozen=True):
    """The model that is evaluated: the folder or file with its checkpoint, its name, the step of the checkpoint, its
    parameters in billions, and how many GPUs one worker of it needs (a fraction shares one)."""

    path: str
    name: str
    step: int | None = None
    billions: float | None = None
    gpus: float = 1.0


class EvalSet(msgspec.Struct, frozen=True):
    """One data set. `infer` and `score` are command templates of the user: `infer` makes the outputs of the samples
    from `{start}` up to `{end}` of `{dataset}` with `{model}` in the file `{out}`; `score` reads the merged outputs
    `{outputs}` and writes a JSON object of metrics to `{out}`. `tokens` are those generated for a sample, as far as
    known. A set that is not `splittable` is one shard. `runs_code` has it scored in the sandbox; `judge` is the name of
    a judge that `score` asks, whose rate is limited."""

    name: str
    samples: int
    infer: str
    score: str
    dataset: str = ""
    tokens: float | None = None
    splittable: bool = True
    runs_code: bool = False
    judge: str | None = None


class Shard(NamedTuple):
    """The samples of a set from `start` up to `end`, without it."""

    set: str
    start: int
    end: int

    @property
    def samples(self) -> int:
        """Return how many samples it has."""
        return self.end - self.start

    def cut(self, most: int) -> "list[Shard]":
        """Return it in parts of at most so many samples."""
        return [Shard(self.set, at, min(at + most, self.end)) for at in range(self.start, self.end, most)]


class Times(NamedTuple):
    """How long a set takes, in seconds: for each shard `fixed` (start of the harness, reading the set), for each sample
    `sample` (inference), and `score` for the scoring of the whole set. `runs` runs say so; 0 is a guess
    from samples and tokens."""

    fixed: float
    sample: float
    score: float
    runs: int = 0

    def inference(self, samples: int) -> float:
        """Return the seconds that a worker is busy with so many samples of the set."""
        return self.fixed + self.sample * samples
