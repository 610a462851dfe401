"""Properties that are computed once, and hold no lock meanwhile."""

import threading

from logdoctor.rules.once import once


class Thing:
    def __init__(self, goes: threading.Event | None = None) -> None:
        self.begun, self._goes, self.asked = threading.Event(), goes, 0

    @once
    def value(self) -> int:
        """Its value."""
        self.begun.set()
        self.asked += 1
        if self._goes:
            self._goes.wait()
        return 7


def test_it_is_computed_once() -> None:
    thing = Thing()
    assert (thing.value, thing.value, thing.asked) == (7, 7, 1)
    assert Thing.value.__doc__ == "Its value."


def test_what_another_thread_computes_keeps_nobody_waiting() -> None:
    goes = threading.Event()
    slow = Thing(goes)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    slow.begun.wait()
    assert Thing().value == 7, "of another thing; a forked process would wait for ever"
    goes.set()
    thread.join()
    assert slow.value == 7
