"""The connection to a Ray cluster."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from logdoctor.errors import LogdoctorError
from logdoctor.extras import translated

_REACH_SECONDS = 10.0


class RayUnusable(LogdoctorError):
    """A Ray cluster that cannot be reached, has no room, or has another logdoctor."""


@contextmanager
def connected(address: str, namespace: str) -> Iterator[Any]:
    """Yield Ray, connected to the cluster at an address (`auto` for that of this machine). `RayUnusable` without
    one."""
    with translated():
        import ray
    try:
        _reach(address)
        ray.init(address=address, namespace=namespace, log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise RayUnusable(f"the Ray cluster {address}", f"cannot be reached ({error})", "Check the address.") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise `OSError` or `ValueError` when nobody listens at an address: Ray itself retries for minutes."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), _REACH_SECONDS).close()
