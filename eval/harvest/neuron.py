"""Messages of AWS Neuron: the status codes of its runtime, and its kernel driver."""

from collections.abc import Iterator
from pathlib import Path

import regex

from eval.harvest.c_messages import calls, lines, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import files

_STATUS = regex.compile(r"^\s*(?P<name>NRT_\w+)\s*=\s*(?P<number>\d+),", regex.MULTILINE)


def statuses(tree: Path) -> Iterator[Message]:
    """Yield each status by name and by number, as the runtime prints them."""
    for path, text in files(tree, r"nrt/nrt_status\.h$"):
        for match in _STATUS.finditer(text):
            mark = "2026-Mar-02 11:08:47.123456  4444:4444  ERROR   NRT:"
            yield Message(
                "Neuron codes", path, f"{mark}nrt_infodump            Failure: {match['name']} in nrt_execute()"
            )
            yield Message(
                "Neuron codes",
                path,
                f"{mark}nrt_execute_repeat      Failed to execute model m.neff with status {match['number']}",
            )


def driver(tree: Path) -> Iterator[Message]:
    """Yield what the kernel driver logs as an error or a warning."""
    for path, text in files(tree, r"\.(?:c|h)$"):
        for said in calls(text, (r"(?:pr|dev)_(?:err|warn|crit)(?:_once|_ratelimited)?",)):
            for line in lines(printed(said))[:1]:
                yield Message("Neuron driver", f"{path}:{said.line}", f"[ 1234.567890] neuron:ncdev_ioctl: {line}")


SOURCES: dict[str, Reader] = {"Neuron codes": statuses, "Neuron driver": driver}
