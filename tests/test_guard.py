"""The guard that keeps tests off the network works."""

import socket

import pytest


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("example.com", 443), ("0.0.0.0", 1)])
def test_a_connection_to_another_machine_is_refused(address: tuple[str, int]) -> None:
    with socket.socket() as client:
        with pytest.raises(AssertionError, match="tried to connect"):
            client.connect(address)
        with pytest.raises(AssertionError, match="tried to connect"):
            client.connect_ex(address)


def test_a_connection_to_this_machine_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()
