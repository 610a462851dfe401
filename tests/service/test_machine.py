"""Whatever is sent in whatever order, with whatever restarts: each stream has what was acknowledged, once."""

import shutil
import tempfile
from pathlib import Path

import pytest
import zstandard
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
from logdoctor.store.names import Key, file_name
from logdoctor.text import natural
from tests.service.services import BOUNDS, CORPUS, PATIENT, end, eventually, final, killed, looked, opened, plain

TEXT = b"".join(path.read_bytes() for path in sorted(CORPUS.glob("*/*.log"))[::9])[: 3 << 20]
_KEYS = st.sampled_from([Key("job", 1, "rank 0"), Key("job", 1, "²/1".replace("/", "-")), Key("job", 2, "rank 0")])
_SIZES = st.one_of(st.integers(0, 300), st.integers(1, 60_000), st.just(1_200_000))
_OFFSETS = st.one_of(st.just(0), st.integers(-500, 500))  # from where the stream ends
_SMALL = BOUNDS._replace(journal_bytes=50_000)


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
        self.service = opened(self.folder, self.scanner, PATIENT, _SMALL)

    @rule(key=_KEYS, size=_SIZES, wrong=_OFFSETS)
    def append(self, key: Key, size: int, wrong: int) -> None:
        known = self.model.setdefault(key, b"")
        data = TEXT[len(known) % len(TEXT) :][:size]
        with self.service.intake.opened(key) as stream:
            try:
                self.service.intake.take(stream, len(known) + wrong, data).result(90)
            except OffsetMismatch as mismatch:
                assert wrong and mismatch.next_offset == len(known)
            else:
                assert not wrong
                self.model[key] = known + data

    @rule(key=_KEYS, size=st.integers(1, 2000), mark=st.sampled_from("abcd"), repeated=st.booleans())
    def push(self, key: Key, size: int, mark: str, repeated: bool) -> None:
        known = self.model.setdefault(key, b"")
        data = TEXT[len(known) % len(TEXT) :][:size]
        marks = self.marks.setdefault(key, set())
        with self.service.intake.opened(key) as stream:
            for _ in range(1 + repeated):
                self.service.intake.push(stream, data, mark).result(90)
        if mark not in marks:
            self.model[key] = known + data
            marks.add(mark)

    @rule(key=_KEYS, count=st.integers(2, 30), size=st.integers(1, 3000))
    def append_many_at_once(self, key: Key, count: int, size: int) -> None:
        known = self.model.setdefault(key, b"")
        futures = []
        with self.service.intake.opened(key) as stream:
            for _ in range(count):
                data = TEXT[len(known) % len(TEXT) :][:size]
                futures.append(self.service.intake.take(stream, len(known), data))
                known += data
            for future in futures:
                future.result(90)
        self.model[key] = known

    @rule(key=_KEYS, whole=st.booleans())
    def finish(self, key: Key, whole: bool) -> None:
        if key in self.model:
            end(self.service, key, whole=whole)

    @rule(key=_KEYS)
    def let_go(self, key: Key) -> None:
        if attempt := self.service.intake.attempts.get((key.job, key.attempt)):
            looked(self.service)
            if attempt.settled:
                eventually(lambda: self.service.intake.forget(attempt) or (looked(self.service) and False))

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
        found = self.service.intake.lines(key, first, first + more, 1 << 30)
        assert found.lines == lines[first - 1 : first + more] and found.complete

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        for key, data in getattr(self, "model", {}).items():
            stream = self.service.intake.known(key)
            where = self.service.intake.archived(key) if stream is None else (stream.accepted, stream.lines_in)
            assert where == (len(data), data.count(b"\n"))
            if stream is not None:
                assert stream.accepted == stream.durable
                assert self.service.intake.attempts[key.job, key.attempt].streams[key.stream] is stream

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
        eventually(lambda: plain(final(self.service, whole).verdict) == plain(wanted))

    def check_archive(self) -> None:
        for key, data in self.model.items():
            path = self.folder / "archive" / file_name(key.job) / str(key.attempt) / f"{file_name(key.stream)}.zst"
            if not data and not path.exists():
                continue
            with path.open("rb") as file:
                assert zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read() == data

    def teardown(self) -> None:
        self.service.stop()
        self.check_archive()
        shutil.rmtree(self.top)


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


@pytest.fixture(scope="session", autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory) -> None:
    tempfile.tempdir = str(tmp_path_factory.mktemp("machines"))
