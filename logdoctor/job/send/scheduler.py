"""Asks the scheduler about a failed job."""

_SECONDS = 3.0
_SAYS_NOTHING = frozenset(("RUNNING", "COMPLETING", "CONFIGURING", "PENDING", "COMPLETED"))


def scheduler_state(slurm_job: str | None) -> str | None:
    """Return Slurm's reason why a job is ending (TIMEOUT, PREEMPTED, CANCELLED, ...); None without a useful one."""
    if not slurm_job or not slurm_job.isalnum():
        return None
    import subprocess

    try:
        squeue = subprocess.run(
            ["squeue", "--noheader", f"--jobs={slurm_job}", "--format=%T"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = squeue.stdout[:200].decode("ascii", "replace").split()
    return words[0] if words and words[0].isupper() and words[0] not in _SAYS_NOTHING else None
