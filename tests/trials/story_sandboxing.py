"""Generated code can do little: no network, nothing written outside its folder, nothing left running."""

import errno
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import msgspec
import pytest

from logdoctor.job.recovery.orphans import processes
from logdoctor.trials import sandboxing
from logdoctor.trials.trial_file import Sandbox
from tests import waiting

PYTHON = shutil.which("python3", path="/usr/bin:/bin:/usr/local/bin") or sys.executable
NOBODY, GROUP = 65534, 4


def run(
    folder: Path, code: str, user: int | None = None, named: tuple[str, ...] = (), **limits: int
) -> "subprocess.CompletedProcess[str]":
    """What code does in the sandbox, begun by root or by another user, who is in a group of the machine."""
    folder.mkdir(exist_ok=True)
    few = {"cpu_seconds": 10, "memory": 1 << 30, "file": 1 << 20, "files": 64, "processes": 32}
    told = msgspec.json.encode(msgspec.structs.replace(Sandbox(), **few | limits)).decode()  # type: ignore[arg-type]
    program = folder.parent / "sandboxing.py"
    shutil.copy(sandboxing.__file__, program)  # where others may read it
    if user is not None:
        os.chown(folder, user, user)
    command = [PYTHON, "-I", "-S", str(program), told, str(folder), PYTHON, "-c", code, *named]
    groups = [GROUP] if os.geteuid() == 0 else None
    return subprocess.run(command, capture_output=True, text=True, user=user, group=user, extra_groups=groups)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that other users may enter: pytest closes its own to them whenever a run of tests begins."""
    with TemporaryDirectory(prefix="logdoctor-sandbox-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(params=["root", "another user"])
def user(request: pytest.FixtureRequest) -> int | None:
    return NOBODY if os.geteuid() == 0 and request.param == "another user" else None


def test_it_runs_and_writes_into_its_folder_alone(tmp_path: Path, user: int | None) -> None:
    code = f"""
import os, tempfile
open("mine", "w").write("x")
tempfile.NamedTemporaryFile().close()
for place in ("/tmp/theirs", "/etc/theirs", "/dev/shm/../theirs", {str(tmp_path)!r} + "/theirs"):
    try:
        open(place, "w")
        print("wrote", place)
    except OSError as error:
        pass
print(sorted(os.environ))
"""
    done = run(tmp_path / "box", code, user)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "box" / "mine").read_text() == "x"
    assert "wrote" not in done.stdout and "TOKEN" not in done.stdout and "'HOME'" in done.stdout


def test_it_has_no_network_and_sees_nobody(tmp_path: Path, user: int | None) -> None:
    code = """
import os, socket
try:
    socket.create_connection(("127.0.0.1", 1), 2)
except OSError as error:
    print(error.errno)
print([pid for pid in os.listdir("/proc") if pid.isdigit()])
"""
    done = run(tmp_path / "box", code, user)
    assert done.stdout.splitlines() == ["101", "['1', '2']"], done.stderr  # not even this machine is reached


def test_it_reaches_no_socket_or_pipe_of_the_machine(tmp_path: Path, user: int | None) -> None:
    code = """
import os, socket, sys
for name in (*sys.argv[1:], "\\0" + sys.argv[1]):
    try:
        if name.endswith("pipe"):
            os.write(os.open(name, os.O_WRONLY | os.O_NONBLOCK), b"x")
        else:
            socket.socket(socket.AF_UNIX).connect(name)
        print("reached", name)
    except OSError as error:
        print(error.strerror)
