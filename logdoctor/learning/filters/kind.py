"""Which jobs print alike: rules are learned from and tried on jobs of one kind (paper, section 6.1: "metadata")."""

import shlex
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath

import regex

from logdoctor.store.jobs.records import JobFacts

_LONGEST = 120
_LAUNCHERS = {
    *("srun", "mpirun", "mpiexec", "torchrun", "accelerate", "deepspeed", "launch", "colossalai", "run", "composer"),
    *(
        "bash",
        "sh",
        "env",
        "exec",
        "nohup",
        "time",
        "sudo",
        "python",
        "python3",
        "uv",
        "poetry",
        "numactl",
        "ray",
        "job",
    ),
}
_COMMON = {"train.py", "main.py", "run.py", "launch.py", "pretrain.py", "finetune.py", "train.sh", "run.sh", "main.sh"}
_POD = regex.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""The suffix that Kubernetes gives to pod names."""
_NUMBERED = regex.compile(
    r"[-_.]?(?:\b|(?<=[-_.]))(?:v|r|run|try)?"
    r"(?:\d(?![\d.]*[bm](?![a-z\d]))[\w.]*|(?=[0-9a-f]*\d)[0-9a-f]{6,})(?![a-z])"
)
"""Parts of a name that count runs; `7b` is the size of a model."""


def kind_of(job: str, facts: JobFacts) -> str:
    """Return the kind of a job, a short text: what its log was recognised as, else its framework and program as far as
    known, else its image, else its user and the family of its name. Jobs of one kind share what is learned; "" when
    only a number is known."""
    if facts.like:
        return facts.like
    framework, image = _plain(facts.framework), _plain(_image(facts.image or ""))
    program, user = _plain(_program(facts.command or "")), _named(facts.user)
    if program in _COMMON and not framework:  # a common name; the image or user says more
        return "/".join(part for part in (image or user, program) if part)
    if framework or program:
        return "/".join(part for part in (framework, program) if part)
    if image:
        return f"image/{image}"
    family = _named(_family(facts.name or "")) or _named(_family(job))
    if user:
        return f"{user}/{family or 'job'}"
    return f"name/{family}" if family else ""


def like(job: str) -> str:
    """Return the kind of jobs whose logs look like that of this job without facts."""
    return f"like/{_named(job)}"


def _program(command: str) -> str:
    """Return what a command runs behind its launchers: the script without its folder, or the module."""
    words = _words(command)
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word.endswith((".py", ".sh")):
            return PurePosixPath(word).name
        if word == "-m" and following and not following.startswith("torch.distributed"):
            return following
    return next((name for name in _commands(words) if name not in _LAUNCHERS), "")


def _words(command: str) -> list[str]:
    """Return the words of a command, including those of a quoted command."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return [part for word in words for part in word.split()]


def _commands(words: list[str]) -> Iterator[str]:
    """Yield words that may name what is run: no option, not what follows an option, no assignment."""
    option = False
    for word in words:
        is_path = word.startswith(("/", "./"))
        if not word.startswith("-") and "=" not in word and (is_path or not option):
            yield PurePosixPath(word).name
        option = word.startswith("-") and "=" not in word


def _image(image: str) -> str:
    """Return the image without registry, tag and digest."""
    return image.split("@")[0].rsplit("/", 1)[-1].split(":")[0]


def _family(name: str) -> str:
    """Return a name without what counts runs: numbers, dates, hashes."""
    return _NUMBERED.sub("", _POD.sub("", name.lower())).strip("-_. ")


def _plain(text: str | None) -> str:
    """Return external text in a form fit for a kind."""
    return regex.sub(r"[^a-z0-9._-]+", "-", (text or "").lower()).strip("-.")[:_LONGEST]


def _named(text: str | None) -> str:
    """Return a name in a form fit for a kind; one whose letters are all unusable becomes a checksum."""
    text = text or ""
    letters = any(c.isalnum() for c in text)
    return _plain(text) or (f"x{zlib.crc32(text.encode('utf-8', 'replace')):08x}" if letters else "")
