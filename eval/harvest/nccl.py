"""What NCCL, RCCL and NCCL's network plug-ins print as WARN."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import regex

from eval.harvest.c_messages import Call, calls, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import files, releases
from eval.harvest.values import GAP

_SINCE = (2, 18)
_WHERE = {
    "NCCL": r"^src/.*\.(?:cc|h|cu)$",
    "RCCL": r"^(?:src|ext-[^/]+)/.*\.(?:cc|h|cpp)$",
    "nccl-rdma-sharp-plugins": r"^(?:src|include)/.*\.[ch]c?$",
    "aws-ofi-nccl": r"^(?:src|include)/.*\.(?:c|cpp|h)$",
}
_LINE = 183  # the same for all: equal texts count once
_CALLED = regex.compile(r'"((?:ibv|mlx5dv|hsa|cu|nvml|gdr)_?[a-z0-9]\w+)"')


def warnings(kind: str, tree: Path) -> Iterator[Message]:
    """Yield every WARN of a tree; of NCCL itself those of all releases since 2.18."""
    revisions = releases(tree, _SINCE) if kind == "NCCL" else ["HEAD"]
    for source in files(tree, _WHERE[kind], revisions):
        names = sorted(set(_CALLED.findall(source.text)))
        for call in calls(source.text, ("WARN", "NCCL_OFI_WARN")):
            file = source.path.removeprefix("src/")
            mark = "NET/OFI " if call.name == "NCCL_OFI_WARN" else ""
            for text in _variants(call, names):
                line = f"gpu-07:4182:4417 [3] {file}:{_LINE} NCCL WARN {mark}{text}"
                yield Message(kind, f"{source.path}:{call.line}", line)


def _variants(call: Call, names: list[str]) -> Iterator[str]:
    """Yield a call's text, once per function of a wrapper file if a macro names it."""
    gaps = GAP.findall(call.text)
    several = any(gap in ("name", "internal_name", "symbol") for gap in gaps)
    for name in (names or ["connect", "malloc", "open"]) if several else ["connect"]:
        own = r"name|symbol" if several else r"^(?:statement|cmd|call)$"
        text = GAP.sub(lambda gap: name if regex.search(own, gap["gap"]) else gap.group(), call.text)  # noqa: B023
        yield printed(call._replace(text=text)).replace("\n", " ")


SOURCES: dict[str, Reader] = {kind: partial(warnings, kind) for kind in _WHERE}
"""Readers by the name that a source has in reports."""
