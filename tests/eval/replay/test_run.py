import xml.etree.ElementTree as ET
from functools import partial
from pathlib import Path

import msgspec
import pytest

from eval.replay.label import FailureKind
from eval.replay.report import ReplayReport, ReplaySetup
from eval.replay.run import ReplayOutcome, run, shares_of
from logdoctor import wiring
from logdoctor.settings import Settings
from logdoctor.wiring import failures, models
from tests.failure_agent.cases.chroma import WordEmbedder

FAILURES = 24
KEYS = {"decided_without_model", "handled", "wrong_actions", "unknown", "model_calls", "tokens"}


def _replayed(
    known: dict[str, FailureKind], folder: Path, setup: ReplaySetup, cases: str
) -> tuple[ReplayReport, list[ReplayOutcome]]:
    settings = Settings(cases=cases)  # type: ignore[arg-type]
    scanner = wiring.undiagnosing(settings)
    join = partial(failures.climbing, settings, scanner, models.Model(settings))
    outcomes: list[ReplayOutcome] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("logdoctor.wiring.failures.SentenceEmbedder", lambda model: WordEmbedder())  # loads in no time
        report = run(known, scanner, wiring.limits(settings), join, folder, settings.learn_jobs, setup, outcomes.append)
    return report, outcomes


@pytest.fixture(scope="module")
def replayed(
    known: dict[str, FailureKind], tmp_path_factory: pytest.TempPathFactory
) -> tuple[ReplayReport, list[ReplayOutcome]]:
    return _replayed(known, tmp_path_factory.mktemp("replay"), ReplaySetup(failures=FAILURES, seed=2), "on")


def test_nothing_is_known_when_the_first_failure_comes() -> None:
    assert not wiring.undiagnosing(Settings()).book.diagnoses


def test_what_is_learned_decides_later_failures(replayed: tuple[ReplayReport, list[ReplayOutcome]]) -> None:
    report, outcomes = replayed
    assert [one.number for one in outcomes] == list(range(1, FAILURES + 1))
    assert outcomes[0].rung in ("structure", "nobody")
    assert any(one.rung in ("rule", "case") for one in outcomes)
    assert sum(rung.failures for rung in report.by_rung.values()) == FAILURES


def test_the_json_has_its_keys(replayed: tuple[ReplayReport, list[ReplayOutcome]]) -> None:
    outcomes = msgspec.json.decode(msgspec.json.encode(replayed[0]))
    assert set(outcomes["overall"]) == KEYS
    assert [set(part) for part in outcomes["per_250"]] == [KEYS]
    assert outcomes["overall"]["model_calls"] == outcomes["overall"]["tokens"] == 0
    assert 0 <= outcomes["overall"]["handled"] <= outcomes["overall"]["decided_without_model"] <= 1


def test_shares_are_of_all_failures(replayed: tuple[ReplayReport, list[ReplayOutcome]]) -> None:
    report, outcomes = replayed
    overall = report.overall
    assert overall.unknown == pytest.approx(sum(not one.decided for one in outcomes) / FAILURES, abs=1e-4)
    assert overall.decided_without_model + overall.unknown == pytest.approx(1)  # no model was asked
    assert overall == shares_of(outcomes)


def test_the_page_and_the_picture_show_the_curve(
    replayed: tuple[ReplayReport, list[ReplayOutcome]], tmp_path: Path
) -> None:
    replayed[0].write(tmp_path)
    page = (tmp_path / "replay.md").read_text()
    assert f"| 1 to {FAILURES} |" in page and "| structure |" in page
    picture = ET.fromstring((tmp_path / "replay.svg").read_text())
    assert len([part for part in picture.iter() if part.tag.endswith("polyline")]) == 4
    assert msgspec.json.decode((tmp_path / "replay.json").read_bytes(), type=ReplayReport) == replayed[0]


def test_the_same_seed_gives_the_same_measures(known: dict[str, FailureKind], tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "other"
    first.mkdir()
    second.mkdir()
    one, _ = _replayed(known, first, ReplaySetup(failures=10, seed=3), "off")
    other, _ = _replayed(known, second, ReplaySetup(failures=10, seed=3), "off")
    assert msgspec.structs.replace(one, seconds=0.0) == msgspec.structs.replace(other, seconds=0.0)


def test_a_verdict_by_a_model_is_not_decided_without_one() -> None:
    base = ReplayOutcome(
        1, "k", "Key Error", False, "agent", "Key Error", "fix_first", True, True, False, True, 2, 900, 0.1, 1
    )
    wrong = base._replace(rung="case", handled=False, wrong_action=True, calls=0, tokens=0)
    silent = base._replace(rung="nobody", decided=False, handled=False, calls=1, tokens=50)
    total = shares_of([base, wrong, silent, wrong._replace(wrong_action=False)])
    assert (total.decided_without_model, total.handled, total.wrong_actions, total.unknown) == (0.5, 0.25, 0.25, 0.25)
    assert (total.model_calls, total.tokens) == (3, 950)
