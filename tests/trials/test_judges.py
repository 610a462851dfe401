"""Judges are asked as often as they want to be, whoever asks."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from logdoctor.trials.judges import Judges, TokenBucket
from logdoctor.trials.trial_file import Judge
from tests.at_once import at_once
from tests.trials.conftest import Trials, eval_set


class Asked:
    """A judge: what it was asked; `busy` times it has no time."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes, str]] = []
        self.busy = 0
        asked = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                asked.requests.append((self.path, body, self.headers.get("authorization", "")))
                busy, asked.busy = asked.busy > 0, max(0, asked.busy - 1)
                self.send_response(429 if busy else 200)
                if busy:
                    self.send_header("retry-after", "1")
                answer = b'{"score": 7}'
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"


@pytest.fixture
def asked() -> Iterator[Asked]:
    judge = Asked()
    yield judge
    judge.server.shutdown()


@pytest.fixture
def waits() -> list[float]:
    """For how many seconds requests were held back, one after the other."""
    return []


@pytest.fixture
def judges(asked: Asked, waits: list[float]) -> Iterator[Judges]:
    """Judges that may be asked ten times a second, on a clock that stands."""
    bucket = partial(TokenBucket, clock=lambda: 0.0, sleep=waits.append)
    some = Judges([Judge("far", 600.0, asked.url), Judge("turn", 600.0)], bucket=bucket)
    yield some
    some.close()


def post(url: str, body: bytes = b"{}", **headers: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return answer.status, answer.read()


def test_requests_are_passed_on_at_the_rate_of_the_judge(judges: Judges, asked: Asked, waits: list[float]) -> None:
    def ask(body: bytes) -> tuple[int, bytes]:
        return post(judges.url("far") + "/chat", body, authorization="Bearer x")

    assert at_once(ask, [b"{1}"] * 6) == [(200, b'{"score": 7}')] * 6
    assert asked.requests == [("/v1/chat", b"{1}", "Bearer x")] * 6
    assert sorted(waits) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_a_judge_that_is_busy_is_asked_again_when_it_says(judges: Judges, asked: Asked, waits: list[float]) -> None:
    asked.busy = 1
    assert post(judges.url("far"))[0] == 200
    assert waits == pytest.approx([0.0, 1.0]) and len(asked.requests) == 2
    asked.busy = 100
    with pytest.raises(urllib.error.HTTPError, match="429"):
        post(judges.url("far"))


def test_a_judge_without_a_url_says_whose_turn_it_is(judges: Judges, waits: list[float]) -> None:
    assert [post(judges.url("turn")) for _ in range(4)] == [(204, b"")] * 4
    assert waits == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_others_cannot_use_it(judges: Judges, asked: Asked) -> None:
    secret, name = judges.url("far").rsplit("/", 2)[1:]
    for url in (judges.url("far").replace(secret, "guessed"), judges.url("far").replace(name, "other")):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            post(url)
    assert asked.requests == []


def test_a_judge_that_is_away_is_a_bad_gateway() -> None:
    judges = Judges([Judge("far", 600.0, "http://127.0.0.1:9")])
    with pytest.raises(urllib.error.HTTPError, match="502"):
        post(judges.url("far"))
    judges.close()


def test_a_bucket_lets_some_through_at_once_after_a_pause() -> None:
    now, waits = [0.0], list[float]()
    bucket = TokenBucket(6.0, at_once=3, clock=lambda: now[0], sleep=waits.append)
    now[0] = 100.0
    for _ in range(4):
        bucket.wait()
    assert waits == [0.0, 0.0, 0.0, 10.0]


def test_scoring_asks_the_judge_of_its_set(trials: Trials, asked: Asked) -> None:
    (trials.folder / "ask.py").write_text(
        "import json, sys, urllib.request as u\n"
        "said = json.load(u.urlopen(u.Request(sys.argv[1], b'{}')))\n"
        "json.dump(said, open(sys.argv[3], 'w'))\n"
    )
    import sys

    score = f"{sys.executable} {{here}}/ask.py {{judge}} {{outputs}} {{out}}"
    trial = trials.trial(
        eval_set("a", judge="far", score=score), judges=[{"name": "far", "url": asked.url, "per_minute": 600}]
    )
    judges = Judges(trial.judges)
    state = trials.work(trial, judge_url=judges.url)
    judges.close()
    assert json.loads(json.dumps(state.progress.scored["a"].metrics)) == {"score": 7.0}
