"""What the container tools of a cluster say in a job's log: pyxis, enroot (as Slurm prints them) and Apptainer."""

from collections.abc import Iterator
from pathlib import Path

import regex

from eval.harvest.c_messages import calls, printed, unescaped
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import below, files
from eval.harvest.values import filled

_SHELL = regex.compile(r'common::(?P<level>err|log +WARN|log +INFO) +"(?P<text>(?:\\.|[^"\\])+)"')
_VARIABLE = regex.compile(r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)|\$\{#?(?P<name>\w+)[^{}]*\}|\$[@?]|\$\w+")
_VALUES = {"code": "401", "status": "Unauthorized", "url": "https://registry/v2", "cmd": "mksquashfs", "pid": "41233"}
_GO = regex.compile(
    r'sylog\.(?P<level>Fatalf|Errorf|Warningf|Infof)\(\s*(?:"(?P<text>(?:\\.|[^"\\])+)"|`(?P<raw>[^`]+)`)'
)
_GO_LEVELS = {"Fatalf": "FATAL:   ", "Errorf": "ERROR:   ", "Warningf": "WARNING: ", "Infof": "INFO:    "}


def pyxis(root: Path) -> Iterator[Message]:
    """Yield messages of the Slurm plug-in that starts containers. They come from slurmstepd, those of its options from
    srun."""
    for path, text in files(root, r"\.c$"):
        who = "srun" if path in ("args.c", "pyxis_srun.c") else "slurmstepd"
        for call in calls(text, ("slurm_error", "slurm_info", "slurm_spank_log")):
            level = "error: " if call.name == "slurm_error" else ""
            yield Message("pyxis", f"{path}:{call.line}", f"{who}: {level}{printed(call)}")


def enroot(root: Path) -> Iterator[Message]:
    """Yield messages of the container runtime below pyxis: its shell scripts and its small programs."""
    for path, text in files(root, below(("src", "conf", "bin"), "sh|c")):
        if path.endswith(".sh"):
            for match in _SHELL.finditer(text):
                said = _VARIABLE.sub(lambda one: _VALUES.get(one["name"] or "", "/data/word-7"), match["text"])
                level = "ERROR" if match["level"] == "err" else match["level"].split()[-1]
                yield Message("enroot", path, f"slurmstepd: error: pyxis:     [{level}] {said}")
            continue
        program = Path(path).stem
        for call in calls(text, ("err", "errx", "warn", "warnx")):
            errno = ": Operation not permitted" if call.name in ("err", "warn") else ""
            yield Message(
                "enroot",
                f"{path}:{call.line}",
                f"slurmstepd: error: pyxis:     {program}: {printed(call)}{errno}",
            )


def apptainer(root: Path) -> Iterator[Message]:
    """Yield what Apptainer and Singularity log at the levels shown by default."""
    for path, text in files(root, below(("cmd", "internal", "pkg"), "go")):
        if path.endswith("_test.go"):
            continue
        for match in _GO.finditer(text):
            said = unescaped(match["text"] or match["raw"]).split("\n")[0]
            yield Message("apptainer", path, _GO_LEVELS[match["level"]] + filled(said))
    for path, text in files(root, below(("cmd/starter/c",), "c")):
        for call in calls(text, ("fatalf", "errorf", "warningf")):
            level = {"fatalf": "FATAL:   ", "errorf": "ERROR:   ", "warningf": "WARNING: "}[call.name]
            yield Message("apptainer", f"{path}:{call.line}", level + printed(call))


SOURCES: dict[str, Reader] = {"pyxis": pyxis, "enroot": enroot, "apptainer": apptainer}
