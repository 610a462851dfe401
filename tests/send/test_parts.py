"""The parts of the sender on their own: merging, spooling, names, the environment."""

import json
import os
import re
import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logdoctor.errors import SendError
from logdoctor.job.send import resume as resuming
from logdoctor.job.send import run, ship
from logdoctor.job.send.__main__ import main
from logdoctor.job.send.backoff import Backoff
from logdoctor.job.send.body import ENCODINGS, encoded
from logdoctor.job.send.client import Client, ServiceAnswer
from logdoctor.job.send.environment import read_environment
from logdoctor.job.send.follow import is_rotated
from logdoctor.job.send.merge import HOLD_BYTES, LineMerge
from logdoctor.job.send.notices import ShippingNotices
from logdoctor.job.send.resume import resume
from logdoctor.job.send.shipper import CommandEnd, Shipper
from logdoctor.job.send.spool import Spool, gap_note, left_spools, new_spool, read_about, reopened
from logdoctor.job.send.target import ShippingTarget, checked_url, is_name, make_target, named_after
from logdoctor.job.send.telling import failed_run
from logdoctor.text import ANSI
from tests.send.service import Service, _decoded

CODES = [b"\x1b[0m", b"\x1b[m", b"\x1b[1;31m", b"\x1b[ q", b"\x1b", b"\x1b[", b"\x1b[3", b"\r", b"\n", b"\x1b[["]


@given(st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=12).map(lambda b: b.replace(b"\x01", b"\n")))))
def test_merged_lines_are_the_lines_of_the_channels(pieces: list[tuple[int, bytes]]) -> None:
    marked = [(channel, bytes(b if b == 10 else (b & 0xFE) | channel for b in data)) for channel, data in pieces]
    marked = [(channel, data.replace(b"\x0b", b"\n").replace(b"\x0a", b"\n")) for channel, data in marked]
    merge = LineMerge(2)
    out = b"".join(merge.feed(channel, data) for channel, data in marked) + merge.close(0) + merge.close(1)
    for channel in (0, 1):
        whole = b"".join(data for came_from, data in marked if came_from == channel)
        ours = [line for line in out.split(b"\n") if line and all(b & 1 == channel for b in line)]
        assert ours == [line for line in whole.split(b"\n") if line]


def test_a_line_without_end_is_held_only_so_long() -> None:
    merge = LineMerge(2)
    assert merge.feed(0, b"a" * (HOLD_BYTES - 1)) == b""
    assert merge.feed(0, b"a") == b"a" * HOLD_BYTES
    assert merge.feed(1, b"b\n") == b"\nb\n"
    assert merge.feed(0, b"a\n") == b"a\n"


def test_an_unfinished_line_stays_unfinished_when_nobody_else_speaks() -> None:
    merge = LineMerge(2)
    merge.feed(0, b"a" * HOLD_BYTES)
    assert merge.feed(0, b"\nb") == b"\n"
    assert merge.close(0) + merge.close(1) == b"b"


def test_one_channel_is_not_held() -> None:
    assert LineMerge(1).feed(0, b"no end") == b"no end"


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return new_spool((str(tmp_path),), 80_000)


def read_all(spool: Spool) -> bytes:
    found = b""
    while piece := spool.read(spool.start + len(found), 1000):
        found += piece
    return found


@given(sizes=st.lists(st.integers(1, 9000), max_size=12), data=st.data())
def test_a_spool_gives_back_what_it_took(tmp_path: Path, sizes: list[int], data: st.DataObject) -> None:
    spool = new_spool((str(tmp_path),), 1 << 20)
    whole = b"".join(bytes([i]) * size for i, size in enumerate(sizes))
    for i, size in enumerate(sizes):
        spool.append(bytes([i]) * size)
    offset = data.draw(st.integers(0, len(whole)))
    spool.release(offset)
    assert spool.start <= offset
    assert read_all(spool) == whole[spool.start :]
    spool.close()
    again = reopened(spool.folder)
    assert (again.start, again.end, read_all(again)) == (spool.start, spool.end, whole[spool.start :])
    again.close()


def test_acknowledged_segments_are_deleted(spool: Spool) -> None:
    for _ in range(7):
        spool.append(b"x" * 10_000)
    before = len(os.listdir(spool.folder))
    spool.release(65_000)
    assert len(os.listdir(spool.folder)) <= before - 6
    assert read_all(spool) == b"x" * (70_000 - spool.start)


