import hashlib
import random
import re
from collections import Counter

import pytest

from eval.labels import FailureCase, read_corpus
from eval.replay.catalogue import specimens
from eval.replay.kinds import arrivals
from eval.replay.label import FailureKind, label_of
from eval.replay.table3 import FREQUENCIES, apportioned
from logdoctor.compress.leftovers import shape
from tests.eval.replay.conftest import CORPORA
from tests.soak import SOAKING

_FIELD = re.compile(r"@[A-Za-z]\w*")
_MARKED = re.compile(rb"^(?:\[[^\]]*\]|\S+:|\([^)]*\))? *")


@pytest.mark.more_in_soak
def test_so_many_failures_are_so_many_logs_with_their_evidence(known: dict[str, FailureKind]) -> None:
    failures = 2500 if SOAKING else 400
    digests: set[bytes] = set()
    sizes: list[int] = []
    for arrival in arrivals(known, failures, 1):
        digests.add(hashlib.sha256(arrival.log.data).digest())
        sizes.append(len(arrival.log.data))
        assert arrival.log.evidence, arrival.kind.id
    assert len(digests) == failures
    assert max(sizes) < 400_000
    assert sum(sizes) / len(sizes) > 10_000


def test_the_same_seed_gives_the_same_bytes(known: dict[str, FailureKind]) -> None:
    first = [arrival.log for arrival in arrivals(known, 30, 3)]
    assert first == [arrival.log for arrival in arrivals(known, 30, 3)]
    assert first != [arrival.log for arrival in arrivals(known, 30, 4)]


def test_there_are_kinds_for_2500_failures_and_some_to_spare(known: dict[str, FailureKind]) -> None:
    there = Counter(kind.label.reason for kind in known.values())
    needed = apportioned(250, FREQUENCIES, least=1)
    assert not {reason: (there[reason], count) for reason, count in needed.items() if there[reason] < count}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_reenacted_log_tells_the_same_at_the_lines_of_its_label(known: dict[str, FailureKind], seed: int) -> None:
    for corpus in CORPORA:
        for path, case in read_corpus(corpus / "failures"):
            kind = known.get(f"{corpus.name}/{case.id}")
            if kind is None or not isinstance(case, FailureCase):
                continue
            lines = path.read_bytes().split(b"\n")
            log = kind.log(random.Random(seed))
            told = log.data.split(b"\n")
            wanted = Counter(_words(lines[number - 1]) for number in case.evidence_lines)
            assert Counter(_words(told[number - 1]) for number in log.evidence) == wanted, kind.id
            assert kind.label == label_of(case)


def _words(line: bytes) -> int:
    """The shape of a line, whatever names and numbers stand in it."""
    return shape(re.sub(rb"[\w./:-]*\d[\w./:-]*", b"0", line))


@pytest.mark.more_in_soak
@pytest.mark.parametrize("seed", [1, 2, 3] if SOAKING else [1])
def test_a_composed_log_names_its_failure_at_the_lines_of_its_label(known: dict[str, FailureKind], seed: int) -> None:
    for specimen in specimens():
        log = known[specimen.id].log(random.Random(seed))
        told = log.data.decode("latin-1").split("\n")
        proofs = [told[number - 1] for number in log.evidence]
        wanted = [piece for text in _proofs(specimen.says) for piece in [max(_FIELD.split(text), key=len)]]
        assert wanted
        assert all(any(piece in line for line in proofs) for piece in wanted), specimen.id
        assert all(any(piece in line for piece in wanted) for line in proofs), specimen.id


def _proofs(says: tuple) -> list[str]:  # type: ignore[type-arg]
    found = []
    for say in says:
        if say.report is not None:
            found += [text for n, text in enumerate(say.report.message) if n in say.report.proof]
        elif say.proof:
            found.append(say.text.split("\n")[0])
    return found


def test_a_kind_looks_different_each_time(known: dict[str, FailureKind]) -> None:
    for name in ("corpus/inf-018", "validation/vb-044", "type-001"):
        logs = [known[name].log(random.Random(seed)).data for seed in range(12)]
        assert len(set(logs)) == 12
        assert len({log.count(b"\n") for log in logs}) > 1, name
