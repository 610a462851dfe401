"""Messages of Huawei Ascend's stack: torch_npu, and the codes of CANN."""

import json
from collections.abc import Iterator
from pathlib import Path

import regex

from eval.harvest.c_messages import Call, calls, lines, printed, unescaped
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import files
from eval.harvest.values import filled

_RAISED = r"TORCH_CHECK(?:_WITH)?|AT_ERROR"
_WARNED = r"TORCH_NPU_WARN(?:_ONCE)?|TORCH_WARN(?:_ONCE)?"
_LOGGED = r"LOG\((?:ERROR|WARNING|FATAL)\)|ASCEND_LOGE|TORCH_NPU_HCCL_LOGE"
_DEVICE = r"^torch_npu/csrc/(?:core/npu/(?!.*Config)|distributed/)[\w/]*\.(?:cpp|h)$"
_CODE = regex.compile(r'"ErrCode":\s*"(?P<code>\w{6})",\s*"ErrMessage":\s*"(?P<text>(?:[^"\\]|\\.)*)"')
_TABLE = regex.compile(r"\{(?P<code>\d{6}),\s*\"(?P<text>(?:[^\"\\]|\\.)*)\"", regex.DOTALL)
_RUNTIME = regex.compile(
    r'X\((?P<code>[EW][A-Z]\d{4}),.{0,400}?(?P<text>(?:"(?:[^"\\]|\\.)*ErrorCode=\w{6}))', regex.DOTALL
)


def _printed(said: Call, name: str) -> Iterator[str]:
    for number, line in enumerate(lines(printed(said))):
        if number:
            yield line
        elif regex.fullmatch(_WARNED, said.name):
            yield f"[W302 11:08:47.123456789 {name}:{said.line}] Warning: {line} (function operator())"
        elif said.name.startswith("LOG"):
            yield f"[rank3]:[{said.name[4]}302 11:08:47.123456789 {name}:{said.line}] {line}"
        elif said.name.endswith("LOGE"):
            yield f"[ERROR] PTA(41233,python):2026-03-02-11:08:47.123.456 {name}:{said.line} {line}"
        else:
            yield f"RuntimeError: {line}"


def logged(tree: Path) -> Iterator[Message]:
    """Yield what torch_npu's device and collectives log and warn."""
    for path, text in files(tree, _DEVICE):
        for said in calls(text, (_LOGGED, _WARNED)):
            for line in _printed(said, path.rsplit("/", 1)[-1]):
                yield Message("torch_npu logged", f"{path}:{said.line}", line)


def raised(tree: Path) -> Iterator[Message]:
    """Yield what torch_npu's device and collectives raise as RuntimeError; most refuse an argument."""
    for path, text in files(tree, _DEVICE):
        for said in calls(text, (_RAISED,)):
            for line in list(_printed(said, path.rsplit("/", 1)[-1]))[:1]:
                yield Message("torch_npu raised", f"{path}:{said.line}", line)


def returned(tree: Path) -> Iterator[Message]:
    """Yield the runtime's return codes that torch_npu knows, as its exceptions print them."""
    for path, text in files(tree, r"NPUErrorCodes\.h$"):
        for match in _TABLE.finditer(text):
            said = f"RuntimeError: operator():NPUStream.cpp:12 NPU function error: call, error code is {match['code']}"
            yield Message("Ascend return codes", path, said)


def codes(tree: Path) -> Iterator[Message]:
    """Yield the coded messages of CANN's components, from their lists of codes."""
    for path, text in files(tree, r"\.(?:cc|cpp|json|h)$"):
        found = [(match["code"], json.loads(f'"{match["text"]}"')) for match in _CODE.finditer(text)]
        found += [(match["code"], unescaped(match["text"][1:])) for match in _RUNTIME.finditer(text)]
        for code, said in found:
            first = lines(filled(said))[:1] or [""]
            yield Message("CANN codes", path, f"{code}: [PID: 41233] 2026-03-02-11:08:47.123.456 {first[0]}")


SOURCES: dict[str, Reader] = {
    "torch_npu logged": logged,
    "torch_npu raised": raised,
    "Ascend return codes": returned,
    "CANN codes": codes,
}
