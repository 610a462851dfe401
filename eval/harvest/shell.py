"""What shells and remote shells print when a job's command cannot run: bash's errors and signals, OpenSSH, pdsh."""

from collections.abc import Iterator
from pathlib import Path

import regex

from eval.harvest.c_messages import calls, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import below, files

_BASH = ("internal_error", "sys_error", "report_error", "command_error", "builtin_error", "parser_error", "file_error")
_SSH = ("fatal", "error", "logit", "fatal_f", "error_f", "fatal_fr", "error_fr", "fatal_r", "error_r", "sshfatal")
_SIGNAL = regex.compile(r"sys_siglist\[SIG\w+\] = _\(\"(?P<text>[^\"]+)\"\)")


def bash(root: Path) -> Iterator[Message]:
    """Yield errors of scripts with bash's name and line, and its reports of signals."""
    sources = (
        "error.c",
        "execute_cmd.c",
        "subst.c",
        "variables.c",
        "jobs.c",
        "redir.c",
        "parse.y",
        "findcmd.c",
        "general.c",
        "shell.c",
        "expr.c",
    )
    for path, text in files(root, below(sources, "c|y")):
        for call in calls(text, _BASH):
            errno = ": Resource temporarily unavailable" if call.name == "sys_error" else ""
            yield Message("bash", f"{path}:{call.line}", f"train.sh: line 31: {printed(call)}{errno}")
    for path, text in files(root, r"^siglist\.c$"):
        for match in _SIGNAL.finditer(text):
            yield Message("bash", path, f"train.sh: line 31: 41233 {match['text']:<22}  python train.py")


def ssh(root: Path) -> Iterator[Message]:
    """Yield the client's errors that end or refuse a connection."""
    sources = (
        "ssh.c",
        "sshconnect.c",
        "sshconnect2.c",
        "clientloop.c",
        "readconf.c",
        "packet.c",
        "kex.c",
        "misc.c",
        "authfile.c",
        "scp.c",
    )
    for path, text in files(root, below(sources, "c")):
        for call in calls(text, _SSH):
            errno = ": Connection refused" if call.name.endswith("r") and call.name not in ("error",) else ""
            where = f"{call.function}: " if call.name.endswith(("_f", "_fr")) else ""
            yield Message("openssh", f"{path}:{call.line}", f"{where}{printed(call)}{errno}")


def pdsh(root: Path) -> Iterator[Message]:
    """Yield pdsh's reports of hosts and commands."""
    for path, text in files(root, below(("src/pdsh", "src/common", "src/modules"), "c")):
        for call in calls(text, ("err", "errx")):
            said = regex.sub(r"%p", "pdsh@head", call.text).replace("%S", "gpu-12")
            yield Message("pdsh", f"{path}:{call.line}", printed(call._replace(text=said)))


SOURCES: dict[str, Reader] = {"bash": bash, "openssh": ssh, "pdsh": pdsh}
