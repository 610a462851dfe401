"""Saves in the background of training.

`save` copies small values and returns; the writer thread copies the rest and writes it, while the next step computes
its gradients. Before an optimizer changes the state, `before_optimizer_step` waits for the copy if necessary; every
`torch.optim.Optimizer` calls it by itself, after its closure if it has one. One save is written at a time, from one
copy; the next one waits for it.

It is a thread, not a process: killed with the trainer it leaves no orphan, it needs no `__main__` guard and no second
process group, and it cannot die alone. It takes processor time from the trainer instead (docs/checkpoints.md has
figures).
"""

import atexit
import logging
import math
import operator
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from torch.optim.optimizer import register_optimizer_step_pre_hook

from logdoctor.checkpoint import folders, hashing, metrics, reading
from logdoctor.checkpoint.folders import Manifest
from logdoctor.checkpoint.mirror import Mirror
from logdoctor.checkpoint.mirroring import Mirroring
from logdoctor.checkpoint.reading import Fault, Loaded
from logdoctor.checkpoint.reports import Report, Save, Stats, sentence_of
from logdoctor.checkpoint.staging import Copy, Stager, plain
from logdoctor.checkpoint.team import CLOSING, LeftOut, Team
from logdoctor.checkpoint.writing import Folder

_log = logging.getLogger("logdoctor.checkpoint")
_AFTER_ERROR = 30.0  # seconds for the last save when training ends by an exception
_PARTING = 10.0  # seconds for other ranks to end, too, once all is written
_STOPPING = 5.0  # seconds for a thread to notice that the program ends
_MIRROR_BEGINS = 30.0  # seconds for the mirror to list what it has
_WRITER = "checkpoint-writer"
_LOOK = 0.2  # seconds between checks whether the writer thread is alive


class _Job:
    """A save with its number, the same on all ranks, and its copy."""

    def __init__(self, number: int, save: Save) -> None:
        self.number, self.save = number, save
        self.copy: Copy | None = None
        self.problem: str | None = None
        self.begun = time.monotonic()