def test_a_full_spool_goes_on_after_a_gap(spool: Spool) -> None:
    for i in range(10):
        spool.append(b"%d" % i * 9_999 + b"\n")
    assert (spool.end, spool.missing) == (80_000, 20_000)
    spool.release(79_999)
    spool.append(b"again\n")
    spool.finish()
    rest = b"".join((spool.read(80_000, 58), spool.read(80_058, 100)))
    assert rest == gap_note(20_000) + b"again\n"


def test_a_spool_takes_the_whole_lines_that_fit(spool: Spool) -> None:
    spool.append(b"line\n" * 20_000)
    assert (spool.end, spool.missing) == (80_000, 20_000)
    spool.finish()
    assert read_all(spool) == b"line\n" * 16_000 + gap_note(20_000)


def test_a_spool_that_lives_cannot_be_reopened(spool: Spool, tmp_path: Path) -> None:
    spool.save_about({"a": 1})
    assert left_spools(str(tmp_path)) == [spool.folder]
    with pytest.raises(BlockingIOError):
        reopened(spool.folder)
    spool.remove()
    assert not os.path.exists(spool.folder)


def test_a_disk_that_cannot_be_written_costs_bytes_only(spool: Spool) -> None:
    spool.append(b"one\n")
    os.close(spool._written or 0)
    spool._written = os.open("/dev/full", os.O_WRONLY)
    spool.append(b"two\n")
    assert spool.missing == 4
    assert read_all(spool) == b"one\n"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("data", [b"", b"x", os.urandom(300_000), b"line\n" * 100_000])
def test_a_body_can_be_decoded(data: bytes, encoding: str) -> None:
    body, used = encoded(data, encoding)
    assert _decoded(body, used) == data
    assert len(body) <= len(data) + 1000


@pytest.mark.parametrize("name", ["a", "h.rank0", "größe 1", "x" * 200, "...", "a:b"])
def test_usable_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", " a", "a ", "a/b", "a\\b", "a\n", "\ufffd", "\ud800", "x" * 201, "ü" * 121]
)
def test_unusable_names(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://h:99999", "http://u:p@h", "http://h/?q", "http://h\n", "h:80"]
)
def test_unusable_urls_are_errors_without_passwords(url: str) -> None:
    with pytest.raises(SendError) as caught:
        checked_url(url)
    assert "u:p" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "two words", "line\nline", "\x00"])
def test_an_unusable_token_is_an_error_that_does_not_show_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(SendError) as caught:
        make_target(read_environment({}), job="j", token_file=str(tmp_path / "token"))
    assert "words" not in str(caught.value)


def test_a_target_does_not_show_its_token() -> None:
    target = make_target(read_environment({"LOGDOCTOR_TOKEN": "s3cret"}), job="j")
    assert target.token == "s3cret"
    assert "s3cret" not in repr(target) + repr(read_environment({"LOGDOCTOR_TOKEN": "s3cret"}))


@pytest.mark.parametrize(
    ("variables", "key"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "5"}, "5.0"),
        ({"SLURM_JOB_ID": "5", "SLURM_RESTART_COUNT": "2"}, "5.2"),
        ({"SLURM_JOB_ID": "5", "TORCHELASTIC_RESTART_COUNT": "1"}, "5.0.1"),
        ({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}, None),
        ({"TORCHELASTIC_RUN_ID": "100"}, None),
        ({"TORCHELASTIC_RUN_ID": "c0ffee00-0000-4000-8000-00000000beef"}, "c0ffee00-0000-4000-8000-00000000beef"),
    ],
)
def test_attempt_keys_are_honest(variables: dict[str, str], key: str | None) -> None:
    assert read_environment(variables).attempt_key == key


@pytest.mark.parametrize(
    ("variables", "suffix"),
    [({}, ""), ({"RANK": "3"}, ".rank3"), ({"SLURM_PROCID": "4"}, ".proc4"), ({"RANK": "x"}, "")],
)
def test_the_streams_name_says_who_it_is(variables: dict[str, str], suffix: str) -> None:
    assert read_environment(variables).stream == os.uname().nodename + suffix


@pytest.mark.parametrize(
    "name", ["t.log.1", "t.log-20260101", "t.log.2.gz", "t.log.gz", "t.log.old", "t.log-20260101-1200"]
)
def test_names_of_rotated_files(name: str) -> None:
    assert is_rotated(name, "t.log")


@pytest.mark.parametrize("name", ["t.log", "t.log2", "t.log.err", "u.log.1", "t"])
def test_names_of_other_files(name: str) -> None:
    assert not is_rotated(name, "t.log")


