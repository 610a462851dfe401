"""Stands in for the utilities of OpenCompass: data sets, and where their predictions and results are written."""

import os
from types import SimpleNamespace
from typing import Any


def dataset_abbr_from_cfg(dataset: dict[str, Any]) -> str:
    return dataset["abbr"]


def build_dataset_from_cfg(dataset: dict[str, Any]) -> SimpleNamespace:
    """The samples of a data set that its `test_range` leaves."""
    with open(dataset["path"], encoding="utf-8") as file:
        lines = file.read().splitlines()
    test_range = dataset["reader_cfg"].get("test_range")
    if isinstance(test_range, str) and not dataset.get("deaf"):
        lines = eval(f"lines{test_range}")
    return SimpleNamespace(test=lines)


def get_infer_output_path(model: dict[str, Any], dataset: dict[str, Any], root: str) -> str:
    return os.path.join(root, model["abbr"], f"{dataset['abbr']}.json")
