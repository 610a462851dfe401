"""Workers of a trial in array jobs of Slurm, submitted by submitit.

They take their shards from a folder that all nodes see. Sets are scored on the machine of the coordinator.
"""

import secrets
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from logdoctor.errors import TrialError
from logdoctor.extras import translated
from logdoctor.trials.local import LocalPlace
from logdoctor.trials.queue_folder import FolderWorker, begin_queue, close_queue, work
from logdoctor.trials.tasks import Outcome, Task, Worker, WorkerLost
from logdoctor.trials.trial_file import Trial

_MORE = 3  # jobs that may end before they begin, beside one for each worker
_ASK_SECONDS = 20.0
_MINUTES = 480  # of a worker's job, by default


@contextmanager
def slurm_place(folder: Path, trial: Trial, workers: int, options: Mapping[str, str]) -> Iterator["SlurmPlace"]:
    """Yield Slurm as a place for a trial whose state folder all nodes see. `options` are sbatch's, as submitit names
    them; `TrialError` when Slurm refuses."""
    place = SlurmPlace(folder.resolve() / "slurm", trial, workers, options)
    try:
        yield place
    finally:
        place.close()


class SlurmPlace:
    """Slurm as a place for a trial."""

    host = "127.0.0.1"

    def __init__(self, folder: Path, trial: Trial, workers: int, options: Mapping[str, str]) -> None:
        with translated():
            import submitit
        gpus = trial.model.gpus
        if gpus and gpus != int(gpus):
            step = "Correct `gpus` in the trial file, or use Ray."
            raise TrialError("the trial", f"needs {gpus:g} of a GPU, and Slurm gives whole ones", step)
        self.workers = workers or trial.workers
        if not self.workers:
            raise TrialError(
                "the trial", "does not say how many workers it has", "Give --workers, as many jobs as wanted."
            )
        self._trial = trial
        self._scores = LocalPlace(trial, 1)
        self.scorers = self._scores.scorers
        self._queue = folder / secrets.token_hex(4)
        self._beats = begin_queue(self._queue)
        self._executor: Any = _executor(submitit, folder / "jobs", int(gpus), options)
        self._jobs: dict[int, Any] = dict(enumerate(self._submitted(list(range(self.workers)))))
        self._names: dict[int, int] = {number: number for number in range(self.workers)}
        self._next = self.workers
        self._lost = 0
        self._guard = threading.Lock()

    def worker(self, number: int, over: Callable[[], bool]) -> Worker | None:
        """Return a worker once Slurm has started its job. Another job is submitted to replace a lost one."""
        with self._guard:
            name = self._names.pop(number, None)
            if name is None:
                name, self._next = self._next, self._next + 1
                self._jobs[name] = self._submitted([name])[0]
        job = self._jobs[name].job_id
        made = FolderWorker(self._queue / f"worker-{name}", f"worker {name}", lambda: _is_known(job))
        try:
            return made if made.begin(over) else None
        except WorkerLost as lost:
            self._lost += 1
            if self._lost > self.workers + _MORE:
                cause, step = "end before they begin to work", f"Look at the logs in {self._executor.folder}."
                raise TrialError("jobs of Slurm", cause, step) from lost
            raise

    def score(self, task: Task) -> Outcome:
        """Score on this machine."""
        return self._scores.score(task)

    def close(self) -> None:
        """End all jobs."""
        close_queue(self._queue)
        self._scores.close()
        for job in self._jobs.values():
            with suppress(Exception):  # it is over, or Slurm is away: then its worker ends by itself
                job.cancel()
        self._beats.stop()

    def _submitted(self, numbers: list[int]) -> list[Any]:
        try:
            some = len(numbers)
            submitted: list[Any] = self._executor.map_array(
                work, [str(self._queue)] * some, numbers, [self._trial] * some
            )
            return submitted
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise TrialError("Slurm", f"does not take the jobs ({said})", "Correct --slurm-option.") from error


def _executor(submitit: Any, folder: Path, gpus: int, options: Mapping[str, str]) -> Any:
    """Return the executor that submits jobs."""
    if shutil.which("sbatch") is None:
        raise TrialError("Slurm", "cannot be asked: there is no sbatch here", "Run this on a login node.")
    given: dict[str, Any] = {
        "time": _MINUTES,
        "job_name": "logdoctor-trials",
        **({"gpus_per_node": gpus} if gpus else {}),
    }
    given |= {name.replace("-", "_"): int(value) if value.isdecimal() else value for name, value in options.items()}
    try:
        executor = submitit.SlurmExecutor(folder=folder)
        executor.update_parameters(**given)
    except (ValueError, TypeError) as error:
        said = " ".join(str(error).split())[:300]
        raise TrialError("--slurm-option", f"is not known ({said})", "Name options as submitit has them.") from error
    return executor


def _is_known(job: str) -> bool:
    """Return whether Slurm has a job as pending or running, or does not answer."""
    states = "--states=PENDING,CONFIGURING,RUNNING,SUSPENDED"
    command = ["squeue", "--noheader", f"--jobs={job}", states, "--format=%i"]
    try:
        asked = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return True
    return bool(asked.stdout.strip()) or (asked.returncode != 0 and b"Invalid job id" not in asked.stderr)
