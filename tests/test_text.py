"""Prefixes are taken apart, and what is left is the message."""

import calendar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.text import ANSI, decode, last_state, message_in, origin, seconds_of, shown

MESSAGE = "lost the link"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lost the link", "lost the link"),
        ("", ""),
        ('{"timestamp": 1.5, "level": "error", "message": "lost the link"}', "lost the link"),
        ('[rank3]: {"ts":"2026-11-24T10:00:00Z","msg":"lost \\"it\\"\\u00e9","rank":3}', 'lost "it"é'),
        ('{"msg":"event","details: ":{"message":"nvswitch2: SXid 20034, Fatal"}}', "nvswitch2: SXid 20034, Fatal"),
        ('{"time": "10:00", "message": "lost the li', "lost the li"),
        ('{"message": "cut \\u00', "cut \\u00"),
        ('{"message": "\\ud800 alone"}', "? alone"),
        ('{"loss": 2.5, "step": 3}', '{"loss": 2.5, "step": 3}'),
        ('{"message": " "}', '{"message": " "}'),
        ('RuntimeError: {"message": "lost"}', 'RuntimeError: {"message": "lost"}'),
    ],
)
def test_of_a_json_record_the_message_is_what_it_says(line: str, message: str) -> None:
    assert message_in(line) == message


@given(st.text() | st.text(alphabet='{}":\\umsglog ').map('{{"msg":"{}'.format))
def test_property_whatever_a_line_says_can_be_written(line: str) -> None:
    message_in(line).encode()


@pytest.mark.parametrize(
    ("prefix", "wanted"),
    [
        ("", {}),
        ("[rank3]: ", {"rank": 3}),
        ("[rank12]:", {"rank": 12}),
        ("[Rank 7] ", {"rank": 7}),
        ("[Rank_7]: ", {"rank": 7}),
        ("rank5[4182][MainThread]: ", {"rank": 5}),
        ("[default2]:", {"local_rank": 2}),
        ("[default2]:[rank10]: ", {"local_rank": 2, "rank": 10}),
        ("[1,17]<stderr>:", {"rank": 17}),
        ("[1,0]<stdout>: ", {"rank": 0}),
        ("12: ", {"task": 12}),
        ("12: [rank99]: ", {"task": 12, "rank": 99}),
        ("gpu-node-17: ", {"node": "gpu-node-17"}),
        ("node0042.cluster.local: ", {"node": "node0042.cluster.local"}),
        ("10.0.0.7: ", {"node": "10.0.0.7"}),
        ("gpu-17:[rank3]: ", {"node": "gpu-17", "rank": 3}),
        ("[pod/trainer-worker-3/pytorch] ", {"node": "trainer-worker-3"}),
        ("[trainer-worker-3] ", {"node": "trainer-worker-3"}),
        ("(RayTrainWorker pid=4182, ip=10.0.0.7) ", {"node": "10.0.0.7"}),
        ("(pid=4182) ", {}),
        ("2024-03-02 11:08:47,123 ", {"time": "2024-03-02 11:08:47,123"}),
        ("[2024-03-02 11:08:47] ", {"time": "[2024-03-02 11:08:47]"}),
        ("2024-03-02T11:08:47.123456Z ", {"time": "2024-03-02T11:08:47.123456Z"}),
        ("2024-03-02T11:08:47+01:00 ", {"time": "2024-03-02T11:08:47+01:00"}),
        ("03/02/2024 11:08:47 - ", {"time": "03/02/2024 11:08:47"}),
        ("Mar  2 11:08:47 ", {"time": "Mar  2 11:08:47"}),
        ("[Sat Mar  2 11:08:47 2024] ", {"time": "[Sat Mar  2 11:08:47 2024]"}),
        ("11:08:47 ", {"time": "11:08:47"}),
        ("ERROR: ", {"level": "ERROR"}),
        ("[WARNING] ", {"level": "[WARNING]"}),
        ("2024-03-02 11:08:47,123 ERROR ", {"time": "2024-03-02 11:08:47,123", "level": "ERROR"}),
        ("Mar  2 11:08:47 gpu-17: ", {"time": "Mar  2 11:08:47", "node": "gpu-17"}),
        ("3: gpu-17: [rank3]: 11:08:47 ", {"task": 3, "node": "gpu-17", "rank": 3, "time": "11:08:47"}),
    ],
)
def test_origin_of_many_prefixes(prefix: str, wanted: dict[str, Any]) -> None:
    found = origin(prefix + MESSAGE)
    assert found.message.lstrip("- ") == MESSAGE
    for field in ("node", "rank", "local_rank", "task", "time", "level"):
        assert getattr(found, field) == wanted.get(field), field


@pytest.mark.parametrize(
    "line", ["Loss: 3", "step 5: done", "the link: lost", "http://x1: y", "File: a", "100%|###| 5/5", "x = 1", "12"]
)
def test_what_is_no_prefix_stays_in_the_message(line: str) -> None:
    assert origin(line).message == line


def test_the_message_keeps_its_indentation() -> None:
    assert origin("    raise x").message == "    raise x"
    assert origin('[rank3]:   File "a.py", line 3').message == '  File "a.py", line 3'
    assert origin("[rank3]:     raise x").message == "    raise x"
    assert origin("2: [rank3]:     raise x").message == "    raise x"


