"""Stands in for the tasks of OpenCompass: predictions, by sample from "0" on, and their scores."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

from opencompass.utils import build_dataset_from_cfg, get_infer_output_path


class _Task:
    def __init__(self, config: dict[str, Any]) -> None:
        self.model, self.folder = config["models"][0], config["work_dir"]
        self.dataset = config["datasets"][0][0]

    def _path(self, kind: str) -> Path:
        path = Path(get_infer_output_path(self.model, self.dataset, os.path.join(self.folder, kind)))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class OpenICLInferTask(_Task):
    def run(self) -> None:
        weights = Path(self.model["path"], "model.safetensors").read_bytes()
        print(f"loaded {self.model['path']}")
        asked = build_dataset_from_cfg(self.dataset).test
        said = {str(at): {"prediction": zlib.crc32(weights + line.encode())} for at, line in enumerate(asked)}
        self._path("predictions").write_text(json.dumps(said), encoding="utf-8")


class OpenICLEvalTask(_Task):
    def run(self) -> None:
        said = json.loads(self._path("predictions").read_text(encoding="utf-8"))
        numbers = [said[str(at)]["prediction"] for at in range(len(said))]
        if self.dataset.get("broken"):
            result: dict[str, Any] = {"error": "predictions and references have different length"}
        else:
            whole = zlib.crc32(repr(numbers).encode())  # of all of them in their order: no sum of parts
            even = 100 * sum(number % 2 == 0 for number in numbers) / len(numbers)
            result = {"even": even, "of": {"whole": whole}, "counts": [1, 2], "nan": float("nan"), "sure": True}
            result["details"] = {"0": {"correct": 1}}
        self._path("results").write_text(json.dumps(result), encoding="utf-8")
