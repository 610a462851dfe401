"""Load for a service that is killed again and again: jobs whose bytes are known, and senders that do not give up."""

import gzip
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from tests import waiting
from tests.service.services import CORPUS

LARGEST = 20
"""The largest body has so many powers of two bytes."""
_WAIT = {429, 503, 507}
_HUNG = 300.0  # seconds after which nothing comes any more
_PLEASE_WAIT = 0.1  # seconds at most, where the service asks for more
_ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "identity": bytes,
    "gzip": lambda data: gzip.compress(data, 1),
    "zstd": lambda data: zstandard.ZstdCompressor(level=1).compress(data),
}


class Recipe(NamedTuple):
    """What a stream holds: bytes of a large healthy log, then a log of the corpus; as numbered lines when pushed."""

    begin: int
    end: int
    log: Path
    pushed: bool


class Corpus:
    """The logs that streams are made of."""

    def __init__(self, healthy: bytes) -> None:
        self._healthy = healthy
        self._logs = sorted([*CORPUS.glob("failures/*.log"), *CORPUS.glob("healthy/*.log")])

    def recipe(self, chance: random.Random, pushed: bool) -> Recipe:
        """What one stream will hold."""
        begin = end = 0
        if not pushed and chance.random() < 0.25:
            begin = self._healthy.find(b"\n", chance.randrange(1 << 22)) + 1
            end = self._healthy.find(b"\n", begin + chance.randrange(1 << 20, 6 << 20)) + 1
        return Recipe(begin, end, chance.choice(self._logs), pushed)

    def content(self, recipe: Recipe) -> bytes:
        """The bytes of a stream."""
        log = recipe.log.read_bytes()
        if not recipe.pushed:
            return self._healthy[recipe.begin : recipe.end] + log
        lines = log.decode("utf-8", "replace").removesuffix("\n").split("\n")
        return "".join(f"{number:06} {line}\n" for number, line in enumerate(lines)).encode()


class Stream:
    """One stream, as its sender knows it: all before `acknowledged` was said to be durable, `furthest` was sent."""

    def __init__(self, name: str, recipe: Recipe) -> None:
        self.name, self.recipe = name, recipe
        self.acknowledged = self.furthest = self.size = 0


class Attempt:
    """One attempt that is sent, and how its end is told: of the whole, of each stream, or before all has come."""

    def __init__(self, job: str, number: int, streams: list[Stream], chance: random.Random) -> None:
        self.job, self.number, self.streams = job, number, streams
        self.pushed = streams[0].recipe.pushed
        self.exit_code = chance.choice([None, None, 0, 1])
        self.ending = chance.choice(["whole", "whole", "each", "early"])
        self.ended = False

    @property
    def path(self) -> str:
        return f"/v1/jobs/{self.job}/attempts/{self.number}"

    def path_of(self, stream: Stream) -> str:
        return f"{self.path}/streams/{stream.name}"


class Wrong(Exception):
    """The service did what it must never do."""


class Lost(Exception):
    """No answer came."""


class Load:
    """Senders that go on until `finish`, whatever happens to the service, and what they were told."""

    def __init__(self, corpus: Corpus, seed: int, senders: int = 5) -> None:
        self.corpus, self.seed = corpus, seed
        self.attempts: list[Attempt] = []
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.ended = threading.Event()
        """Set when an end was acknowledged."""
        self.finishing = False
        self._port = self._waiting = 0
        self._changed = threading.Condition()
        self._senders = [Sender(self, number) for number in range(senders)]

    def start(self, port: int) -> None:
        """Begin to send."""
        self.opened(port)
        for sender in self._senders:
            sender.start()

    def opened(self, port: int) -> None:
        """The service can be reached."""
        with self._changed:
            self._port = port
            self._changed.notify_all()

    def closed(self) -> None:
        """The service cannot be reached, until `opened`: its port may be somebody else's."""
        with self._changed:
            self._port = 0

    def port(self) -> int:
        """Where the service is, once it can be reached."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._port, _HUNG), "the service did not come back"
            self._waiting -= 1
            return self._port

    def silent(self) -> None:
        """Wait until every sender has learnt that the service is gone, and what it was told before is entered."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting >= sum(s.is_alive() for s in self._senders), _HUNG)

    def finish(self) -> None:
        """Let all senders finish what they have begun."""
        self.finishing = True
        with suppress(AssertionError):  # who goes on is told below
            waiting.until(lambda: not any(sender.is_alive() for sender in self._senders))
        for sender in self._senders:
            if sender.is_alive():
                self.wrong.append(f"{sender.name} does not come to an end: {sender.doing}")

    def count(self, what: str, by: int = 1) -> None:
        """Add to a figure."""
        with self._changed:
            self.counts[what] += by


