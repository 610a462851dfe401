"""A log that comes in pieces gets the verdict that the whole file gets."""

import random
from pathlib import Path

import pytest

from logdoctor import pipeline
from logdoctor.pipeline import ReadLimits
from logdoctor.pipeline.attempts import attempts
from logdoctor.rules.scanner import Scanner
from logdoctor.service.service import Service
from logdoctor.store.names import Key
from tests.service.services import CORPUS, end, final, killed, opened, plain, serving
from tests.soak import SOAKING

ALL = sorted(CORPUS.glob("*/*.log"))
LOGS = ALL if SOAKING else ALL[::6]


def feed(service: Service, key: Key, data: bytes, chance: random.Random, largest: int = 60_000) -> None:
    """Send the bytes in random pieces; durable when it returns."""
    service.intake.open(key)
    future, begin, reached = None, 0, service.logs.standing(key).next
    while begin < len(data):
        part = data[begin : begin + chance.randrange(1, largest)]
        future = service.intake.take(key, reached + begin, part)
        begin += len(part)
    if future is not None:
        future.result()


def wanted(path: Path, scanner: Scanner, limits: ReadLimits) -> bytes:
    return plain(pipeline.diagnose([pipeline.LogFile("main", path)], scanner, limits))


@pytest.mark.more_in_soak
def test_every_log_of_the_corpus(service: Service, scanner: Scanner, limits: ReadLimits) -> None:
    for path in LOGS:
        key = Key(path.stem, 1, "main")
        feed(service, key, path.read_bytes(), random.Random(path.name))
        end(service, key)
    for path in LOGS:
        assert plain(final(service, Key(path.stem, 1, "main")).verdict) == wanted(path, scanner, limits), path
    assert len(ALL) == 89


@pytest.mark.more_in_soak
def test_with_a_restart_in_the_middle(folder: Path, scanner: Scanner, limits: ReadLimits) -> None:
    logs = [path.read_bytes() for path in LOGS]
    keys = [Key(path.stem, 1, "main") for path in LOGS]
    cuts = [random.Random(path.name).randrange(len(log) + 1) for path, log in zip(LOGS, logs, strict=True)]
    with serving(folder, scanner) as service:
        for key, log, cut in zip(keys, logs, cuts, strict=True):
            feed(service, key, log[:cut], random.Random(1))
    with serving(folder, scanner) as service:
        assert not any(head.bytes for head in service.log.heads().values()), "all was archived"
        for key, log, cut in zip(keys, logs, cuts, strict=True):
            assert service.logs.standing(key).next == cut
            feed(service, key, log[cut:], random.Random(2))
            end(service, key)
        for key, path in zip(keys, LOGS, strict=True):
            assert plain(final(service, key).verdict) == wanted(path, scanner, limits), path


@pytest.mark.more_in_soak
def test_with_kills_in_the_middle(tmp_path: Path, scanner: Scanner, limits: ReadLimits) -> None:
    """Killed three times, each time with some of the logs still on their way."""
    sample = ALL[:: 7 if SOAKING else 14]
    logs = {Key(path.stem, 1, "main"): path.read_bytes() for path in sample}
    chance = random.Random(3)
    folder = tmp_path / "0"
    for turn in range(4):
        service = opened(folder, scanner)
        try:
            for key, log in logs.items():
                begin = service.logs.standing(key).next
                assert begin == 0 or turn
                until = len(log) if turn == 3 else chance.randrange(begin, len(log) + 1)
                feed(service, key, log[begin:until], chance)
                if turn == 3 or chance.random() < 0.2:
                    end(service, key)
            if turn == 3:
                for key, path in zip(logs, sample, strict=True):
                    assert plain(final(service, key).verdict) == wanted(path, scanner, limits), path
            else:
                folder = killed(folder, tmp_path / str(turn + 1))
        finally:
            service.stop()


@pytest.mark.more_in_soak
@pytest.mark.parametrize("seed", range(3 if SOAKING else 1))
def test_several_streams_make_the_verdict_of_a_folder(
    service: Service, scanner: Scanner, limits: ReadLimits, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    logs = {f"rank{n}.log": path.read_bytes() for n, path in enumerate(chance.sample(ALL, 11))}
    (tmp_path / "logs").mkdir()
    for name, log in logs.items():
        (tmp_path / "logs" / name).write_bytes(log)
    parts = [(name, part) for name, log in logs.items() for part in range(0, len(log), 50_000)]
    places = {name: 0 for name in logs}
    for name in chance.sample([name for name, _ in parts], len(parts)):  # the streams grow side by side
        begin = places[name]
        places[name] += 50_000
        feed(service, Key("job", 1, name), logs[name][begin : begin + 50_000], chance)
    end(service, Key("job", 1, ""))
    (attempt,) = attempts(tmp_path / "logs")
    verdict = pipeline.diagnose(attempt.streams, scanner, limits)
    assert plain(final(service, Key("job", 1, "")).verdict) == plain(verdict)
