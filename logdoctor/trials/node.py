"""A worker on its node: it holds the checkpoint there, and runs commands."""

import json
import os
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from logdoctor.errors import TrialError
from logdoctor.job.send.environment import for_child
from logdoctor.trials import adapters, keeping, sandboxing
from logdoctor.trials.commands import SERVE, filled, words
from logdoctor.trials.node_folder import NodeFolder, shared_folder
from logdoctor.trials.precursor import hold
from logdoctor.trials.served import Server, ServerEnded
from logdoctor.trials.tasks import Loading, Outcome, Task
from logdoctor.trials.trial_file import Trial

_ADAPTERS = str(Path(adapters.__file__).parent)
_MOST_OUTPUT = 1 << 30
_HEAD, _TAIL = 1 << 20, 7 << 20  # bytes of a log that are kept
_PYTHON = (sys.executable, "-I", "-S")
_ENDING = 30.0  # seconds for a command to end; its keeper kills it after three


class Node:
    """A worker on this machine. Its commands also get these `variables`. Without the model it only scores."""

    def __init__(self, trial: Trial, name: str, variables: Mapping[str, str] | None = None, model: bool = True) -> None:
        """Load the checkpoint onto this node; `TrialError` when that fails."""
        self.name = name
        self._trial = trial
        self._variables = {os.fsencode(key): os.fsencode(value) for key, value in (variables or {}).items()}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._guard = threading.Lock()
        self._ended = False
        self._server: Server | None = None
        roots = roots_of(trial)
        self._held = hold(Path(trial.model.path), roots) if model and trial.share_model else None
        scratch = NodeFolder(shared_folder(roots[-1]))
        with scratch.locked():
            self._scratch = scratch.own(f"work-{secrets.token_hex(8)}")
            self._scratch.path.mkdir()

    @property
    def loading(self) -> Loading:
        """How it got the checkpoint."""
        node = os.uname().nodename
        return Loading(node, self._held.digest, self._held.seconds, self._held.copied) if self._held else Loading(node)

    def run(self, task: Task) -> Outcome:
        """Run a command, or ask the one that serves."""
        folder = Path(tempfile.mkdtemp(dir=self._scratch.path))
        try:
            out = folder / "out"
            values = {
                **task.values,
                "here": self._trial.here,
                "adapters": _ADAPTERS,
                "model": self._model,
                "out": str(out),
            }
            if task.outputs is not None:
                (folder / "outputs").write_bytes(task.outputs)
                values["outputs"] = str(folder / "outputs")
            begun = time.monotonic()
            code, log, problem = self._run(task, values, folder) if task.template else self._ask(task, values, folder)
            seconds = time.monotonic() - begun
            output, lacking = (None, "") if problem or code else _output(out)
            return Outcome(code, seconds, output, log, problem or (f"exits with {code}" if code else lacking))
        except OSError as error:
            return Outcome(None, 0.0, None, b"", f"cannot be run on {os.uname().nodename} ({error})")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        with self._guard:
            self._ended = True
            for process in self._running:
                process.terminate()
        if self._server is not None:
            self._server.close()

    def close(self) -> None:
        """End what runs, and release the checkpoint."""
        self.stop()
        self._scratch.release()
        if self._held is not None:
            self._held.release()

    @property
    def _model(self) -> str:
        return str(self._held.path) if self._held is not None else self._trial.model.path

    def _run(self, task: Task, values: Mapping[str, str], folder: Path) -> tuple[int | None, bytes, str]:
        command = filled(task.template, values)
        if task.sandbox is not None:
            limits = msgspec.json.encode(task.sandbox).decode()
            command = [*_PYTHON, sandboxing.__file__, limits, str(folder), *command]
        with tempfile.TemporaryFile(dir=self._scratch.path) as log:
            process = self._begin(command, folder, log.fileno())
            try:
                code = process.wait(task.seconds)
                problem = "was ended with the trial" if self._ended else ""
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait(_ENDING)
                code, problem = None, f"took more than {task.seconds:g} s"
            finally:
                with self._guard:
                    self._running.discard(process)
            return code, _ends_of(log.fileno()), problem

    def _begin(self, command: Sequence[str], folder: Path, log: int) -> "subprocess.Popen[bytes]":
        with self._guard:
            if self._ended:
                raise OSError("the trial ends")
            process = subprocess.Popen(
                [*_PYTHON, keeping.__file__, *command],
                cwd=folder,
                env={**for_child(), **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C goes to the coordinator, which ends them
            )
            self._running.add(process)
            return process

    def _ask(self, task: Task, values: Mapping[str, str], folder: Path) -> tuple[int | None, bytes, str]:
        """Ask the command that serves, starting it if needed."""
        if self._server is None:
            with self._guard:
                if self._ended:
                    raise OSError("the trial ends")
                command = filled(words("serve", self._trial.serve, SERVE), values)
                environment = {**for_child(), **self._variables}
                self._server = Server([*_PYTHON, keeping.__file__, *command], self._scratch.path, environment)
        server = self._server
        asked = {name: values[name] for name in ("set", "dataset", "out")}
        numbers = {name: int(values[name]) for name in ("start", "end", "samples")}
        try:
            said = server.ask(json.dumps(asked | numbers), str(values["out"]), task.seconds)
            return (1, server.log(), said) if said else (0, server.log(), "")
        except ServerEnded as ended:
            self._server = None
            return ended.code, server.log(), ended.why


def roots_of(trial: Trial) -> list[Path]:
    """Return the folders for checkpoints on a node, the best first."""
    return [Path(trial.memory), Path(trial.cache or tempfile.gettempdir())]


def sweep(trial: Trial) -> None:
    """Remove from this node what no living process owns."""
    for root in roots_of(trial):
        with suppress(TrialError):  # of another user: not ours to remove
            NodeFolder(shared_folder(root)).sweep()


def _output(place: Path) -> tuple[bytes | None, str]:
    """Return what a command wrote, or what is wrong with it. Links are not followed, as code of a model may have made
    them."""
    try:
        handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return None, f"wrote no file {{out}} ({error.strerror})"
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            return None, "wrote no file {out}"
        if found.st_size > _MOST_OUTPUT:
            return None, f"wrote more than {_MOST_OUTPUT >> 30} GB to {{out}}"
        return file.read(), ""


def _ends_of(log: int) -> bytes:
    """Return a log, of a long one its beginning and its end."""
    size = os.fstat(log).st_size
    if size <= _HEAD + _TAIL:
        return os.pread(log, size, 0)
    cut = f"\n[{size - _HEAD - _TAIL} bytes are left out here]\n".encode()
    return os.pread(log, _HEAD, 0) + cut + os.pread(log, _TAIL, size - _TAIL)
