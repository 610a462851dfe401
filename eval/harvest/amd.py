"""Messages of AMD's stack: the ROCm runtime, its kernel interface, MIOpen."""

from collections.abc import Iterator
from pathlib import Path

from eval.harvest.c_messages import calls, lines, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import files

_RUNTIME = ("fprintf",)
_THUNK = (r"pr_(?:err|warn)(?:_once)?",)
_MIOPEN = {
    "MIOPEN_THROW": "MIOpen Error: /opt/src/convolution.cpp:120: ",
    "MIOPEN_LOG_E": "MIOpen(HIP): Error [operator()] ",
    "MIOPEN_LOG_W": "MIOpen(HIP): Warning [operator()] ",
    "MIOPEN_LOG_WE": "MIOpen(HIP): Warning [operator()] ",
}


def runtime(tree: Path) -> Iterator[Message]:
    """Yield what ROCR-Runtime and libhsakmt print by themselves; exceptions become status codes."""
    for path, text in files(tree, r"^(?:libhsakmt/src|(?:runtime/hsa-runtime|src)/core)/.*\.(?:c|h|cpp)$"):
        for said in calls(text, _THUNK if "hsakmt" in path else _RUNTIME):
            for line in lines(printed(said)):
                yield Message("ROCR-Runtime", f"{path}:{said.line}", line)


def miopen(tree: Path) -> Iterator[Message]:
    """Yield what MIOpen logs at its default levels, and throws."""
    for path, text in files(tree, r"^src/(?!.*test).*\.(?:cpp|hpp)$"):
        for said in calls(text, _MIOPEN):
            for line in lines(printed(said))[:1]:
                yield Message("MIOpen", f"{path}:{said.line}", _MIOPEN[said.name] + line)


SOURCES: dict[str, Reader] = {"ROCR-Runtime": runtime, "MIOpen": miopen}
