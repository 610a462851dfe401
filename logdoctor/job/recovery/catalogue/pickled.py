"""Pickles read as data: nothing in them is imported, called or hashed.

A checkpoint's pickle may come from anybody. Python's own unpickler imports and calls what it names; one that refuses
names still hashes what the pickle builds, and nested tuples make that endless. This machine knows the opcodes that
torch writes (protocols 2 to 5) and keeps classes, calls and states as names with arguments. Time and memory are
proportional to the bytes read: each opcode has a cost.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from logdoctor.safe.budget import Budget, Overspent

MOST_BYTES = 64 << 20
"""Most bytes of a pickle that are read."""
MOST_STEPS = 12_000_000
"""Most opcodes that are executed, some 10 s: the metadata of some 300,000 tensor parts."""
_TIMES, _MOST_MADE = 64, 1 << 30  # torch's metadata expands to some 35 times its bytes
_LONGEST_NAME = 1000  # characters of a class with its module


class NotRead(Exception):
    """A file cannot be read as what it should be; the message continues its name."""


class TooLarge(NotRead):
    """It is too large to be read here, which is no evidence against it."""


_STATES = 8  # nested states searched for a key: one may contain itself


class Name(NamedTuple):
    """A class or function that a pickle names."""

    path: str


class Made:
    """A dict, or the unmade result of calling a class or function with `arguments`: its pairs and its state."""

    __slots__ = ("_known", "arguments", "name", "pairs", "state")

    def __init__(self, name: str = "dict", arguments: Any = ()) -> None:
        self.name, self.arguments = name, arguments
        self.pairs: list[tuple[Any, Any]] = []
        self.state: Any = None
        self._known: tuple[int, dict[str, Any]] = _NOTHING

    def get(self, key: str) -> Any:
        """Return the value of a key or attribute, its own or its state's; None without one."""
        made: Any = self
        for _ in range(_STATES):
            if (found := made._texts().get(key)) is not None or not isinstance(made.state, Made):
                return found
            made = made.state
        return None

    def _texts(self) -> dict[str, Any]:
        """Return the values of text keys; cached, because a pickle may refer to one dict many times."""
        count, known = self._known
        if count != len(self.pairs):
            known = known | {found: value for found, value in self.pairs[count:] if isinstance(found, str)}
            self._known = len(self.pairs), known
        return known


_NOTHING: tuple[int, dict[str, Any]] = 0, {}


def got(value: Any, *keys: str) -> Any:
    """Follow keys into nested values; None where one is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Made) else None
    return value


def number(value: Any) -> int | None:
    """Return a value that is a valid count; None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def plain(value: Any) -> Any:
    """Return what `unpickled` gave as JSON values; shared values are converted once and stay shared."""
    return _plain(value, {})


def _plain(value: Any, known: dict[int, Any]) -> Any:
    if not isinstance(value, Made | list | tuple):
        return value
    if id(value) not in known:
        if isinstance(value, Made):
            made: Any = {str(key): _plain(one, known) for key, one in value.pairs if isinstance(key, str | int)}
        else:
            made = [_plain(one, known) for one in value]
        known[id(value)] = made
    return known[id(value)]


def budget_for(read: int) -> Budget:
    """Return the expansion budget of a pickle that takes `read` bytes on disk."""
    return Budget(read, _TIMES, _MOST_MADE)


def unpickled(data: bytes, budget: Budget | None = None) -> Any:
    """Return what a pickle holds: str, bytes, numbers, lists, tuples, `Made` and `Name`.

    `NotRead` when it is truncated or invalid, `TooLarge` beyond the limits, `Overspent` when it expands further than
    real saved states do.
    """
    if len(data) > MOST_BYTES:
        raise TooLarge(f"holds a pickle of more than {MOST_BYTES >> 20} MiB")
    budget = budget or budget_for(len(data))
    try:
        budget.spend(len(data))
        return _Machine(data, budget).run()
    except Overspent as error:
        raise Overspent(f"holds a pickle that {error}") from None
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise NotRead("is cut off, or holds no pickle") from error