class Checkpointer:
    """Saves and loads a training job's checkpoints in a folder that all its nodes share.

    Make one on every rank, at the same place in the program, after initialising `torch.distributed`. The `keep` newest
    good checkpoints stay. `alone` saves and loads in this process only, even if there are others. `mirror` is the URL
    of an object store to which saves are copied, with options for its fsspec implementation; `load` fetches from it
    what the folder lacks. With `copy="at once"`, `save` returns only when everything is copied: for programs that
    change the state other than by a torch optimizer. `patience` is how many seconds `save` waits at most for the
    previous save before it skips one, and how long closing waits. `on_report` is called with each event: from the
    writing threads, and from the training thread for skipped saves and unreadable checkpoints. `metrics_file` is where
    the first rank writes its counters for Prometheus.

    Failures of a save are not raised: they are logged (`logdoctor.checkpoint`), reported and counted in `stats`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        keep: int = 3,
        copy: Literal["behind", "at once"] = "behind",
        patience: float = 300.0,
        alone: bool = False,
        mirror: str | Mirror | None = None,
        mirror_options: dict[str, Any] | None = None,
        on_report: Callable[[Report], None] | None = None,
        metrics_file: str | Path | None = None,
    ) -> None:
        if keep < 1:
            raise ValueError("keep is at least 1")
        if copy not in ("behind", "at once"):
            raise ValueError("copy is 'behind' or 'at once'")
        self.stats = Stats()
        self._at_once, self._patience, self._on_report = copy == "at once", patience, on_report
        self.team, self._writing = Team(alone), Team(alone)
        self._metrics = Path(metrics_file) if metrics_file and self.team.leads else None
        self._folder = Folder(Path(folder), keep, self._writing)
        self._stager = Stager(self.team.here)
        self._number = 0
        self._last: Save | None = None
        self._stuck: Save | None = None
        self._differing: tuple[str, ...] = ()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._closed, self._orderly, self._process = False, True, os.getpid()
        self._hook = _hooked(self)
        self._at_exit = _at_exit(self)
        self._take_lease()
        self._mirror = mirror if isinstance(mirror, Mirror) or not mirror else Mirror(mirror, mirror_options)
        self._mirroring: Mirroring | None = None
        if self._mirror and self.team.leads:
            self._begin_mirroring(self._mirror, keep)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        self._orderly = kind is None
        self.close(None if kind is None else min(self._patience, _AFTER_ERROR))

    def save(
        self, state: Mapping[str, Any], *, step: int, data_position: int | None = None, loss: float | None = None
    ) -> Save:
        """Save the current state, and return before it is written.

        `state` holds tensors, numbers and text in dicts and lists, and objects with a `state_dict`. `step` names the
        checkpoint; `data_position` counts the samples or batches consumed, `loss` is the step's loss. All ranks call it
        at the same step. It raises only on an invalid step, position or loss (`TypeError`, `ValueError`).
        """
        begin = time.perf_counter()
        position = None if data_position is None else operator.index(data_position)
        save = Save(operator.index(step), position, None if loss is None else float(loss))
        if not 0 <= save.step < folders.MOST_STEPS:
            raise ValueError(f"step is at least 0, and has at most {len(str(folders.MOST_STEPS)) - 1} digits")
        self._number += 1
        self.stats.asked += 1
        job = _Job(self._number, save)
        if self._closed:
            self._failed(save, "the Checkpointer was closed before")
        elif self._begin(job, state):
            self._hand_over(job)
            if self._at_once:
                self._wait(save.copied)
        save.stall.returned = time.perf_counter() - begin - save.stall.backpressure
        self.stats.stall.returned += save.stall.returned
        return save

    def before_optimizer_step(self) -> None:
        """Wait until the last state is copied, so that it may be changed. Torch optimizers call it by themselves."""
        last = self._last
        if last is not None and not last.copied.is_set():
            begin = time.perf_counter()
            self._wait(last.copied)
            waited = time.perf_counter() - begin
            last.stall.staging += waited
            self.stats.stall.staging += waited

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds (default: `patience`) until the last save is written; return whether it is."""
        return self._last is None or self._last.wait(self._patience if timeout is None else timeout)

    def load(
        self, state: dict[str, Any], step: int | None = None, *, path: str = "", strict: bool = True
    ) -> Loaded | None:
        """Load the newest good checkpoint, or that of a step or path, into `state`. This is collective: all ranks load,
        however many had saved. `path` is as in `LOGDOCTOR_RESUME`. Each file is read and its hash checked first; a torn
        or changed checkpoint is skipped, and instead of the one at `path` the newest good one of an earlier step is
        loaded. A changed one is marked, so that it is never offered again. Returns what was loaded; None when the
        folder has no checkpoint. `CheckpointDamaged` when none is good, `CheckpointError` when the state has another
        form; `strict=False` allows it to take only a part."""
        refused = self.team.leader(lambda: self.fetch(step, path))
        folder = self._folder.path
        loaded = reading.load_with(self.team, folder, state, step, path, strict, refused, self.restore, or_before=True)
        if loaded and loaded.left:
            said = f"checkpoint {loaded.path.name} has nothing for rank {self.team.rank}, as it is of fewer ranks"
            self._report("left", loaded.step, f"{said}: {', '.join(loaded.left)[:300]} stays as it is")
        return loaded

    def fetch(self, step: int | None = None, path: str = "") -> tuple[str, ...]:
        """Fetch what the mirror has newer than the folder, as `load` does; call it on one rank. Return a sentence for
        each skipped checkpoint."""
        if not self._mirror:
            return ()
        self._wait_for_mirror()
        refused = self._mirror.brought(self._folder.path, step, Path(path).name)
        for sentence in refused:
            self._report("mirror", step, sentence)
        return refused

    def latest(self) -> Manifest | None:
        """Return the newest complete checkpoint, None without one. Only `load` reads its bytes."""
        return reading.latest(self._folder.path)

    def close(self, timeout: float | None = None) -> None:
        """Wait at most `timeout` seconds (default: `patience`) until the last save is written, then stop."""
        if self._closed:
            return
        self._closed = True
        self._hook.remove()
        timeout = self._patience if timeout is None else timeout
        if self._writer is not None:
            self._jobs.put(None)
            if self._last and not self._wait(self._last.done, timeout):
                problem = "the last save is not written at the end, and is given up"
                return self._report("failed", self._last.step, problem)
            self._writer.join(min(timeout, _PARTING))
        if self._mirroring and not self._mirroring.close(timeout):
            self._report("mirror", None, "the last upload is not done at the end, and is given up")
        if self._writer is None or not self._writer.is_alive():  # else another rank continues, or is gone
            for team in (self.team, self._writing):
                team.end()
            atexit.unregister(self._at_exit)

    def _begin_mirroring(self, mirror: Mirror, keep: int) -> None:
        """Start the mirror's thread, which uploads what the mirror lacks."""
        self._mirroring = Mirroring(mirror, self._folder.path, keep, self._folder.lease, self.stats, self._report)
        self._folder.in_use = lambda: self._mirroring.uploading if self._mirroring else None

    def _stop(self) -> None:
        """Close at the end of a program that did not; after 30 seconds a write under way is abandoned."""
        if os.getpid() != self._process:  # forked: threads and writes belong to the parent
            return
        self._orderly = False
        with suppress(Exception):  # the program may have ended torch.distributed
            self.close(min(self._patience, _AFTER_ERROR))

    def _wait_for_mirror(self) -> None:
        """Wait at most 30 seconds for the mirror's content; later saves must be newer."""
        if self._mirroring:
            self._mirroring.begun.wait(_MIRROR_BEGINS)

    def restore(self, name: str, fault: Fault) -> bool:
        """Report a bad checkpoint, and fetch a good copy from the mirror; return whether that worked. A copy known to
        be damaged is marked."""
        step = (folders.parsed(name) or (None,))[0]
        why_not = self._mirror.restore(self._folder.path, name) if self._mirror else ""
        if why_not is None and self._mirror:
            self._report("damaged", step, f"{fault.sentence} The whole one was fetched from {self._mirror.url}.")
            return True
        self._folder.doubt(name, fault.is_damage)
        self._report("damaged", step, f"{fault.sentence} {why_not}".rstrip())
        return False

    def _begin(self, job: _Job, state: Mapping[str, Any]) -> bool:
        """Copy small values, once the last save is written; return False when this save is skipped."""
        try:
            state = plain(state)  # also when skipped: on some ranks this is collective
            if not self._wait_for_last(job.save):
                self._left_out(job.save, f"the one before is not written after {self._patience:g} seconds")
                return False
            job.copy, job.begun = self._stager.begin(state), time.monotonic()
        except Exception as error:  # noqa: BLE001 - the state's own, torch's, the allocator's
            job.problem = sentence_of(error)
        return True

    def _hand_over(self, job: _Job) -> None:
        if self._writer is None or not self._writer.is_alive():
            self._jobs = queue.SimpleQueue()
            self._writer = threading.Thread(target=self._work, args=(self._jobs,), name=_WRITER, daemon=True)
            try:
                self._writer.start()
            except RuntimeError as error:  # the limit of threads is reached
                self._failed(job.save, sentence_of(error))
                job.save.copied.set()
                return job.save.done.set()
        self._last = job.save
        self._jobs.put(job)

    def _wait_for_last(self, save: Save) -> bool:
        """Wait for the last save to be written; return False when that takes too long."""
        if self._last is None or self._last.done.is_set():
            return True
        begin = time.perf_counter()
        free = self._wait(self._last.done, 0.0 if self._stuck is self._last else self._patience)
        self._stuck = None if free else self._last
        save.stall.backpressure = time.perf_counter() - begin
        self.stats.stall.backpressure += save.stall.backpressure
        return free

    def _wait(self, event: threading.Event, patience: float = math.inf) -> bool:
        """Wait until the writer thread sets an event or has died; return False after `patience` seconds."""
        end = time.monotonic() + patience
        while not event.wait(max(0.0, min(_LOOK, end - time.monotonic()))):
            if self._writer is None or not self._writer.is_alive():
                self.stats.writers_replaced += 1
                if self._last is not None and not self._last.done.is_set():
                    self._failed(self._last, "the writer's thread has died; the next save begins another")
                return True
            if time.monotonic() >= end:
                return False
        return True

    def _work(self, jobs: "queue.SimpleQueue[_Job | None]") -> None:
        while (job := jobs.get()) is not None:
            try:
                self._perform(job)
            except LeftOut as error:
                self._left_out(job.save, str(error))
            except BaseException as error:  # noqa: BLE001 - a save that fails is reported, whatever it was
                self._failed(job.save, sentence_of(error))
            finally:
                job.save.copied.set()
                job.save.done.set()
                job.copy = None
        if self._orderly:  # else the other ranks may never come
            with suppress(Exception):
                self._writing.agree(CLOSING)

    def _perform(self, job: _Job) -> None:
        save = job.save
        if job.copy is not None:
            try:
                job.copy.run()
            except Exception as error:  # noqa: BLE001 - the other ranks must hear of it
                job.problem = sentence_of(error)
        save.state = "writing"
        save.copied.set()
        self._writing.agree(job.number, job.problem, save.step)
        self._wait_for_mirror()
        assert job.copy is not None
        self._folder.write(save, job.copy.tree, job.begun)
        self._tell_differing(save)
        save.state = "verifying"
        if changed := self._folder.verify(save):
            save.state, save.problem = "failed", changed
            self.stats.changed += 1
            return self._report("changed", save.step, changed, save)
        self._saved(save)
        if self._mirroring:
            self._mirroring.offer(save.name)
        try:
            self.stats.deleted += self._folder.prune()
        except Exception as error:  # noqa: BLE001 - the save is good
            self._report("kept", save.step, f"an old checkpoint could not be deleted: {sentence_of(error)}", save)

    def _tell_differing(self, save: Save) -> None:
        """Report, once per set of names, that values differ between ranks."""
        if save.differing and save.differing != self._differing:
            self._differing = save.differing
            of = f"{len(save.differing)} values differ" if len(save.differing) > 1 else "a value differs"
            named = ", ".join(save.differing[:8]) + (", ..." if len(save.differing) > 8 else "")
            todo = "Give what each rank has for itself a name of its own."
            said = f"step {save.step}: {of} between ranks ({named}); those of the lowest rank are saved. {todo}"
            self._report("differs", save.step, said, save)

    def _saved(self, save: Save) -> None:
        save.state = "verified"
        self.stats.saved += 1
        self.stats.bytes_written += save.bytes
        self.stats.last_saved_step, self.stats.last_saved = save.step, self._folder.path / save.name
        self.stats.last_saved_at = time.time()
        said = f"step {save.step} is saved as {save.name}: {save.bytes / 1e6:.1f} MB of this rank, {save.seconds:.1f} s"
        self._report("saved", save.step, said, save)

    def _failed(self, save: Save, problem: str) -> None:
        self.stats.failed += 1
        self._ended(save, "failed", problem, f"step {save.step} is not saved: {problem}")

    def _left_out(self, save: Save, problem: str) -> None:
        self.stats.left_out += 1
        self._ended(save, "left out", problem, f"the save of step {save.step} is left out: {problem}")

    def _ended(self, save: Save, state: Literal["failed", "left out"], problem: str, sentence: str) -> None:
        save.state, save.problem = state, problem
        self._report(state, save.step, sentence, save)
        save.copied.set()
        save.done.set()

    def _take_lease(self) -> None:
        if self._writing.leads:
            try:
                self._folder.lease.take()
            except Exception as error:  # noqa: BLE001 - the first save tries again
                self._report(
                    "lease", None, f"checkpoint folder {self._folder.path} cannot be written now: {sentence_of(error)}"
                )

    def _report(self, kind: str, step: int | None, sentence: str, save: Save | None = None) -> None:
        good = kind in ("saved", "mirrored")
        if not good:
            self.stats.last_problem = sentence
        _log.log(logging.INFO if good else logging.ERROR, "%s", sentence)
        if self._metrics is not None and kind != "left out":  # when left out, training would wait
            try:
                metrics.write(self._metrics, self.stats)
            except Exception as error:  # noqa: BLE001 - the save is what counts
                _log.error("metrics are not written: %s", sentence_of(error))
        if self._on_report is not None:
            try:
                self._on_report(Report(kind, step, sentence, save))
            except Exception:  # noqa: BLE001 - a hook must not end a save
                self.stats.hook_failures += 1
                _log.exception("the hook for reports failed")


