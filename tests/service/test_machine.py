"""Whatever is sent in whatever order, with whatever restarts: each stream has what was acknowledged, once."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from logdoctor import pipeline
from logdoctor.errors import OffsetMismatch
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.store.jobs.records import Records
from logdoctor.store.log.archive import Archive
from logdoctor.store.log.objects import FolderObjects
from logdoctor.store.log.shards import shard_of
from logdoctor.store.log.table import LogLimits, LogTable
from logdoctor.store.names import Key, file_name
from logdoctor.store.schema import shards
from logdoctor.text import natural
from tests import waiting
from tests.service.services import BOUNDS, CORPUS, PATIENT, end, final, killed, looked, opened, plain, still

TEXT = b"".join(path.read_bytes() for path in sorted(CORPUS.glob("*/*.log"))[::9])[: 3 << 20]
_KEYS = st.sampled_from([Key("job", 1, "rank 0"), Key("job", 1, "²/1".replace("/", "-")), Key("job", 2, "rank 0")])
_SIZES = st.one_of(st.integers(0, 300), st.integers(1, 60_000), st.just(1_200_000))
_OFFSETS = st.one_of(st.just(0), st.integers(-500, 500))  # from where the stream ends
_SMALL = BOUNDS._replace(unarchived=50_000)


class Machine(RuleBasedStateMachine):
    """A service beside a dictionary of bytes."""

    scanner: Scanner
    limits: ReadLimits

    @initialize()
    def begin(self) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="machine"))
        self.folder, self.restarts = self.top / "0", 0
        self.model: dict[Key, bytes] = {}
        self.marks: dict[Key, set[str]] = {}
        self.start()

    def start(self) -> None:
        self.service = still(opened(self.folder, self.scanner, PATIENT, _SMALL))

    @rule(key=_KEYS, size=_SIZES, wrong=_OFFSETS)
    def append(self, key: Key, size: int, wrong: int) -> None:
        known = self.model.setdefault(key, b"")
        data = TEXT[len(known) % len(TEXT) :][:size]
        self.service.intake.open(key)
        try:
            reached = self.service.intake.take(key, len(known) + wrong, data).result().next
        except OffsetMismatch as mismatch:
            assert wrong and mismatch.next_offset == len(known)
        else:
            assert not wrong and reached == len(known + data)
            self.model[key] = known + data

    @rule(key=_KEYS, size=st.integers(1, 2000), mark=st.sampled_from("abcd"), repeated=st.booleans())
    def push(self, key: Key, size: int, mark: str, repeated: bool) -> None:
        known = self.model.setdefault(key, b"")
        data = TEXT[len(known) % len(TEXT) :][:size]
        marks = self.marks.setdefault(key, set())
        self.service.intake.open(key)
        for future in [self.service.intake.push(key, data, mark) for _ in range(1 + repeated)]:
            future.result()
        if mark not in marks:
            self.model[key] = known + data
            marks.add(mark)

    @rule(key=_KEYS, count=st.integers(2, 30), size=st.integers(1, 3000))
    def append_many_at_once(self, key: Key, count: int, size: int) -> None:
        known = self.model.setdefault(key, b"")
        futures = []
        self.service.intake.open(key)
        for _ in range(count):
            data = TEXT[len(known) % len(TEXT) :][:size]
            futures.append(self.service.intake.take(key, len(known), data))
            known += data
        for future in futures:
            future.result()
        self.model[key] = known

    @rule(key=_KEYS, whole=st.booleans())
    def finish(self, key: Key, whole: bool) -> None:
        if key in self.model:
            end(self.service, key, whole=whole)

    @rule(key=_KEYS)
    def let_go(self, key: Key) -> None:
        if attempt := self.service.holding.attempts.get((key.job, key.attempt)):
            looked(self.service)
            if attempt.settled:
                waiting.until(lambda: self.service.holding.forget(attempt) or (looked(self.service) and False))

    @rule(key=_KEYS)
    def change_owner(self, key: Key) -> None:
        """Another worker owned the shard in between."""
        shard = shard_of(key.job, key.attempt)
        with self.service.records.database.appending() as connection:
            taken = {"epoch": shards.c.epoch + 1, "until": 0.0, "owner": "another"}
            connection.execute(sa.update(shards).where(shards.c.shard == shard).values(taken))
        self.service.owner._beat()

    @rule()
    def restart(self) -> None:
        self.service.stop()
        self.check_archive()
        self.start()

    @rule()
    def kill(self) -> None:
        self.restarts += 1
        copy = killed(self.folder, self.top / str(self.restarts))
        self.service.stop()
        self.folder = copy
        self.start()

    @rule(key=_KEYS, first=st.integers(1, 3000), more=st.integers(0, 20))
    def read(self, key: Key, first: int, more: int) -> None:
        lines = self.model.get(key, b"").split(b"\n")
        lines = lines if lines[-1] else lines[:-1]
        found = self.service.logs.lines(key, first, first + more, 1 << 30)
        assert found.lines == lines[first - 1 : first + more] and found.complete

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        for key, data in getattr(self, "model", {}).items():
            assert self.service.logs.standing(key)[:2] == (len(data), data.count(b"\n"))

    @precondition(lambda self: self.model)
    @rule()
    def judge(self) -> None:
        for job, number in {key[:2] for key in self.model}:
            self.check_verdict(job, number)

    def check_verdict(self, job: str, number: int) -> None:
        """The verdict on all that was sent is that on the same bytes in files."""
        whole = Key(job, number, "")
        end(self.service, whole)
        known = self.service.streams(job, number)  # one without bytes is lost in a restart
        assert {key.stream for key, data in self.model.items() if data and key[:2] == whole[:2]} <= set(known)
        keys = [Key(job, number, stream) for stream in sorted(known, key=natural)]
        streams = []
        for key in keys:
            path = self.top / f"{file_name(str(key))}.log"
            path.write_bytes(self.model[key])
            streams.append(pipeline.LogFile(key.stream, path))
        wanted = pipeline.diagnose(streams, self.scanner, self.limits)
        waiting.until(lambda: plain(final(self.service, whole).verdict) == plain(wanted))

    def check_archive(self) -> None:
        """All is in the archive once the service has stopped, and nothing besides."""
        with closing(Records(f"sqlite:///{self.folder}/logdoctor.db")) as records:
            log = LogTable(records.database, LogLimits(0, 0, 0))
            archive = Archive(records.database, FolderObjects(self.folder / "archive"))
            assert not any(head.bytes for head in log.heads().values())
            for key, data in self.model.items():
                assert archive.open(key).read(0, 1 << 30) == data
            archive.sweep(time.time() + 7200)  # what a kill left
            named = {part.name for part in archive.objects.walk() if part.name.endswith(".zst")}
            assert len(named) == sum(archive._listed(*of).count for of in {key[:2] for key in self.model})

    def teardown(self) -> None:
        self.service.stop()
        self.check_archive()
        shutil.rmtree(self.top)


@pytest.mark.in_sqlite
def test_any_history(scanner: Scanner, limits: ReadLimits) -> None:
    """With HYPOTHESIS_PROFILE=soak: many and long ones."""
    machine = type("Machine", (Machine,), {"scanner": scanner, "limits": limits})
    profile = settings()
    long = profile.max_examples > 1000
    steps = 40 if long else 12
    run_state_machine_as_test(
        machine,
        settings=settings(
            profile,
            max_examples=profile.max_examples // 6,
            stateful_step_count=steps,
            phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes minutes
        ),
    )


@pytest.fixture(scope="module", autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put what the machines leave behind where pytest clears it; other modules keep the place they know."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("machines"))
    yield
    tempfile.tempdir = before
