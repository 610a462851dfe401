"""A second witness of a job that hangs: where its ranks are, and which of them a collective waits for.

Off unless `--stacks` or `LOGDOCTOR_STACKS` allows it. What is found becomes lines of the job's own output, so that it
is sent, diagnosed and cited like all others. Needs nothing but Python.
"""
