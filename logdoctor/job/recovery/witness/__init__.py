"""A second witness of a hanging job: where its ranks are, and which one a collective waits for.

Off unless `--stacks` or `LOGDOCTOR_STACKS` allows it. Findings become lines of the job's own output: sent, diagnosed
and cited like all others. Needs nothing but Python.
"""
