"""What a failure is told as: whole reports, each once, the worst first, and the same digest for the same failure."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logdoctor.diagnose.episodes import Episode, digest_of, episodes, summary
from logdoctor.rules.scanner import Scanner
from tests.diagnose.conftest import Log, Recorded
from tests.diagnose.logs import COMPLETED, ECC, TORCHRUN, interleaved, nccl_timeout, prefixed, steps, traceback

ReportedEnd = Callable[[Log], list[Episode]]
"""The episodes of a log."""

HEAD = steps(0, 40)
ODD = "the loom reports ERROR 17: shuttle 9 jammed\n"


@pytest.fixture
def reported(recorded: Recorded, scanner: Scanner) -> ReportedEnd:
    return lambda log: episodes(recorded(log), scanner.book)


def lasting(found: list[Episode]) -> list[str]:
    return [episode.title for episode in found if not episode.survived]


def test_the_cause_comes_first_and_teardown_last(reported: ReportedEnd) -> None:
    found = reported(HEAD + TORCHRUN + nccl_timeout([1, 2]) + ECC + ODD)
    roles = [episode.role for episode in found]
    assert found[0].title == ECC.strip() and roles[0] == "cause"
    order = {"cause": 0, "proximate": 1, "strong": 1, "": 2, "cascade": 3, "teardown": 4, "note": 5}
    assert [order[role] for role in roles] == sorted(order[role] for role in roles)
    assert any("loom" in episode.title and not episode.source for episode in found)


def test_a_traceback_is_one_episode_with_all_its_lines(reported: ReportedEnd) -> None:
    report = traceback("KeyError: 'tokens'")
    (found,) = [one for one in reported(HEAD + report) if one.source == "structure/KeyError"]
    assert "".join(f"{text}\n" for text in found.texts) == report
    assert found.lines == tuple(range(41, 41 + report.count("\n"))) and found.line == found.lines[-1]


def test_what_many_ranks_tell_is_one_episode(reported: ReportedEnd) -> None:
    log = HEAD + interleaved(*(prefixed(f"[rank{rank}]: ", traceback("KeyError: 'tokens'")) for rank in (3, 1, 7)))
    (found,) = [one for one in reported(log) if one.source == "structure/KeyError"]
    assert found.ranks == (1, 3, 7) and found.reports == 3
    assert {text[:8] for text in found.texts} == {"[rank3]:"}, "the lines of one writer only"


def test_the_same_failure_has_the_same_digest(reported: ReportedEnd) -> None:
    one = "[rank3]: RuntimeError: shard 17 of /data/a1/part-003.bin ended 4096 bytes early on node gpu-12\n"
    two = "gpu-77: RuntimeError: shard 9 of /mnt/b/part-9.bin ended 12 bytes early on node cn-0301\n"
    other = "RuntimeError: shard 17 of /data/a1/part-003.bin is of another version\n"
    first, second, third = (reported(HEAD + text)[0].digest for text in (one, two, other))
    assert first == second != third and len(first) == 16


def test_frames_tell_failures_apart(reported: ReportedEnd) -> None:
    here, there = (reported(traceback("KeyError: 'x'", function))[0].digest for function in ("load", "save"))
    assert here != there


def test_what_the_job_survived_is_said_to_be_so(reported: ReportedEnd) -> None:
    found = reported(steps(0, 20) + traceback("KeyError: 'x'") + steps(20, 60) + ODD)
    assert [one.survived for one in found] == [False, True]


def test_a_healthy_log_tells_nothing(reported: ReportedEnd) -> None:
    assert reported(HEAD + COMPLETED) == []


def test_a_flood_stays_bounded(reported: ReportedEnd) -> None:
    words = [f"error in {chr(97 + i % 26)}{chr(97 + i // 26 % 26)}x{'ab' * (i // 676)}y\n" for i in range(4000)]
    found = reported("".join(f"step\n{word}" for word in words))
    assert len(found) == 1000
    deep = "Traceback (most recent call last):\n" + '  File "/a/b.py", line 3, in f\n' * 900 + "KeyError: 'x'\n"
    assert max(len(one.lines) for one in reported(deep)) <= 80


def test_a_summary_holds_the_worst_and_no_teardown(reported: ReportedEnd) -> None:
    found = reported(HEAD + ECC + ODD + TORCHRUN)
    text = summary(found)
    assert text.split("\n")[0] == "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert "loom" in text and "FAILED" not in text
    assert len(summary(found, 70)) <= 70


def test_a_digest_is_of_words_not_of_values() -> None:
    assert digest_of("rank 3 lost 0x7f12 at /a/b/c") == digest_of("rank 77 lost 0x1 at /x/y")
    assert digest_of("rank 3 lost") != digest_of("rank 3 found")


@pytest.mark.parametrize(
    "form",
    [
        "controller returned status {} for P3",
        "OSError: [Errno {}] no",
        "exitcode: {} (pid: 3)",
        "NVRM: Xid (PCI:0000:3b:00): {}, pid=4182",
        "HTTP {} from the store",
        "rpc failed (rc={})",
        "error code {}",
        "worker aborted ({})",
        "request failed: {}",
        "driver reports XID{} on GPU 3",
        "ORA-{} from the ledger",
        "status: 0x{}",
    ],
)
def test_another_code_is_another_failure(form: str) -> None:
    assert len({digest_of(form.format(code)) for code in (2, 17, 79, 500)}) == 4
    assert digest_of(form.format(17).replace("3", "4")) == digest_of(form.format(17))


def test_the_corpus_names_its_causes_early(recorded: Recorded, scanner: Scanner) -> None:
    """A person who reads the first ten episodes of a failure sees a line of its cause."""
    folder = Path(__file__).parents[2] / "eval" / "corpus" / "failures"
    labels = [json.loads(line) for line in (folder / "cases.jsonl").read_text().splitlines()]
    seen = 0
    for label in labels:
        found = episodes(recorded((folder / label["file"]).read_bytes()), scanner.book)[:10]
        wanted = {near for line in label["evidence_lines"] for near in (line - 1, line, line + 1)}
        texts = {text.strip() for text in label["evidence_text"]}
        seen += any(wanted & set(one.lines) or any(t in text for text in one.texts for t in texts) for one in found)
    assert seen >= 0.9 * len(labels)


def test_a_code_that_no_table_knows_is_told_all_the_same(reported: ReportedEnd) -> None:
    line = "Mar 02 10:59:10 wn061 kernel: NVRM: Xid (PCI:0000:1b:00): 9999, pid=4182, name=python, something new\n"
    (found,) = reported(HEAD + line)
    assert (found.source, found.role) == ("", "strong") and "9999" in found.title
