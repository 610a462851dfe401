"""Pinned host memory, which a GPU writes to by itself while training continues.

Torch's allocator of pinned memory rounds up to the next power of two, up to twice what is needed. Here each tensor has
its own pages, registered with the driver for as long as the tensor lives.
"""

import functools
import logging
import mmap
import os
import weakref
from contextlib import suppress
from typing import Any

import torch

_log = logging.getLogger("logdoctor.checkpoint")
_PORTABLE = 1  # cudaHostRegisterPortable: for all devices of this process
_WIPE_ON_FORK = 18  # madvise(2): a child sees zeros there, and the parent's pages are never shared


def empty_like(source: Any) -> Any:
    """Return an uninitialised host tensor of the same form as one on a GPU. If the driver refuses to register more
    memory, it is ordinary memory, and copies are slower."""
    form = torch.empty_like(source, device="meta")
    try:
        pages = _pages(source.nbytes)
    except OSError as error:
        _say(str(error))
        return torch.empty_like(source, device="cpu")
    tensor = torch.frombuffer(pages, dtype=torch.uint8).view(source.dtype).as_strided(form.size(), form.stride())
    if _registered(tensor.data_ptr(), source.nbytes):
        weakref.finalize(tensor, _release, tensor.data_ptr(), os.getpid()).atexit = False
    else:
        _forget_error(source.device)
    return tensor


def _pages(size: int) -> mmap.mmap:
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(_WIPE_ON_FORK)
    with suppress(OSError):  # few large pages register faster; not every kernel has them
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def _registered(place: int, size: int) -> bool:
    try:
        torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(place, size, _PORTABLE)))
    except Exception as error:  # noqa: BLE001 - the driver's own
        _say(str(error).partition("\n")[0])
        return False
    return True


def _forget_error(device: Any) -> None:
    """Clear the error of a refusal; else CUDA reports it at training's next kernel launch."""
    with suppress(RuntimeError):
        torch.empty(1, device=device).fill_(1)


@functools.cache
def _say(why: str) -> None:
    """Warn once that copies will be slower."""
    _log.warning("memory of the host is not registered with the driver: %s", why)


def _release(place: int, process: int) -> None:
    if os.getpid() == process:
        torch.cuda.cudart().cudaHostUnregister(place)