def test_a_channel_is_one_writer() -> None:
    lines = ["[rank3]: a", "[rank3]: 11:08:47 ERROR: b", "11:08:48 [rank3]: c"]
    assert len({origin(line).channel for line in lines}) == 1
    assert origin("[rank4]: a").channel != origin(lines[0]).channel
    assert origin("a").channel == origin("11:08:47 a").channel == ""


@given(st.text(max_size=400))
def test_property_origin_of_any_text_ends_with_its_message(line: str) -> None:
    assert line.endswith(origin(line).message)
    assert isinstance(shown(line), str)
    assert seconds_of(line) is None or isinstance(seconds_of(line), float)


def test_a_line_of_endless_digits_has_no_rank() -> None:
    assert origin(f"[rank{'9' * 5000}]: x").rank is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[1;38;5;9mred\x1b[K", "red"),
        ("10%\r20%\r30%", "30%"),
        ("10%\r20%\r", "20%"),
        ("text\r", "text"),
        ("\r\r", ""),
        ("a\x00b", "ab"),
        ("\x1b[31m10%\r\x1b[32m20%\x1b[0m\r", "20%"),
        ("", ""),
    ],
)
def test_shown_is_what_a_terminal_would_show(line: str, text: str) -> None:
    assert shown(line) == text


def test_last_state() -> None:
    assert last_state("a\rb\r\r") == "b"
    assert last_state("a") == "a"


def test_decode_never_fails() -> None:
    assert decode(b"caf\xc3\xa9") == "café"
    assert decode(b"\xff\x00") == "\ufffd\x00"


def test_an_ansi_sequence_never_holds_a_newline() -> None:
    assert ANSI.sub(b"", b"\x1b[31\nm") == b"\x1b[31\nm"
    assert ANSI.sub(b"", b"a\x1b[31mb\x1b[2Kc\x1b[") == b"abc\x1b["


def at(year: int, month: int, day: int, *clock: int) -> float:
    """A moment as a stamp is read: hours, minutes and seconds of UTC as far as given."""
    return float(calendar.timegm((year, month, day, *clock, *[0] * (3 - len(clock)))))


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("2024-03-02 11:08:47,123 x", at(2024, 3, 2, 11, 8, 47) + 0.123),
        ("2024-03-02 11:08:47,123456 x", at(2024, 3, 2, 11, 8, 47) + 0.123456),
        ("2024-03-02 11:08:47,17,3.5", at(2024, 3, 2, 11, 8, 47)),
        ("2024-03-02 11:08:47, 123 x", at(2024, 3, 2, 11, 8, 47)),
        ("2024-03-02 11:08:47. x", at(2024, 3, 2, 11, 8, 47)),
        ("2024-03-02T11:08:47.5Z x", at(2024, 3, 2, 11, 8, 47) + 0.5),
        ("2024-03-02T11:08:47.123456789+08:00 x", at(2024, 3, 2, 11, 8, 47) + 0.123456789),
        ("2024/03/02 11:08:47 x", at(2024, 3, 2, 11, 8, 47)),
        ("[2024-03-02T11:08:47Z] x", at(2024, 3, 2, 11, 8, 47)),
        ("[rank3]: 2024-03-02_11:08:47 x", at(2024, 3, 2, 11, 8, 47)),
        ("03/02/2024 11:08:47 - x", at(2024, 3, 2, 11, 8, 47)),
        ("03/02/24 11:08:47 x", at(2024, 3, 2, 11, 8, 47)),
        ("03/02/24 11:08:47.25 x", at(2024, 3, 2, 11, 8, 47) + 0.25),
        ("[E0302 11:08:47.123 7 a.cc:3] x", at(2000, 3, 2, 11, 8, 47) + 0.123),
        ("I1122 10:11:12.123456 x", at(2000, 11, 22, 10, 11, 12) + 0.123456),
        ("W1231 23:59:59.5 x", at(2000, 12, 31, 23, 59, 59) + 0.5),
        ("Mar  2 11:08:47.75 host x", at(2000, 3, 2, 11, 8, 47) + 0.75),
        ("Mar  2 11:08:47 host kernel: x", at(2000, 3, 2, 11, 8, 47)),
        ("[Sat Mar  2 11:08:47 2024] x", at(2000, 3, 2, 11, 8, 47)),
        ("INFO 03-02 11:08:47 [engine.py:7] x", at(2000, 3, 2, 11, 8, 47)),
        ("24-03-02 11:08:47 x", None),
        ("11:08:47 x", None),
        ("2024-13-02 11:08:47 x", None),
        ("2023-02-29 11:08:47 x", None),
        ("2024-03-02 25:08:47 x", None),
        ("nothing", None),
        ("x" * 300 + "2024-03-02 11:08:47", None),
    ],
)
def test_seconds_of(line: str, seconds: float | None) -> None:
    assert seconds_of(line) == seconds


def test_stamps_without_a_year_take_the_one_given() -> None:
    assert seconds_of("Mar  2 11:08:47 x", 2024) == at(2024, 3, 2, 11, 8, 47)
    assert seconds_of("2023-03-02 11:08:47 x", 2024) == at(2023, 3, 2, 11, 8, 47)


def test_a_process_of_ray_is_a_writer_with_or_without_its_address() -> None:
    for mark in ("(TaskRunner pid=525716) ", "(pid=77) ", "(Trainer pid=9, ip=10.0.0.7) "):
        assert origin(f"{mark}step 3").channel.strip() == mark.strip()
        assert origin(f"{mark}step 3").message == "step 3"
