"""What the journal acknowledges comes back: after a crash, on a full disk, from many threads."""

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from logdoctor.errors import StorageFull
from logdoctor.store.frames import MAX_RAW, Packer, walk
from logdoctor.store.journal import Journal, JournalEntry, Note, _secret
from logdoctor.store.names import Key
from tests.service.disks import fill, small_disk
from tests.store.appender import data_of

KEY = Key("job", 1, "rank 0")
ROOT = Path(__file__).parents[2]


class Owner:
    """Does with the journal what an intake does: remembers what was acknowledged, gives up what failed."""

    def __init__(self, folder: Path, min_free: int = 0) -> None:
        self.acknowledged: list[JournalEntry] = []
        self.refused: list[JournalEntry] = []
        self.errors: list[StorageFull] = []
        self.groups = 0
        self._changed = threading.Condition()
        self.journal = Journal(folder, self._committed, self._failed, min_free)

    def _committed(self, group: Sequence[JournalEntry]) -> None:
        with self._changed:
            self.groups += 1
            self.acknowledged += group
            self._changed.notify_all()

    def _failed(self, group: Sequence[JournalEntry], error: StorageFull) -> None:
        with self._changed:
            self.refused += [*group, *self.journal.withdraw()]
            self.errors.append(error)
            self._changed.notify_all()

    def append(self, *entries: JournalEntry) -> None:
        """Append, and wait for the answers."""
        with self._changed:
            wanted = len(self.acknowledged) + len(self.refused) + len(entries)
        for entry in entries:
            self.journal.append(entry)
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.acknowledged) + len(self.refused) >= wanted, 20)


def replayed(folder: Path) -> list[JournalEntry]:
    return list(Journal(folder, lambda group: None, lambda group, error: None).replay())


def entries(count: int, size: int = 10, begin: int = 0) -> list[JournalEntry]:
    return [
        JournalEntry(KEY, n * size, os.urandom(size), f"mark{n}" if n % 3 == 0 else "") for n in range(begin, count)
    ]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    owner.journal.close()


def test_what_comes_while_a_group_is_written_is_one_group(owner: Owner, tmp_path: Path) -> None:
    many = entries(1000)
    for entry in many:
        owner.journal.append(entry)
    owner.journal.start()
    owner.journal.close()
    assert owner.acknowledged == replayed(tmp_path) == many
    assert owner.groups == 1


