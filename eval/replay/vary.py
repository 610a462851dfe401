"""A log as it might look another time: other hosts, ranks, times and numbers.

Text stands for bytes here (Latin-1), so nothing is lost, and lines stay lines: only their contents are replaced, equal
ones by equal ones.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_HOSTS = (
    re.compile(r"^ *host +: ([\w.-]+)", re.M | re.A),
    re.compile(r"srun: error: ([\w-]+): task", re.A),
    re.compile(r"^([\w.-]+):\d+:\d+ \[\d+\] NCCL", re.M | re.A),
    re.compile(r"\d\d:\d\d:\d\d(?:\.\d+)? ([\w-]+) (?:kernel|systemd|kubelet|sshd|nv-\w+)[:\[]", re.A),
)
_LIKELY_HOST = re.compile(
    r"\b((?:node|host|gpu|worker|dgx|cn|compute|hgx|pod|server|trn|p5)[a-z]{0,12}[-_]?\d[\w-]*)", re.A
)
_NUMBERED = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[\w.-]{3,60}", re.A)
_NO_HOST = re.compile(r"(?:rank|step|epoch|iter|cuda|gpu|layer|stage|group|node|worker)[-_]?\d{1,2}", re.A | re.I)
_DAY = (
    r"(?P<iso>(?<!\d)20\d\d[-/.]\d\d[-/.])(?P<iso_day>\d\d)(?!\d)"
    r"|(?P<us>(?<!\d)(?:0\d|1[0-2])/)(?P<us_day>\d\d)(?=/(?:20)?\d\d )"
)
_DAY_BEHIND_LETTERS = (
    r"(?P<mon>\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) )(?P<mon_day>[ \d]\d)(?= \d\d:)"
    r"|(?P<glog>(?<!\w)[IWEF](?:0\d|1[0-2]))(?P<glog_day>\d\d)(?= \d\d:\d\d:\d\d\.)"
)
_CLOCK = r"(?P<clock>(?<![\d:.<])[012]\d:[0-5]\d:[0-5]\d(?![\d:<]))"
_IP = r"(?P<ip>(?<![\d.])(?:10|172|192)\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.]))"
_HEX = r"0x(?P<hex>[0-9a-f]{6,16}\b)"
_LONG = r"(?P<long>(?<![\w.:/+-])[1-9]\d{4,17}(?![\w:/]))"
_FRACTION = r"(?<![\w.])(?P<whole>\d{1,3}\.)(?P<fraction>\d{2,18})(?![\w.])"
_CHANGING = re.compile(  # looks at one character first, for most are none of these
    rf"(?=[\dA-Z])(?:(?=\d)(?:{'|'.join((_DAY, _CLOCK, _IP, _HEX, _FRACTION, _LONG))})|{_DAY_BEHIND_LETTERS})", re.A
)
_DAYS = re.compile(rf"(?=[\dA-Z])(?:(?=\d)(?:{_DAY}|{_CLOCK})|{_DAY_BEHIND_LETTERS})", re.A)
_RANK = re.compile(
    r"(?P<head>\[[Rr]ank[ :_]?|(?<!\w)[Rr]ank[ :=]{1,11}|^(?=\d{1,4}: )|\[1,(?=\d+\]<)|: task )"
    r"(?P<rank>\d{1,4})(?!\d)",
    re.A | re.M,
)
_RANGES = re.compile(r"(?:tasks?|ranks?) ?\[?\d+ ?[-,]", re.A)
_BLOCK = 8  # ranks of a node
_DAY_KEYS = ("iso", "mon", "glog", "us")


class Traits(NamedTuple):
    """What may change in a log: its hosts, first and last day of a month and second of a day, its highest rank."""

    hosts: tuple[str, ...]
    days: tuple[int, int]
    seconds: tuple[int, int]
    highest: int


def traits(text: str, nodes: Sequence[str] = ()) -> Traits:
    """Return the traits of a log; `nodes` are known host names."""
    named = {name for pattern in _HOSTS for name in pattern.findall(text)} | set(nodes)
    likely = {name for name in _LIKELY_HOST.findall(text) if not _NO_HOST.fullmatch(name)}
    hosts = {name for name in named | likely if _NUMBERED.fullmatch(name)}
    days, seconds = [], []
    for match in _DAYS.finditer(text):
        if match["clock"]:
            seconds.append(_seconds(match["clock"]))
        else:
            days.append(next(int(match[f"{key}_day"]) for key in _DAY_KEYS if match[key]))
    ranks = [] if _RANGES.search(text) else [int(match["rank"]) for match in _RANK.finditer(text)]
    return Traits(
        tuple(sorted(hosts, key=lambda name: (-len(name), name))),
        (min(days, default=1), max(days, default=28)),
        (min(seconds, default=0), max(seconds, default=86_399)),
        max(ranks, default=0),
    )


def _seconds(clock: str) -> int:
    return int(clock[:2]) * 3600 + int(clock[3:5]) * 60 + int(clock[6:8])


class Variation:
    """One way in which a log with these traits may look another time."""

    def __init__(self, rng: random.Random, of: Traits) -> None:
        self._rng = rng
        self._key = rng.getrandbits(32)
        self.hosts = _renamed(rng, of.hosts)
        self._names = (
            re.compile(rf"(?<![\w])(?:{'|'.join(map(re.escape, of.hosts))})(?![A-Za-z0-9])", re.A) if of.hosts else None
        )
        first, last = of.days
        self._day = rng.randint(1 - first, 28 - last) if last <= 28 else 0
        early, late = of.seconds
        self._shift = rng.randint(-early, 86_399 - late) if late < 86_400 else 0
        self.ranks = _permuted(rng, of.highest)
        self._known: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return the text with everything replaced that may differ another time."""
        if self._names is not None:
            text = self._names.sub(lambda match: self.hosts[match[0]], text)
        if self.ranks:
            text = _RANK.sub(self._rank, text)
        return _CHANGING.sub(self._changed, text)

    def _rank(self, match: re.Match[str]) -> str:
        rank = int(match["rank"])
        return f"{match['head']}{self.ranks.get(rank, rank)}"

    def _changed(self, match: re.Match[str]) -> str:
        group = match.lastgroup or ""
        if group == "fraction":
            return match["whole"] + self._digits(match["fraction"])
        if group == "long":
            return self._number(match[0])
        if group == "clock":
            return self._clock(match[0])
        if group == "ip":
            return self._once(match[0], self._ip)
        if group == "hex":
            return "0x" + self._once(match["hex"], self._hex)
        head = match[group.removesuffix("_day")]
        day = match[group]
        return head + str(int(day) + self._day).rjust(2, day[0] if day[0] == " " else "0")

    def _once(self, text: str, make: Callable[[str], str]) -> str:
        if text not in self._known:
            self._known[text] = make(text)
        return self._known[text]

    def _ip(self, text: str) -> str:
        head = text.split(".", 1)[0]
        return f"{head}.{self._rng.randint(16, 31)}.{self._rng.randint(0, 254)}.{self._rng.randint(2, 254)}"

    def _hex(self, text: str) -> str:
        return f"{self._rng.getrandbits(4 * len(text) - 1) | 1 << (4 * len(text) - 2):0{len(text)}x}"

    def _clock(self, text: str) -> str:
        second = _seconds(text) + self._shift
        if not 0 <= second < 86_400:
            return text
        return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"

    def _digits(self, text: str) -> str:
        """Return other digits for a number, computed from the digits and the key; there are many."""
        known = self._known.get(text)
        if known is None:
            value = (int(text) * 2_654_435_761 + self._key) % 10 ** len(text)
            known = self._known[text] = str(value).rjust(len(text), "0")
        return known

    def _number(self, text: str) -> str:
        """Return another number of the same length. Round ones (time-outs, sizes) stay; times since the epoch shift."""
        if text.endswith("000"):
            return text
        if len(text) == 10 and text[0] == "1" and text[1] in "67":
            return str(int(text) + self._day * 86_400 + self._shift)
        low = 10 ** (len(text) - 1)
        return str(low + (int(text) - low + 7919 * (self._key % 1009 + 1)) % (9 * low))


def _renamed(rng: random.Random, hosts: Sequence[str]) -> dict[str, str]:
    """Return another name of the same form for each host, all different."""
    names: dict[str, str] = {}
    taken: set[str] = set(hosts)
    for host in hosts:
        for _ in range(20):
            name = re.sub(r"\d", lambda _: str(rng.randint(1, 9)), host, flags=re.A)
            if name not in taken:
                break
        else:
            name = host + str(len(taken))
        taken.add(name)
        names[host] = name
    return names


def _permuted(rng: random.Random, highest: int) -> dict[int, int]:
    """Return other ranks by rank: nodes swap places, and ranks keep their GPU. The first node stays, because its ranks
    do what others do not."""
    nodes = highest // _BLOCK + 1
    if nodes < 3:
        return {}
    order = [0, *rng.sample(range(1, nodes), nodes - 1)]
    return {node * _BLOCK + local: order[node] * _BLOCK + local for node in range(nodes) for local in range(_BLOCK)}
