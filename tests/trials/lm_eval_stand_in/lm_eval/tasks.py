"""Stands in for the tasks of lm_eval: files of a folder, which say what a task has."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api import metrics


class Task:
    """A task with its documents."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.eval_docs: list[str] = config["documents"]
        self.metrics: dict[str, str | None] = config["metrics"]
        self.filters: list[str] = config.get("filters", ["none"])

    def aggregation(self) -> dict[str, Callable[[Sequence[Any]], Any]]:
        return {name: getattr(metrics, used) for name, used in self.metrics.items() if used is not None}


class TaskManager:
    """Finds tasks."""

    def __init__(self, include_path: str | None = None) -> None:
        files = sorted(Path(include_path).glob("*.json")) if include_path else []
        self._configs = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}

    @property
    def all_tasks(self) -> list[str]:
        return sorted(self._configs)

    @property
    def all_subtasks(self) -> list[str]:
        return [name for name in self.all_tasks if "group" not in self._configs[name]]

    def load(self, names: Sequence[str]) -> dict[str, Any]:
        """The tasks of these names, those of groups one by one."""
        found: dict[str, Task] = {}
        for name in names:
            if name not in self._configs:
                raise KeyError(f"Spec '{name}' is not a registered task/group/tag name or valid YAML path")
            config = self._configs[name]
            found |= self.load(config["group"])["tasks"] if "group" in config else {name: Task(config)}
        return {"tasks": found}