@atexit.register
def _break_off() -> None:
    """Abort writes still under way at the program's end, once each Checkpointer had its time. It is registered before
    theirs, so it runs last."""
    if writers := [thread for thread in threading.enumerate() if thread.name == _WRITER]:
        hashing.end()
        end = time.monotonic() + _STOPPING
        for thread in writers:
            thread.join(max(0.0, end - time.monotonic()))


def _at_exit(checkpointer: Checkpointer) -> Callable[[], None]:
    """Close a Checkpointer, if the program did not, before the interpreter ends."""
    known = weakref.ref(checkpointer)

    def ending() -> None:
        if found := known():
            found._stop()

    atexit.register(ending)
    return ending


def _hooked(checkpointer: Checkpointer) -> Any:
    """Make every optimizer of this process wait for the copy while the Checkpointer lives."""
    known = weakref.ref(checkpointer)

    def wait() -> None:
        if found := known():
            found.before_optimizer_step()

    def hook(optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        closure, *rest = arguments[1:] or (named.get("closure"),)  # arguments[0] is the optimizer
        if closure is None or not type(optimizer).step.__module__.startswith("torch.optim."):
            return wait()

        def first(*given: Any, **also: Any) -> Any:  # torch's optimizers change nothing before calling it
            result = closure(*given, **also)
            wait()
            return result

        return (*arguments[:1], first, *rest), {name: each for name, each in named.items() if name != "closure"}

    return register_optimizer_step_pre_hook(hook)
