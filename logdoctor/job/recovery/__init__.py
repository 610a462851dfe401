"""Come back after a failure: start a job again where its verdict says that this helps, and from which checkpoint.

The supervisor runs where nothing but Python is installed (`python -m logdoctor.job.recovery`): its modules import the
standard library and `logdoctor.job.send`. A diagnosis on this machine and the catalogue of checkpoints are called when
they are there.
"""
