"""Memory of the host that a GPU writes to by itself, while training goes on.

Torch's own allocator of such memory takes the next power of two, up to twice what is needed. Here each tensor has pages
of its own, which are registered with the driver for as long as the tensor lives.
"""

import logging
import mmap
import weakref
from typing import Any

import torch

_log = logging.getLogger("logdoctor.checkpoint")
_PORTABLE = 1  # cudaHostRegisterPortable: for all devices of this process
# children of a fork have no use for it; and with large pages there are fewer to register
_ADVICE = tuple(getattr(mmap, name) for name in ("MADV_DONTFORK", "MADV_HUGEPAGE") if hasattr(mmap, name))


def empty_like(source: Any) -> Any:
    """Return a tensor on the host, of the form of one on a GPU and without its values. Where the driver refuses to
    register more memory, it is as any other, and copying to it is slower."""
    form = torch.empty_like(source, device="meta")
    pages = mmap.mmap(-1, source.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for advice in _ADVICE:
        pages.madvise(advice)
    flat = torch.frombuffer(pages, dtype=torch.uint8).view(source.dtype)
    tensor = flat.as_strided(form.size(), form.stride())
    if _registered(tensor.data_ptr(), source.nbytes):
        weakref.finalize(tensor, _release, tensor.data_ptr()).atexit = False
    return tensor


def _registered(place: int, size: int) -> bool:
    try:
        torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(place, size, _PORTABLE)))
    except Exception as error:  # noqa: BLE001 - the driver's own
        _log.warning("memory of the host is not registered with the driver: %s", str(error).partition("\n")[0])
        return False
    return True


def _release(place: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(place)
