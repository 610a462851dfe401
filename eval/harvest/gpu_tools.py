"""What the tools around NVIDIA GPUs say: DCGM's diagnostics and health checks, and the persistence daemon."""

from collections.abc import Iterator
from pathlib import Path

import regex

from eval.harvest.c_messages import calls, literals, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import files
from eval.harvest.values import filled

_DCGM = regex.compile(r"#define (?P<name>DCGM_FR_\w+)_MSG\b[ \t\\]*(?P<text>(?:\s*\"(?:\\.|[^\"\\])*\"[ \t]*\\?)+)")


def dcgm(root: Path) -> Iterator[Message]:
    """Yield the texts of DCGM's failures, as `dcgmi diag` and `dcgmi health` print them."""
    for path, text in files(root, r"^dcgmlib/dcgm_errors\.h$"):
        for match in _DCGM.finditer(text):
            if match["name"] != "DCGM_FR_OK":
                yield Message("dcgm", f"{path} {match['name']}", filled(literals(match["text"])).strip())


def persistenced(root: Path) -> Iterator[Message]:
    """Yield the persistence daemon's lines in the system log."""
    for path, text in files(root, r"\.c$"):
        for call in calls(text, ("syslog", "SYSLOG_VERBOSE", "syslog_device", "nv_syslog")):
            yield Message("nvidia-persistenced", f"{path}:{call.line}", f"nvidia-persistenced[1234]: {printed(call)}")


SOURCES: dict[str, Reader] = {"dcgm": dcgm, "nvidia-persistenced": persistenced}
