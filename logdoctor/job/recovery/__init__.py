"""Restart a job after a failure when its verdict says that this helps, from the right checkpoint.

The supervisor (`python -m logdoctor.job.recovery`) needs nothing but Python: its modules import the standard library
and `logdoctor.job.send`. Local diagnosis and the checkpoint catalogue are used where they are installed.
"""
