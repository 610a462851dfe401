"""How long a running attempt may go without a step, learned from its own log.

Between two steps a job may save, evaluate or compile, and each takes many times as long as a step: no multiple of the
step time alone makes a hang. So an attempt is judged by its own pace once it has shown a pause of the present kind,
either named ("saving", "eval_start") or long and unnamed: it may then pause for three times the longest pause, or 120
of its steps. Until then, and in a kind of pause that it has not shown, the settings decide, or those 120 steps if
longer, up to twice the setting. Times are arrival times of lines: buffered output comes in bursts, so silence is
learned from the gaps between bursts, and a step takes its share of them.

A witness (`job/recovery/witness`) shortens that: where ranks wait for another one, no unnamed pause need have been
shown; where the process of a rank is stopped, the job does nothing at all, and no pause counts.
"""

import re
from collections import deque

_PAUSES = {
    "saving": rb"sav(?:e|ed|ing)|checkpoint\w{0,3}|ckpt|snapshot",
    "evaluation": rb"eval\w{0,10}|valid(?:ate|ating|ation)|test(?:ing|_step)|inference|generat(?:e|ing)",
    "compilation": rb"compil(?:e|ing|ation)|autotun\w{0,4}|captur(?:e|ing)|trac(?:e|ing)|warm(?:ing)?[-_ ]?up|lowering",
    "loading": rb"load(?:ing)?|download\w{0,3}|shuffl\w{0,3}|index(?:ing)?|epoch_?(?:start|stop|end)|restor(?:e|ing)",
}
_NAMED = re.compile(
    rb"(?i)(?<![a-z])(?:"
    + b"|".join(b"(?P<%s>%s)" % (name.encode(), words) for name, words in _PAUSES.items())
    + rb")(?![a-z])"
)
_OURS = re.compile(rb"(?m)^\[logdoctor\] .*")
_WITNESS = re.compile(
    rb"(?m)^\[logdoctor\] (?P<what>stacks|flight recorder|process state|kernel wait): missing ranks: "
)
_HEARD = 1024  # last bytes after a step in which a pause is named
_KEPT = 256  # gaps between steps that are kept
_ENOUGH = 20  # gaps that make a pace
_SHOWN = 2  # pauses, however short if named, before an attempt is judged by its own pace
_TOGETHER = 0.05  # seconds between steps of one burst
_OUTLIER = 5.0  # times the usual gap that make a pause, named or not
_PHASE = 20.0  # times the usual gap that tell an unnamed pause from a slow step
_OF_ANY = 120.0  # times a step that any pause may last: twice a long save
_OF_STEPS, _OF_PAUSES = 5.0, 3.0  # times the 99th percentile of the gaps, and the longest pause, before a hang


class Pace:
    """The gaps between the steps of one attempt, in seconds."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=_KEPT)
        self._steps: deque[float] = deque(maxlen=_KEPT)  # seconds per step in each gap
        self._pauses: dict[str, float] = {}  # the longest of each name; "" if unnamed
        self._shown = 0
        self._text = b""  # printed since the last step
        self._witness: set[bytes] = set()  # what a witness has said since then
        self._last: dict[str, float] = {}  # time of the last step of each stream
        self._paused_at = 0.0

    @property
    def is_stopped(self) -> bool:
        """Whether a witness has reported a stopped process of a rank since the last step."""
        return b"process state" in self._witness

    def say(self, text: bytes) -> None:
        """Add text printed since the last step."""
        self._witness |= {found["what"] for found in _WITNESS.finditer(text)}
        self._text = (self._text + b"\n" + _OURS.sub(b"", text)[-_HEARD:])[-_HEARD:]

    def step(self, stream: str, at: float, count: int = 1) -> None:
        """Add `count` steps of a stream that came together at `at` seconds. Ranks print theirs together, so each stream
        has its own gaps; a burst ends one gap."""
        self._witness.clear()
        gap = at - self._last.get(stream, at)
        if stream in self._last and gap < _TOGETHER:
            return
        if stream in self._last:
            self._add(gap, count, at)
        self._last[stream], self._text = at, b""

    def patience(self, least: float, most: float, witnessed: bool = False) -> float:
        """Return the seconds without a step before a hang: `least` or more, or `most` or more if too little is known.
        `witnessed`: as if a witness said that ranks wait for another one."""
        gaps, steps = sorted(self._gaps), sorted(self._steps)
        usual_step = steps[len(steps) // 2] if steps else 0.0
        median, slow = (gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100]) if gaps else (0.0, 0.0)
        if self.is_stopped:
            return max(least, _OF_STEPS * median)
        any_pause = max(min(_OF_ANY * usual_step, 2 * most), _OF_PAUSES * max(self._pauses.values(), default=0.0))
        if len(gaps) >= _ENOUGH and self._has_shown(median, witnessed or bool(self._witness)):
            return max(least, _OF_STEPS * slow, any_pause)
        return max(most, any_pause, _OF_PAUSES * max(gaps, default=0.0))

    def _has_shown(self, usual: float, witnessed: bool) -> bool:
        """Return whether the present kind of pause has been seen, or need not have been."""
        if named := self._named():
            return named <= self._pauses.keys() and (witnessed or self._shown >= _SHOWN)
        return witnessed or (self._shown >= _SHOWN and self._pauses.get("", 0.0) >= _PHASE * usual)

    def _named(self) -> set[str]:
        """Return the names of pauses that were printed since the last step."""
        return {found.lastgroup or "" for found in _NAMED.finditer(self._text)}

    def _add(self, gap: float, count: int, at: float) -> None:
        named = self._named()
        paused = bool(self._gaps) and gap > _OUTLIER * sorted(self._gaps)[len(self._gaps) // 2]
        for name in named or ({""} if paused else ()):
            self._pauses[name] = max(self._pauses.get(name, 0.0), gap)
        if (named or paused) and at - self._paused_at >= gap:  # counted once, although several streams show it
            self._shown, self._paused_at = self._shown + 1, at
        if not paused and (self._gaps or not named):
            self._gaps.append(gap)
            self._steps.append(gap / count)
