"""`logdoctor run`: runs a command unchanged, and ships its output."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from logdoctor.job.send import child as children
from logdoctor.job.send import environment, witnesses
from logdoctor.job.send.asides import listen
from logdoctor.job.send.child import Channel, ChildProcess
from logdoctor.job.send.copy import OutputCopy
from logdoctor.job.send.merge import LineMerge
from logdoctor.job.send.notices import PREFIX, ShippingNotices
from logdoctor.job.send.passing import Passing
from logdoctor.job.send.scheduler import scheduler_state
from logdoctor.job.send.shipper import CommandEnd, Shipper
from logdoctor.job.send.spool import Spool, new_spool
from logdoctor.job.send.target import ShippingTarget
from logdoctor.safe.colours import ANSI

SPOOL_BYTES = 1 << 30
DRAIN_SECONDS = 30.0
_HELD_BYTES = 64 << 20  # bytes that may wait for the spool's disk
_NAP_SECONDS = 0.02
_OURS = b"[logdoctor] "
_CODE, _BEGUN_CODE = re.compile(ANSI), re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*)?")
_CODE_OR_OURS = re.compile(
    b"%b|(%b)( )" % (ANSI, b"".join(b"%b(?:%b)*" % (re.escape(bytes((one,))), ANSI) for one in _OURS[:-1]))
)
_STALLED_SECONDS = 10.0
_VERDICT_SECONDS = 1.5  # a failed job waits no longer for its verdict
_WITNESS_DRAIN_SECONDS = 5.0
_OVERTIME_SECONDS = 0.2  # of that, left for reporting what is known
_QUIET_SECONDS = 0.5
_MOST_QUIET_SECONDS = 5.0
_GIVE_UP_SIGNALS = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
GIVEN_UP = frozenset(128 + number for number in _GIVE_UP_SIGNALS)
"""Exit codes of a command that somebody ended."""


def run(
    command: Sequence[str],
    target: ShippingTarget | None,
    *,
    spool_folders: tuple[str, ...],
    spool_bytes: int = SPOOL_BYTES,
    drain_seconds: float = DRAIN_SECONDS,
    away_seconds: float | None = None,
    slurm_job: str | None = None,
    copy_folder: str | None = None,
    asides_folder: str | None = None,
    tells_verdict: bool = False,
    sources: Callable[[], Sequence[witnesses.Source]] = tuple,
    witness_seconds: float = 0.0,
    died: Callable[[int | None], None] = lambda status: None,
    ended: Callable[[int, bool], None] = lambda code, was_asked: None,
) -> int:
    """Run the command and return its exit code; 127 or 126 when it cannot be started.

    Without a target nothing is sent. `copy_folder` also keeps the newest output; lines added in `asides_folder` become
    part of the output. When the command fails, the `sources` are asked for `witness_seconds`, and their answers become
    streams beside it. With `tells_verdict` the verdict on a failed command is printed if the service has it soon. The
    rest is sent for at most `drain_seconds`; with `away_seconds` sending stops once the service has accepted nothing
    for that long. `died` gets the wait status at the command's end, None when it cannot be started; `ended` gets the
    exit code (128 plus the signal), once the output is kept, and whether a signal asked the command to end. When the
    command died of a signal, this process dies of the same one and does not return. Call it from the main thread of a
    process that does nothing else: signals are blocked and forwarded to the command.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would leave no exit status
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, children.FORWARDED)
    notices = ShippingNotices()
    channels = children.open_channels()
    failure: tuple[int, str] | None = None
    beside = sources()  # their threads must not take signals
    try:
        running = ChildProcess(children.start(command, environment.for_child(), channels, set(mask)), channels)
    except OSError as error:
        failure = children.start_failure(command, error)
    for channel in channels:
        os.close(channel.writing)
    spool = _open_spool(spool_folders, spool_bytes, notices) if target else None
    output = _Output(len(channels), spool, notices, _open_copy(copy_folder, spool_bytes, notices))
    if asides_folder:
        _listen(asides_folder, output, notices)
    shipper = Shipper(target, spool, notices) if target and spool else None
    if failure:
        code, text = failure
        notices.say(text)
        output.keep(None, f"{PREFIX}{text}\n".encode("utf-8", "replace"))
        status = code << 8
        died(None)
        asked = _pass_signals(None, shipper)
    else:
        asked = _pass_signals(running, shipper)
        status = _pass_outputs(running, channels, output, shipper, died)
    output.close()
    texts = {} if failure or not _has_failed(status) else witnesses.ask(beside, running.pid, witness_seconds)
    _keep_beside(copy_folder, texts, notices)
    end = _end_of(status, slurm_job)
    if shipper:
        if failure:
            shipper.start()
        if target:
            _send_beside(target._replace(attempt=shipper.attempt), texts, spool_folders, drain_seconds, notices)
        sent = _finish(shipper, output, end, drain_seconds, away_seconds, notices, spool_folders[0])
        failed = bool(end.exit_code) or (end.signal is not None and end.signal not in _GIVE_UP_SIGNALS)
        if sent and tells_verdict and target and failed:
            _tell_verdict(target, shipper, min(drain_seconds, _VERDICT_SECONDS), notices)
    ended(128 + end.signal if end.signal is not None else end.exit_code or 0, asked.is_set())
    if end.signal is not None:
        children.die_by(end.signal)
        return 128 + end.signal  # only process 1 of a container survives that
    return end.exit_code or 0


