"""Patterns for the line that names a failure, by a language model, followed by those of its structure.

The model's pattern passes the same guards, so a bad answer costs one call and nothing else.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec
import regex
import structlog

from logdoctor.errors import ModelError, PromptError
from logdoctor.learning.diagnoses.writer import HIDDEN, OfflineWriter, Task, Written, title_of
from logdoctor.learning.proposed import LONGEST
from logdoctor.llm.chat import Message, estimate
from logdoctor.llm.prompts import Prompt, load
from logdoctor.llm.spending import Guarded
from logdoctor.text import harmless, origin, shown

log = structlog.get_logger()

WRITE = "write-diagnosis"
"""The prompt, and the purpose of its calls in the ledger."""

_LINE = 600  # characters shown of a line
_NEAR = 8
_SAME = 4
_OTHERS = 20
_TITLE = 120
_MARK = regex.compile(r"\\?<[a-z]+(?:\\?-(?:\d+|(?:\\d|\[0-9\])(?:[+*]|\{\d{1,3}(?:,\d{0,3})?\})?\??))?\\?>")


class WrittenDiagnosis(msgspec.Struct):
    """The answer to `write-diagnosis`: a pattern, and in a few words what its line says."""

    pattern: str
    what: str = ""


class ModelWriter:
    """A `Writer` that asks a model once per line; any thread may call. Raises `PromptError` for a bad prompt."""

    def __init__(self, model: Guarded, prompts: Path) -> None:
        self._model = model
        self._prompt = load(prompts, WRITE)
        if self._prompt.head.output != WrittenDiagnosis.__name__:
            cause = f"its output is not {WrittenDiagnosis.__name__}"
            raise PromptError(f"prompt {prompts / WRITE}.md", cause, "Restore the file that came with logdoctor.")
        self._offline = OfflineWriter()
        self.name = f"{model.name}@{self._prompt.version[:12]}"

    def write(self, task: Task) -> list[Written]:
        """Return the model's pattern followed by the structural ones; only the latter when the model fails."""
        written = self._offline.write(task)
        if not task.marked:
            return written  # only values tell it from routine, and these the model must not choose
        try:
            answer = self._asked(task)
        except ModelError as error:
            log.warning("no pattern of the model", job=task.job, cause=str(error))
            return written
        pattern = _meant(answer.pattern)
        title = harmless(answer.what, _TITLE).strip() or title_of(task.line)
        return [Written(pattern, title, self.name), *written] if 0 < len(pattern) <= LONGEST else written

    def _asked(self, task: Task) -> WrittenDiagnosis:
        masker = self._model.masker()
        return self._model.answer(
            task.job,
            WRITE,
            [Message("user", _text(self._prompt, task, masker.mask))],
            WrittenDiagnosis,
            temperature=0.0,
            max_tokens=self._prompt.head.max_tokens,
            attempt=task.attempt,
            prompt=self._prompt.version,
            masker=masker,
        )


def _text(prompt: Prompt, task: Task, hide: Callable[[str], str]) -> str:
    """Return the prompt with as much context of the line as fits."""
    lines = [f"name: {_shown(task.line, hide)}", *(f"same: {_shown(one, hide)}" for one in task.examples[:_SAME])]
    near = [f"near: {_shown(one, hide)}" for one in task.around[:_NEAR]]
    others = [_shown(one, hide) for one in task.others[:_OTHERS]]
    for share in (1.0, 0.5, 0.25, 0.0):
        some = [*lines, *near[: int(len(near) * share)]]
        fields = {"lines": some, "others": others[: int(len(others) * share)], "reason": task.reason}
        if estimate(text := prompt.render(fields)) <= prompt.head.max_tokens_in:
            return text
    return prompt.render({"lines": lines[:1], "others": [], "reason": task.reason})


def _shown(line: str, hide: Callable[[str], str]) -> str:
    return hide(origin(shown(line)).message)[:_LINE]


def _meant(written: str) -> str:
    """Return a pattern as intended: with backslashes restored that JSON consumed, and masks as fields."""
    plain = written.strip("\r\n ").replace("\b", r"\b").replace("\t", r"\t")
    plain = plain.removesuffix("$") if not plain.endswith("\\$") else plain
    return _MARK.sub(lambda _: HIDDEN, plain)
