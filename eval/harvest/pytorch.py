"""Messages of PyTorch's distributed parts, from its Python sources and its libraries' read-only data.

A message of C++ is streamed together from literals, so a library holds its pieces: each is a message here, behind the
prefix of its log line or exception.
"""

import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import regex

from eval.harvest.messages import Message, Reader
from eval.harvest.python_messages import messages
from eval.harvest.trees import files
from eval.harvest.values import filled

_C10D = (
    r"ProcessGroup|c10d|NCCL|TCPStore|FileStore|HashStore|store->|[Rr]endezvous|[Ww]atchdog|[Hh]eartbeat|"
    r"[Cc]ommunicator|monitoredBarrier|(?:client|server) socket|[Gg]loo\b|desync|[Ff]light [Rr]ecorder|Reducer|"
    r"DistributedDataParallel|process group|\bDDP\b"
)
_CUDA = (
    r"out of memory|CUDA|[Aa]llocator|[Ee]xpandable|expandable|\bGPU\b|cudaMalloc|cudnn|cublas|cuBLAS|NVML|\bdevice\b"
)
_LIBRARIES = {
    "c10d of PyTorch": (("libtorch_cpu.so", "libtorch_cuda.so"), _C10D),
    "CUDA of PyTorch": (("libc10_cuda.so",), _CUDA),
}
_PREFIX = {
    "c10d of PyTorch": "[rank3]:[E422 10:11:12.123456789 ProcessGroupNCCL.cpp:629] [PG ID 0 PG GUID 0 Rank 3] ",
    "CUDA of PyTorch": "RuntimeError: ",
}
_PYTHON = {
    "elastic and torchrun": r"^(?:torch/)?distributed/(?:elastic/.*|launcher/.*|run|launch)\.py$",
    "torch.distributed": r"^(?:torch/)?distributed/(?:distributed_c10d|rendezvous|utils|\w+_(?:device|utils))\.py$",
    "DataLoader": r"^(?:torch/)?utils/data/.*\.py$",
    "torch.multiprocessing": r"^(?:torch/)?multiprocessing/.*\.py$",
}
_GAP = 12  # most strings between two of a family in the same part of the library
_FAMILY = 5  # fewest strings of a family that make a part
_TEXT = regex.compile(rb"[\t\n\x20-\x7e]{16,2000}")
_PROSE = regex.compile(r"(?:[A-Z]\w*[):'-]*|\[c10d\]|`\w+`)[ \n](?:[\w':,.()\[\]/=\"`-]+[ \n]+){2}")
_CODE = regex.compile(
    r"[{;}]\s*$|^\s*(?:def|return|if|for|class|template)\b|::\w+\(|->\s*\w+\(|\bTensor\b.*->|^\.{3}|__\w+__"
    r"|\w+\(\w+ \w+, |INTERNAL ASSERT|to be true, but got false|^Check failed|[Tt]ensor of (?:rank|shape|int)"
    r"|^(?:Constrain|Given|List of|Input tensor (?:of|with)|Output tensor|Optional|Scale|Zero) "
)


def pieces(kind: str, tree: Path) -> Iterator[Message]:
    """Yield pieces of messages from a torch package's libraries, near words of a family."""
    names, family = _LIBRARIES[kind]
    telling = regex.compile(family)
    for name in names:
        for path in sorted(tree.rglob(name)):
            texts = [match.decode("ascii") for match in _TEXT.findall(read_only_data(path))]
            at = [number for number, text in enumerate(texts) if telling.search(text)]
            for first, last in _parts(at):
                for text in texts[first : last + 1]:
                    if _PROSE.match(text) and not _CODE.search(text):
                        said = " ".join(filled(text).split()) + (" 3" if text[-1] in " :" else "")
                        yield Message(kind, path.name, _PREFIX[kind] + said, f"RuntimeError: {said}")


def _parts(at: list[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last of each run of nearby places."""
    starts = [number for number in range(len(at)) if number == 0 or at[number] - at[number - 1] > _GAP]
    for start, end in zip(starts, [*starts[1:], len(at)], strict=True):
        if end - start >= _FAMILY:
            yield at[start], at[end - 1]


def read_only_data(path: Path) -> bytes:
    """Return the section `.rodata` of a 64-bit ELF file; the whole of any other file."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        return data
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    sections = [struct.unpack_from("<IIQQQQ", data, table + size * number) for number in range(count)]
    strings = sections[names][4]
    for name, _, _, _, offset, length in sections:
        if data[strings + name : strings + name + 8] == b".rodata\0":
            return data[offset : offset + length]
    return data


def python_messages(kind: str, tree: Path) -> Iterator[Message]:
    """Yield what a part's Python sources raise, warn and log."""
    for source in files(tree, _PYTHON[kind]):
        path = f"torch/{source.path.removeprefix('torch/')}"
        module = path.removesuffix(".py").replace("/", ".")
        for said in messages(source.text):
            if said.how != "INFO":
                text = " ".join(said.text.split())
                line = f"[{said.how}] {module}: {text}" if said.logged else f"{said.how}: {text}"
                if said.how == "UserWarning":
                    line = f"/opt/lib/{path}:12: {line}"
                yield Message(kind, f"{source.path}:{said.line}", line)


SOURCES: dict[str, Reader] = {
    **{kind: partial(pieces, kind) for kind in _LIBRARIES},
    **{kind: partial(python_messages, kind) for kind in _PYTHON},
}
