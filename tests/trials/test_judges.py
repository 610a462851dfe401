"""Judges are asked as often as they want to be, whoever asks."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from logdoctor.trials.judges import Judges, TokenBucket
from logdoctor.trials.trial_file import Judge
from tests.trials.conftest import Trials, eval_set


class Asked:
    """A judge: what it was asked and when; `busy` times it has no time."""

    def __init__(self) -> None:
        self.requests: list[tuple[float, str, bytes, str]] = []
        self.busy = 0
        asked = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                asked.requests.append((time.monotonic(), self.path, body, self.headers.get("authorization", "")))
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
def judges(asked: Asked) -> Iterator[Judges]:
    some = Judges([Judge("far", 600.0, asked.url), Judge("turn", 600.0)])
    yield some
    some.close()


def post(url: str, body: bytes = b"{}", **headers: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
        return answer.status, answer.read()


def test_requests_are_passed_on_at_the_rate_of_the_judge(judges: Judges, asked: Asked) -> None:
    def ask() -> None:
        assert post(judges.url("far") + "/chat", b"{1}", authorization="Bearer x") == (200, b'{"score": 7}')

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(path, body, token) for _, path, body, token in asked.requests} == {("/v1/chat", b"{1}", "Bearer x")}
    times = [at for at, *_ in asked.requests]
    assert max(times) - min(times) >= 0.4  # six at ten a second


def test_a_judge_that_is_busy_is_asked_again_when_it_says(judges: Judges, asked: Asked) -> None:
    asked.busy = 1
    assert post(judges.url("far"))[0] == 200
    first, second = (at for at, *_ in asked.requests)
    assert second - first >= 0.9
    asked.busy = 100
    with pytest.raises(urllib.error.HTTPError, match="429"):
        post(judges.url("far"))


def test_a_judge_without_a_url_says_whose_turn_it_is(judges: Judges) -> None:
    begun = time.monotonic()
    assert [post(judges.url("turn")) for _ in range(4)] == [(204, b"")] * 4
    assert time.monotonic() - begun >= 0.25


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
    bucket = TokenBucket(6.0, at_once=3)
    bucket._next -= 100
    begun = time.monotonic()
    for _ in range(3):
        bucket.wait()
    assert time.monotonic() - begun < 9.0


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
