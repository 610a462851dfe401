"""Which calls the sandbox lets pass, as the kernel would decide by the program that it is given."""

import errno
import socket
import struct

import pytest

from logdoctor.trials.sandboxing import _program

ALLOWED, KILLED = 0x7FFF0000, 0x80000000
ARCHITECTURES = {
    "x86_64": 0xC000003E,
    "aarch64": 0xC00000B7,
    "i386": 0x40000003,
    "arm": 0x40000028,
    "riscv": 0xC00000F3,
}
"""As linux/audit.h numbers them."""
_NAMES = ("read", "execve", "socket", "socketpair", "add_key", "request_key", "keyctl")
CALLS = {
    "x86_64": dict(zip(_NAMES, (0, 59, 41, 53, 248, 249, 250), strict=True)),
    "aarch64": dict(zip(_NAMES, (63, 221, 198, 199, 217, 218, 219), strict=True)),
}
"""As asm/unistd_64.h and asm-generic/unistd.h number them."""
IO_URING = 425
VSOCK, ALG, PACKET = 40, 38, 17


def refused(number: int) -> int:
    """What the program returns to refuse a call with an error."""
    return 0x50000 | number


def decided(machine: str, architecture: int, call: int, first: int = 0) -> int:
    """What the program of a machine returns for a call with its first argument: it is run as the kernel does."""
    data = struct.pack("<IIQ6Q", call, architecture, 0, first, *[0] * 5)
    program = list(struct.iter_unpack("<HBBI", _program(machine)))
    at = loaded = 0
    while True:
        code, where_true, where_false, value = program[at]
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return int(value)
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value}[code]
            at += where_true if holds else where_false


@pytest.mark.parametrize("machine", CALLS)
def test_calls_of_other_architectures_end_the_process(machine: str) -> None:
    """Their calls have other numbers: 41 is `socket` on one machine, and `pivot_root` on the other."""
    for name, architecture in ARCHITECTURES.items():
        for call in (*CALLS["x86_64"].values(), *CALLS["aarch64"].values(), IO_URING):
            assert (decided(machine, architecture, call) == KILLED) is (name != machine)


@pytest.mark.parametrize("machine", CALLS)
def test_sockets_keys_and_io_uring_are_refused_and_all_else_passes(machine: str) -> None:
    own, calls = ARCHITECTURES[machine], CALLS[machine]
    for call in ("socket", "socketpair"):
        for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
            assert decided(machine, own, calls[call], family) == ALLOWED
        for family in (VSOCK, ALG, PACKET):
            assert decided(machine, own, calls[call], family) == refused(errno.EAFNOSUPPORT)
    for call in ("add_key", "request_key", "keyctl"):
        assert decided(machine, own, calls[call]) == refused(errno.EPERM)
    assert decided(machine, own, IO_URING) == refused(errno.EPERM)
    assert decided(machine, own, calls["read"]) == decided(machine, own, calls["execve"]) == ALLOWED


def test_calls_of_x32_are_refused() -> None:
    assert decided("x86_64", ARCHITECTURES["x86_64"], 0x40000000 | 41, VSOCK) == refused(errno.EPERM)


@pytest.mark.parametrize("machine", ["i686", "armv8l", "riscv64", "ppc64le", ""])
def test_a_machine_whose_calls_are_not_known_has_no_sandbox(machine: str) -> None:
    with pytest.raises(OSError, match="not known for"):
        _program(machine)
