"""Merges the outputs of a process into one stream at line ends."""

HOLD_BYTES = 1 << 20


class LineMerge:
    """Holds back the unfinished line of each channel, so that lines of two channels never mix.

    A line longer than `HOLD_BYTES` is passed on unfinished. No byte is changed; the only byte ever added is a newline
    after an unfinished line when another channel continues.
    """

    def __init__(self, channels: int) -> None:
        self._held = [bytearray() for _ in range(channels)]
        self._open: int | None = None

    def feed(self, channel: int, data: bytes) -> bytes:
        """Return what can be passed on after these bytes of a channel; often nothing."""
        if len(self._held) == 1:
            return data
        held = self._held[channel]
        cut = data.rfind(b"\n") + 1
        if not cut:
            held += data
            return self._let_go(channel, b"") if len(held) >= HOLD_BYTES else b""
        ready = self._let_go(channel, data if cut == len(data) else data[:cut])
        held += data[cut:]
        self._open = None
        return ready

    def close(self, channel: int) -> bytes:
        """Return the unfinished line of a channel that has ended."""
        return self._let_go(channel, b"") if self._held[channel] else b""

    def _let_go(self, channel: int, data: bytes) -> bytes:
        held = self._held[channel]
        ready = bytes(held) + data if held else data
        held.clear()
        if self._open not in (None, channel):
            ready = b"\n" + ready
        self._open = channel
        return ready
