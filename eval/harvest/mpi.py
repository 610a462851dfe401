"""What mpirun, PRRTE, PMIx and Open MPI print: first lines of their help texts for errors; Hydra's complaints."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import regex

from eval.harvest.c_messages import calls, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import below, files
from eval.harvest.values import filled

_TOPIC = regex.compile(r"^\[(?P<name>[^\]\n]+)\]\n(?P<text>(?:(?!\[[^\]\n]+\]$)[^\n]*\n)*)", regex.MULTILINE)
_USAGE = regex.compile(
    r"usage|version|help-|intro|^-|--|tool-|-text$|^general$|placement|mapping|binding-type|:options"
)
_HYDRA = ("HYDU_ERR_POP", "HYDU_ERR_SETANDJUMP", "HYDU_error_printf", "HYDU_ERR_CHKANDJUMP", "PRTE_ERROR_LOG")


def help_texts(source: str, root: Path) -> Iterator[Message]:
    """Yield the first line of text of every help topic about trouble."""
    for path, text in files(root, below(("src", "ompi", "opal", "oshmem"), "txt")):
        name = Path(path).name
        if not name.startswith("help-") or name in (
            "help-cli.txt",
            "help-mapby.txt",
            "help-bindto.txt",
            "help-rankby.txt",
        ):
            continue
        for match in _TOPIC.finditer(text):
            if _USAGE.search(match["name"]):
                continue
            lines = [
                line.strip() for line in match["text"].split("\n") if line.strip(" -#*=") and not line.startswith("#")
            ]
            if lines and len(regex.findall(r"[A-Za-z]{3,}", lines[0])) >= 3:
                yield Message(source, f"{path} [{match['name']}]", filled(lines[0]))


def hydra(root: Path) -> Iterator[Message]:
    """Yield complaints of mpiexec and its proxies (MPICH, Intel MPI), with their prefix."""
    for path, text in files(root, below(("src/pm/hydra",), "c")):
        for call in calls(text, _HYDRA):
            said = printed(call)
            if said:
                where = f"[mpiexec@gpu-12] {call.function} ({Path(path).name}:{call.line}): "
                yield Message("hydra", f"{path}:{call.line}", where + said)


SOURCES: dict[str, Reader] = {
    "openpmix": partial(help_texts, "openpmix"),
    "prrte": partial(help_texts, "prrte"),
    "open mpi": partial(help_texts, "open mpi"),
    "hydra": hydra,
}