class _Output:
    """The command's outputs, merged, on their way to the spool and to a copy; without both they are dropped.

    A separate thread writes to the spool, because its disk may stall (a network home folder), and the command must not.
    What does not fit is dropped and counted.
    """

    def __init__(
        self, channels: int, spool: Spool | None, notices: ShippingNotices, copy: OutputCopy | None = None
    ) -> None:
        self.spool, self._copy = spool, copy
        self._notices = notices
        self._channels = channels
        self._merge = LineMerge(channels)
        self._guard = threading.Lock()
        self._closed = False
        self._waiting: list[tuple[int | None, bytes]] = []
        self._begun = b""  # an unfinished start of our prefix at the end of the output
        self._in_line = False  # whether the last appended line is unfinished
        self._held = self._dropped = 0  # bytes
        self._thread = threading.Thread(target=self._run, name="logdoctor-spool", daemon=True)
        if spool or copy:
            self._thread.start()

    def keep(self, channel: int | None, data: bytes) -> None:
        """Queue bytes, waiting only for a brief lock. Lines without a channel go where the output currently ends."""
        with self._guard:
            if self._closed or not (self.spool or self._copy):
                return
            if self._held > _HELD_BYTES:
                self._dropped += len(data)
            else:
                self._waiting.append((channel, data))
                self._held += len(data)

    def close(self) -> None:
        """Flush unfinished lines; later output (of a grandchild) is not kept."""
        with self._guard:
            self._closed = True
        if self._thread.ident:
            self._thread.join(_STALLED_SECONDS)
            if self._thread.is_alive():
                self._notices.say("the last logs are lost: the disk of the spool folder does not respond.")

    def _run(self) -> None:
        try:
            while not self._write():
                time.sleep(_NAP_SECONDS)
        except Exception as error:  # noqa: BLE001  whatever it is, the command's output must still be read
            with self._guard:
                self._closed = True
            self._notices.say(f"logs are no longer kept: {type(error).__name__}: {error}")

    def _write(self) -> bool:
        """Write what is queued; return whether that was the last."""
        with self._guard:
            closed = self._closed
            waiting, self._waiting = self._waiting, []
            dropped, self._dropped = self._dropped, 0
        for channel, data in waiting:
            self._append(
                self._aside(data) if channel is None else self._with_prefix_escaped(self._merge.feed(channel, data))
            )
            with self._guard:
                self._held -= len(data)
        if dropped and self.spool:
            self.spool.drop(dropped)
        if closed:
            for channel in range(self._channels):
                self._append(self._with_prefix_escaped(self._merge.close(channel)))
            if self.spool:
                self.spool.finish()
        return closed

    def _aside(self, lines: bytes) -> bytes:
        return b"\n" + lines if self._in_line else lines

    def _with_prefix_escaped(self, data: bytes) -> bytes:
        """Return the command's output with a colon put into anything that reads as our prefix. That includes prefixes
        split by terminal codes: a supervisor's lines decide about restarts, and a job may print any line."""
        begun, raw = self._begun, self._begun + data
        last = raw.rfind(b"\x1b")
        end = last if last >= 0 and _BEGUN_CODE.fullmatch(raw, last) else len(raw)
        seen, code = _CODE.sub(b"", raw[:end]), raw[end:]
        at = seen.rfind(b"[", -len(_OURS) + 1)
        words = seen[at:] if at >= 0 and _OURS.startswith(seen[at:]) else b""
        self._begun = words + code[:2] + code[2:][-1:]  # the last byte decides how an unfinished code continues
        if _OURS not in seen:
            return data
        return _CODE_OR_OURS.sub(lambda found: b"%b: " % found[1] if found[1] else found[0], raw)[len(begun) :]

    def _append(self, data: bytes) -> None:
        self._in_line = not data.endswith(b"\n") if data else self._in_line
        if self.spool:
            self.spool.append(data)
        if self._copy:
            try:
                self._copy.append(data)
            except OSError as error:
                self._copy = None
                self._notices.say(f"the copy of the output for a diagnosis here ends: {error.strerror}.")


