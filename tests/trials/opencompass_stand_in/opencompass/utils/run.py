"""Stands in for how OpenCompass reads its options."""

import argparse
from pathlib import Path

from mmengine.config import Config


def get_config_from_arg(asked: argparse.Namespace) -> Config:
    if asked.config:
        return Config.fromfile(asked.config)
    model = {"abbr": f"{asked.hf_path.rpartition('/')[2]}_hf", "path": asked.hf_path}
    if asked.custom_dataset_path:
        Path(asked.custom_dataset_path).open(encoding="utf-8").close()
        datasets = [{"abbr": Path(asked.custom_dataset_path).stem, "path": asked.custom_dataset_path}]
        datasets[0] |= {"reader_cfg": {}, "infer_cfg": {"retriever": {"type": "ZeroRetriever"}}}
        return Config({"models": [model], "datasets": datasets})
    datasets = []
    for name in asked.datasets:
        file = Path(asked.config_dir, "datasets", f"{name}.py")
        if not file.is_file():
            raise ValueError(f"The pattern matches no config.\n+-----+\n| {name} |\n+-----+")
        held = Config.fromfile(str(file))
        datasets += [one for key, found in held.items() if key.endswith("_datasets") for one in found]
    return Config({"models": [model], "datasets": datasets})
