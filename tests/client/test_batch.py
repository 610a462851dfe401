"""`logdoctor batch`, `compare` and a service: its archive as a source, results entered into it, its cases as truth."""

import datetime
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from logdoctor.pipeline.batch.posting import Posted, post
from logdoctor.pipeline.batch.rows import Row, read, rows
from logdoctor.store.incidents.table import Incidents, WantedIncidents
from logdoctor.store.jobs.past import EnteredAttempt, PastAttempt
from logdoctor.store.jobs.records import JobFacts, Wanted
from tests import waiting
from tests.client.conftest import Twins
from tests.programs import Command, environment
from tests.store.test_records import BASE
from tests.test_cli_batch import CORPUS, ECC, ROOT, batch, program
from tests.web.conftest import FAILED

__all__ = ["batch", "environment", "program"]  # fixtures

S3 = CORPUS / "failures" / "inf-004.log"
OLD = "2026-03-01T04:05:06Z"
OLD_AT = 1_772_337_906.0


def made(place: Path) -> dict[str, Row]:
    return {row.source: row for row in rows(read(place))}


@pytest.fixture
def pair(twins: Callable[..., Twins]) -> Twins:
    """A service, and a data folder without one; both empty."""
    from logdoctor.store.jobs.records import Records

    return twins(lambda folder: Records(f"sqlite:///{folder / 'logdoctor.db'}").close())


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A table of three jobs that failed in March."""
    lines = ["path,job,gpus,exit_code,start,end"]
    logs = (ECC, S3, CORPUS / "failures" / "usr-061.log")
    lines += [f"{log},job-{at},{8 << at},1,2026-03-01T00:00:00Z,{OLD}" for at, log in enumerate(logs)]
    place = tmp_path / "jobs.csv"
    place.write_text("\n".join(lines))
    return place


def where(pair: Twins, there: bool) -> dict[str, str]:
    """The settings that lead to the service, or to the data folder."""
    return (
        {"LOGDOCTOR_URL": pair.url, "LOGDOCTOR_TOKEN": pair.token}
        if there
        else {"LOGDOCTOR_DATA_DIR": str(pair.folder)}
    )


@pytest.mark.parametrize("there", [False, True])
def test_results_are_entered_once_with_their_own_dates(
    pair: Twins, batch: Command, told: Path, there: bool, tmp_path: Path
) -> None:
    undated = tmp_path / "undated.log"
    undated.write_bytes(FAILED.partition(b"] ")[2])
    logs = (undated, ECC, S3, CORPUS / "failures" / "usr-061.log")
    command = [*logs, "--metadata", told, "--out", "out.parquet", "--post"]
    first = batch(*command, **where(pair, there))
    assert first.returncode == 0, first.stderr
    assert "1 have no date, and were not entered" in first.stdout
    assert "service: 3 entered" in first.stdout
    assert "service: 3 unchanged" in batch(*command, **where(pair, there)).stdout
    ask = pair.there if there else pair.here
    report = json.loads(ask("report", "--json", "--since", "2026-03-01", "--until", "2026-03-01").out)
    assert (report["total"]["count"], report["total"]["gpus"]["known"]) == (3, 3)
    assert ask("incidents", "list").out == "no incidents\n"
    assert "job-0" in ask("incidents", "list", "--state", "resolved").out


def test_what_cannot_be_entered_holds_up_nothing_else() -> None:
    entered: list[PastAttempt] = []

    class Noted:
        def enter_past(self, past: Sequence[PastAttempt], now: float) -> list[EnteredAttempt]:
            entered.extend(past)
            return [EnteredAttempt(one.job, 1, "entered") for one in past]

    when = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
    row = Row(source="x.tar:a.log", outcome="failed", verdict=json.dumps(to_builtins(BASE)), ended=when)
    row = replace(row, nodes=tuple(f"{number:0200}" for number in range(1000)))
    other = replace(row, exit_code=9)
    many = [replace(row, attempt=str(number)) for number in range(200)]
    assert post([row, *many, other, replace(other, source="b.log")], Noted()) == Posted(entered=202, repeated=1)
    assert [one.exit_code for one in entered] == [None] * 201 + [9]
    unfit = [{"exit_code": 1 << 40}, {"user": "u" * 10_001}, {"gpus": 1 << 40}, {"node_count": 1 << 40}]
    rows = [replace(row, attempt=str(at), **facts) for at, facts in enumerate(unfit)]
    assert post([*rows, other], Noted()) == Posted(entered=1, unfit=len(unfit)), "one odd row would hold up all"
    nodes = str(entered[0].facts.nodelist).split(",")
    assert len(nodes) == 497 and nodes[-1] == f"{496:0200}"  # as many as a service takes


def test_nobody_hears_of_what_is_entered_into_a_service(pair: Twins, batch: Command, told: Path) -> None:
    assert batch(ECC, "--metadata", told, "--out", "o.parquet", "--post", **where(pair, True)).returncode == 0
    service = pair.service
    (stored,) = service.records.search(Wanted(job="job-0")).items
    assert (stored.at, stored.final, stored.verdict.reason) == (OLD_AT, True, "ECC Error")
    assert Incidents(service.records.database).search(WantedIncidents()).items == []
    assert service.notices.unsent(0.0, 1e12) == []
    page = httpx.get(f"{pair.url}/report?within=all", headers={"authorization": f"Bearer {pair.token}"})
    assert "ECC Error" in page.text
    shown = httpx.get(f"{pair.url}/verdicts/{stored.id}", headers={"authorization": f"Bearer {pair.token}"})
    assert shown.status_code == 200 and "never stored" in shown.text
    for body in (b"[1", b'{"attempts": [{"job": "a"}]}', b'{"attempts": [], "more": 1}'):
        headers = {"authorization": f"Bearer {pair.token}", "content-type": "application/json"}
        answer = httpx.post(f"{pair.url}/v1/past-attempts", content=body, headers=headers)
        assert answer.status_code == 422 and "has not the form" in answer.json()["error"]["cause"]


def test_a_past_failure_becomes_a_case(pair: Twins, batch: Command, told: Path) -> None:
    for there in (False, True):
        batch(ECC, "--metadata", told, "--out", f"{there}.parquet", "--post", **where(pair, there))
    assert "ECC Error" in pair.same("cases", "confirm", "job-0/1", "--fix", "board returned").out
    assert "job-0/1" in pair.same("cases", "list").out
    digests = [len(json.loads(ran.out)["digests"]) for ran in (pair.here("cases", "show", 1, "--json"),)]
    assert digests[0] > 0  # its lines are known again


def test_a_token_without_the_scope_enters_nothing_and_reads_nothing(
    pair: Twins, batch: Command, told: Path, tmp_path: Path
) -> None:
    sender = where(pair, True) | {"LOGDOCTOR_TOKEN": pair.secret("ingest", "read")}
    ran = batch(ECC, "--metadata", told, "--out", "o.parquet", "--post", **sender)
    assert ran.returncode == 2 and "does not allow 'operate'" in ran.stderr
    bound = where(pair, True) | {"LOGDOCTOR_TOKEN": pair.secret("operate", prefixes=("mine",))}
    ran = batch(ECC, "--metadata", told, "--out", "o.parquet", "--post", **bound)
    assert ran.returncode == 2 and "does not allow 'operate' for job 'job-0'" in ran.stderr
    assert pair.service.records.search(Wanted()).items == []
    ran = batch("service:", "--out", "s.parquet", **where(pair, True) | {"LOGDOCTOR_TOKEN": pair.secret("ingest")})
    assert ran.returncode == 2 and "does not allow 'read'" in ran.stderr, ran.stderr
    assert "give the same command again" in ran.stderr and not (tmp_path / "s.parquet").exists()


# --- the archive of a service as a source


@pytest.fixture
def archived(pair: Twins) -> Iterator[Twins]:
    """A service that watched two jobs fail."""
    headers = {"authorization": f"Bearer {pair.token}"}
    with httpx.Client(base_url=pair.url, headers=headers) as client:
        for job, log in (("oom", FAILED), ("ecc / 1".replace(" / ", "-"), ECC.read_bytes())):
            pair.service.records.put_job(job, JobFacts(framework="megatron", gpus=64, user="anna"), 1_795_000_000.0)
            assert client.post(f"/v1/jobs/{job}/attempts/1/streams/main log/log?offset=0", content=log).is_success
            client.post(f"/v1/jobs/{job}/attempts/1/end", json={"exit_code": 1})
            waiting.until(lambda job=job: final(client, job))
    yield pair


def final(client: httpx.Client, job: str) -> bool:
    answer = client.get(f"/v1/jobs/{job}/attempts/1/verdict")
    return answer.status_code == 200 and bool(answer.json()["final"])


def test_what_a_service_archived_is_diagnosed_again(archived: Twins, batch: Command, tmp_path: Path) -> None:
    beside = {"LOGDOCTOR_DATA_DIR": str(archived.folder.with_name("there"))}
    found = []
    for number, settings in enumerate((where(archived, True), beside)):
        ran = batch("service:", "--out", f"{number}.parquet", **settings)
        assert ran.returncode == 0, ran.stderr
        assert "2 attempts of the service" in ran.stderr
        found.append(made(tmp_path / f"{number}.parquet"))
    for all_rows in found:
        row = all_rows["service:oom/1"]
        assert (row.reason, row.job, row.attempt) == ("Out of Memory Error", "oom", "1")
        assert (row.framework, row.gpus, row.user, row.exit_code) == ("megatron", 64, "anna", 1)
        assert row.quote_stream == "main log" and row.started and row.ended
        assert all_rows["service:ecc-1/1"].reason == "ECC Error"
    ran = batch("service:?reason=ECC Error&since=2020-01-01", "--out", "some.parquet", **where(archived, True))
    assert set(made(tmp_path / "some.parquet")) == {"service:ecc-1/1"}


def test_a_table_of_some_attempts_is_judged_without_the_others(
    archived: Twins, batch: Command, program: Command
) -> None:
    ran = batch("service:?job=oom", "--out", "o.parquet", **where(archived, True))
    assert ran.returncode == 0, ran.stderr
    with httpx.Client(base_url=archived.url, headers={"authorization": f"Bearer {archived.token}"}) as client:
        assert client.post("/v1/jobs/oom/attempts/2/streams/main/log?offset=0", content=FAILED).is_success
        client.post("/v1/jobs/oom/attempts/2/end", json={"exit_code": 1})
        waiting.until(lambda: client.get("/v1/jobs/oom/attempts/2/verdict").status_code == 200)
    checked = program("rules", "check", "--against", "o.parquet", **where(archived, True))
    assert checked.returncode == 0, checked.stderr
    assert "0 changed, 1 the same\n" in checked.stdout


def test_what_a_service_watched_is_not_entered_again(archived: Twins, batch: Command) -> None:
    ran = batch("service:", "--out", "o.parquet", "--post", **where(archived, True))
    assert "service: 2 left as the service knows them" in ran.stdout, ran.stdout + ran.stderr


def test_a_query_that_asks_for_nothing_is_a_row(pair: Twins, batch: Command, tmp_path: Path) -> None:
    said = {
        "service:?colour=red": "asks for 'colour'",
        "service:?reason=Bad Luck": "asks for the reason 'Bad Luck'",
        "service:?since=yesterday": "has 'yesterday' as a time",
        "service:oom": "is no query",
    }
    ran = batch(*said, "--out", "o.parquet", **where(pair, True))
    assert ran.returncode == 0, ran.stderr
    found = made(tmp_path / "o.parquet")
    assert found.keys() == said.keys()
    assert all(words in str(found[name].error) and words in ran.stdout for name, words in said.items())


# --- cases as truth


def test_a_comparison_says_what_went_right(pair: Twins, batch: Command, told: Path, tmp_path: Path) -> None:
    settings = where(pair, True)
    assert batch(S3, "--metadata", told, "--out", "old.parquet", "--post", **settings).returncode == 0
    pair.there("cases", "confirm", "job-1/1")
    (row,) = made(tmp_path / "old.parquet").values()
    weaker = tmp_path / "rules"
    shutil.copytree(ROOT / "rules", weaker)
    changed = weaker / f"{row.rule}.yaml"
    changed.write_text(changed.read_text().replace("recovery: restart", "recovery: ask_human"))
    ran = batch(
        S3,
        "--metadata",
        told,
        "--out",
        "new.parquet",
        "--compare",
        "old.parquet",
        LOGDOCTOR_RULES=str(weaker),
        **settings,
    )
    assert ran.returncode == 3, ran.stdout + ran.stderr
    assert "of 1 that a person confirmed: 1 right before, 0 now" in ran.stdout
    assert "engineer said S3 Storage Error (case 1): wrong" in ran.stdout


def test_a_program_that_is_away_says_so_before_the_work(batch: Command, tmp_path: Path) -> None:
    ran: subprocess.CompletedProcess[str] = batch(
        ECC, "--out", "o.parquet", "--post", LOGDOCTOR_URL="http://127.0.0.1:9", LOGDOCTOR_TOKEN="x"
    )
    assert ran.returncode == 2 and "cannot be reached" in ran.stderr
    assert not (tmp_path / "o.parquet").exists()
