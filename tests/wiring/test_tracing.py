"""Traces: one for each attempt, whatever the collector does, and nothing of them when none is set."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from logdoctor import tracing
from logdoctor.errors import SettingsError
from logdoctor.settings import Settings
from logdoctor.tracing import span, spent, trace_id
from logdoctor.wiring.tracing import AttemptTracer, tracer
from tests import waiting
from tests.collectors import answering, collector

ROOT = Path(__file__).parents[2]
Use = Callable[..., AttemptTracer]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    """Lets this process send its spans to a collector, all of them when it ends."""
    monkeypatch.setattr("logdoctor.wiring.tracing._STOP_SECONDS", 3600.0)
    made: list[AttemptTracer] = []

    def begin(url: str, clock: Callable[[], float] = time.monotonic) -> AttemptTracer:
        made.append(tracer(Settings(otlp_url=url), clock))
        tracing.use(made[-1])
        return made[-1]

    yield begin
    tracing.use(None)
    for one in made:
        one.stop()


def test_the_trace_of_an_attempt_is_a_digest_of_its_name() -> None:
    assert f"{trace_id('llama-7b', 2):032x}" == sha256(b"llama-7b/2").hexdigest()[:32]


def test_spans_of_an_attempt_are_one_trace_and_nest(use: Use) -> None:
    with collector() as seen:
        made = use(seen.url)
        begun = time.time_ns()
        with span("judge", "a", 1, streams=3) as judging:
            judging.add(over=True)
            with span("publish", "a", 1, reason="Hang"), span("publish", "b", 7):
                pass
        spent("append", "a", 1, begun, bytes=10)
        with pytest.raises(ValueError, match="secret"), span("act", "a", 1):
            raise ValueError("secret words of a log")
        made.stop()
        found = seen.of(f"{trace_id('a', 1):032x}")
        (judge,), (publish,), (append,), (act,) = (found[name] for name in ("judge", "publish", "append", "act"))
        assert judge.attributes == {"job": "a", "attempt": 1, "streams": 3, "over": True}
        assert (publish.parent, judge.parent, append.parent) == (judge.span, "", "")
        assert append.begin == begun and append.end >= begun
        assert b"secret" not in b"".join(seen.bodies) and b"ValueError" in b"".join(seen.bodies)
        (other,) = seen.of(f"{trace_id('b', 7):032x}")["publish"]
        assert other.parent == "" and other.attributes == {"job": "b", "attempt": 7}
        assert act.resource["service.name"] == "logdoctor"
        assert seen.headers[0]["path"] == "/v1/traces"
        assert made.counts() == {"sent": 5, "failed": 0, "dropped": 0, "thinned": 0}


def test_the_variables_of_opentelemetry_count(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "doctor-east")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=staging")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=seven")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/")
    with collector() as seen:
        made = use(seen.url)
        for number in range(200):
            for name in ("scan", "judge"):
                with span(name, f"job-{number}", 1):
                    pass
        made.stop()
        spans = seen.spans()
        assert seen.headers[0]["x-tenant"] == "seven"
        assert spans[0].resource["service.name"] == "doctor-east"
        assert spans[0].resource["deployment.environment.name"] == "staging"
        traces = {one.trace for one in spans}
        assert 60 < len(traces) < 140 and len(spans) == 2 * len(traces)  # an attempt is traced as a whole or not at all


def test_who_sends_much_makes_no_more_spans_than_others(use: Use) -> None:
    with collector() as seen:
        now = [100.0]
        made = use(seen.url, lambda: now[0])
        for number in range(5000):
            with span("post", "loud", 1, number=number):
                pass
        with span("post", "quiet", 1):
            pass
        now[0] += 1.0
        with span("post", "loud", 1):
            pass
        made.stop()
        loud = seen.of(f"{trace_id('loud', 1):032x}")["post"]
        assert len(loud) == 20 + 1 and len(seen.of(f"{trace_id('quiet', 1):032x}")["post"]) == 1
        assert sum(one.attributes.get("thinned", 0) for one in loud) == made.counts()["thinned"] == 5000 - 20


def test_many_attempts_at_once_make_a_bounded_number_of_spans(use: Use) -> None:
    with collector() as seen:
        now = [100.0]
        made = use(seen.url, lambda: now[0])
        for number in range(12_000):
            with span("post", f"job-{number}", 1):
                pass
        assert made.counts()["thinned"] == 11_000
        now[0] += 1.0
        for number in range(300):
            with span("post", f"later-{number}", 1):
                pass
        made.stop()
        assert made.counts() == {"sent": 1200, "failed": 0, "dropped": 0, "thinned": 11_100}
        assert len(made._pace._levels) == 10_000


def hang(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def drip(connection: socket.socket) -> None:
    while not threading.Event().wait(0.5):
        connection.sendall(b"H")


def garbage(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"\x00\xff not HTTP at all\r\n\r\n")


def endless(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\r\n")
    while True:
        connection.sendall(b"\xff" * 65536)


def endless_head(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X: " + b"y" * 65000 + b"\r\n")


def redirect(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 307 See\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n")


def busy(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 503 Busy\r\nRetry-After: 999999999\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("what", [hang, drip, garbage, endless, endless_head, redirect, busy])
def test_whatever_a_collector_does_costs_nothing_and_ends(
    use: Use, what: Callable[[socket.socket], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logdoctor.wiring.tracing._STOP_SECONDS", 0.5)
    with answering(what) as url:
        made = use(url)
        for number in range(4000):  # to wait for the collector would take hours
            with span("scan", f"job-{number % 300}", 1):
                pass
        made.stop()
        counts = made.counts()
        assert counts["sent"] == 0 or what is endless
        assert len(made._queue._waiting) <= 2048


def test_nobody_listens_and_what_does_not_fit_is_counted(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_QUEUE", 50), ("_BURST", 1000.0), ("_EVERY", 3600.0)):
        monkeypatch.setattr(f"logdoctor.wiring.tracing.{name}", value)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    made = use(f"http://127.0.0.1:{port}")
    waiting.until(lambda: made._queue._turns.done)  # and the next turn is in an hour
    for _ in range(400):
        with span("scan", "a", 1):
            pass
    assert made.counts()["dropped"] == 350
    made.stop()
    assert made.counts() == {"sent": 0, "failed": 50, "dropped": 350, "thinned": 0}


@pytest.mark.parametrize("url", ["collector:4318", "ftp://x", "http://", "http://[", "http://x:99999"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="LOGDOCTOR_OTLP_URL is no http:// or https:// URL"):
        tracer(Settings(otlp_url=url))


OFF = """
import sys
from pathlib import Path
from logdoctor import tracing
from logdoctor.wiring.running import service, worker
from logdoctor.settings import Settings
made = [make(Settings(data_dir=Path(sys.argv[1]) / make.__name__)) for make in (worker, service)]
assert not tracing.is_on() and tracing.span("a", "b", 1) is tracing.NOTHING
print([name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "requests")])
from logdoctor.web.app import application
parts = ("opentelemetry.sdk", "opentelemetry.exporter", "requests", "logdoctor.wiring.tracing")
print([name for name in sys.modules if name.startswith(parts)])
"""


def test_without_a_collector_nothing_of_opentelemetry_is_imported(tmp_path: Path) -> None:
    """But for the protocol of logs that come in, and what FastAPI imports by itself."""
    line = [sys.executable, "-c", OFF, str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[]", "[]"]