def _open_spool(folders: tuple[str, ...], limit: int, notices: ShippingNotices) -> Spool | None:
    try:
        return new_spool(folders, limit)
    except OSError as error:
        notices.say(f"logs are not sent: no usable spool folder ({error}); set LOGDOCTOR_SPOOL_DIR.")
        return None


def _open_copy(folder: str | None, limit: int, notices: ShippingNotices) -> OutputCopy | None:
    try:
        return OutputCopy(folder, limit) if folder else None
    except OSError as error:
        notices.say(f"no copy of the output is kept for a diagnosis here ({error}).")
        return None


def _listen(folder: str, output: _Output, notices: ShippingNotices) -> None:
    try:
        listen(folder, lambda lines: output.keep(None, lines))
    except OSError as error:
        notices.say(f"nothing can be added to the output by a supervisor ({error}).")


def _pass_signals(running: ChildProcess | None, shipper: Shipper | None) -> threading.Event:
    """Forward signals to the command in a thread; after its end a signal skips sending the rest. Return the event that
    is set once a signal has asked the command to end."""

    asked = threading.Event()
    gives_up = children.not_ignored(_GIVE_UP_SIGNALS)

    def wait_for_signals() -> None:
        while True:
            received = signal.sigwaitinfo(children.FORWARDED)
            alive = running is not None and running.pass_signal(received.si_signo, received.si_code)
            if received.si_signo in gives_up:
                if alive:
                    asked.set()
                elif shipper:
                    shipper.stop()

    threading.Thread(target=wait_for_signals, name="logdoctor-signals", daemon=True).start()
    return asked


def _pass_outputs(
    running: ChildProcess,
    channels: list[Channel],
    output: _Output,
    shipper: Shipper | None,
    died: Callable[[int | None], None],
) -> int:
    """Wait until the command has ended and its outputs are quiet; return its wait status."""
    passings = []
    for number, channel in enumerate(channels):
        passings.append(Passing(channel, lambda data, number=number: output.keep(number, data)))  # type: ignore[misc] # the default
        passings[-1].start()
    if shipper:
        shipper.start()
    status = running.wait()
    died(status)
    _await_rest(passings)
    return status


def _await_rest(passings: Sequence[Passing], clock: Callable[[], float] = time.monotonic) -> None:
    """Wait for the outputs to end; only briefly for processes that outlive the command and hold them open."""
    ended = clock()
    while not all(passing.join(0.02) for passing in passings):
        now = clock()
        if any(passing.is_writing for passing in passings):
            ended = now  # whoever reads our output is slow: the rest of it is still to come
        quiet_since = max(ended, *(passing.last_read for passing in passings))
        if now - quiet_since >= _QUIET_SECONDS or now - ended >= _MOST_QUIET_SECONDS:
            return


