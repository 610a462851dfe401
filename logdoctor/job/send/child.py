"""The command as a child process: its outputs, its start, its signals and its end."""

import errno
import fcntl
import os
import resource
import signal
import termios
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

PIPE_BYTES = 1 << 20
_SI_KERNEL = 0x80
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032
FORWARDED = frozenset(
    number
    for name in ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "WINCH", "ALRM", "XCPU", "PWR", "URG", "IO")
    if (number := getattr(signal, f"SIG{name}", None)) is not None
) | frozenset(range(signal.SIGRTMIN, signal.SIGRTMAX + 1))
"""Signals that are forwarded. Not those of job control (TSTP, TTIN, TTOU): the terminal sends them to both processes,
and both must stop."""


class Channel(NamedTuple):
    """One output of the command: where we read it, where the command writes it, and where we forward it."""

    reading: int
    writing: int
    outputs: tuple[int, ...]
    """The command's descriptors: 1, 2 or both."""
    passing: int
    capacity: int
    terminal: bool


def not_ignored(numbers: Collection[int]) -> frozenset[int]:
    """Return the signals that this process does not ignore. It ignores some under nohup, cron and in a script's
    background. Blocked ones are delivered all the same and forwarded; they must end nothing."""
    return frozenset(number for number in numbers if signal.getsignal(number) != signal.SIG_IGN)


def open_channels() -> list[Channel]:
    """Return a pipe for each output, or a pseudo-terminal where ours is a terminal.

    If both outputs are the same (`2>&1`, a terminal) there is one for both: their order is the same as without us.
    """
    for descriptor in (0, 1, 2):
        _fill(descriptor)
    if _same(1, 2):
        return [_channel((1, 2))]
    return [_channel((1,)), _channel((2,))]


def start(command: Sequence[str], environment: dict[bytes, bytes], channels: list[Channel], mask: set[int]) -> int:
    """Start the command and return its process id; `OSError` when that fails.

    It gets the given signal mask and our original signal dispositions, as far as Python kept them.
    """
    actions = [(os.POSIX_SPAWN_DUP2, channel.writing, output) for channel in channels for output in channel.outputs]
    return os.posix_spawnp(
        command[0],
        list(command),
        environment,
        file_actions=actions,
        setsigmask=mask,
        setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # which Python ignores
    )


def start_failure(command: Sequence[str], error: OSError) -> tuple[int, str]:
    """Return a shell's exit code and message for a command that cannot be started."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return 127, f"{command[0]}: command not found"
    return 126, f"{command[0]}: cannot be run ({error.strerror})"


class ChildProcess:
    """A running command. Signals are forwarded only until it has ended, never to a later process with its id."""

    def __init__(self, pid: int, channels: list[Channel]) -> None:
        self.pid = pid
        self._channels = channels
        self._guard = threading.Lock()
        self._ended = False

    def wait(self) -> int:
        """Wait for its end and return the wait status."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._guard:
            self._ended = True
            return os.waitpid(self.pid, 0)[1]

    def pass_signal(self, number: int, code: int) -> bool:
        """Forward a signal; return whether the command still ran.

        A signal from the kernel (Ctrl-C, a closed terminal) went to our whole process group, so the command has it
        already.
        """
        if number == signal.SIGWINCH:
            for channel in self._channels:
                if channel.terminal:
                    copy_window_size(channel.passing, channel.reading)
        with self._guard:
            if self._ended:
                return False
            if code != _SI_KERNEL or number == signal.SIGWINCH:
                with suppress(OSError):  # it may have changed its user (setuid)
                    os.kill(self.pid, number)
            return True


def die_by(number: int) -> None:
    """End this process by a signal, without a core file: our parent sees how the command died."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.raise_signal(number)


def copy_window_size(terminal: int, pseudo_terminal: int) -> None:
    """Give a pseudo-terminal the size of a terminal."""
    with suppress(OSError):
        size = fcntl.ioctl(terminal, termios.TIOCGWINSZ, b"\0" * 8)
        fcntl.ioctl(pseudo_terminal, termios.TIOCSWINSZ, size)


def _channel(outputs: tuple[int, ...]) -> Channel:
    passing = outputs[0]
    if os.isatty(passing):
        with suppress(OSError):  # no pseudo-terminal is available: a pipe works as well
            return Channel(*_pseudo_terminal(passing), outputs, passing, 4096, True)
    reading, writing = os.pipe()
    with suppress(OSError):
        fcntl.fcntl(writing, _F_SETPIPE_SZ, PIPE_BYTES)
    return Channel(reading, writing, outputs, passing, fcntl.fcntl(writing, _F_GETPIPE_SZ), False)


def _pseudo_terminal(terminal: int) -> tuple[int, int]:
    """Return both ends of a raw pseudo-terminal: the real terminal does the processing."""
    reading, writing = os.openpty()
    modes = termios.tcgetattr(terminal)
    modes[1] &= ~termios.OPOST
    modes[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(writing, termios.TCSANOW, modes)
    copy_window_size(terminal, reading)
    return reading, writing


def _fill(descriptor: int) -> None:
    """Open /dev/null in place of a closed standard descriptor; else one of our pipes would get its number."""
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
        else:
            os.set_inheritable(descriptor, True)


def _same(one: int, other: int) -> bool:
    a, b = os.fstat(one), os.fstat(other)
    return (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev)
