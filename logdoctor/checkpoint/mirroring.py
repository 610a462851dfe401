"""Uploads saves one at a time, in a thread that no save waits for."""

import threading
from collections.abc import Callable
from pathlib import Path

from logdoctor.checkpoint import folders
from logdoctor.checkpoint.lease import Lease
from logdoctor.checkpoint.mirror import DamagedHere, Mirror
from logdoctor.checkpoint.reports import Stats, sentence_of

_AGAIN = 30.0  # seconds after a failure


class Mirroring:
    """The upload thread of the first rank. Only the newest waiting save is uploaded. `report` is called from the
    thread."""

    def __init__(
        self,
        mirror: Mirror,
        folder: Path,
        keep: int,
        lease: Lease,
        stats: Stats,
        report: Callable[[str, int | None, str], None],
    ) -> None:
        self.uploading: str | None = None
        """The checkpoint being uploaded, which must not be deleted."""
        self.begun = threading.Event()
        """Set once the mirror's content is known (or unreachable): later saves are newer than all it has."""
        self._mirror, self._folder, self._keep, self._lease = mirror, folder, keep, lease
        self._stats, self._report = stats, report
        self._wanted: str | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="checkpoint-mirror", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        """Become the mirror's writer, and raise the folder's attempts and epochs above the mirror's."""
        if not self._mirror.epoch:
            epoch = self._mirror.take(self._lease.epoch)
            attempts = (folders.parsed(name) for name in self._mirror.names())
            self._lease.rise(epoch, folders.following(each[1] for each in attempts if each))

    def offer(self, name: str) -> None:
        """Upload a verified save, in place of any still waiting."""
        with self._changed:
            self._wanted = name
            self._changed.notify()

    def _lacks(self, name: str) -> None:
        """Upload an earlier save, unless a newer one waits."""
        with self._changed:
            self._wanted = self._wanted or name

    def close(self, timeout: float) -> bool:
        """Wait until the last upload is done or has failed; return False when that takes longer."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._begin()
            if newest := next(iter(folders.complete(self._folder)), None):
                self._lacks(newest.name)
        except Exception as error:  # noqa: BLE001 - any store's own; each upload tries again
            self._report("mirror", None, f"mirror {self._mirror.url} cannot be written now: {sentence_of(error)}")
        finally:
            self.begun.set()
        while name := self._next():
            try:
                self._upload(name)
            except DamagedHere as error:  # a retry would upload all of it again
                self._stats.mirror_failed += 1
                self._report("mirror", (folders.parsed(name) or (0,))[0], sentence_of(error))
            except Exception as error:  # noqa: BLE001 - any store's own
                self._stats.mirror_failed += 1
                self._failed(name, f"is not uploaded: {sentence_of(error)}")
            finally:
                self.uploading = None

    def _next(self) -> str | None:
        """Return what to upload next; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is not None or self._closing)
            self.uploading, self._wanted = self._wanted, None
            return self.uploading

    def _upload(self, name: str) -> None:
        step, _ = folders.parsed(name) or (0, 0)
        self._begin()
        size = self._mirror.upload(self._folder, name)
        self._stats.mirrored += 1
        self._stats.last_mirrored_step = step
        self._report("mirrored", step, f"step {step} is in {self._mirror.url} as {name}: {size / 1e6:.1f} MB")
        self._mirror.prune(self._keep, self._folder)

    def _failed(self, name: str, problem: str) -> None:
        """Report, and retry after a while unless there is a newer save."""
        step, _ = folders.parsed(name) or (0, 0)
        self._report("mirror", step, f"checkpoint {name} {problem}")
        with self._changed:
            self._changed.wait_for(lambda: self._wanted is not None or self._closing, _AGAIN)
            if self._wanted is None and not self._closing:
                self._wanted = name
