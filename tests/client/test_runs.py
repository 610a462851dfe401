"""`logdoctor runs` on a folder and through a service."""

import json
from collections.abc import Callable
from pathlib import Path

from logdoctor.store.jobs.records import Records
from tests.client.conftest import Twins
from tests.store.test_report import ECC, HOUR, KEY, MONDAY, ran
from tests.test_cli import assert_refused


def fill(folder: Path) -> None:
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    ran(records, "big", 1, MONDAY, MONDAY + HOUR, ECC, MONDAY + HOUR + 2)
    ran(records, "big", 2, MONDAY + HOUR + 60, MONDAY + 2 * HOUR, KEY)
    records.close()


def test_the_run_is_the_same(twins: Callable[..., Twins]) -> None:
    pair = twins(fill)
    shown = pair.same("runs", "show", "big")
    assert shown.code == 0 and "99.2% effective of 2.0 h; lost: 2 s until verdicts, 58 s until restarts" in shown.out
    told = json.loads(pair.same("runs", "show", "big", "--json").out)
    assert [one["outcome"] for one in told["attempts"]] == ["failed", "failed"]
    unknown = pair.same("runs", "show", "nobody")
    assert unknown.code == 2 and "job 'nobody'" in unknown.err
    assert_refused(pair.there("runs", "show", "big", token=pair.secret("ingest")), "does not allow 'read'")