class Sender(threading.Thread):
    """Sends one job after the other."""

    def __init__(self, load: Load, number: int) -> None:
        super().__init__(name=f"sender {number}", daemon=True)
        self._load, self._number = load, number
        self._chance = random.Random(f"{load.seed} {number}")
        self._connection: http.client.HTTPConnection | None = None
        self.doing = ""

    def run(self) -> None:
        index = 0
        try:
            while not self._load.finishing and not self._load.wrong:
                self._job(f"job-{self._number}-{index}")
                index += 1
        except Wrong as error:
            self._load.wrong.append(f"{self.doing}: {error}")
        except Exception as error:
            self._load.wrong.append(f"{self.doing}: the sender failed: {error!r}")
            raise
        finally:
            self._close()

    def _job(self, job: str) -> None:
        self._until("PUT", f"/v1/jobs/{job}", {"user": self.name, "nodes": self._number + 1})
        for number in range(1, self._chance.choice([2, 2, 3])):
            told = self._until("POST", f"/v1/jobs/{job}/attempts", {"key": f"{job}.{number}"})
            if told["attempt"] != number:
                raise Wrong(f"try {number} of {job} is attempt {told['attempt']}")
            pushed = self._chance.random() < 0.3
            count = self._chance.choice([1, 1, 1, 2, 3])
            streams = [
                Stream(f"rank {n}" if pushed else f"rank-{n}", self._load.corpus.recipe(self._chance, pushed))
                for n in range(count)
            ]
            attempt = Attempt(job, number, streams, self._chance)
            with self._load._changed:
                self._load.attempts.append(attempt)
            self._attempt(attempt)

    def _attempt(self, attempt: Attempt) -> None:
        left = {stream: self._load.corpus.content(stream.recipe) for stream in attempt.streams}
        for stream, content in left.items():
            stream.size = len(content)
        half = sum(map(len, left.values())) // 2
        while left:
            if attempt.pushed:
                some = self._chance.sample(list(left), self._chance.randrange(len(left)) + 1)
                self._push(attempt, {stream: left[stream] for stream in some})
            else:
                some = [self._chance.choice(list(left))]
                self._send(attempt, some[0], left[some[0]])
            if attempt.ending == "early" and not attempt.ended:
                if sum(stream.acknowledged for stream in attempt.streams) > half:
                    self._end(attempt)
            for stream in some:
                if stream.acknowledged == stream.size:
                    del left[stream]
                    if attempt.ending == "each":
                        self._end(attempt, stream)
            time.sleep(self._chance.random() * 0.008)
        if not attempt.ended and attempt.ending != "each":
            self._end(attempt)
        attempt.ended = True
        if self._chance.random() < 0.1:
            self._diagnose(attempt)

    def _send(self, attempt: Attempt, stream: Stream, content: bytes) -> None:
        """Send one body, once; afterwards the stream stands where the service says it does."""
        self.doing = attempt.path_of(stream)
        at = stream.acknowledged
        size = int(2 ** (self._chance.random() * LARGEST))
        data = content[at : at + size]
        encoding = self._chance.choice(list(_ENCODINGS))
        headers = {"Content-Encoding": encoding}
        path = f"{self._quoted(attempt, stream)}/log?offset={at}"
        stream.furthest = max(stream.furthest, at + len(data))
        body = _ENCODINGS[encoding](data)
        if self._chance.random() < 0.03:
            self._break_off(path, body, encoding)
        else:
            try:
                status, told = self._ask("POST", path, body, headers)
            except Lost:
                if self._chance.random() < 0.5:
                    return  # what was sent is sent again, and the 409 tells
            else:
                if status == 200:
                    self._acknowledge(stream, told["next_offset"], at + len(data))
                elif status == 409:
                    self._load.count("409")
                    self._acknowledge(stream, told["error"]["next_offset"], stream.acknowledged)
                else:
                    self._wait(status, told)
                return
        self._look(attempt, stream)

    def _acknowledge(self, stream: Stream, offset: int, least: int) -> None:
        if not least <= offset <= stream.furthest:
            raise Wrong(f"told {offset}, which should be {least} to {stream.furthest}")
        self._load.count("bytes", offset - stream.acknowledged)
        self._load.count("acknowledged")
        stream.acknowledged = offset

    def _look(self, attempt: Attempt, stream: Stream) -> None:
        """Ask where the stream stands."""
        while True:
            try:
                status, told = self._ask("GET", self._quoted(attempt, stream))
            except Lost:
                continue
            if status in (200, 404):
                self._acknowledge(stream, told["next_offset"] if status == 200 else 0, stream.acknowledged)
                return
            self._wait(status, told)

    def _break_off(self, path: str, body: bytes, encoding: str) -> None:
        """Send a part of a body and hang up."""
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: {encoding}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        try:
            with socket.create_connection(("127.0.0.1", self._load.port()), timeout=_HUNG) as connection:
                connection.sendall(head.encode() + body[: len(body) // 2])
        except OSError:
            self._load.count("lost")

    def _push(self, attempt: Attempt, streams: dict[Stream, bytes]) -> None:
        """Push some lines of each stream, until that is acknowledged; at times once more, as if no answer had come."""
        self.doing = f"{attempt.path} pushed"
        pushes, ends = [], {}
        for stream, content in streams.items():
            count = self._chance.randrange(1, 400)
            end = stream.acknowledged
            for _ in range(count):
                end = content.find(b"\n", end) + 1 or len(content)
                if end == len(content):
                    break
            lines = content[stream.acknowledged : end].decode().removesuffix("\n").split("\n")
            labels = {"logdoctor_job": attempt.job, "logdoctor_attempt": str(attempt.number)}
            pushes.append(
                {
                    "stream": labels | {"logdoctor_stream": stream.name},
                    "values": [[str(10**18 + n), line] for n, line in enumerate(lines)],
                }
            )
            ends[stream] = stream.furthest = end
        body = json.dumps({"streams": pushes}).encode()
        encoding = self._chance.choice(list(_ENCODINGS))
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        for _ in range(self._chance.choice([1, 1, 1, 2])):
            self._until("POST", "/loki/api/v1/push", _ENCODINGS[encoding](body), headers)
        for stream, end in ends.items():
            self._load.count("pushed bytes", end - stream.acknowledged)
            stream.acknowledged = end

    def _end(self, attempt: Attempt, stream: Stream | None = None) -> None:
        self.doing = f"{attempt.path} end"
        facts: dict[str, Any] = {"exit_code": attempt.exit_code}
        self._until("POST", f"{attempt.path}/end", facts | ({"stream": stream.name} if stream else {}))
        attempt.ended = stream is None
        self._load.count("ends")
        self._load.ended.set()

    def _diagnose(self, attempt: Attempt) -> None:
        """Let the service write a scratch file; it may be killed meanwhile."""
        self.doing = "diagnose"
        try:
            status, told = self._ask("POST", "/v1/diagnose", attempt.streams[0].recipe.log.read_bytes())
            if status != 200:
                self._wait(status, told)
        except Lost:
            pass

    def _until(self, method: str, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        """The answer of the service, asked the same until it is a good one."""
        if not isinstance(body, bytes):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        while True:
            try:
                status, told = self._ask(method, path, body, headers or {})
            except Lost:
                continue
            if 200 <= status < 300:
                self._load.count("acknowledged")
                return told
            self._wait(status, told)

    def _wait(self, status: int, told: Any) -> None:
        """Wait as the service asks; `Wrong` when it refuses for another reason."""
        if status not in _WAIT:
            raise Wrong(f"answered {status}: {told}")
        self._load.count(str(status))
        time.sleep(_PLEASE_WAIT * self._chance.random())

    def _ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and content of an answer; `Lost` when none came."""
        port = self._load.port()
        if self._connection is None or self._connection.port != port:
            self._close()
            self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_HUNG)
        try:
            self._connection.request(method, path, body, headers or {})
            answer = self._connection.getresponse()
            content = answer.read()
        except TimeoutError as error:
            raise Wrong(f"{method} {path} was not answered") from error
        except (OSError, http.client.HTTPException) as error:
            self._load.count("lost")
            self._close()
            time.sleep(0.01)
            raise Lost from error
        return answer.status, json.loads(content) if content else None

    def _quoted(self, attempt: Attempt, stream: Stream) -> str:
        return attempt.path_of(stream).replace(" ", "%20")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
