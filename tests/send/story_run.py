"""`logdoctor run` is not felt by the command, and everything it prints arrives."""

import os
import pty
import signal
import struct
import subprocess
import sys
import threading
from fcntl import ioctl
from termios import TIOCSWINSZ

import pytest

from tests.send.conftest import ROOT, Sender
from tests.send.service import Service

BINARY = bytes(range(256)) * 9000 + b"\r\n\0 no newline at the end"


def test_bytes_arrive_untouched(sender: Sender, service: Service) -> None:
    status, out, err = sender.python("import sys; sys.stdout.buffer.write(bytes(range(256)) * 9000 + "
                                     "b'\\r\\n\\0 no newline at the end')")  # fmt: skip
    assert (status, out, err) == (0, BINARY, b"")
    assert service.text("s") == BINARY
    assert sender.left() == []


def test_both_outputs_are_passed_on_apart_and_shipped_together(sender: Sender, service: Service) -> None:
    code = (
        "import os\n"
        "for i in range(2000):\n"
        "    os.write(1, b'out %d beg' % i); os.write(2, b'err %d beg' % i)\n"
        "    os.write(1, b' end\\n'); os.write(2, b' end\\n')\n"
    )
    status, out, err = sender.python(code)
    wanted = [[b"%s %d beg end" % (name, i) for i in range(2000)] for name in (b"out", b"err")]
    assert (status, out.splitlines(), err.splitlines()) == (0, *wanted)
    lines = service.text("s").splitlines()
    assert [line for line in lines if line.startswith(b"out")] == wanted[0]
    assert [line for line in lines if line.startswith(b"err")] == wanted[1]
    assert len(lines) == 4000


def test_one_file_for_both_outputs_keeps_their_order(sender: Sender, service: Service) -> None:
    code = "import os\nfor i in range(500): os.write(1 + i % 2, b'%d,' % i)"
    process = sender.start("run", "--stream", "s", "--", sys.executable, "-c", code, stderr=subprocess.STDOUT)
    out = process.communicate()[0]
    assert out == b"".join(b"%d," % i for i in range(500)) == service.text("s")


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_is_the_commands(sender: Sender, service: Service, code: int) -> None:
    assert sender.run("sh", "-c", f"exit {code}")[0] == code
    assert service.ends == [{"attempt": 1, "exit_code": code, "signal": None, "scheduler_state": None, "stream": "s"}]


def test_a_command_that_is_not_there_is_127_and_told(sender: Sender, service: Service) -> None:
    status, _, err = sender.run("no-such-command-at-all")
    assert status == 127
    assert b"no-such-command-at-all: command not found" in err
    assert service.text("s") == b"[logdoctor] no-such-command-at-all: command not found\n"
    assert service.ends[0]["exit_code"] == 127


def test_a_command_that_cannot_be_executed_is_126(sender: Sender) -> None:
    script = sender.spool.parent / "script"
    script.write_text("#!/bin/sh\n")
    assert sender.run(str(script))[0] == 126


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
def test_a_death_by_a_signal_is_died_again(sender: Sender, service: Service, number: signal.Signals) -> None:
    status, out, _ = sender.run("sh", "-c", f"echo last words; kill -{int(number)} $$")
    assert (status, out) == (-number, b"last words\n")
    assert service.ends == [
        {"attempt": 1, "exit_code": None, "signal": int(number), "scheduler_state": None, "stream": "s"}
    ]


