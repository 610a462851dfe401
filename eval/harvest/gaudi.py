"""Messages of Intel Gaudi's stack: the PyTorch bridge, HCL, and the codes of Synapse."""

from collections.abc import Iterator
from pathlib import Path

import regex

from eval.harvest.c_messages import calls, lines, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import files

_BRIDGE = (
    r"PT_(?:DEVICE|SYNHELPER|DEVMEM|DISTRIBUTED|BRIDGE)_(?:FATAL|WARN|CRITICAL)",
    "TORCH_HABANA_CHECK",
    "HABANA_ASSERT",
)
_HCL = (r"LOG_(?:HCL_)?(?:ERR|CRITICAL|WARN)",)
_STATUS = regex.compile(r"^\s*(?P<name>syn[A-Z]\w+)\s*=\s*(?P<number>\d+),", regex.MULTILINE)
_REASON = regex.compile(r"^\s*(?P<name>[a-z]\w+)\s*=\s*1ULL << \d+", regex.MULTILINE)


def bridge(tree: Path) -> Iterator[Message]:
    """Yield what the PyTorch bridge's device, memory and collectives print and raise."""
    for path, text in files(
        tree, r"^(?:backend/(?:habana_device|synapse_helpers)|python_packages/\w+/distributed)/.*\.(?:cpp|h)$"
    ):
        for said in calls(text, _BRIDGE):
            module, _, level = said.name.rpartition("_")
            for line in lines(printed(said))[:1]:
                if level in ("WARN", "CRITICAL"):
                    kind = {"WARN": "warning", "CRITICAL": "critical"}[level]
                    mark = f"[11:08:47.123456][{module:14}][{kind}][tid:41233] "
                elif level == "FATAL":
                    mark = f"RuntimeError: [Rank:0] FATAL ERROR :: MODULE:{module} "
                else:
                    mark = "RuntimeError: [Rank:0] Habana exception raised: "
                yield Message("Gaudi bridge", f"{path}:{said.line}", mark + line)


def hcl(tree: Path) -> Iterator[Message]:
    """Yield what the collective library logs."""
    for path, text in files(tree, r"^hcl/(?!.*test).*\.(?:cpp|h)$"):
        for said in calls(text, _HCL):
            for line in lines(printed(said))[:1]:
                kind = "warning" if said.name.endswith("WARN") else "error"
                yield Message(
                    "Gaudi HCL", f"{path}:{said.line}", f"[11:08:47.123456][HCL           ][{kind}][tid:41233] {line}"
                )


def statuses(tree: Path) -> Iterator[Message]:
    """Yield Synapse's status codes and reasons of its failure analysis, as its library prints them."""
    for path, text in files(tree, r"(?:synapse_common_types\.h|dfa_defines\.hpp)$"):
        for match in _STATUS.finditer(text):
            if match["number"] != "0":
                said = f"RuntimeError: synLaunch failed. synStatus={match['number']} [{match['name']}]."
                yield Message("Synapse codes", path, said)
        for match in _REASON.finditer(text):
            mark = "[11:08:47.123456][SYN_DEV_FAIL  ][error][tid:41233] "
            yield Message("Synapse codes", path, f"{mark}#DFA reason: {match['name']:20} (code 0x1000)")


SOURCES: dict[str, Reader] = {
    "Gaudi bridge": bridge,
    "Gaudi HCL": hcl,
    "Synapse codes": statuses,
}
