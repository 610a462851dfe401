"""What UCX reports at its levels fatal and error."""

from collections.abc import Iterator
from pathlib import Path

from eval.harvest.c_messages import calls, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import files

_LEVELS = {"ucs_fatal": "FATAL", "ucs_error": "ERROR", "ucp_ep_error": "ERROR", "uct_ib_mlx5_fatal": "FATAL"}
_WHERE = r"^src/(?:uct|ucp|ucs|ucm)/(?!.*(?:test|cuda/gpunetio|gaudi)).*\.[ch]$"


def errors(tree: Path) -> Iterator[Message]:
    """Yield every fatal or error line of the transports and the layers below."""
    for source in files(tree, _WHERE):
        for call in calls(source.text, tuple(_LEVELS)):
            text = printed(call).replace("\n", " ")
            file = source.path.rsplit("/", 1)[-1]
            line = f"[1712345678.123456] [gpu-07:4182 :0] {file}:183  UCX  {_LEVELS[call.name]} {text}"
            yield Message("UCX", f"{source.path}:{call.line}", line)


SOURCES: dict[str, Reader] = {"UCX": errors}
