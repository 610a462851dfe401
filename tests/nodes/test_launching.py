"""What launchers are given, and what anything a node may print makes of a world."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.nodes.launching import GRACE, OUTPUT_LIMIT, LaunchTask, ProbeAnswer, ProbeOptions, result, source
from logdoctor.nodes.probe import KINDS
from logdoctor.types.nodes import Node, Result, World

NODES = (Node("n1", "10.0.0.1"), Node("n2"), Node("n3"))
DEFAULTS = ProbeOptions()
READING: dict[str, Any] = {
    "node": "n1",
    "ok": True,
    "stage": "done",
    "tool": "torch/gloo",
    "bandwidth": {"262144": 1.5},
    "tflops": 0.1,
    "boot": "b",
    "seconds": 2,
}


def task(nodes: tuple[Node, ...] = NODES[:2], probe: ProbeOptions = DEFAULTS) -> LaunchTask:
    """A world of these nodes."""
    return LaunchTask("t12", World(3, 1, tuple(node.name for node in nodes), "try", repeats=4), nodes, 29412, probe)


def line(node: str, /, **fields: Any) -> bytes:
    """A line of the probe of this node."""
    return json.dumps({**READING, "node": node, **fields}).encode() + b"\n"


def good(node: str, /, **fields: Any) -> ProbeAnswer:
    """An answer with such a line."""
    return ProbeAnswer(node, True, line(node, **fields), b"", 0)


def of_one(answer: ProbeAnswer) -> Result:
    """How a world ends in which the other node is fine."""
    return result(task(), [answer, good("n2")], 3.0)


def test_command_carries_the_probe_and_all_it_must_know() -> None:
    options = ProbeOptions(12.5, (1024, 4096), 8, ("A=1", "B=x y"), "/opt/python")
    words = task(probe=options).command(1, lifeline=True)
    assert words[:3] == ("/opt/python", "-c", source())
    said = " ".join(words[3:])
    assert "--test t12 --world 3 --node n2 --nodes n1=10.0.0.1,n2=n2 --port 29412 --seconds 12.5 --repeats 4" in said
    assert said.endswith("--sizes 1024,4096 --gpus 8 --env A=1 --env B=x y --lifeline")
    assert task(probe=options).deadline == 12.5 + GRACE


def test_command_for_slurm_is_the_same_on_all_nodes() -> None:
    words = task().command("slurm", lifeline=False)
    assert words[words.index("--node") + 1] == "slurm"
    assert "--lifeline" not in words and "--sizes" not in words


def test_world_passes_when_all_nodes_say_that_all_was_right() -> None:
    ended = result(task(), [good("n2"), good("n1")], 3.0)
    assert (ended.ended, ended.why, ended.unreached, ended.seconds) == ("passed", "", (), 3.0)
    assert [reading.node for reading in ended.readings] == ["n1", "n2"]
    assert ended.readings[0].bandwidth == {"262144": 1.5} and ended.readings[0].ok


def test_login_messages_around_the_line_do_not_matter() -> None:
    assert of_one(ProbeAnswer("n1", True, b"Welcome to n1!\r\n" + line("n1") + b"bye\n", b"", 0)).ended == "passed"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ProbeAnswer("n1", False, launch_error="Connection refused"), "n1: not started: Connection refused"),
        (ProbeAnswer("n1", False, errors=b"x\nsh: python3: not found\n"), "n1: not started: sh: python3: not found"),
        (ProbeAnswer("n1", False), "n1: not started: no sign of the probe"),
        (good("n1", ok=False, stage="start", unusable="no torch"), "n1: unusable: no torch"),
        (good("n7"), "n1: the answer came from 'n7'"),
    ],
)
def test_world_that_was_not_launched_as_it_should_is_void(answer: ProbeAnswer, why: str) -> None:
    ended = result(task(), [answer._replace(node="n1"), good("n2", ok=False, stage="gather", why="wrong data: x")], 3.0)
    assert (ended.ended, ended.why, ended.unreached) == ("void", why, ("n1",))


def test_one_cause_of_several_nodes_is_told_once() -> None:
    away = ProbeAnswer("", False, launch_error="no python")
    ended = result(task(NODES), [away._replace(node="n1"), good("n2"), away._replace(node="n3")], 3.0)
    assert ended.why == "n1, n3: not started: no python" and ended.unreached == ("n1", "n3")


def test_world_is_void_without_an_answer_for_a_node() -> None:
    ended = result(task(), [good("n2")], 3.0)
    assert (ended.ended, ended.unreached) == ("void", ("n1",))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ProbeAnswer("n1", True, b"", b"", -9), "n1: killed: the probe ended with status -9 and said nothing"),
        (ProbeAnswer("n1", True, b"", b"", None), "n1: no answer: the probe said nothing before the deadline"),
        (ProbeAnswer("n1", True, b"", b"", None, "connection lost"), "n1: killed: connection lost"),
        (good("n1", ok=False, stage="gather", why="hangs: rank 0"), "n1: hangs: rank 0"),
        (good("n1", stage="gather"), "n1: error: no reason given"),
        (ProbeAnswer("n1", True, b"oops", b"", None), "n1: no answer: the probe said nothing before the deadline"),
        (
            ProbeAnswer("n1", True, line("n1")[:40], b"", 137),
            "n1: killed: the probe ended with status 137 and said nothing",
        ),
        (ProbeAnswer("n1", True, b"\n", b"", -15), "n1: killed: the probe ended with status -15 and said nothing"),
    ],
)
def test_node_that_started_and_did_not_say_that_all_was_right_fails_its_world(answer: ProbeAnswer, why: str) -> None:
    ended = of_one(answer)
    assert (ended.ended, ended.why, ended.unreached) == ("failed", why, ())
    assert [reading.ok for reading in ended.readings] == [False, True]


@pytest.mark.parametrize(
    "fields",
    [
        {"bandwidth": {"262144": float("nan")}},
        {"bandwidth": {"262144": float("inf")}},
        {"bandwidth": {"262144": -1.0}},
        {"bandwidth": {"262144": 0}},
        {"bandwidth": {"262144\n": 1}},
        {"bandwidth": {str(n): 1 for n in range(100)}},
        {"tflops": -1},
        {"tflops": True},
        {"seconds": 1e300},
        {"ok": 1},
        {"stage": "finished"},
        {"why": "x" * 3000},
        {"state": ["x"] * 100},
        {"gpus": -1},
        {"gpus": 10**30},
        {"node": ["n1"]},
    ],
)
def test_line_that_is_not_of_the_form_is_no_answer_and_proves_nothing(fields: dict[str, Any]) -> None:
    ended = of_one(good("n1", **fields))
    assert (ended.ended, ended.unreached) == ("void", ("n1",))
    assert ended.why.startswith("n1: answer lost: it cannot be read (")


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"oops",
        line("n1")[:40],
        b'{"level":"info","msg":"epilog ok"}\n',
        b'{"node": ' + b"[" * 200_000,
        b'{"node":"n1","ok":false,"stage":"start","why":"\\ud800"}\n',
        b"{" + b"x" * (10 << 20),
    ],
)
def test_answer_that_got_lost_of_a_probe_that_ended_by_itself_proves_nothing(output: bytes) -> None:
    ended = of_one(ProbeAnswer("n1", True, output, b"", 0))
    assert (ended.ended, ended.unreached) == ("void", ("n1",)), ended
    assert ended.why.startswith("n1: answer lost: ")


def test_more_noise_than_is_kept_may_have_hidden_the_answer() -> None:
    assert of_one(ProbeAnswer("n1", True, b"x" * OUTPUT_LIMIT, b"", None)).ended == "void"


@pytest.mark.parametrize(
    "output",
    [
        b'{"level":"info","msg":"prolog ok"}\n\n' + line("n1"),
        line("n1") + b'{"level":"info","msg":"epilog ok"}\n',
        b"Welcome to n1! \n" + line("n1") + b"{}\n{oops\n",
        line("n1", ok=False, stage="start", why="error: an older one") + line("n1"),
    ],
)
def test_the_last_line_that_is_an_answer_counts(output: bytes) -> None:
    assert of_one(ProbeAnswer("n1", True, output, b"", 0)).ended == "passed"


@pytest.mark.parametrize(
    ("errors", "boot"),
    [
        (b"motd\nlogdoctor-probe started n1 8c1f-22\nTraceback", "8c1f-22"),
        (b"logdoctor-probe started n1\n8c1f", ""),
        (b"logdoctor-probe started n1 " + b"x" * 999, "x" * 64),
        (b"logdoctor-probe started n1 \xff\x1b[2J\n", "\ufffd?[2J"),
    ],
)
def test_the_boot_of_a_node_that_died_is_known(errors: bytes, boot: str) -> None:
    (reading, _) = of_one(ProbeAnswer("n1", True, b"", errors, None)).readings
    assert not reading.ok and len(reading.boot) <= 64
    assert reading.boot == boot or (b"\x1b" in errors and reading.boot.isprintable())


def test_what_a_node_says_cannot_reach_into_a_terminal() -> None:
    ended = of_one(good("n1", ok=False, stage="gather", why="error: \x1b[2J\u202eab\nc", state=["\x1b]0;x\x07"]))
    assert ended.why.isprintable()
    assert all(text.isprintable() for reading in ended.readings for text in (reading.why, *reading.state))


@pytest.mark.parametrize("telling", range(len(KINDS) - 1))
def test_most_telling_failure_is_named(telling: int) -> None:
    worse, better = KINDS[telling], KINDS[telling + 1]
    answers = [
        good("n1", ok=False, stage="gather", why=f"{better}: a"),
        good("n2", ok=False, stage="gather", why=f"{worse}: b"),
        good("n3"),
    ]
    assert result(task(NODES), answers, 3.0).why == f"n2: {worse}: b"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    output=st.binary()
    | st.dictionaries(st.sampled_from([*READING, "unusable", "why", "state", "gpu"]), JSON)
    .map(lambda fields: json.dumps({**READING, **fields}).encode())
    .flatmap(lambda text: st.sampled_from([text, text[:-1], text + b"\n" + text, b"\xff" + text])),
    errors=st.binary(),
    started=st.booleans(),
    status=st.none() | st.integers(),
    error=st.text(),
)
def test_property_any_answer_makes_a_result(
    output: bytes, errors: bytes, started: bool, status: int | None, error: str
) -> None:
    ended = of_one(ProbeAnswer("n1", started, output, errors, status, error))
    assert ended.world == task().world
    assert ended.why.isprintable() and len(ended.why) < 700
    if ended.ended == "passed":
        assert started and json.loads(output.strip().rpartition(b"\n")[2])["ok"] is True
    else:
        assert ended.why and (ended.ended == "void") == bool(ended.unreached)


def test_many_bytes_are_judged_quickly() -> None:
    began = time.process_time()
    for output in (b"{" * (10 << 20), b"{\n" * (OUTPUT_LIMIT // 2), b"\n" * OUTPUT_LIMIT, b'{"a":' * 200_000):
        assert of_one(ProbeAnswer("n1", True, output, b"", 0)).ended == "void"
    assert time.process_time() - began < 5