def _has_failed(status: int) -> bool:
    """Return whether a command failed by itself or was ended; not by Ctrl-C, after which a person waits."""
    is_by_hand = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT
    return bool(status) and not is_by_hand and status != (128 + signal.SIGINT) << 8


def _keep_beside(folder: str | None, texts: dict[str, str], notices: ShippingNotices) -> None:
    """Keep what the sources told beside the copy of the output."""
    try:
        if folder:
            witnesses.remove_kept(folder)
            witnesses.keep(folder, texts)
    except OSError as error:
        notices.say(f"what else is known of the failure is not kept for a diagnosis here ({error}).")


def _send_beside(
    target: ShippingTarget, texts: dict[str, str], folders: tuple[str, ...], seconds: float, notices: ShippingNotices
) -> None:
    """Send what the sources told as streams of their own; what is not sent in time waits for `ship --resume`."""
    until, sending = time.monotonic() + min(seconds, _WITNESS_DRAIN_SECONDS), list[tuple[Shipper, Spool]]()
    for stream, text in texts.items():
        if (spool := _open_spool(folders, SPOOL_BYTES, notices)) is not None:
            spool.append(text.encode("utf-8", "replace"))
            spool.finish()
            sending.append((Shipper(target._replace(stream=stream, metadata={}), spool, notices), spool))
            sending[-1][0].start()
    for shipper, spool in sending:
        if shipper.finish(CommandEnd(None, None), max(until - time.monotonic(), 0.1)):
            spool.remove()


def _end_of(status: int, slurm_job: str | None) -> CommandEnd:
    if os.WIFSIGNALED(status):
        return CommandEnd(None, os.WTERMSIG(status), scheduler_state(slurm_job))
    code = os.WEXITSTATUS(status)
    return CommandEnd(code, None, scheduler_state(slurm_job) if code else None)


def _tell_verdict(target: ShippingTarget, shipper: Shipper, seconds: float, notices: ShippingNotices) -> None:
    """Report the verdict on a failed command, or where it will be, within `seconds`.

    A thread asks for it, because name resolution and slow answers have no time limit.
    """
    from logdoctor.job.send.telling import (  # imported here, because its client is slow to import
        failed_run,
        still_to_come,
    )

    attempt, said = shipper.attempt, list[str]()
    if attempt is None:
        return

    def ask() -> None:
        with suppress(Exception):  # whatever happens, the page is known
            said.append(failed_run(target, attempt, seconds - _OVERTIME_SECONDS, shipper.pause))

    asking = threading.Thread(target=ask, name="logdoctor-verdict", daemon=True)
    asking.start()
    asking.join(seconds)
    notices.say(said[0] if said else still_to_come(target))


def _finish(
    shipper: Shipper,
    output: _Output,
    end: CommandEnd,
    seconds: float,
    away_seconds: float | None,
    notices: ShippingNotices,
    first_folder: str,
) -> bool:
    """Send the rest; return whether the service has it all. What is not in the `first_folder` must be looked for."""
    spool = output.spool
    assert spool is not None
    if shipper.finish(end, seconds, away_seconds):
        spool.remove()
        return True
    gone = f"{spool.missing:,} bytes of logs are lost, because {spool.folder} has no room. " if spool.missing else ""
    if not spool.end:
        notices.say(f"no logs were sent. {gone}Set LOGDOCTOR_SPOOL_DIR to a folder on another disk.")
        return False
    where = os.path.dirname(spool.folder)
    given = f"LOGDOCTOR_SPOOL_DIR={where} " if where != first_folder else ""
    notices.say(
        f"not all logs were sent; unsent logs are in {spool.folder}. {gone}"
        f"Send them with: {given}logdoctor ship --resume ({given}python -m logdoctor.job.send ship --resume)"
    )
    return False