"""
    shared = tmp_path / "shared"
    shared.mkdir()
    own, groups, abstract = (socket.socket(socket.AF_UNIX) for _ in range(3))
    with own, groups, abstract:
        for listener, name, mode in ((own, "own", 0o600), (groups, "groups", 0o660)):
            listener.bind(str(shared / name))
            listener.listen()
            (shared / name).chmod(mode)
        abstract.bind(f"\0{shared / 'own'}")
        abstract.listen()
        os.mkfifo(shared / "pipe")
        (shared / "pipe").chmod(0o666)
        if user is not None:
            os.chown(shared / "own", user, user)
            os.chown(shared / "groups", 0, GROUP)
        elif os.geteuid() == 0:
            (shared / "own").chmod(0o777)
        reader = os.open(shared / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        try:
            named = tuple(str(shared / name) for name in ("own", "groups", "pipe"))
            done = run(tmp_path / "box", code, user, named)
            assert os.read(reader, 1) == b""
        finally:
            os.close(reader)
    assert len(done.stdout.splitlines()) == 4 and "reached" not in done.stdout, done.stdout + done.stderr


def test_sockets_and_processes_of_its_own_work(tmp_path: Path, user: int | None) -> None:
    code = """
import multiprocessing, socket
if __name__ == "__main__":
    with multiprocessing.Manager() as manager:  # of HumanEval: a socket with a path
        found = manager.list([1])
        with multiprocessing.Pool(2) as pool:
            found.extend(pool.map(abs, [-2, -3]))
        print(list(found))
    one, other = socket.socketpair()
    one.send(b"x")
    print(other.recv(1))
"""
    done = run(tmp_path / "box", code, user)
    assert done.stdout.splitlines() == ["[1, 2, 3]", "b'x'"], done.stderr


def test_it_reaches_no_host_of_its_machine_and_no_devices(tmp_path: Path, user: int | None) -> None:
    code = """
import ctypes, os, socket
for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_STREAM)
        print("made", family)
    except OSError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 1, bytes(120)), ctypes.get_errno())
print(sorted(os.listdir("/dev")), open("/dev/zero", "rb").read(1))
"""
    first, second = run(tmp_path / "box", code, user).stdout.splitlines()
    assert first == f"-1 {errno.EPERM}"
    assert second.startswith("['fd', 'full', 'null', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'urandom', 'zero']")


def test_all_that_it_writes_is_bounded_and_plain_files_are_kept(tmp_path: Path, user: int | None) -> None:
    code = """
import os
os.symlink("/etc/passwd", "link")
os.mkfifo("pipe")
os.truncate(os.open("holes", os.O_CREAT | os.O_WRONLY), 1 << 20)
open("outputs", "r+").write("changed")
written, removed = 0, []
try:
    for number in range(9):
        with open(f"{number}", "wb", 0) as file:
            removed.append(os.dup(file.fileno()))
            written += file.write(bytes(1 << 20))
        if number:
            os.remove(f"{number}")
except OSError as error:
    print(written >> 20, error.strerror)
"""
    box = tmp_path / "box"
    box.mkdir()
    (box / "outputs").write_bytes(bytes(1 << 20))
    done = run(box, code, user, disk=3 << 20)
    assert done.stdout == "3 No space left on device\n", done.stdout + done.stderr
    assert {path.name for path in box.iterdir()} == {"0", "4", "outputs", "holes"}
    assert (box / "outputs").read_bytes() == bytes(1 << 20)


def test_the_memory_of_all_is_bounded_or_it_says_that_it_is_not(tmp_path: Path, user: int | None) -> None:
    code = """
import os
def ended(others):
    held = b"x" * (100 << 20)
    child = os.fork() if others else None
    if child == 0:
        os._exit(ended(others - 1))
    return child is not None and os.waitpid(child, 0)[1] != 0
print(ended(3))
"""
    done = run(tmp_path / "box", code, user, memory_of_all=200 << 20)
    assert done.stdout == f"{'sandbox: no cgroup' not in done.stderr}\n", done.stderr


def test_its_limits_hold(tmp_path: Path, user: int | None) -> None:
    code = """
import os
try:
    bytearray(2 << 30)
except MemoryError:
    print("memory", flush=True)
try:
    with open("large", "wb") as file:
        file.write(bytes(2 << 20))
except OSError:
    print("file", flush=True)
try:
    while os.fork():
        pass
    __import__("signal").pause()
except OSError:
    print("processes", flush=True)
    os._exit(0)
