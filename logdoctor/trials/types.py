"""The types of trials: models, sets of samples, shards of sets, and times."""

from typing import NamedTuple

import msgspec


class Model(msgspec.Struct, frozen=True):
    """The evaluated model: the folder or file with its checkpoint, its name, the checkpoint's step, its parameters in
    billions, and how many GPUs a worker needs (a fraction shares one)."""

    path: str
    name: str
    step: int | None = None
    billions: float | None = None
    gpus: float = 1.0


class EvalSet(msgspec.Struct, frozen=True):
    """One data set. `infer` and `score` are command templates of the user: `infer` makes the outputs of the samples
    from `{start}` up to `{end}` of `{dataset}` with `{model}` in the file `{out}`; `score` reads the merged outputs
    `{outputs}` and writes a JSON object of metrics to `{out}`. `tokens` are those generated per sample, if known. A
    set that is not `splittable` is one shard. With `runs_code` it is scored in the sandbox; `judge` is the name of a
    judge that `score` asks, whose rate is limited."""

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
    """The samples of a set from `start` up to, but not including, `end`."""

    set: str
    start: int
    end: int

    @property
    def samples(self) -> int:
        """The number of its samples."""
        return self.end - self.start

    def cut(self, most: int) -> "list[Shard]":
        """Return it in parts of at most `most` samples."""
        return [Shard(self.set, at, min(at + most, self.end)) for at in range(self.start, self.end, most)]


class Times(NamedTuple):
    """How long a set takes, in seconds: `fixed` per shard (start of the harness, reading the set), `sample` per sample
    (inference), and `score` for scoring the whole set. `runs` is how many runs measured it; 0 is a guess from
    samples and tokens."""

    fixed: float
    sample: float
    score: float
    runs: int = 0

    def inference(self, samples: int) -> float:
        """Return the seconds that a shard of so many samples keeps a worker busy."""
        return self.fixed + self.sample * samples