class _Machine:
    """A stack of values, and a memo of those used again."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        self.data, self.at, self.spend = data, 0, budget.spend
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.marks: list[int] = []

    def run(self) -> Any:
        """Execute the pickle and return the top of the stack."""
        data, steps, costs, spend = self.data, _STEPS, _COSTS, self.spend
        for _ in range(MOST_STEPS):
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self.stack[-1]
            step = steps[code]
            if step is None:
                raise NotRead(f"holds a pickle with the opcode {code:#04x}, which is not read")
            spend(costs[code])
            step(self)
        raise TooLarge(f"holds a pickle of more than {MOST_STEPS:,} opcodes")

    def take(self, count: int) -> bytes:
        """Return the next bytes; `ValueError` beyond the end."""
        begin = self.at
        self.at = begin + count
        if self.at > len(self.data):
            raise ValueError("cut off")
        return self.data[begin : self.at]

    def small(self) -> int:
        """Return the next byte as a number."""
        self.at += 1
        return self.data[self.at - 1]

    def size(self, form: str) -> int:
        """Return the next number in a `struct` format."""
        found: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return found

    def line(self) -> str:
        """Return the text up to the next newline."""
        end = self.data.index(b"\n", self.at)
        return self.take(end - self.at + 1)[:-1].decode("utf-8", "replace")

    def marked(self) -> list[Any]:
        """Pop and return everything above the last mark."""
        at = self.marks.pop()
        found = self.stack[at:]
        del self.stack[at:]
        return found

    def pop(self, count: int) -> list[Any]:
        """Pop and return `count` values."""
        if len(self.stack) < count:
            raise ValueError("too little on the stack")
        found = self.stack[-count:]
        del self.stack[-count:]
        return found


def _text(machine: _Machine, size: int) -> None:
    machine.stack.append(machine.take(size).decode("utf-8", "replace"))


def _bytes(machine: _Machine, size: int) -> None:
    machine.stack.append(machine.take(size))


def _integer(machine: _Machine, size: int) -> None:
    machine.stack.append(int.from_bytes(machine.take(size), "little", signed=True))


def _pairs(values: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(values[::2], values[1::2], strict=True)


def _set(machine: _Machine, values: list[Any]) -> None:
    owner = machine.stack[-1]
    if isinstance(owner, Made):
        machine.spend(_PAIR * len(values) // 2)
        owner.pairs.extend(_pairs(values))


def _append(machine: _Machine, values: list[Any]) -> None:
    owner = machine.stack[-1]
    if isinstance(owner, list):
        owner.extend(values)


def _name(machine: _Machine, module: Any, name: Any) -> None:
    if not isinstance(module, str) or not isinstance(name, str):
        machine.stack.append(Name("?"))
        return
    if len(module) + len(name) > _LONGEST_NAME:
        raise Overspent(f"names something with more than {_LONGEST_NAME:,} characters")
    machine.spend(4 * (len(module) + len(name)))
    machine.stack.append(Name(f"{module}.{name}"))


def _make(machine: _Machine, count: int) -> None:
    what, arguments = machine.pop(count)[:2]
    machine.stack.append(Made(what.path if isinstance(what, Name) else "?", arguments))


def _build(machine: _Machine) -> None:
    (state,) = machine.pop(1)
    if isinstance(machine.stack[-1], Made):
        machine.stack[-1].state = state


def _remember(machine: _Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


def _forget_one(machine: _Machine) -> None:
    if machine.marks and machine.marks[-1] == len(machine.stack):
        machine.marks.pop()
    else:
        machine.pop(1)


def _push(make: Callable[[], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(make())


def _tuple(count: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(tuple(machine.pop(count)))


_STOP = ord(".")
_CODES: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": lambda m: _skip(m, 1),  # protocol
    b"\x95": lambda m: _skip(m, 8),  # frame
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"0": _forget_one,
    b"1": lambda m: m.marked().clear(),
    b"2": lambda m: m.stack.append(m.stack[-1]),
    b"N": _push(lambda: None),
    b"\x88": _push(lambda: True),
    b"\x89": _push(lambda: False),
    b"}": _push(Made),
    b"]": _push(list),
    b")": _push(tuple),
    b"\x8f": _push(list),  # a set
    b"\x85": _tuple(1),
    b"\x86": _tuple(2),
    b"\x87": _tuple(3),
    b"t": lambda m: m.stack.append(tuple(m.marked())),
    b"l": lambda m: m.stack.append(m.marked()),
    b"\x91": lambda m: m.stack.append(m.marked()),  # a frozenset
    b"K": lambda m: m.stack.append(m.small()),
    b"M": lambda m: m.stack.append(m.size("<H")),
    b"J": lambda m: m.stack.append(m.size("<i")),
    b"G": lambda m: m.stack.append(m.size(">d")),
    b"\x8a": lambda m: _integer(m, m.small()),
    b"\x8b": lambda m: _integer(m, m.size("<I")),
    b"\x8c": lambda m: _text(m, m.small()),
    b"X": lambda m: _text(m, m.size("<I")),
    b"\x8d": lambda m: _text(m, m.size("<Q")),
    b"U": lambda m: _bytes(m, m.small()),
    b"T": lambda m: _bytes(m, m.size("<I")),
    b"C": lambda m: _bytes(m, m.small()),
    b"B": lambda m: _bytes(m, m.size("<I")),
    b"\x8e": lambda m: _bytes(m, m.size("<Q")),
    b"\x96": lambda m: _bytes(m, m.size("<Q")),
    b"a": lambda m: _append(m, m.pop(1)),
    b"e": lambda m: _append(m, m.marked()),
    b"\x90": lambda m: _append(m, m.marked()),
    b"s": lambda m: _set(m, m.pop(2)),
    b"u": lambda m: _set(m, m.marked()),
    b"c": lambda m: _name(m, m.line(), m.line()),
    b"\x93": lambda m: _name(m, *m.pop(2)),
    b"R": lambda m: _make(m, 2),
    b"\x81": lambda m: _make(m, 2),
    b"\x92": lambda m: _make(m, 3),
    b"Q": lambda m: m.stack.append(Made("persistent", m.pop(1))),
    b"b": _build,
    b"q": lambda m: _remember(m, m.small()),
    b"r": lambda m: _remember(m, m.size("<I")),
    b"\x94": lambda m: _remember(m, len(m.memo)),
    b"h": lambda m: m.stack.append(m.memo[m.small()]),
    b"j": lambda m: m.stack.append(m.memo[m.size("<I")]),
}


def _skip(machine: _Machine, count: int) -> None:
    machine.take(count)


_STEPS: list[Callable[[_Machine], None] | None] = [_CODES.get(bytes((code,))) for code in range(256)]
_PAIR = 120
_COST_OF = {
    b"(MJG\x8a\x8b": 40,  # marks, numbers
    b"X\x8c\x8dUTCB\x8e\x96": 60,
    b"t\x85\x86\x87l\x91]\x8f": 100,
    b"qr\x94": 100,  # a place in the memo
    b"}RQ\x81\x92": 160,
    b"c\x93": 200,
}
_COSTS = [next((cost for codes, cost in _COST_OF.items() if code in codes), 8) for code in range(256)]
"""Most bytes of memory that an opcode takes, without texts and dict pairs; 8 is a reference."""
