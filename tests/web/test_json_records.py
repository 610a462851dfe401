"""JSON records of logging libraries become text; what is none of them stays as it is, and no metric is lost."""

import base64
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from logdoctor.web.push import loki
from logdoctor.web.push.json_records import text_of_record, whole_lines
from logdoctor.web.push.labels import label_map
from tests import waiting

RECORDED = Path(__file__).with_name("recorded")


def text(record: object) -> str:
    return text_of_record(json.dumps(record).encode()).decode()


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"level": 50, "time": 1795517320857, "pid": 1, "msg": "died"}, "2026-11-24T10:48:40.857Z ERROR: died"),
        ({"level": "error", "time": 1795517320, "message": "died"}, "2026-11-24T10:48:40.000Z ERROR: died"),
        ({"level": "warn", "ts": 1795517320.5, "msg": "slow"}, "2026-11-24T10:48:40.500Z WARN: slow"),
        ({"severity": "CRITICAL", "message": "died", "rank": 3}, 'FATAL: died {"rank": 3}'),
        ({"levelname": "INFO", "asctime": "2026-11-24 10:48:40,857", "msg": "x"}, "2026-11-24 10:48:40,857 INFO: x"),
        ({"level": "info", "message": "step", "step": 10, "loss": 2.25}, 'INFO: step {"step": 10, "loss": 2.25}'),
        ({"level": "error", "message": "ERROR: died"}, "ERROR: died"),
        ({"level": "info", "message": "a\nb"}, "INFO: a\nb"),
        ({"level": "info", "msg": "caf\u00e9", "time": "soon"}, 'INFO: caf\u00e9 {"time": "soon"}'),
        ({"log": '  File "a.py", line 1\n', "stream": "stderr"}, '  File "a.py", line 1'),
        ({"date": 1795517320.5, "log": "step 1 loss 2.5"}, "step 1 loss 2.5"),
        ({"date": 1795517320.5, "log": "died", "rank": 3}, 'died {"rank": 3}'),
    ],
)  # fmt: skip
def test_a_record_is_what_a_person_would_have_logged(record: dict[str, Any], wanted: str) -> None:
    assert text(record) == wanted


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 10, "loss": 2.25}',
        b'{"step":10,"loss":2.25,"timestamp":1795517320}',
        b'{"message": "no level", "timestamp": "2026-11-24T10:48:40Z"}',
        b'{"level": "error"}',
        b'{"level": 3, "msg": "a level that nobody knows"}',
        b'{"level": true, "msg": "x"}',
        b'{"level": "info", "msg": {"a": 1}}',
        b'{"log": "no carrier"}',
        b'{"level":"info","msg":"cut',
        b'{"loss": NaN, "level": "info", "msg": "x"}',
        b'step 10 {"level":"info","msg":"x"}',
        b'{"level":"info","msg":"\\ud800"}',
        b'{"level":"info","msg":"\xff"}',
        b"{" * 100_000 + b"}",
        b"",
        b"{}",
        b":::MLLOG {}",
    ],
    ids=lambda line: line[:40].decode("latin1"),
)
def test_everything_else_stays_as_it_is(line: bytes) -> None:
    assert text_of_record(line) == line


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_line_is_taken(line: bytes) -> None:
    text_of_record(line)


VALUES = st.dictionaries(
    st.text(st.characters(categories=["Ll"]), min_size=1, max_size=8)
    | st.sampled_from(["level", "msg", "message", "event", "log", "time", "err", "stack", "exception", "pid"]),
    st.integers(-(10**12), 10**12) | st.text(max_size=20) | st.sampled_from(["info", "error", 30, 50]),
    max_size=8,
)


@given(VALUES)
def test_no_value_is_lost(record: dict[str, Any]) -> None:
    made = text(record)
    if made == json.dumps(record):
        return
    known = {"pid", "level", "time", "hostname", "v", "stream"}
    for name, value in record.items():
        if name not in known:
            found = value.strip() if isinstance(value, str) else str(value)
            assert found in made or json.dumps(found, ensure_ascii=False)[1:-1] in made, (name, made)


