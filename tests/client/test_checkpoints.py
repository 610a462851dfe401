"""How often to save, by what the records tell of a job: on a data folder and through a service."""

import json
from collections.abc import Callable
from pathlib import Path

from logdoctor.store.jobs.records import Records
from tests.client.conftest import Twins
from tests.recovery.makers import ours
from tests.store.test_records import verdict
from tests.store.test_report import ECC, HOUR, MONDAY, ran
from tests.test_cli import assert_refused


def fill(folder: Path) -> None:
    """A job that failed twice in 12 h, once because of its code, and runs; and one that never failed."""
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    fix_first = verdict(reason="Key Error", recovery="fix_first")
    done = verdict(outcome="completed", reason="None", category="None", recovery="none")
    ran(records, "llama", 1, MONDAY, MONDAY + 4 * HOUR, ECC)
    ran(records, "llama", 2, MONDAY + 5 * HOUR, MONDAY + 6 * HOUR, fix_first)
    ran(records, "llama", 3, MONDAY + 7 * HOUR, MONDAY + 14 * HOUR, ECC)
    records.open_attempt("llama", 4, MONDAY + 15 * HOUR)
    ran(records, "calm", 1, MONDAY, MONDAY + HOUR, done)
    records.close()


def test_failures_of_a_job_are_counted_in_both_places(twins: Callable[..., Twins], tmp_path: Path) -> None:
    both = twins(fill)
    folder = tmp_path / "ckpt"
    for step in (10, 20):
        ours(folder, step)
    found = json.loads(both.same("checkpoints", "advise", folder, "--job", "llama", "--json").out)
    assert found["failures"] == {"ran": 12 * HOUR, "attempts": 3, "failures": 2}
    assert found["advice"]["mtbf"] == 6 * HOUR
    assert "2 failures in 12.0 h of 3 attempts" in both.same("checkpoints", "advise", folder, "--job", "llama").out
    for job in ("calm", "nobody"):
        answer = both.both("checkpoints", "advise", folder, "--job", job)
        assert_refused(answer.here, job, "none of its attempts has failed", "--mtbf")
        assert answer.there.err == answer.here.err
