"""Words of Kubernetes and of operators that run training jobs: reasons of events, conditions and containers."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import regex

from eval.harvest.messages import Message, Reader
from eval.harvest.trees import below, files

_CONSTANT = regex.compile(
    r"^\s*(?:const\s+)?(?P<name>\w*(?:Reason|Event|Container|Image|Volume|Pod|Job|Node|Evict\w*|Failed\w*|Phase|Err\w*)\w*)"
    r"(?:\s+[\w.]+)?\s*=\s*(?:errors\.New\()?\"(?P<text>[A-Z][A-Za-z]{3,48})\"",
    regex.MULTILINE,
)
_NORMAL = regex.compile(r"Succe|Created|Running|Started|Complet|Scheduled|Ready$|Resum|Suspend|Inqueue|Pending")


def operator(source: str, root: Path) -> Iterator[Message]:
    """Yield a controller's reasons, as events or conditions print them."""
    for path, text in files(root, below(("pkg", "api", "staging"), "go")):
        if path.endswith("_test.go") or "/test/" in path or "generated" in path or "/client/" in path:
            continue
        for match in _CONSTANT.finditer(text):
            kind = "Normal" if _NORMAL.search(match["text"]) else "Warning"
            yield Message(
                source, f"{path} {match['name']}", f"  {kind}  {match['text']}  12s  {source}  pod/train-worker-2"
            )


SOURCES: dict[str, Reader] = {
    name: partial(operator, name) for name in ("kubelet", "training-operator", "volcano", "jobset")
}
