"""Ports that a test listens on, where it cannot let the system choose one: for programs that want to be told."""

import itertools
import os
import socket

_RANGE = range(10_000, 17_000)
"""Below the ports that the kernel gives to outgoing connections, and below those of Slurm clusters of tests."""
_next = itertools.count(os.getpid() * 31)
_taken: list[socket.socket] = []


def free_port() -> int:
    """Return a port that nothing listens on, and that is given to no other test while this process lives.

    What holds it is a Unix socket of an abstract name, which ends with the process.
    """
    for _ in _RANGE:
        port = _RANGE[next(_next) % len(_RANGE)]
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0logdoctor-port-of-tests-{port}")
            with socket.socket() as trial:
                trial.bind(("", port))
        except OSError:
            lock.close()
            continue
        _taken.append(lock)
        return port
    raise AssertionError("no port is free for a test")
