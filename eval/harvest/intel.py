"""Messages of Intel's GPU stack: oneCCL, and the results of Level Zero and the Unified Runtime."""

from collections.abc import Iterator
from pathlib import Path

import regex

from eval.harvest.c_messages import calls, lines, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import files

_CALLS = {"LOG_ERROR": "|CCL_ERROR|", "LOG_WARN": "|CCL_WARN|"}
_RESULT = regex.compile(
    r"^\s*(?P<name>(?:ZE|UR)_RESULT_\w+)(?: \[\[deprecated\]\])? = (?P<number>\w+)", regex.MULTILINE
)


def oneccl(tree: Path) -> Iterator[Message]:
    """Yield what oneCCL logs; its exceptions repeat the text behind `oneCCL:`."""
    for path, text in files(tree, r"^src/.*\.(?:cpp|hpp|h|c)$"):
        for said in calls(text, _CALLS):
            for line in lines(printed(said))[:1]:
                name = path.rsplit("/", 1)[-1]
                mark = f"2026:03:02-11:08:47:(41233) {_CALLS[said.name]} {name}:{said.line} operator(): "
                yield Message("oneCCL", f"{path}:{said.line}", mark + line)


def results(tree: Path) -> Iterator[Message]:
    """Yield results of Level Zero and the Unified Runtime, as SYCL prints them."""
    for path, text in files(tree, r"^include/(?:unified-runtime/)?(?:ze_api|ur_api)\.h$"):
        for match in _RESULT.finditer(text):
            if not match["name"].endswith(("FORCE_UINT32", "RETRY", "DEFERRED")) and "_EXP_" not in match["name"]:
                said = f"RuntimeError: Native API failed. Native API returns: {match['number']} ({match['name']})"
                yield Message("Intel results", path, said)


SOURCES: dict[str, Reader] = {"oneCCL": oneccl, "Intel results": results}
