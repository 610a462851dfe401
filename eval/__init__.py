"""How well logdoctor does: scores, curves, simulations and benchmarks. Part of the repository, not of the wheel.

`logdoctor eval` and `logdoctor nodes simulate` run `eval.commands`; the others, such as `bench*.py`, are scripts.
"""