COUNTS = """
import signal
known, came = {{{number}, signal.SIGUSR2}}, []
signal.pthread_sigmask(signal.SIG_BLOCK, known)
print("ready", flush=True)
while signal.SIGUSR2 not in came:
    came.append(int(signal.sigwait(known)))
    print("came", flush=True)
print(came, flush=True)
"""
"""Says which signals came until SIGUSR2, which is passed on after all that came before."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_passed_on_once(sender: Sender, service: Service, number: signal.Signals) -> None:
    code = COUNTS.format(number=int(number))
    process = sender.start("run", "--stream", "s", "--", sys.executable, "-c", code)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == b"came\n"
    process.send_signal(signal.SIGUSR2)
    out = process.communicate()[0]
    assert (process.returncode, out) == (0, b"came\n[%d, %d]\n" % (number, signal.SIGUSR2))


def test_a_signal_from_the_terminal_comes_once(sender: Sender, service: Service) -> None:
    code = COUNTS.format(number=int(signal.SIGINT))
    arguments = [sys.executable, "-m", "logdoctor.job.send", "run", "--stream", "s", "--", sys.executable, "-c", code]
    process, terminal = pty.fork()
    if not process:
        os.execve(sys.executable, arguments, sender.environment)
    seen = b""
    while not seen.endswith(b"]\r\n"):
        seen += os.read(terminal, 1000)
        if seen.endswith(b"ready\r\n"):
            os.write(terminal, b"\x03")
        if seen.endswith(b"came\r\n") and seen.count(b"came") == 1:
            os.kill(process, signal.SIGUSR2)
    assert os.waitpid(process, 0)[1] == 0
    os.close(terminal)
    assert seen.endswith(b"[%d, %d]\r\n" % (signal.SIGINT, signal.SIGUSR2))


def test_the_command_has_the_signals_it_would_have(sender: Sender) -> None:
    command = ["sh", "-c", 'grep -E "^Sig(Blk|Ign)" /proc/self/status']
    own_of_glibc = 0b11 << 31  # posix_spawn lets the C library's own two signals be ignored

    def masks(shown: bytes) -> list[int]:
        return [int(line.split()[1], 16) & ~own_of_glibc for line in shown.splitlines()]

    direct = subprocess.run(command, capture_output=True).stdout
    assert masks(sender.run(*command)[1]) == masks(direct)


def test_the_environment_of_the_command_is_untouched(sender: Sender) -> None:
    sender.environment |= {"LOGDOCTOR_TOKEN": "tok", "ODD": "\udcff"}
    direct = subprocess.run(["env"], env=sender.environment, capture_output=True).stdout
    assert b"LC_CTYPE" not in direct
    assert sorted(sender.run("env")[1].splitlines()) == sorted(direct.splitlines())


def test_arguments_and_standard_input_reach_the_command(sender: Sender) -> None:
    process = sender.start("run", "--stream", "s", "--", "sh", "-c", 'printf %s "$1"; cat', "x", "\udcfe--job",
                           stdin=subprocess.PIPE)  # fmt: skip
    assert process.communicate(b"typed")[0] == b"\xfe--jobtyped"


def test_a_terminal_stays_a_terminal(sender: Sender, service: Service) -> None:
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    code = (
        "import os, sys; print(sys.stdout.isatty(), sys.stderr.isatty(), *os.get_terminal_size(1)); print('50%\\r100%')"
    )
    process = sender.start("run", "--stream", "s", "--", sys.executable, "-c", code, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 1000):
            seen += data
    except OSError:
        pass
    process.wait()
    os.close(ours)
    assert seen == b"True True 101 33\r\n50%\r100%\r\n"
    assert service.text("s") == b"True True 101 33\n50%\r100%\n"


def test_a_new_window_size_reaches_the_command(sender: Sender) -> None:
    ours, theirs = pty.openpty()
    code = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})\n"
        "print('ready', flush=True)\n"
        "signal.sigwait({signal.SIGWINCH})\n"
        "print(*os.get_terminal_size(1))\n"
    )
    process = sender.start("run", "--stream", "s", "--", sys.executable, "-c", code, stdout=theirs, stderr=theirs)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(ours, 1000)
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 12, 34, 0, 0))
    process.send_signal(signal.SIGWINCH)
    os.close(theirs)
    while b"34 12" not in seen:
        seen += os.read(ours, 1000)
    process.wait()
    os.close(ours)


def test_a_reader_that_goes_ends_the_command_as_without_us(sender: Sender, service: Service) -> None:
    process = sender.start("run", "--stream", "s", "--", "sh", "-c", "echo a; exec yes")
    assert process.stdout and process.stdout.readline() == b"a\n"
    process.stdout.close()
    process.wait()
    assert process.returncode == -signal.SIGPIPE
    assert service.text("s").startswith(b"a\ny\n")
    assert service.ends[-1]["signal"] == signal.SIGPIPE


def test_closed_standard_descriptors_are_no_trap(sender: Sender, service: Service) -> None:
    command = f"exec {sys.executable} -m logdoctor.job.send run --stream s -- sh -c 'echo out; echo err >&2; exit 4' "
    shell = subprocess.run(["sh", "-c", command + "<&- >&- 2>&-"], env=sender.environment, cwd=ROOT)
    assert shell.returncode == 4
    assert sorted(service.text("s").splitlines()) == [b"err", b"out"]


def test_a_grandchild_that_keeps_the_pipe_open_does_not_hold_us(sender: Sender, service: Service) -> None:
    process = sender.start("run", "--stream", "s", "--", "sh", "-c", "sleep 3000 & echo $!; exit 7")
    assert process.stdout
    grandchild = int(process.stdout.readline())
    try:
        assert process.wait() == 7
        assert service.text("s") == b"%d\n" % grandchild
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_a_short_output_is_passed_on_at_once(sender: Sender) -> None:
    process = sender.start("run", "--stream", "s", "--", "sh", "-c", "printf 'no newline'; sleep 3000")
    assert process.stdout and os.read(process.stdout.fileno(), 100) == b"no newline"
    process.terminate()
    assert process.wait() == -signal.SIGTERM


def test_facts_about_the_job_are_told(sender: Sender, service: Service) -> None:
    sender.environment |= {"SLURM_JOB_NAME": "llm", "SLURM_NNODES": "4", "SLURM_GPUS_ON_NODE": "8"}
    sender.run("true", options=("--framework", "megatron", "--label", "team=a=b", "--gpus", "16"))
    told = service.jobs["job"]
    assert told["command"] == "true"
    assert (told["name"], told["nodes"], told["gpus"], told["framework"]) == ("llm", 4, 16, "megatron")
    assert told["labels"] == {"team": "a=b"}


def test_processes_of_one_try_are_one_attempt(sender: Sender, service: Service) -> None:
    sender.environment |= {"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "2"}
    for proc in "01":
        sender.environment["SLURM_PROCID"] = proc
        sender.run("echo", proc, options=())
    sender.environment["SLURM_RESTART_COUNT"] = "3"
    sender.run("echo", "again", options=())
    host = os.uname().nodename
    assert service.keys == ["77.2", "77.3"]
    assert {key: bytes(text) for key, text in service.streams.items()} == {
        (1, f"{host}.proc0"): b"0\n",
        (1, f"{host}.proc1"): b"1\n",
        (2, f"{host}.proc1"): b"again\n",
    }


def test_a_job_without_a_name_is_called_after_its_command(sender: Sender, service: Service) -> None:
    del sender.environment["LOGDOCTOR_JOB"]
    assert sender.run("echo", "started") == (0, b"started\n", b"")
    assert set(service.jobs) == {"echo"}


def test_the_token_is_seen_by_the_service_alone(sender: Sender, service: Service) -> None:
    service.token = "s3cret-token"
    file = sender.spool.parent / "token"
    file.write_text("s3cret-token\n")
    process = sender.start("run", "--stream", "s", "--token-file", str(file), "--drain-seconds", "2", "--",
                           "sh", "-c", f"tr '\\0' ' ' </proc/$PPID/cmdline; env; {'#' * 10}")  # fmt: skip
    out, err = process.communicate()
    assert process.returncode == 0
    assert b"s3cret" not in out + err
    assert service.headers[-1]["Authorization"] == "Bearer s3cret-token"
    assert service.text("s") == out


def test_a_spool_that_stays_holds_no_token(sender: Sender, service: Service) -> None:
    service.stop()
    sender.environment["LOGDOCTOR_TOKEN"] = "s3cret-token"
    sender.run("echo", "x", options=("--drain-seconds", "0.2"))
    (left,) = sender.left()
    assert all(b"s3cret" not in file.read_bytes() for file in left.iterdir())


def failed(sender: Sender, *options: str) -> bytes:
    """What is said of a command that fails."""
    status, _, err = sender.run("sh", "-c", "echo x; exit 3", options=("--stream", "s", *options))
    assert status == 3
    return err


def test_a_command_that_failed_ends_with_its_verdict(sender: Sender, service: Service) -> None:
    service.more = lambda method, path: {"id": 7, "final": True, "verdict": {"reason": "Key Error"}}
    assert failed(sender) == b"[logdoctor] the verdict is Key Error: %s/verdicts/7\n" % service.url.encode()


@pytest.mark.parametrize("answer", [404, 403, 503, "none"])
def test_a_verdict_that_does_not_come_is_not_waited_for(sender: Sender, service: Service, answer: int | str) -> None:
    """A service that has none yet, refuses the token, fails, and hangs until the run has ended."""
    asked: list[str] = []
    over = threading.Event()

    def more(method: str, path: list[str]) -> int:
        asked.append(method)
        if isinstance(answer, int):
            return answer
        over.wait()
        return 404

    service.more = more
    may_not = b" (not here, because the token has no scope `read`)" if answer == 403 else b""
    assert failed(sender) == b"[logdoctor] its verdict will be at %s/jobs/job%s\n" % (service.url.encode(), may_not)
    over.set()
    assert answer == 404 or len(asked) == 1


@pytest.mark.parametrize("refuses", [False, True])
def test_a_service_that_has_not_all_of_the_output_is_not_asked_for_a_verdict(
    sender: Sender, service: Service, refuses: bool
) -> None:
    """One that refuses the token, and one that is away."""
    service.token = "another"
    if not refuses:
        service.stop()
    err = failed(sender, "--drain-seconds", "1")
    assert b"not all logs were sent" in err and b"verdict" not in err
    assert not any(path.endswith("/verdict") for _, path, _ in service.requests)
