"""Enumerations of errors as lines print them, from the headers and tables that define them."""

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import regex

from eval.harvest.messages import Message, Reader
from eval.harvest.trees import files

_SUCCESS = regex.compile(r"SUCCESS|Success$|_MAX$|_OFFSET$|ApiFailureBase")
_NUMBERED = regex.compile(r"\b(?P<symbol>cudaError\w+|CUDA_ERROR_\w+)\s*=\s*(?P<number>\d+)\b")
_STATUS = regex.compile(r"\b(?P<symbol>CU(?:BLAS|DNN|SPARSE|SOLVER|RAND)_STATUS_[A-Z_]+|CUFFT_[A-Z_]+)\s*[=,(]")
_HIP = regex.compile(r"\b(?P<symbol>hipError\w+)\s*=\s*\d+")
_NCCL = regex.compile(r"\b(?P<symbol>nccl\w+)\s*=\s*\d+")
_TEXT = regex.compile(r'\[(?P<symbol>IBV_(?:WC|EVENT)_\w+)\]\s*=\s*"(?P<text>[^"]+)"')
_FABRIC = regex.compile(r"(?:#define\s+|\s)(?P<symbol>FI_E[A-Z]\w*)\s*(?:=\s*)?(?:FI_ERRNO_OFFSET|E[A-Z]\w*|\d+)")
_CUFFT_RESULT = regex.compile(r"(?s)typedef enum cufftResult_t \{.*?\}")


def cuda(tree: Path) -> Iterator[Message]:
    """Yield errors of the CUDA runtime and driver: symbol, number, and text if available."""
    texts = _runtime_texts(tree)
    for source in files(tree, r"(?:^|/)(?:driver_types|cuda)\.h$"):
        for match in _NUMBERED.finditer(source.text):
            symbol, number = match["symbol"], int(match["number"])
            if _SUCCESS.search(symbol):
                continue
            yield Message("CUDA errors", symbol, f"RuntimeError: call failed: {symbol}")
            yield Message("CUDA errors", symbol, f"CUDA driver error: {number}")
            if text := texts(number):
                yield Message("CUDA errors", symbol, f"RuntimeError: CUDA error: {text}")
                yield Message(
                    "CUDA errors", symbol, f"gpu-07:1:2 [3] enqueue.cc:183 NCCL WARN Cuda failure {number} '{text}'"
                )


def _runtime_texts(tree: Path) -> Callable[[int], str]:
    """Return a lookup of the CUDA runtime's texts by number; "" where the library is missing."""
    for path in sorted(tree.rglob("libcudart.so*")):
        call = ctypes.CDLL(str(path)).cudaGetErrorString
        call.restype = ctypes.c_char_p
        return lambda number: text if (text := call(number).decode()) != "unrecognized error code" else ""
    return lambda number: ""


def _symbols(name: str, wanted: str, pattern: regex.Pattern[str], line: str, tree: Path) -> Iterator[Message]:
    """Yield one line per error symbol of some files."""
    for source in files(tree, wanted):
        text = source.text
        if source.path.endswith("cufft.h"):
            text = next((match.group() for match in _CUFFT_RESULT.finditer(text)), "")
        if source.path.endswith("nccl.h"):
            text = text.partition("ncclResult_t")[0].rpartition("enum")[2]
        for match in pattern.finditer(text):
            if not _SUCCESS.search(match["symbol"]) and match["symbol"] != "ncclNumResults":
                yield Message(name, f"{source.path}: {match['symbol']}", line.format(match["symbol"]))


def verbs(tree: Path) -> Iterator[Message]:
    """Yield InfiniBand's completion status and events: as NCCL's number, symbol or libibverbs' text."""
    for source in files(tree, r"^libibverbs/enum_strs\.c$"):
        for match in _TEXT.finditer(source.text):
            symbol, text = match["symbol"], match["text"]
            if symbol.startswith("IBV_EVENT"):
                yield Message("ibverbs", symbol, f"NCCL WARN NET/IB : mlx5_0:1 Got async event : {text}")
            else:
                yield Message(
                    "ibverbs",
                    symbol,
                    f"NCCL WARN NET/IB : Got completion from peer 10.1.2.3<4> with status={symbol}(1)",
                )
                yield Message("ibverbs", symbol, f"ibv_poll_cq: completion failed: {text}")


SOURCES: dict[str, Reader] = {
    "CUDA errors": cuda,
    "CUDA libraries": partial(
        _symbols,
        "CUDA libraries",
        r"(?:^|/)(?:cublas_api|cudnn_graph(?:_v9)?|cusparse|cusolver_common|cufft)\.h$",
        _STATUS,
        "RuntimeError: CUDA error: {} when calling `f(handle)`",
    ),
    "HIP errors": partial(_symbols, "HIP errors", r"(?:^|/)hip_runtime_api\.h$", _HIP, "RuntimeError: HIP error: {}"),
    "NCCL results": partial(_symbols, "NCCL results", r"(?:^|/)nccl\.h$", _NCCL, "{}: the call did not succeed"),
    "libfabric errors": partial(_symbols, "libfabric errors", r"rdma/fi_errno\.h$", _FABRIC, "fi_cq_readerr: {}"),
    "ibverbs": verbs,
}