"""
    done = run(tmp_path / "box", f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{code}", user)
    assert sorted(set(done.stdout.split())) == ["file", "memory", "processes"], done.stderr
    spinning = run(tmp_path / "box", "while True: pass", user, cpu_seconds=1)
    assert spinning.returncode == 128 + 9


def test_nothing_of_it_stays(tmp_path: Path, user: int | None) -> None:
    length = str(uuid4().int)
    code = f"""
import os
if os.fork() == 0:
    os.setsid()
    os.execvp("sleep", ["sleep", {length!r}])
"""
    assert run(tmp_path / "box", code, user).returncode == 0

    def is_it(pid: int) -> bool:
        try:
            return length.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    waiting.until(lambda: not processes(is_it))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a user of its own for it")
def test_root_gives_it_a_user_of_its_own_who_reaches_what_the_command_names(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "script.py").write_text(
        "import os; print(os.getuid() >= 2_000_000_000, os.listdir(os.path.dirname(__file__)))"
    )
    (closed / "secret").write_text("x")
    told = msgspec.json.encode(Sandbox()).decode()
    folder = closed / "box"
    folder.mkdir()
    command = [
        sys.executable,
        "-I",
        "-S",
        sandboxing.__file__,
        told,
        str(folder),
        sys.executable,
        str(closed / "script.py"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == "True ['script.py', 'box']", done.stderr or done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a user of its own for it")
@pytest.mark.parametrize("before", [[], ["env", "A=1"]], ids=str)
def test_a_program_that_another_starts_has_its_libraries(tmp_path: Path, before: list[str]) -> None:
    closed = tmp_path / "closed"
    for folder in ("tools/bin", "tools/lib", "box"):
        (closed / folder).mkdir(parents=True)
    closed.chmod(0o700)
    (closed / "secret").write_text("x")
    (closed / "tools/lib/words").write_text("of its library")
    program = closed / "tools/bin/tool"
    program.write_text('#!/bin/sh\ncat "$(dirname "$0")/../lib/words"\nls "$(dirname "$0")/../.."\n')
    program.chmod(0o755)
    told, box = msgspec.json.encode(Sandbox()).decode(), str(closed / "box")
    command = [sys.executable, "-I", "-S", sandboxing.__file__, told, box, *before, str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "of its librarybox\ntools\n", done.stderr or done.stdout


def test_where_no_sandbox_can_be_made_nothing_runs(tmp_path: Path) -> None:
    told = msgspec.json.encode(Sandbox()).decode()
    code = f"""
import ctypes, runpy, sys
real = ctypes.CDLL
class Refusing:
    def __init__(self, *_, **__): self._libc = real(None, use_errno=True)
    def unshare(self, flags): ctypes.set_errno(1); return -1
    def __getattr__(self, name): return getattr(self._libc, name)
ctypes.CDLL = Refusing
sys.argv = ["sandboxing", {told!r}, {str(tmp_path)!r}, "touch", {str(tmp_path / "ran")!r}]
runpy.run_path({sandboxing.__file__!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == sandboxing.REFUSED and "sandbox: cannot be made (namespaces:" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root takes user namespaces from another")
def test_a_kernel_without_user_namespaces_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    shutil.copy(sandboxing.__file__, tmp_path / "sandboxing.py")
    command = [PYTHON, "-I", "-S", str(tmp_path / "sandboxing.py"), msgspec.json.encode(Sandbox()).decode()]
    code = f"""
import ctypes, os
libc = ctypes.CDLL(None)
assert libc.unshare(0x10000000) == 0
for name, text in (("setgroups", "deny"), ("uid_map", "{NOBODY} {NOBODY} 1"), ("gid_map", "{NOBODY} {NOBODY} 1")):
    open(f"/proc/self/{{name}}", "w").write(text)
open("/proc/sys/user/max_user_namespaces", "w").write("0")  # of those in this one
os.execv({PYTHON!r}, {[*command, str(tmp_path / "box"), "touch", str(tmp_path / "box" / "ran")]!r})
"""
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, user=NOBODY, group=NOBODY)
    assert done.returncode == sandboxing.REFUSED and "sandbox: cannot be made (namespaces:" in done.stderr, done.stderr
    assert not list((tmp_path / "box").iterdir())
