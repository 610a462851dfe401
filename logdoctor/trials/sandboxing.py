"""Run a command that executes code which a model wrote, so that it can do little harm.

A program by itself, for the standard library: `python -I -S sandboxing.py LIMITS FOLDER COMMAND...`, LIMITS a JSON
object. The command has no network and sees no processes but its own, which end with it; the file system is read-only,
but for FOLDER, where it begins, and an empty /dev/shm; it has limits on processor time, memory, files and processes,
none of our environment but what finds programs, and, where we are root, a user of its own. That one sees of folders
which are closed to it (/root) only what the command names. Where a part of this cannot be had, nothing is run.
"""

import ctypes
import json
import os
import resource
import shutil
import signal
import stat
import sys
from collections.abc import Iterable
from typing import NoReturn

REFUSED = 125
"""The exit code where the sandbox cannot be made."""

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET, _NEWUTS = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x4000000
_REC, _PRIVATE, _BIND = 0x4000, 0x40000, 0x1000
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_MOUNT_SETATTR = 442  # on all architectures
_RDONLY, _RECURSIVE = 1, 0x8000
_AT_FDCWD = -100
_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_FIRST_USER = 2_000_000_000  # a user that nobody is: this, and the number of our process
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """What mount_setattr(2) changes."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def main(limits: dict[str, int], folder: str, command: list[str]) -> int:
    """Run the command and return its exit code, 128 and the number of a signal that it died of; 125 where the sandbox
    cannot be made."""
    is_root = os.geteuid() == 0
    user, group = os.geteuid(), os.getegid()
    user_of_its_own = _FIRST_USER + os.getpid() % 100_000 if is_root else None
    try:
        own = 0 if is_root else _NEWUSER
        _tried("namespaces", _libc.unshare(own | _NEWNS | _NEWIPC | _NEWPID | _NEWNET | _NEWUTS))
        if not is_root:
            _map(user, group)
        first = os.fork()  # the first process of the new namespace: when it ends, all in it end
    except OSError as error:
        return _refuse(error)
    if first == 0:
        _run(limits, folder, command, user_of_its_own)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
    _, status = os.waitpid(first, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _run(limits: dict[str, int], folder: str, command: list[str], user: int | None) -> NoReturn:
    """Be the first process in the sandbox: start the command, take the status of all, and exit with the command's."""
    _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        _mount(folder, _needed(folder, command) if user is not None else ())
        child = os.fork()
        if child == 0:
            _confine(limits, folder, user)
            _execute(folder, command)
    except OSError as error:
        os._exit(_refuse(error))
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _map(user: int, group: int) -> None:
    """Be ourselves in the new namespace of users."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _needed(folder: str, command: list[str]) -> set[str]:
    """Return the paths that a command needs as far as it tells: its folder, its programs, and what it names."""
    programs = _programs(command)
    paths = [*map(os.path.abspath, programs), *map(os.path.realpath, programs)]
    found = {os.path.dirname(os.path.dirname(path)) for path in paths}
    named = {word for word in command[1:] if os.path.isabs(word) and os.path.exists(word)}
    beside = {os.path.dirname(word) for word in named if os.path.isfile(word)}  # modules that a script imports
    return found | named | {folder, *(path for path in beside if os.stat(path).st_mode & stat.S_IXOTH)}


def _programs(command: list[str]) -> list[str]:
    """Return the program that is started, and the one that `env NAME=VALUE ...` starts."""
    first, *words = command
    started = next((word for word in words if "=" not in word and not word.startswith("-")), "")
    second = shutil.which(started) if os.path.basename(first) == "env" else None
    return [shutil.which(first) or first, *([second] if second else [])]


def _mount(folder: str, needed: Iterable[str]) -> None:
    """Let all be read-only but the folder, and /dev/shm be empty; what is `needed` can be reached."""
    where = os.fsencode(folder)
    _tried("mounts of its own", _libc.mount(b"none", b"/", None, _REC | _PRIVATE, None))
    _open_up(needed)
    _tried("its folder", _libc.mount(where, where, None, _BIND, None))
    _tried("a read-only file system", _set_attributes(b"/", _RECURSIVE, _Attributes(_RDONLY)))
    _tried("its folder", _set_attributes(where, 0, _Attributes(_NOSUID | _NODEV, _RDONLY)))
    flags = _NOSUID | _NODEV | _NOEXEC
    _tried("an empty /dev/shm", _libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", flags, b"size=64m,mode=1777"))
    _libc.mount(b"proc", b"/proc", b"proc", flags, None)  # containers may forbid it: then others' numbers are seen


def _open_up(needed: Iterable[str]) -> None:
    """Let a user who is nobody reach paths in folders that are closed to others: each such folder holds these alone."""
    closed: dict[str, dict[str, int]] = {}
    for path in sorted(needed):
        if (above := _closed_above(path)) is not None:
            closed.setdefault(above, {})[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    for above, kept in closed.items():
        _tried("closed folders", _libc.mount(b"tmpfs", os.fsencode(above), b"tmpfs", _NOSUID | _NODEV, b"mode=755"))
        for path, handle in kept.items():
            if not os.path.lexists(path):  # else it lies in one that is there already
                is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
                os.makedirs(path if is_folder else os.path.dirname(path), mode=0o755, exist_ok=True)
                if not is_folder:
                    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
                source = os.fsencode(f"/proc/self/fd/{handle}")
                _tried(path, _libc.mount(source, os.fsencode(path), None, _BIND | _REC, None))
            os.close(handle)


def _closed_above(path: str) -> str | None:
    """Return the first folder on the way to a path that others may not pass; None without."""
    so_far = ""
    for part in os.path.dirname(path).split("/")[1:]:
        so_far = f"{so_far}/{part}"
        if part and not os.stat(so_far).st_mode & stat.S_IXOTH:
            return so_far
    return None


def _set_attributes(where: bytes, flags: int, attributes: _Attributes) -> int:
    size = ctypes.sizeof(attributes)
    result: int = _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, where, flags, ctypes.byref(attributes), size)
    return result


def _confine(limits: dict[str, int], folder: str, user: int | None) -> None:
    os.setsid()
    os.chdir(folder)
    for kind, most in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["file"]),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    if user is not None:
        for root, _, files in os.walk(folder):  # made by us a moment ago, without links
            for path in (root, *(os.path.join(root, name) for name in files)):
                os.chown(path, user, user, follow_symlinks=False)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"], limits["processes"]))
    _tried("no new privileges", _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))


def _execute(folder: str, command: list[str]) -> NoReturn:
    variables = {name: os.environ[name] for name in _PASSED if name in os.environ}
    variables |= {"HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, variables)
    except OSError as error:
        print(f"{command[0]}: cannot be run in the sandbox ({error.strerror})", file=sys.stderr)
        sys.stderr.flush()
        os._exit(127)


def _tried(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _refuse(error: OSError) -> int:
    step = "It needs Linux 5.12 and namespaces, as root or with user namespaces (in containers often switched off)."
    print(f"sandbox: cannot be made ({error.strerror}). {step}", file=sys.stderr)
    sys.stderr.flush()
    return REFUSED


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]))
