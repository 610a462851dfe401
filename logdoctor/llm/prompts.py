"""Prompts: Markdown files with their inputs, output and settings in the front, and a Jinja body.

Log text comes into a prompt through `log` inputs only, and these stand between fences that no line can close.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import jinja2.meta
import jinja2.sandbox
import msgspec

from logdoctor.errors import PromptError
from logdoctor.llm.chat import estimate
from logdoctor.safe.plain_yaml import NotPlain, document


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands before the body of a prompt.

    `inputs` maps names to `log` (lines from outside, which are fenced) or `text` (words and numbers of ours).
    `output` names the form of the answer. `temperature` is that of repeated runs; a first run has 0.
    """

    inputs: dict[str, Literal["log", "text"]]
    output: str
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.0
    max_tokens_in: Annotated[int, msgspec.Meta(ge=100)] = 6000
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] = 1000


class Prompt:
    """A prompt as loaded; `version` is the digest of its file."""

    def __init__(self, name: str, version: str, head: Head, template: jinja2.Template) -> None:
        self.name = name
        self.version = version
        self.head = head
        self._template = template

    def render(self, values: Mapping[str, str | int | Sequence[str]]) -> str:
        """Return the text of the prompt. `PromptError` when the values are not those that it declares."""
        if values.keys() != self.head.inputs.keys():
            odd = sorted(values.keys() ^ self.head.inputs.keys())
            raise PromptError(f"prompt {self.name}", f"the inputs {odd} are missing or unknown", "Give those declared.")
        inputs = {name: self._input(name, value) for name, value in values.items()}
        try:
            return self._template.render(inputs)
        except jinja2.TemplateError as error:
            raise PromptError(f"prompt {self.name}", str(error), "See README.md beside it.") from error

    def _input(self, name: str, value: str | int | Sequence[str]) -> str | int:
        """Return the value as it stands in the prompt: lines of a log fenced, whoever wrote the template."""
        log = not isinstance(value, (str, int))
        if log != (self.head.inputs[name] == "log"):
            raise PromptError(
                f"prompt {self.name}", f"the input {name} is not {self.head.inputs[name]}", "Give it as declared."
            )
        return value if isinstance(value, (str, int)) else fenced(value)

    def fitted(self, blocks: Sequence[Sequence[str]], hidden: int = 0) -> tuple[str, int]:
        """Return the prompt with the first so many blocks of lines that keep it within its tokens, and how many they
        are.

        The prompt's inputs are `lines` and `left_out`: the number of blocks that are not in it, `hidden` ones, which
        the caller left out before, included. Blocks that fit do so in any order.
        """
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            fits = estimate(self._filled(blocks, middle, hidden)) <= self.head.max_tokens_in
            low, high = (middle, high) if fits else (low, middle - 1)
        return self._filled(blocks, low, hidden), low

    def _filled(self, blocks: Sequence[Sequence[str]], count: int, hidden: int) -> str:
        lines = [line for block in blocks[:count] for line in block]
        return self.render({"lines": lines, "left_out": hidden + len(blocks) - count})


def load(folder: Path, name: str) -> Prompt:
    """Return the prompt of the file `name`.md. `PromptError` when it is not there, or wrong in itself."""
    path = folder / f"{name}.md"
    try:
        raw = path.read_bytes()
        front, body = _FRONT.fullmatch(raw.decode()).groups()  # type: ignore[union-attr] # None is caught below
        head = msgspec.convert(document(front), Head, strict=False)
        template = _ENVIRONMENT.from_string(body)
        used = jinja2.meta.find_undeclared_variables(_ENVIRONMENT.parse(body))
    except OSError as error:
        raise PromptError(f"prompt {path}", f"cannot be read ({error.strerror})", "Restore it.") from error
    except (AttributeError, UnicodeDecodeError) as error:
        raise PromptError(f"prompt {path}", "is not front matter between --- and a body", "See README.md.") from error
    except (NotPlain, msgspec.ValidationError, jinja2.TemplateError) as error:
        raise PromptError(f"prompt {path}", " ".join(str(error).split()), "See README.md beside it.") from error
    if odd := sorted(used ^ head.inputs.keys()):
        raise PromptError(f"prompt {path}", f"the inputs {odd} are declared or used, not both", "Do both, or neither.")
    return Prompt(name, sha256(raw).hexdigest(), head, template)


def fenced(lines: Sequence[str]) -> str:
    """Return the lines between two fences, longer than any row of backticks in them, so that none can close the fence.

    A line stays one: what breaks lines or does not print is a visible replacement.
    """
    clean = [_plain(line) for line in lines]
    fence = "`" * max(3, 1 + max((len(row) for line in clean for row in _TICKS.findall(line)), default=0))
    return "\n".join([fence, *clean, fence])


def _plain(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)


_TICKS = re.compile("`+")
_FRONT = re.compile(r"---\n(.*?\n)---\n(.*)", re.S)
_ENVIRONMENT = jinja2.sandbox.ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined,
    autoescape=False,  # it is for a model, not for a browser
    trim_blocks=True,
    lstrip_blocks=True,
)
