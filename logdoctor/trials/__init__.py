"""Evaluation trials: data sets for a checkpoint, planned and run so that no GPU idles."""
