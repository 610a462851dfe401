"""Stands in for the command line of OpenCompass: the options that choose a model and data sets."""

import argparse


def parse_args() -> argparse.Namespace:
    known = argparse.ArgumentParser()
    known.add_argument("config", nargs="?")
    known.add_argument("--datasets", nargs="+")
    known.add_argument("--custom-dataset-path")
    known.add_argument("--config-dir", default="configs")
    known.add_argument("--hf-path")
    known.add_argument("--dump-eval-details", default=True)
    known.add_argument("--dump-extract-rate", action="store_true")
    return known.parse_args()
