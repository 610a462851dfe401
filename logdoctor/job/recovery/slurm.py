"""Ask Slurm to start the job of this batch script again, without some nodes."""

import subprocess
import time
from collections.abc import Sequence

from logdoctor.errors import SendError
from logdoctor.job.recovery.judged import NODE
from logdoctor.job.send.environment import BatchStep

_SECONDS = 20.0
_PATIENCE = 25.0  # seconds; Slurm kills a batch script that it requeues after KillWait, 30 s unless set otherwise
_NAP = 0.2


def job_nodes(batch: BatchStep) -> tuple[str, ...]:
    """Return the names of a job's nodes; none when Slurm does not tell."""
    if not batch.nodelist:
        return ()
    try:
        names = _asked("scontrol", "show", "hostnames", batch.nodelist).split()
    except SendError:
        return ()
    return tuple(name for name in names if NODE.fullmatch(name))


def requeue(batch: BatchStep, nodes: Sequence[str]) -> None:
    """Put a job back into the queue, without nodes beside those that it leaves out already; `SendError` with what a
    person has to do when Slurm refuses.

    The job is held while the nodes are entered, because Slurm changes them for jobs that wait only; it never starts on
    them. Slurm ends this batch script meanwhile: the caller ignores SIGTERM. When this is killed half-way, the job
    stays held.
    """
    by_hand = f"Submit it with --requeue; by hand: sbatch --exclude={','.join(nodes)}"
    excluded = [*_excluded(batch), *nodes]
    _asked("scontrol", "requeuehold", batch.job, next_step=by_hand)
    release = f"It is held. Run: scontrol update JobId={batch.job} ExcNodeList={','.join(nodes)}; "
    release += f"scontrol release {batch.job}"
    if excluded:
        change = f"ExcNodeList={','.join(dict.fromkeys(excluded))}"
        _insist("scontrol", "update", f"JobId={batch.job}", change, next_step=release)
    _insist("scontrol", "release", batch.job, next_step=release)


def hold(batch: BatchStep) -> None:
    """Put a job back into the queue and keep it there, so that its nodes are free to be tested; `SendError` when Slurm
    refuses."""
    _asked("scontrol", "requeuehold", batch.job, next_step="Submit it with --requeue.")


def _excluded(batch: BatchStep) -> list[str]:
    """Return the nodes that a job leaves out already."""
    told = _asked("squeue", "--noheader", f"--jobs={batch.job}", "--format=%x").strip()
    return [told] if told and told != "(null)" else []


def _insist(*command: str, next_step: str) -> None:
    """Run a command until it succeeds; `SendError` with its last refusal after a while."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            _asked(*command, next_step=next_step)
            return
        except SendError:
            if time.monotonic() > until:
                raise
        time.sleep(_NAP)


def _asked(*command: str, next_step: str = "Look whether Slurm answers: scontrol ping") -> str:
    """Return what a command of Slurm prints; `SendError` with what it complains about."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise SendError(" ".join(command[:2]), f"cannot be run ({error})", next_step) from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        raise SendError(" ".join(command), f"failed: {said or done.returncode}", next_step)
    return done.stdout.decode("utf-8", "replace")
