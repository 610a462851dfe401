"""Run a command that executes code written by a model, so that it can do little harm.

A standalone program that needs only the standard library: `python -I -S sandboxing.py LIMITS FOLDER COMMAND...`, where
LIMITS is a JSON object. The command has no network and sees only its own processes, which end with it. It has its own
view of the file system, read-only layers (overlayfs) over what is mounted, in which sockets and pipes of others lead
nowhere; /dev has only what every program needs. FOLDER, its working directory, and /dev/shm are in memory and bounded:
plain files that it made in FOLDER itself are kept. It has limits on processor time, memory, files and processes, none
of our environment except what finds programs, and, if we are root, its own user without groups. In folders closed to
that user (/root) it sees only what the command names. If any part of this is unavailable, nothing is run; except a
cgroup (version 2), which bounds the memory of all processes together: if we may make none, that is reported.
"""

import ctypes
import errno
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

REFUSED = 125
"""The exit code when the sandbox cannot be made."""

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET, _NEWUTS = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x4000000
_REC, _PRIVATE, _BIND = 0x4000, 0x40000, 0x1000
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_DETACH = 2
_IO_URING_SETUP, _CLOSE_RANGE, _MOUNT_SETATTR = 425, 436, 442  # on all architectures
_RDONLY, _RECURSIVE = 1, 0x8000
_AT_FDCWD = -100
_PDEATHSIG, _SECCOMP, _NO_NEW_PRIVS = 1, 22, 38
_DEVICES = (b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom")
_MOST_FILES = 100_000  # in its folder, and in /dev/shm: each takes memory, even an empty one
_OF_A_FILE = 4096  # bytes that a file takes besides its content
_FIRST_USER = 2_000_000_000  # unused user ids: this, plus our process id
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # of seccomp programs
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x50000, 0x80000000
_CALLS = {  # by architecture: its number, the calls socket and socketpair, and those that handle keys
    "x86_64": (0xC000003E, (41, 53), (248, 249, 250)),
    "aarch64": (0xC00000B7, (198, 199), (217, 218, 219)),
}
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """What mount_setattr(2) changes."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def main(limits: dict[str, int], folder: str, command: list[str]) -> int:
    """Run the command and return its exit code. It is 128 + N when it died of signal N, 125 when the sandbox cannot be
    made."""
    is_root = os.geteuid() == 0
    user, group = os.geteuid(), os.getegid()
    user_of_its_own = _FIRST_USER + os.getpid() % 100_000 if is_root else None
    with _cgroup(limits) as members:
        try:
            _write("/proc/self/oom_score_adj", "1000")  # when a node runs out of memory, these end first
            kept = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            own = 0 if is_root else _NEWUSER
            _tried("namespaces", _libc.unshare(own | _NEWNS | _NEWIPC | _NEWPID | _NEWNET | _NEWUTS))
            if not is_root:
                _map(user, group)
            first = os.fork()  # init of the new namespace: when it ends, all in it end
        except OSError as error:
            return _refuse(error)
        if first == 0:
            _run(limits, folder, command, user_of_its_own, kept, members)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
        _, status = os.waitpid(first, 0)
    return _code(status)


def _run(
    limits: dict[str, int], folder: str, command: list[str], user: int | None, kept: int, members: int | None
) -> NoReturn:
    """Run as init of the sandbox: start the command, reap processes, end what is left, keep its files, and exit with
    its code."""
    _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command may run as our user
    try:
        _join(members)
        _mount(folder, _needed(folder, command), user)
        inside = _folder(folder, kept, limits["disk"], user)
        child = os.fork()
        if child == 0:
            _confine(limits, folder, user)
            _execute(folder, command)
        code = _ended(child)
        _copy(inside, kept, None, limits["disk"])
    except OSError as error:
        os._exit(_refuse(error))
    os._exit(code)


def _ended(child: int) -> int:
    """Return the exit code of the command, once none of its processes is left."""
    code = REFUSED
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == child:
                code = _code(status)
                with suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
    return code


def _code(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


@contextmanager
def _cgroup(limits: dict[str, int]) -> Iterator[int | None]:
    """Make a cgroup in ours or beside it, bounded for all its members together; yield a handle through which a process
    joins, None if none can be made."""
    name = f"logdoctor-sandbox-{os.getpid()}"
    for above in _cgroups():
        place = f"{above}/{name}"
        with suppress(OSError):
            _write(f"{above}/cgroup.subtree_control", "+memory +pids")
        try:
            parent = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
            os.mkdir(place)
        except OSError:
            continue
        try:
            _write(f"{place}/memory.max", str(limits["memory_of_all"]))
            _write(f"{place}/pids.max", str(limits["processes"] + 1))
            with suppress(FileNotFoundError):  # without swap
                _write(f"{place}/memory.swap.max", "0")
            members = os.open(f"{place}/cgroup.procs", os.O_WRONLY)
        except OSError:
            os.rmdir(place)
            continue
        try:
            yield members
        finally:
            with suppress(OSError):
                os.rmdir(name, dir_fd=parent)
        return
    yield None


def _cgroups() -> list[str]:
    """Return the folders of our cgroup and of the one above it."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        ours = [line.rstrip("\n").removeprefix("0::") for line in file if line.startswith("0::")]
    with open("/proc/self/mounts", encoding="utf-8") as file:
        mounts = [words[1] for words in map(str.split, file) if words[2] == "cgroup2"]
    return [root + path for root in mounts[:1] for at in ours for path in dict.fromkeys((at, os.path.dirname(at)))]


def _join(members: int | None) -> None:
    """Join the cgroup; report if that is impossible."""
    try:
        if members is not None:
            os.write(members, b"0")
            return
        why = "none of version 2 may be made here"
    except OSError as error:
        why = str(error.strerror)
    print(f"sandbox: no cgroup ({why}): memory is bounded for each process, not for all together", file=sys.stderr)
    sys.stderr.flush()


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _map(user: int, group: int) -> None:
    """Map our ids to themselves in the new user namespace."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        _write(f"/proc/self/{name}", text)


def _needed(folder: str, command: list[str]) -> set[str]:
    """Return the paths that a command evidently needs: its folder, its programs, and paths that it names."""
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


def _mount(folder: str, needed: Iterable[str], user: int | None) -> None:
    """Replace the root by the view, read-only except /dev/shm; paths that are `needed` stay reachable."""
    _tried("mounts of its own", _libc.mount(b"none", b"/", None, _REC | _PRIVATE, None))
    root = _view(os.fsencode(folder))
    os.chdir(root)
    _tried("its root", _libc.pivot_root(b".", b"."))
    _tried("its root", _libc.umount2(b".", _DETACH))
    os.chdir("/")
    os.makedirs(folder, exist_ok=True)
    for path in needed:
        if not os.path.lexists(path):
            raise OSError(errno.ENOENT, f"{path}: cannot be seen in it")
    if user is not None:
        _open_up(needed)
    _tried("a read-only file system", _set_attributes(b"/", _RECURSIVE, _Attributes(_RDONLY | _NOSUID)))
    _tried("an empty /dev/shm", _set_attributes(b"/dev/shm", 0, _Attributes(0, _RDONLY)))


def _view(base: bytes) -> bytes:
    """Build the view and return its root. A socket or a pipe in a layer differs from the one below it, which others use
    (since Linux 4.19); a read-only mount alone would leave it reachable. Devices are disabled."""
    apart = (b"/proc/", b"/sys/", b"/dev/", base + b"/")
    places = [place for place in _mounts() if not (place + b"/").startswith(apart)]
    _tried("its root", _tmpfs(base, "mode=755"))
    root, nothing = base + b"/root", os.open(base, os.O_PATH)
    for place in places:
        if not (os.path.isdir(root + place) and os.path.ismount(root + place)):
            with suppress(OSError):  # closed to us, or gone
                _lay(place or b"/", root + place, nothing, places)
    _tried("/sys", _libc.mount(b"/sys", root + b"/sys", None, _BIND | _REC, None))
    _tried("/proc", _libc.mount(b"/proc", root + b"/proc", None, _BIND | _REC, None))
    flags = _NOSUID | _NODEV | _NOEXEC
    _libc.mount(b"proc", root + b"/proc", b"proc", flags, None)  # if forbidden, process ids of others are visible
    _tried("/dev", _tmpfs(root + b"/dev", "mode=755"))
    for device in _DEVICES:
        _bind(device, root + device)
    for name, leads in ((b"fd", b""), (b"stdin", b"/0"), (b"stdout", b"/1"), (b"stderr", b"/2")):
        os.symlink(b"/proc/self/fd" + leads, root + b"/dev/" + name)
    os.mkdir(root + b"/dev/shm")
    options = f"size=64m,nr_inodes={_MOST_FILES},mode=1777"
    _tried("an empty /dev/shm", _tmpfs(root + b"/dev/shm", options, flags))
    return root


def _mounts() -> list[bytes]:
    """Return all mount points, parents first."""
    with open("/proc/self/mountinfo", "rb") as file:
        places = {re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), line.split()[4]) for line in file}
    return sorted(place.rstrip(b"/") for place in places)


def _lay(place: bytes, target: bytes, nothing: int, places: list[bytes]) -> None:
    """Lay a layer over a path. A user namespace allows none over what holds mounts of the machine: then each folder in
    it gets one; and none over some file systems: then it is empty."""
    if os.path.islink(place):
        os.symlink(os.readlink(place), target)
    elif os.path.isfile(place):
        _bind(place, target)
    elif os.path.isdir(place):
        os.makedirs(target, exist_ok=True)
        below = os.open(place, os.O_PATH)
        layers = f"userxattr,lowerdir=/proc/self/fd/{below}:/proc/self/fd/{nothing}".encode()
        if _libc.mount(b"overlay", target, b"overlay", _NOSUID | _NODEV, layers) != 0:
            _tmpfs(target, "mode=755")
            if any(other.startswith(os.path.join(place, b"")) for other in places):
                for name in os.listdir(place):
                    with suppress(OSError):
                        _lay(os.path.join(place, name), os.path.join(target, name), nothing, places)
        os.close(below)


def _bind(place: bytes, target: bytes) -> None:
    """Bind a path to another one as well."""
    if not os.path.lexists(target):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    _tried(os.fsdecode(place), _libc.mount(place, target, None, _BIND | _REC, None))


def _tmpfs(where: bytes, options: str, flags: int = _NOSUID) -> int:
    return int(_libc.mount(b"tmpfs", where, b"tmpfs", flags, options.encode()))


def _folder(folder: str, kept: int, most: int, user: int | None) -> int:
    """Put its folder into memory, with its content and `most` bytes of room; return a handle."""
    sizes = (os.stat(name, dir_fd=kept, follow_symlinks=False).st_size for name in os.listdir(kept))
    size = most + sum(size + _OF_A_FILE for size in sizes)
    owner = "" if user is None else f",uid={user},gid={user}"
    options = f"size={size},nr_inodes={_MOST_FILES},mode=700{owner}"
    _tried("its folder", _tmpfs(os.fsencode(folder), options, _NOSUID | _NODEV))
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    _copy(kept, inside, user, size)
    return inside


def _copy(source: int, target: int, user: int | None, most: int) -> None:
    """Copy plain files that another folder lacks, as far as `most` bytes hold them."""
    for name in sorted(os.listdir(source)):
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_size + _OF_A_FILE > most:
            continue
        with suppress(FileExistsError):
            made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, found.st_mode & 0o777 | 0o600, dir_fd=target)
            with open(made, "wb") as copy, open(os.open(name, os.O_RDONLY, dir_fd=source), "rb") as file:
                shutil.copyfileobj(file, copy)
                if user is not None:
                    os.fchown(made, user, user)
            most -= found.st_size + _OF_A_FILE


def _open_up(needed: Iterable[str]) -> None:
    """Let an unprivileged user reach paths in folders closed to others: each such folder then holds only these."""
    closed: dict[str, dict[str, int]] = {}
    for path in sorted(needed):
        if (above := _closed_above(path)) is not None:
            closed.setdefault(above, {})[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    for above, kept in closed.items():
        _tried("closed folders", _tmpfs(os.fsencode(above), "mode=755"))
        for path, handle in kept.items():
            if not os.path.lexists(path):  # else it is in one that is there already
                is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
                os.makedirs(path if is_folder else os.path.dirname(path), mode=0o755, exist_ok=True)
                if not is_folder:
                    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
                source = os.fsencode(f"/proc/self/fd/{handle}")
                _tried(path, _libc.mount(source, os.fsencode(path), None, _BIND | _REC, None))
            os.close(handle)


def _closed_above(path: str) -> str | None:
    """Return the first folder on the way to a path that others may not pass; None if there is none."""
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
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    resource.setrlimit(resource.RLIMIT_NPROC, (limits["processes"], limits["processes"]))
    _tried("no new privileges", _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    _refuse_calls()


def _refuse_calls() -> None:
    """Refuse sockets that a network namespace does not bound, session keys, and io_uring. AF_VSOCK leads to a virtual
    machine's host; io_uring would bypass this."""
    program = _program(os.uname().machine)
    code = ctypes.create_string_buffer(program)
    told = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(code)))
    _tried("its calls", _libc.prctl(_SECCOMP, 2, told, 0, 0))


