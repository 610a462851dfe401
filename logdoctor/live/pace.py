"""How long a running attempt may go without a step: learned from its own log.

Between two steps a job may save, evaluate or compile, and each takes many times as long as a step: no multiple of the
step time alone makes a hang. So an attempt is judged by its own pace once it has shown how it pauses: three times the
longest pause may pass. Until then, and when it has named a pause of a kind that it has not shown ("eval_start"), it is
judged by what the settings say, or by a hundred and twenty of its steps where that is longer, up to twice as long.
These may also pass in a pause that it has named, whatever it took before: an upload is tried again. Times are those at
which lines came: buffered output comes in bursts, and then the gaps between bursts are what is learned.
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
_HEARD = 1024  # bytes, the last after a step, in which a pause is named
_KEPT = 256  # gaps between steps that are remembered
_ENOUGH = 20  # of them that make a pace
_SHOWN = 2  # pauses, however short where they are named, that an attempt has made before it is judged by its pace
_TOGETHER = 0.05  # seconds between steps that are one burst
_OUTLIER = 5.0  # times the usual gap that make a pause
_OF_NAMED = 120.0  # times the usual gap that a pause may last which was named, or is not known: twice a long save
_OF_STEPS, _OF_PAUSES = 5.0, 3.0  # times the 99th percentile of the gaps, and the longest pause, that are no hang


class Pace:
    """The gaps between the steps of one attempt, in seconds."""

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=_KEPT)
        self._pauses: dict[str, float] = {}  # the longest of each name; "" for those that nothing named
        self._shown = 0
        self._text = b""  # since the last step
        self._last: dict[str, float] = {}  # step of each stream
        self._paused_at = 0.0

    def say(self, text: bytes) -> None:
        """Take note of what was printed since the last step."""
        self._text = (self._text + b"\n" + text[-_HEARD:])[-_HEARD:]

    def step(self, stream: str, at: float) -> None:
        """Take note of a step of a stream, at so many seconds of a clock. Ranks print theirs together, so each stream
        has its own gaps; steps that come in one burst are one."""
        gap = at - self._last.get(stream, at)
        if stream in self._last and gap < _TOGETHER:
            return
        if stream in self._last:
            self._add(gap, at)
        self._last[stream], self._text = at, b""

    def patience(self, least: float, most: float) -> float:
        """Return how many seconds without a step are no hang yet: `least` or more, and `most` or more where too little
        is known."""
        named, gaps = self._named(), sorted(self._gaps)
        pause = min(_OF_NAMED * gaps[len(gaps) // 2], 2 * most) if gaps else 0.0
        if len(gaps) < _ENOUGH or self._shown < _SHOWN or not named <= self._pauses.keys():
            return max(most, pause, _OF_PAUSES * max([*gaps, *self._pauses.values()], default=0.0))
        usual = gaps[len(gaps) * 99 // 100]
        return max(least, _OF_STEPS * usual, _OF_PAUSES * max(self._pauses.values()), pause if named else 0.0)

    def _named(self) -> set[str]:
        """Return the pauses that were named since the last step."""
        return {found.lastgroup or "" for found in _NAMED.finditer(self._text)}

    def _add(self, gap: float, at: float) -> None:
        named = self._named()
        paused = bool(self._gaps) and gap > _OUTLIER * sorted(self._gaps)[len(self._gaps) // 2]
        for name in named or ({""} if paused else ()):
            self._pauses[name] = max(self._pauses.get(name, 0.0), gap)
        if (named or paused) and at - self._paused_at >= gap:  # the same pause of another stream is none more
            self._shown, self._paused_at = self._shown + 1, at
        if not (named or paused):
            self._gaps.append(gap)