def test_waits_grow_to_a_bound() -> None:
    backoff = Backoff()
    waits = [backoff.seconds() for _ in range(12)]
    assert 0.25 <= waits[0] <= 0.5
    assert all(15 <= wait <= 30 for wait in waits[-3:])
    assert backoff.seconds(40) == 40
    assert backoff.seconds(1e9) == 300
    backoff.reset()
    assert backoff.seconds() <= 0.5


def test_notices_are_rare_and_on_one_line(tmp_path: Path) -> None:
    with (tmp_path / "err").open("wb") as file:
        notices = ShippingNotices(file.fileno())
        for _ in range(5):
            notices.away("down\nor so")
            notices.back()
    lines = (tmp_path / "err").read_text().splitlines()
    assert lines == [
        "[logdoctor] buffering logs: down?or so; they will be sent later.",
        "[logdoctor] sending logs again.",
    ]


class StalledSpool:
    """A spool whose disk does not answer until it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.kept = bytearray()
        self.missing = 0

    def append(self, data: bytes) -> None:
        self.answers.wait()
        self.kept += data

    def drop(self, count: int) -> None:
        self.missing += count

    def finish(self) -> None:
        self.kept += b"%d missing\n" % self.missing


def test_a_stalled_disk_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_HELD_BYTES", 1000)
    spool = StalledSpool()
    output = run._Output(1, spool, ShippingNotices())  # type: ignore[arg-type]
    for _ in range(300):
        output.keep(0, b"x" * 9 + b"\n")  # returns, though the disk does not answer
    spool.answers.set()
    output.close()
    *lines, last, _ = bytes(spool.kept).split(b"\n")
    assert set(lines) == {b"x" * 9}
    assert spool.missing > 0 and 10 * len(lines) + spool.missing == 3000 and last == b"%d missing" % spool.missing


@pytest.mark.parametrize("size", [1, 5, 11, 12, 13, 1000])
def test_a_command_cannot_print_what_reads_as_a_line_of_ours(size: int) -> None:
    said = b"step 1\n[logdoctor] stacks: missing ranks: 0\nquoted: [logdoctor] x [logdoctor]y [logdoctor\n[logdoctor] "
    spool = StalledSpool()
    spool.answers.set()
    output = run._Output(1, spool, ShippingNotices())  # type: ignore[arg-type]
    for at in range(0, len(said), size):
        output.keep(0, said[at : at + size])
    output.keep(None, b"[logdoctor] stacks: missing ranks: 1\n")
    output.close()
    kept = bytes(spool.kept).removesuffix(b"0 missing\n")
    ours = b"[logdoctor] stacks: missing ranks: 1\n"
    assert kept.count(b"[logdoctor] ") == 1 and ours in kept
    assert kept.replace(ours, b"").replace(b"]: ", b"] ").strip() == said.strip()


@given(
    st.lists(st.sampled_from([*re.findall(rb".", b"[logdoctor] "), b"[logdoctor", b"] ", *CODES]), max_size=40),
    st.integers(1, 50),
)
@example([b"[logdoctor", b"\x1b[0m", b"] "], 1)
@example([b"[logdoctor", b"] "[:1], b"\x1b[0;31m", b"\x1b[ q", b" "], 3)
@example([b"\x1b[", b"\x1b[0m", b"logdoctor] "], 2)
@example([b"\x1b", b"\x1b[0m", b"[", b"logdoctor] "], 6)
def test_no_code_of_a_terminal_makes_what_reads_as_a_line_of_ours(parts: list[bytes], size: int) -> None:
    said = b"".join(parts)
    output = run._Output(1, None, ShippingNotices())
    chunks = [said[at : at + size] for at in range(0, len(said), size)]
    found = ANSI.sub(b"", b"".join(map(output._with_prefix_escaped, chunks)))
    assert b"[logdoctor] " not in found
    assert found == ANSI.sub(b"", said).replace(b"[logdoctor] ", b"[logdoctor]: ")


def test_a_code_without_end_is_not_held() -> None:
    output = run._Output(1, None, ShippingNotices())
    for part in (b"[logdoctor]\x1b[", *[b"0;" * 1000] * 20, b"m", *[b"\x1b[0m" * 1000] * 20):
        assert output._with_prefix_escaped(part) == part and len(output._begun) < 15
    assert output._with_prefix_escaped(b" x") == b": x"


def test_spools_that_others_could_have_made_are_not_sent(spool: Spool, tmp_path: Path) -> None:
    spool.save_about({"url": "http://127.0.0.1:9"})
    spool.close()
    assert left_spools(str(tmp_path)) == [spool.folder]
    os.chmod(spool.folder, 0o777)
    with pytest.raises(PermissionError):
        reopened(spool.folder)
    os.chmod(spool.folder, 0o700)
    os.chmod(tmp_path, 0o777)
    assert left_spools(str(tmp_path)) == []
    os.chmod(tmp_path, 0o700)
    reopened(spool.folder).close()
    about = Path(spool.folder, "about.json")
    about.rename(tmp_path / "elsewhere")
    about.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        read_about(spool.folder)
    about.unlink()
    about.write_bytes(b"[" * 9000)
    assert resume((str(tmp_path),), url=None, token=None) == 1


def left(folder: Path, url: str) -> str:
    """A spool with a line that was meant for a service."""
    spool = new_spool((str(folder),), 1 << 20)
    spool.append(b"a line\n")
    about = {"url": url, "job": "j", "stream": "s", "attempt_key": "k", "host": os.uname().nodename}
    spool.save_about(about)
    spool.close()
    return spool.folder


def test_what_was_meant_for_one_service_is_not_sent_to_another(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    service = Service()
    service.start()
    old = "http://127.0.0.1:9"
    try:
        mine = left(tmp_path, old)
        assert resume((str(tmp_path),), url=service.url, token=None) == 1 and not service.streams
        assert f"--resume --url {service.url} --from {old}" in capfd.readouterr().err and os.path.isdir(mine)
        assert resume((str(tmp_path),), url=service.url, token=None, moved_from=f"{old}/") == 0
        assert list(service.streams.values()) == [b"a line\n"] and not os.path.exists(mine)
    finally:
        service.stop()


def test_a_resume_looks_in_the_folder_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[str, ...]] = []
    monkeypatch.setattr(resuming, "resume", lambda folders, **_: looked.append(folders) or 0)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["ship", "--resume"]) == 0 and len(looked[0]) == 2
    monkeypatch.setenv("LOGDOCTOR_SPOOL_DIR", str(tmp_path / "mine"))
    assert main(["ship", "--resume"]) == 0 and looked[1] == (str(tmp_path / "mine"),)
    assert main(["ship", "--resume", "--from", "http://old:1"]) == 2, "it says nothing of a new one"


@pytest.mark.parametrize(
    ("kept", "missing", "told", "never"),
    [
        (b"", 7000, "7,000 bytes of logs are lost", "unsent logs"),
        (b"a line\n", 0, "LOGDOCTOR_SPOOL_DIR={folder} logdoctor ship --resume", "are lost"),
        (b"a line\n", 5, "5 bytes of logs are lost", "no logs were sent"),
    ],
)
def test_what_a_full_disk_lost_is_not_called_unsent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kept: bytes, missing: int, told: str, never: str
) -> None:
    spool = new_spool((str(tmp_path),), 1 << 20)
    spool.append(kept)
    spool.drop(missing)
    shipper: Any = SimpleNamespace(finish=lambda *_: False)
    output: Any = SimpleNamespace(spool=spool)
    end = CommandEnd(1, None)
    assert not run._finish(shipper, output, end, 0.0, None, ShippingNotices(), "/nowhere")
    said = capfd.readouterr().err
    assert told.format(folder=tmp_path) in said and never not in said


@pytest.mark.parametrize("name", ["follow.json", "follow.json.new", "follow.json.lock"])
def test_a_link_at_the_state_of_ship_is_not_followed(tmp_path: Path, name: str) -> None:
    """Others may write into the spool folder, and can compute the name."""
    (tmp_path / "bashrc").write_text("precious")
    (folder := tmp_path / "spools").mkdir(mode=0o777)
    (folder / name).symlink_to(tmp_path / "bashrc")
    target = ShippingTarget("http://127.0.0.1:9", None, "job", None, "key", "main", {})
    try:
        state = ship._ShipState(str(folder / "follow.json"))
    except SendError as error:
        assert name == "follow.json.lock" and "is a link to another place" in str(error)
    else:
        state.save({"a": 1}, target, None)
        state.close()
        assert json.loads((folder / "follow.json").read_text())["files"] == {"a": 1}
    assert (tmp_path / "bashrc").read_text() == "precious"


def test_the_state_of_ship_that_somebody_else_has_put_there_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "follow.json").write_text('{"files": {"a": 1}}')
    (tmp_path / "follow.json.lock").touch()
    user, real = os.getuid(), os.fstat
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((*real(file)[:4], 1234, *real(file)[5:])))
    with pytest.raises(SendError, match="belongs to uid 1234"):
        ship._ShipState(str(tmp_path / "follow.json"))


class HeldOpen:
    """An output of the command that something else still holds open: it is read at some times, and never ends."""

    def __init__(self, *reads: float, blocked_until: float = 0.0) -> None:
        self._reads, self.now, self._blocked_until = reads, 0.0, blocked_until

    @property
    def is_writing(self) -> bool:
        return self.now < self._blocked_until

    @property
    def last_read(self) -> float:
        return max((read for read in self._reads if read <= self.now), default=0.0)

    def join(self, seconds: float) -> bool:
        self.now = round(self.now + seconds, 2)
        return False


@pytest.mark.parametrize(
    ("reads", "ends"),
    [((), 0.5), ((0.2,), 0.7), ((0.4, 0.8), 1.3), (tuple(tenth / 10 for tenth in range(1000)), 5.0)],
)
def test_output_that_comes_just_after_the_end_is_waited_for(reads: tuple[float, ...], ends: float) -> None:
    rest = HeldOpen(*reads)
    run._await_rest([rest], lambda: rest.now)  # type: ignore[list-item] # what it asks of a passing
    assert rest.now == pytest.approx(ends, abs=0.03)


def test_output_that_nobody_reads_yet_is_waited_for() -> None:
    rest = HeldOpen(blocked_until=60.0)
    run._await_rest([rest], lambda: rest.now)  # type: ignore[list-item]
    assert rest.now == pytest.approx(60.5, abs=0.05)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python crash.py", "crash"),
        ("torchrun --nproc-per-node=8 /src/train_gpt.py --lr 0.1", "train_gpt"),
        ("python -m torch.distributed.run pretrain.py", "pretrain"),
        ("python -m llama.finetune --config a.yaml", "llama.finetune"),
        ("bash -x ./launch.sh 3", "launch"),
        ("/usr/bin/true", "true"),
        ("python a\n.py", "job"),
        (".py", "job"),
    ],
)
def test_what_a_job_is_called_after(command: str, name: str) -> None:
    assert named_after(command.split(" ")) == name


class Asked:
    """A sender that has an attempt."""

    attempt = 1

    def pause(self, seconds: float) -> bool:
        raise AssertionError("no answer came after which it could pause")


def test_an_answer_that_trickles_in_delays_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    over = threading.Event()

    def trickle(listener: socket.socket) -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.01):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=trickle, args=(listener,), daemon=True).start()
        target = ShippingTarget(f"http://127.0.0.1:{listener.getsockname()[1]}", None, "job", 1, "k", "s", {})
        run._tell_verdict(target, Asked(), 0.5, ShippingNotices())  # type: ignore[arg-type] # what it asks of a shipper
        over.set()
    assert capfd.readouterr().err == f"[logdoctor] its verdict will be at {target.url}/jobs/job\n"


def test_who_may_not_read_is_told_why_there_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "verdict", lambda self, attempt: ServiceAnswer(403, {}, None, False, ""))
    target = ShippingTarget("http://127.0.0.1:1", "t", "job", 1, "k", "s", {})
    said = failed_run(target, 1, 5.0, lambda seconds: pytest.fail("it asked again"))
    assert said.endswith("/jobs/job (not here, because the token has no scope `read`)")


def test_the_wait_that_a_service_asks_for_is_kept(
    spool: Spool, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.fail_with, service.retry_after = 503, "200"
    shipper = Shipper(ShippingTarget(service.url, None, "job", 1, "k", "s", {}), spool, ShippingNotices())
    waits: list[float] = []

    def noted(seconds: float) -> None:
        waits.append(seconds)
        shipper.stop()

    monkeypatch.setattr(shipper, "_wait", noted)
    shipper.run()
    assert waits == [200.0] and len(service.requests) == 1


@pytest.mark.parametrize(
    ("status", "is_to_be_mended", "is_of_this_alone"),
    [
        *((status, True, False) for status in (401, 403)),
        *((status, False, False) for status in (429, 500, 502, 503, 507)),
        *((status, False, True) for status in (400, 404, 422)),
    ],
)
def test_what_a_refusal_means(status: int, is_to_be_mended: bool, is_of_this_alone: bool) -> None:
    refused = ServiceAnswer(status, {"error": {"cause": "it is so"}}, 7.0, False, "http://h").refusal()
    assert (bool(refused.mend), refused.only_this, refused.retry_after) == (is_to_be_mended, is_of_this_alone, 7.0)
    assert refused.cause.endswith(f"HTTP {status} (it is so)")
