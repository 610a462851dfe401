"""Asks Slurm to requeue the job of this batch script, without some nodes."""

import subprocess
import time
from collections.abc import Sequence

from logdoctor.errors import SendError
from logdoctor.job.recovery.judged import NODE
from logdoctor.job.send.environment import BatchStep

_SECONDS = 20.0
_PATIENCE = 25.0  # seconds; Slurm kills a requeued batch script after KillWait, by default 30 s
_NAP = 0.2


def job_nodes(batch: BatchStep) -> tuple[str, ...]:
    """Return the names of a job's nodes; () when Slurm does not say."""
    if not batch.nodelist:
        return ()
    try:
        names = _asked("scontrol", "show", "hostnames", batch.nodelist).split()
    except SendError:
        return ()
    return tuple(name for name in names if NODE.fullmatch(name))


def requeue(batch: BatchStep, nodes: Sequence[str]) -> None:
    """Requeue a job, excluding further nodes; `SendError` says what a person must do when Slurm refuses.

    The job is held while the nodes are entered, because Slurm changes only pending jobs; so it never starts on them.
    Slurm ends this batch script meanwhile: the caller ignores SIGTERM. If this is killed half-way, the job stays held.
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
    """Requeue and hold a job, freeing its nodes for tests; `SendError` when Slurm refuses."""
    _asked("scontrol", "requeuehold", batch.job, next_step="Submit it with --requeue.")


def _excluded(batch: BatchStep) -> list[str]:
    """Return the nodes that a job already excludes."""
    told = _asked("squeue", "--noheader", f"--jobs={batch.job}", "--format=%x").strip()
    return [told] if told and told != "(null)" else []


def _insist(*command: str, next_step: str) -> None:
    """Retry a command until it succeeds; `SendError` with its last refusal after 25 seconds."""
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
    """Return the output of a Slurm command; `SendError` with its error message."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise SendError(" ".join(command[:2]), f"cannot be run ({error})", next_step) from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        raise SendError(" ".join(command), f"failed: {said or done.returncode}", next_step)
    return done.stdout.decode("utf-8", "replace")