def test_whole_lines_end_and_keep_what_is_between() -> None:
    assert whole_lines(b"", True) == b""
    assert whole_lines(b"a", True) == b"a\n"
    assert whole_lines(b"a\r\n\n b\rc\n", True) == b"a\r\n\n b\rc\n"
    assert whole_lines(b'{"level":"info","msg":"a"}\nb', True) == b"INFO: a\nb\n"
    assert whole_lines(b'{"level":"info","msg":"a"}\nb', False) == b'{"level":"info","msg":"a"}\nb\n'


def logged(renderer: list[Any], act: Callable[[Any], None]) -> str:
    """What structlog writes, as text."""
    out = io.StringIO()
    structlog.reset_defaults()
    logger = structlog.wrap_logger(
        structlog.PrintLogger(out), processors=[structlog.processors.add_log_level, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )  # fmt: skip
    act(logger)
    return whole_lines(out.getvalue().encode(), True).decode()


def dies(logger: Any) -> None:
    try:
        try:
            {}["mask"]
        except KeyError as error:
            raise RuntimeError("no batch") from error
    except RuntimeError:
        logger.exception("worker died", rank=3)


@pytest.mark.parametrize("how", [structlog.processors.format_exc_info, structlog.processors.dict_tracebacks])
def test_structlog_with_an_exception_is_a_traceback_with_its_chain(how: Any) -> None:
    made = logged([structlog.processors.TimeStamper("iso", utc=True), how, structlog.processors.JSONRenderer()], dies)
    first, *rest = made.splitlines()
    assert first.endswith('Z ERROR: worker died {"rank": 3}')
    assert rest[0] == "Traceback (most recent call last):" and rest[-1] == "RuntimeError: no batch"
    assert "The above exception was the direct cause of the following exception:" in rest
    assert any(line.startswith("KeyError: ") for line in rest) and "locals" not in made


def pushed(name: str) -> list[dict[str, Any]]:
    """What a package was recorded to push, see `recorded/loggers.cjs`."""
    found: list[dict[str, Any]] = json.loads((RECORDED / f"{name}-loki.json").read_text())
    return [one | {"body": base64.b64decode(one["body"])} for one in found]


@pytest.mark.parametrize("name", ["pino", "winston"])
def test_what_packages_of_node_push_is_diagnosed(client: TestClient, name: str) -> None:
    jobs = set()
    for one in pushed(name):
        answer = client.post(one["path"], content=one["body"], headers={"Content-Type": one["type"]})
        assert answer.status_code == 204, answer.text
        jobs |= {batch.labels["job"] for batch in loki.decode(one["body"], one["type"])}
    assert len(jobs) == {"pino": 1, "winston": 2}[name]
    for job in jobs:
        log = client.get(f"/v1/jobs/{job}/attempts/1/streams/gpu-3/log", params={"line": "1-100"}).text
        assert "INFO: starting\n" in log and 'INFO: trained {"' in log and '"level"' not in log
        client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1})
        found = waiting.until(lambda job=job: final(client, job))
        assert found["verdict"]["reason"] == "Out of Memory Error"
        assert found["verdict"]["progress"]["step"] == 50


def final(client: TestClient, job: str) -> Any:
    answer = client.get(f"/v1/jobs/{job}/attempts/1/verdict")
    return answer.json() if answer.status_code == 200 and answer.json()["final"] else None


def test_host_counts_before_hostname() -> None:
    (one,) = pushed("pino")
    labels = [batch.labels for batch in loki.decode(one["body"], one["type"])]
    assert all(one["hostname"] == "login-1" and one["host"] == "gpu-3" for one in labels)
    assert {label_map().place(one).stream for one in labels} == {"gpu-3"}


def test_a_label_keeps_json_as_it_is() -> None:
    line = '{"level":"info","msg":"a"}'
    push = {"streams": [{"stream": {"job": "j", "logdoctor_json": "keep"}, "values": [["1795255505000000000", line]]}]}
    (batch,) = loki.decode(json.dumps(push).encode(), "application/json")
    assert batch.lines == line.encode() + b"\n"


def test_an_exception_of_node_is_kept_whole() -> None:
    (one,) = pushed("pino")
    lines = b"".join(batch.lines for batch in loki.decode(one["body"], one["type"])).decode()
    assert 'ERROR: CUDA out of memory. Tried to allocate 2.00 GiB {"rank": 3}\nError: CUDA out of memory.' in lines
    assert "\n    at " in lines