def _program(machine: str) -> bytes:
    """Return the seccomp program. It kills processes of another architecture, whose calls have other numbers. `OSError`
    for an unknown machine."""
    if machine not in _CALLS:
        raise OSError(errno.ENOSYS, f"its calls: not known for {machine}")
    architecture, sockets, keys = _CALLS[machine]
    refused = [_bpf(_RETURN, _ERRNO | errno.EPERM)]
    families = [_bpf(_LOAD, 16)]  # the first argument
    for family in _FAMILIES:
        families += [_bpf(_EQUAL, family, 0, 1), _bpf(_RETURN, _ALLOW)]
    families.append(_bpf(_RETURN, _ERRNO | errno.EAFNOSUPPORT))
    program = [_bpf(_LOAD, 4), _bpf(_EQUAL, architecture, 1, 0), _bpf(_RETURN, _KILL), _bpf(_LOAD, 0)]
    program += [_bpf(_AT_LEAST, 0x40000000, 0, 1), *refused]  # calls of x32
    for numbers, then in (((*keys, _IO_URING_SETUP), refused), (sockets, families)):
        for number in numbers:
            program += [_bpf(_EQUAL, number, 0, len(then)), *then]
    return b"".join([*program, _bpf(_RETURN, _ALLOW)])


def _bpf(code: int, value: int, where_true: int = 0, where_false: int = 0) -> bytes:
    """Return an instruction: its code, its value, and how many instructions it jumps over."""
    return struct.pack("HBBI", code, where_true, where_false, value)


def _execute(folder: str, command: list[str]) -> NoReturn:
    variables = {name: os.environ[name] for name in _PASSED if name in os.environ}
    variables |= {"HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    _libc.syscall(_CLOSE_RANGE, 3, -1, 0)
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
    step = "It needs Linux 5.12, overlayfs and namespaces, of root or of users (in containers often switched off)."
    print(f"sandbox: cannot be made ({error.strerror}). {step}", file=sys.stderr)
    sys.stderr.flush()
    return REFUSED


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]))