def test_threads_share_groups_and_each_keeps_its_order(owner: Owner, tmp_path: Path) -> None:
    owner.journal.start()

    def send(stream: str) -> None:
        for n in range(300):
            owner.journal.append(JournalEntry(Key("job", 1, stream), n, b"x"))

    threads = [threading.Thread(target=send, args=(f"s{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    owner.journal.close()
    again = replayed(tmp_path)
    assert again == owner.acknowledged and len(again) == 2400
    for n in range(8):
        assert [entry.offset for entry in again if entry.key.stream == f"s{n}"] == list(range(300))
    assert owner.groups < 1200


def test_a_group_has_bounds_so_that_it_can_be_read_again(owner: Owner, tmp_path: Path) -> None:
    """However much waits: bytes (a), and names of very many small entries (b)."""
    long = Key("j" * 200, 999_999, "s" * 200)
    many = [JournalEntry(KEY, n << 20, bytes(1 << 20)) for n in range(20)] + [
        JournalEntry(long, n, b"x") for n in range(45_000)
    ]
    for entry in many:
        owner.journal.append(entry)
    owner.journal.start()
    owner.journal.close()
    assert len(owner.acknowledged) == len(many)
    assert sum(1 for _ in replayed(tmp_path)) == len(many)
    assert owner.groups >= 3


def test_what_is_too_large_to_be_read_again_is_not_acknowledged(owner: Owner, tmp_path: Path) -> None:
    try:
        for entry in (JournalEntry(KEY, 0, bytes(MAX_RAW + 1)), JournalEntry(Key("job", 1, "other"), 0, b"next")):
            owner.journal.append(entry)
    except Exception as error:  # noqa: BLE001 - any refusal will do, a loss will not
        assert not isinstance(error, AssertionError)
    owner.journal.start()
    owner.journal.close()
    assert sum(1 for _ in replayed(tmp_path)) == len(owner.acknowledged)


def test_a_rotated_file_is_released_and_the_rest_stays(owner: Owner, tmp_path: Path) -> None:
    first, second, third = entries(3), entries(6, begin=3), entries(9, begin=6)
    owner.journal.start()
    owner.append(*first)
    assert owner.journal.held == 30
    number = owner.journal.rotate()
    owner.append(*second)
    assert replayed(tmp_path) == [*first, *second]
    owner.journal.release(number)
    assert replayed(tmp_path) == second
    owner.journal.release(owner.journal.rotate())
    assert replayed(tmp_path) == [] and list(tmp_path.glob("*.zst")) == []
    owner.append(*third)
    assert replayed(tmp_path) == third
    assert owner.journal.held == 30


def test_a_new_journal_leaves_the_old_files_until_they_are_released(owner: Owner, tmp_path: Path) -> None:
    owner.journal.start()
    owner.append(*entries(3))
    old = owner.acknowledged
    owner.journal.close()
    again = Owner(tmp_path)
    assert list(again.journal.replay()) == old
    again.journal.start()
    again.append(*entries(6, begin=3))
    assert replayed(tmp_path) == [*old, *again.acknowledged]
    number = again.journal.rotate()
    again.journal.release(number)
    assert replayed(tmp_path) == []
    again.journal.close()


def test_closing_writes_what_waits(owner: Owner, tmp_path: Path) -> None:
    owner.journal.start()
    many = entries(500)
    for entry in many:
        owner.journal.append(entry)
    owner.journal.close()
    assert replayed(tmp_path) == many == owner.acknowledged


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_before_a_kill_is_replayed_in_order(tmp_path: Path, seed: int) -> None:
    command = [sys.executable, "-m", "tests.store.appender", str(tmp_path), str(seed)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as child:
        assert child.stdout is not None
        begun = child.stdout.readline()
        killer = threading.Timer(0.2 + random.Random(seed).random() * 0.4, child.send_signal, [signal.SIGKILL])
        killer.start()
        told = (begun + child.stdout.read()).decode()
    killer.join()
    acknowledged = [line.split() for line in told.split("\n")[:-1]]
    assert len(acknowledged) > 100
    again = [(entry.key.stream, str(entry.offset), str(len(entry.data))) for entry in replayed(tmp_path)]
    assert again[: len(acknowledged)] == [tuple(line) for line in acknowledged]
    for entry in replayed(tmp_path):
        assert entry.data == data_of(entry.key.stream, entry.offset, seed)


def test_a_torn_tail_of_any_length_ends_the_replay(owner: Owner, tmp_path: Path) -> None:
    owner.journal.start()
    owner.append(*entries(2))
    owner.append(*entries(4, begin=2))
    owner.journal.close()
    (path,) = tmp_path.glob("*.zst")
    whole = path.read_bytes()
    with path.open("rb") as file:
        begin = list(walk(file.fileno(), 0, _secret(path)))[-1].begin
    acknowledged = len(owner.acknowledged)
    last = sum(1 for entry in owner.acknowledged if entry.offset >= 20)
    for length in range(begin, len(whole)):
        path.write_bytes(whole[:length])
        assert replayed(tmp_path) == owner.acknowledged[: acknowledged - last]
        path.write_bytes(whole[:length] + bytes(len(whole) - length))
        assert replayed(tmp_path) in (owner.acknowledged, owner.acknowledged[: acknowledged - last])


@pytest.mark.parametrize("part", ["magic", "header", "note", "data"])
def test_damage_in_the_middle_is_told_and_costs_one_group(owner: Owner, tmp_path: Path, part: str) -> None:
    owner.journal.start()
    for n in range(3):
        owner.append(*entries(n + 1, begin=n))
    owner.journal.close()
    (path,) = tmp_path.glob("*.zst")
    with path.open("rb") as file:
        frame = list(walk(file.fileno(), 0, _secret(path)))[1]
    content = bytearray(path.read_bytes())
    place = {"magic": frame.begin, "header": frame.begin + 14, "note": frame.data - 2, "data": frame.end - 5}[part]
    content[place] ^= 0x10
    path.write_bytes(content)
    with capture_logs() as logs:
        assert replayed(tmp_path) == [owner.acknowledged[0], owner.acknowledged[2]]
    assert any(log["log_level"] == "error" and str(path) in str(log) for log in logs)


def test_a_full_disk_refuses_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as folder:
        _fill_up_and_go_on(Owner(folder / "journal"), folder, lambda: fill(folder, 100_000))


def test_space_is_left_for_others(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as folder:
        owner = Owner(folder / "journal", min_free=1 << 20)
        _fill_up_and_go_on(owner, folder, lambda: fill(folder, 1_100_000))
        assert str(1 << 20) in owner.errors[0].cause


def _fill_up_and_go_on(owner: Owner, folder: Path, filled: Callable[[], Path]) -> None:
    owner.journal.start()
    owner.append(*entries(3, 20_000))
    ballast = filled()
    before = list(owner.acknowledged)
    for n in range(3, 20):
        owner.append(*entries(n + 1, 20_000, begin=n))
    assert owner.refused and owner.acknowledged[:3] == before
    assert [error.thing for error in owner.errors] == [str(folder / "journal")] * len(owner.errors)
    assert replayed(folder / "journal") == owner.acknowledged
    ballast.unlink()
    acknowledged, refused = len(owner.acknowledged), len(owner.refused)
    owner.append(*entries(25, 20_000, begin=20))
    assert len(owner.refused) == refused and len(owner.acknowledged) == acknowledged + 5
    assert replayed(folder / "journal") == owner.acknowledged
    owner.journal.release(owner.journal.rotate())
    owner.append(*entries(26, 20_000, begin=25))
    assert replayed(folder / "journal") == owner.acknowledged[-1:]
    owner.journal.close()


def test_no_room_for_a_new_file_is_refused_too(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4 << 20) as folder:
        owner = Owner(folder / "journal")
        owner.journal.start()
        ballast = fill(folder)
        owner.append(*entries(2))
        assert len(owner.refused) == 2 and replayed(folder / "journal") == []
        ballast.unlink()
        owner.append(*entries(2))
        assert replayed(folder / "journal") == owner.acknowledged and len(owner.acknowledged) == 2
        owner.journal.close()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow over `size`: a write over it is short, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_write_that_breaks_off_is_undone(owner: Owner, tmp_path: Path) -> None:
    owner.journal.start()
    owner.append(*entries(2, 5000))
    with largest_file(12_000):
        owner.append(*entries(3, 5000, begin=2))
        assert len(owner.refused) == 1
        assert replayed(tmp_path) == owner.acknowledged
        assert max(path.stat().st_size for path in tmp_path.glob("*.zst")) < 12_000
        owner.append(JournalEntry(KEY, 10_000, b"small"))
    owner.append(JournalEntry(KEY, 10_005, bytes(10_000)))
    assert len(owner.acknowledged) == 4 and replayed(tmp_path) == owner.acknowledged


def test_an_answer_that_fails_ends_nothing(tmp_path: Path) -> None:
    """The thread of the journal serves everybody: what one answer raises must not stop it."""
    answered: list[JournalEntry] = []

    def committed(group: Sequence[JournalEntry]) -> None:
        answered.extend(group)
        if group[0].offset == 0:
            raise ValueError("of this group")

    journal = Journal(tmp_path, committed, lambda group, error: None)
    journal.start()
    for entry in entries(3):
        journal.append(entry)
        deadline = time.monotonic() + 3
        while entry not in answered and time.monotonic() < deadline:
            time.sleep(0.002)
    journal.close()
    assert len(answered) == 3


def test_bytes_that_look_like_a_frame_are_none(tmp_path: Path, owner: Owner) -> None:
    """A sender that puts a whole frame into its log, and a tail that is torn in the middle of it."""
    noise = random.Random(1).randbytes(300_000)
    forged = Packer().pack(msgspec.msgpack.encode([Note(Key("victim", 1, "main"), 0, 5, "")]), b"Xid 7")
    owner.journal.start()
    owner.append(JournalEntry(KEY, 0, noise + forged + noise))
    owner.journal.close()
    (path,) = tmp_path.glob("*.zst")
    assert forged in path.read_bytes()
    for cut in (1000, 200_000):
        path.write_bytes(path.read_bytes()[:-cut])
        assert replayed(tmp_path) == []


def test_what_was_set_aside_is_replayed_again(tmp_path: Path, owner: Owner) -> None:
    owner.journal.start()
    owner.append(JournalEntry(KEY, 0, b"one\n"))
    owner.journal.close()
    later = Journal(tmp_path, lambda group: None, lambda group, error: None)
    later.set_aside()
    later.release(later.rotate())
    assert replayed(tmp_path) == [JournalEntry(KEY, 0, b"one\n")]
    later.drop_kept()
    assert replayed(tmp_path) == []
