"""`logdoctor batch`, run as people run it, but in this process."""

import gzip
import io
import json
import os
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from logdoctor.cli.batch import _Line, counted
from logdoctor.pipeline.batch.rows import Row, provenance, read, rows
from logdoctor.pipeline.batch.sources import Source
from logdoctor.store.learning.learned import StoredClaim
from logdoctor.store.learning.rule_rows import DIAGNOSIS
from tests.diagnose.logs import TORN, steps, traceback
from tests.failure_agent.injection.obeying import obeying
from tests.llm.server import model_server
from tests.programs import Command, environment, here
from tests.rule_files.learned import active, new, opened
from tests.soak import SOAKING

__all__ = ["environment"]  # a fixture

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "eval" / "corpus"
ECC = CORPUS / "failures" / "inf-028.log"


@pytest.fixture
def program(tmp_path: Path, environment: dict[str, str]) -> Command:
    """Runs any command in a folder of its own."""

    def run(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        return here(tmp_path, environment | {"COLUMNS": "80", "LOGDOCTOR_WORKERS": "1"} | more, *arguments)

    return run


@pytest.fixture
def batch(program: Command) -> Command:
    """Runs `logdoctor batch` in the folder of `program`."""

    def run(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        return program("batch", *arguments, **more)

    return run


def made(place: Path) -> dict[str, Row]:
    """The rows of a table by source."""
    return {row.source: row for row in rows(read(place))}


@pytest.mark.more_in_soak
def test_verdicts_are_those_of_diagnose(batch: Command, program: Command, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for log in sorted(CORPUS.rglob("*.log"))[:: 1 if SOAKING else 9]:
        (tmp_path / "logs" / log.name).symlink_to(log)
    logs = sorted((tmp_path / "logs").iterdir())
    told = program("diagnose", "--json", *logs)
    wanted = {verdict["file"]: verdict for verdict in map(json.loads, told.stdout.splitlines())}
    ran = batch(tmp_path / "logs", "--out", "v.parquet")
    assert ran.returncode == 0, ran.stderr
    assert f"Took {len(logs)} logs for a job each" in ran.stderr
    found = made(tmp_path / "v.parquet")
    assert found.keys() == wanted.keys() == set(map(str, logs))
    for name, row in found.items():
        verdict = json.loads(row.verdict or "")
        assert verdict | {"seconds": 0} == wanted[name] | {"seconds": 0}
        assert (row.reason, row.outcome, row.recovery) == tuple(
            verdict[key] for key in ("reason", "outcome", "recovery")
        )
    assert not (tmp_path / "v.parquet.parts").exists()
    assert provenance(read(tmp_path / "v.parquet")).rules == row.rulebook


def test_each_run_of_a_log_to_which_several_were_appended_is_a_row(batch: Command, tmp_path: Path) -> None:
    begin = "driver version 535\ndevice name and fans\nreading the list of shards\nbuilding the model of 7 layers\n"
    failed = begin + steps(0, 40) + traceback("ValueError: 9000 tokens asked for, at most 8192 fit")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text(2 * failed + begin + steps(0, 80))
    (tmp_path / "logs" / "b.log").write_text(failed)
    assert batch("logs", "--out", "t.parquet").returncode == 0
    made = {(row.source, row.run): row for row in rows(read(tmp_path / "t.parquet"))}
    again = failed.count("\n") + 1
    assert [*made] == [("logs/a.log", 1), ("logs/a.log", again), ("logs/a.log", None), ("logs/b.log", None)]
    first, alone = made["logs/a.log", 1], made["logs/b.log", None]
    for name in ("outcome", "reason", "category", "detail", "quote", "quote_line", "confidence", "decided_by"):
        assert getattr(first, name) == getattr(alone, name), name
    assert made["logs/a.log", None].outcome == "running"
    assert (first.lines, first.verdict, first.started) == (0, None, None), "they are those of the log, which count once"
    summary = json.loads(batch("logs", "--out", "t.csv", "--json").stdout)
    assert (summary["summary"]["rows"], summary["summary"]["earlier_runs"]) == (2, 2)
    assert summary["summary"]["outcomes"] == {"failed": 3, "running": 1}


def test_what_cannot_be_read_is_a_row(batch: Command, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "good.log").write_bytes(ECC.read_bytes())
    (logs / "loop.log").symlink_to("loop.log")
    (logs / "round").symlink_to(logs)
    (logs / "xz.log").write_bytes(b"\xfd7zXZ\x00 and more")
    (logs / os.fsdecode(b"b\xffd.log")).write_text("hello\n")
    (logs / "empty.log").touch()
    os.mkfifo(logs / "pipe.log")
    ran = batch(logs, "nowhere.log", "no*.log", "--out", "v.parquet")
    assert ran.returncode == 0, ran.stderr
    found = made(tmp_path / "v.parquet")
    assert found[f"{logs}/good.log"].reason == "ECC Error"
    assert found[f"{logs}/b\\udcffd.log"].outcome == "unknown"
    assert found[f"{logs}/empty.log"].outcome == "unknown"
    errors = {Path(name).name: row.error for name, row in found.items() if row.error}
    assert errors.keys() == {"loop.log", "xz.log", "pipe.log", "nowhere.log", "no*.log"}
    assert "xz, which is not supported" in (errors["xz.log"] or "")
    assert "no regular file" in (errors["pipe.log"] or "")
    assert "matches no file" in (errors["no*.log"] or "")
    assert all(row.verdict is None and row.outcome is None for row in found.values() if row.error)
    assert "5 of them could not be read" in ran.stderr


def test_ranks_of_one_job_are_told_by_their_names(batch: Command, program: Command, tmp_path: Path) -> None:
    for job in ("one", "two"):
        (tmp_path / "logs" / job).mkdir(parents=True)
        for rank in range(3):
            (tmp_path / "logs" / job / f"rank{rank}.log").write_bytes(ECC.read_bytes())
    (tmp_path / "logs" / "alone.log").write_bytes(ECC.read_bytes())
    (tmp_path / "logs" / "run" / "attempt_0" / "0").mkdir(parents=True)
    (tmp_path / "logs" / "run" / "attempt_1" / "0").mkdir(parents=True)
    for attempt in range(2):
        (tmp_path / "logs" / "run" / f"attempt_{attempt}" / "0" / "stdout.log").write_bytes(ECC.read_bytes())
    ran = batch("logs", "--out", "v.parquet")
    assert "1 log for a job each, 3 folders for one job each (the first is logs/one)" in ran.stderr
    found = [(row.source, row.attempt) for row in rows(read(tmp_path / "v.parquet"))]
    assert found == [
        ("logs/alone.log", ""),
        ("logs/one", ""),
        ("logs/run", "attempt_0"),
        ("logs/run", "attempt_1"),
        ("logs/two", ""),
    ]
    told = program("diagnose", "--json", "logs/one").stdout
    verdict = json.loads(made(tmp_path / "v.parquet")["logs/one"].verdict or "")
    assert verdict | {"seconds": 0} == json.loads(told) | {"seconds": 0}
    assert "9 logs for a job each;" in batch("logs", "--each", "--out", "e.parquet").stderr
    batch("logs", "--jobs", "--out", "j.parquet")
    assert {row.source for row in rows(read(tmp_path / "j.parquet"))} == {"logs"}


def test_packed_logs_and_tars_are_read(batch: Command, tmp_path: Path) -> None:
    log = ECC.read_bytes()
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(log))
    (tmp_path / "b.log.zst").write_bytes(zstandard.compress(log))
    with tarfile.open(tmp_path / "plain.tar", "w") as tar:
        for name in ("x/one.log", "x/two.log", "x/README.md", "../../evil.log"):
            tar.add(ECC, name)
        link = tarfile.TarInfo("x/link.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    plain = (tmp_path / "plain.tar").read_bytes()
    (tmp_path / "packed.tar.gz").write_bytes(gzip.compress(plain))
    (tmp_path / "packed.tar.zst").write_bytes(zstandard.compress(plain))
    (tmp_path / "cut.tgz").write_bytes(gzip.compress(plain)[:-40])
    (tmp_path / "no.tar").write_bytes(b"no tar" * 1000)
    ran = batch("a.log.gz", "b.log.zst", "*.tar*", "cut.tgz", "--out", "v.parquet")
    assert ran.returncode == 0, ran.stderr
    found = made(tmp_path / "v.parquet")
    members = {
        f"{tar}/{name}"
        for tar in ("plain.tar", "packed.tar.gz", "packed.tar.zst")
        for name in ("x/one.log", "x/two.log", "../../evil.log")
    }
    right = {name for name, row in found.items() if row.reason == "ECC Error"}
    assert right >= members | {"a.log.gz", "b.log.zst"}
    assert {name for name, row in found.items() if row.error} == {"cut.tgz", "no.tar"}
    assert json.loads(found["plain.tar/x/one.log"].verdict or "")["file"] == "plain.tar/x/one.log"
    assert not (tmp_path.parent / "evil.log").exists()


def test_a_tar_that_is_a_bomb_is_a_row(batch: Command, tmp_path: Path) -> None:
    bomb = io.BytesIO()
    with tarfile.open(fileobj=bomb, mode="w") as tar:
        small = tarfile.TarInfo("good.log")
        small.size = ECC.stat().st_size
        tar.addfile(small, io.BytesIO(ECC.read_bytes()))
        large = tarfile.TarInfo("large.log")
        large.size = 80 << 20
        tar.addfile(large, io.BytesIO(bytes(large.size)))
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(bomb.getvalue()))
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    (tmp_path / "header.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    ran = batch("bomb.tar.gz", "header.tar", "--out", "v.parquet", LOGDOCTOR_MAX_EXPANSION="50")
    assert ran.returncode == 0, ran.stderr
    found = made(tmp_path / "v.parquet")
    assert found["bomb.tar.gz/good.log"].reason == "ECC Error"
    assert "decompression bomb" in (found["bomb.tar.gz"].error or "")
    assert "header is too long" in (found["header.tar"].error or "")


def test_names_come_from_a_file(batch: Command, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xfe.log")).write_bytes(ECC.read_bytes())
    (tmp_path / "names").write_bytes(b"%s\n\xfe.log\n\na\0b\n" % os.fsencode(ECC))
    assert batch("--files-from", "names", "--out", "v.parquet").returncode == 0
    found = made(tmp_path / "v.parquet")
    assert set(found) == {str(ECC), "\\udcfe.log", "a\0b"}
    assert "null" in (found["a\0b"].error or "")


def test_what_a_table_tells_counts(batch: Command, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("hello\n")
    (tmp_path / "y.log").write_text("hello\n")
    (tmp_path / "jobs.csv").write_text(
        "path,job,exit_code,nodes,start,gpus,color\n"
        'x.log,j1,3,"n1, n2",2026-03-01T04:05:06Z,16,red\n'
        f"{tmp_path}/y.log,j2,0,4,1772337906,,\n"
    )
    ran = batch("x.log", "y.log", "--metadata", "jobs.csv", "--out", "v.parquet")
    assert ran.returncode == 0, ran.stderr
    found = made(tmp_path / "v.parquet")
    one, two = found["x.log"], found["y.log"]
    assert (one.outcome, one.reason, one.job, one.exit_code, one.nodes, one.gpus) == (
        "failed",
        "Unknown",
        "j1",
        3,
        ("n1", "n2"),
        16,
    )
    assert (two.outcome, two.job, two.node_count, two.gpus) == ("completed", "j2", 4, None)
    assert one.started == two.started == datetime(2026, 3, 1, 4, 5, 6, tzinfo=UTC)


def test_a_table_may_be_parquet(batch: Command, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("hello\n")
    (tmp_path / "y.log").write_text("hello\n")
    when = datetime(2026, 3, 1, 4, 5, 6, tzinfo=UTC)
    told = {
        "path": ["x.log", "y.log"],
        "exit_code": [1.0, None],
        "nodes": [["n1", "n2"], None],
        "start": [when, None],
        "color": ["red", None],
    }
    pq.write_table(pa.table(told), tmp_path / "jobs.parquet")
    ran = batch("x.log", "y.log", "--metadata", "jobs.parquet", "--out", "v.parquet")
    assert ran.returncode == 0, ran.stderr
    one, two = (made(tmp_path / "v.parquet")[name] for name in ("x.log", "y.log"))
    assert (one.outcome, one.exit_code, one.nodes, one.started) == ("failed", 1, ("n1", "n2"), when)
    assert (two.outcome, two.exit_code, two.nodes, two.started) == ("unknown", None, (), None)


def test_what_a_service_learned_counts_for_jobs_of_the_kind(batch: Command, tmp_path: Path) -> None:
    rules = opened(tmp_path / "data")
    cause = new(
        kind=DIAGNOSIS,
        pattern="^fabric lane [0-9]+ of plane [0-9]+ is poisoned, resync refused$",
        examples=("fabric lane 7 of plane 2 is poisoned, resync refused",),
        title="fabric lane poisoned",
        claim=StoredClaim("NVLink Error", recovery="restart"),
    )
    taught = active(rules, cause)
    active(rules, new(kind="megatron"))
    (tmp_path / "x.log").write_text(
        "".join(f"Opening data shard {number} of 9 at /data/abc\n" for number in range(9))
        + "ERROR fabric lane 7 of plane 2 is poisoned, resync refused\nlauncher says goodbye\n"
    )
    (tmp_path / "jobs.csv").write_text("path,framework\nx.log,Megatron\n")
    none = batch("x.log", "--out", "v.parquet", "--data-dir", "none")
    assert none.returncode == 2 and "holds no records" in none.stderr and not (tmp_path / "none").exists()
    found = []
    for more in ((), ("--data-dir", "data"), ("--data-dir", "data", "--metadata", "jobs.csv")):
        ran = batch("x.log", "--out", "v.parquet", *more)
        assert ran.returncode == 0, ran.stderr
        found.append(made(tmp_path / "v.parquet")["x.log"])
    assert [row.rule == taught.id for row in found] == [False, True, True]
    assert [row.kind for row in found] == ["", "", "megatron"]
    kept = [json.loads(row.verdict or "")["compression"]["lines_kept"] for row in found]
    assert kept == [11, 11, 2]


@pytest.mark.parametrize(
    ("table", "said"),
    [("path,gpus\nx.log,8\ny.log,many\n", "row 3 has 'many' as gpus"), ("log,gpus\nx.log,8\n", "has no column `path`")],
)
def test_a_table_that_is_wrong_is_an_error(batch: Command, tmp_path: Path, table: str, said: str) -> None:
    (tmp_path / "x.log").write_text("hello\n")
    (tmp_path / "jobs.csv").write_text(table)
    ran = batch("x.log", "--metadata", "jobs.csv", "--out", "v.parquet")
    assert ran.returncode == 2 and said in ran.stderr and "Traceback" not in ran.stderr
    assert not (tmp_path / "v.parquet").exists()


def test_the_model_is_asked_once_about_the_same_failure(batch: Command, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"torn-{number}.log").write_text(steps(1, 30 + number) + TORN)
    with model_server() as server:
        server.behave(obeying("CUDA Error", "isolate_and_restart", "illegal memory"))
        model = {"LOGDOCTOR_LLM_BASE_URL": server.url, "LOGDOCTOR_LLM_MODEL": "m"}
        ran = batch("torn-*.log", "--ask", "--out", "v.parquet", **model)
    assert ran.returncode == 0, ran.stderr
    found = made(tmp_path / "v.parquet")
    assert [row.confidence for row in found.values()] == [0.95] * 4
    assert len(server.bodies) == 1
    assert len({row.quote_line for row in found.values()}) == 4
    batch("torn-*.log", "--out", "w.parquet")
    assert all(0.5 < (row.confidence or 0) < 0.7 for row in made(tmp_path / "w.parquet").values())


def test_a_service_that_is_away_ends_the_run(batch: Command, tmp_path: Path) -> None:
    away = {"LOGDOCTOR_URL": "http://127.0.0.1:9", "LOGDOCTOR_TOKEN": "x"}
    ran = batch(ECC, "service:", "--out", "v.parquet", **away)
    assert ran.returncode == 2 and "give the same command again" in ran.stderr and "Traceback" not in ran.stderr
    assert not (tmp_path / "v.parquet").exists()


def test_whoever_asks_is_told_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    answer = counted(lambda source, row: row, 3, _Line(every=0.0))
    row = Row(source="a.log")
    assert [answer(Source("a.log"), row) for _ in range(2)] == [row, row]
    assert capsys.readouterr().err == "Asked about 0 of 3\nAsked about 1 of 3\n"


def test_a_model_that_is_away_leaves_the_rows_as_they_are(batch: Command, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"x-{number}.log").write_text(f"ERROR fabric lane of plane {'abc'[number]} is poisoned\nbye\n")
    away = {"LOGDOCTOR_LLM_BASE_URL": "http://127.0.0.1:9/v1", "LOGDOCTOR_LLM_MODEL": "none"}
    ran = batch("x-*.log", "--ask", "--out", "v.parquet", **away)
    assert ran.returncode == 0 and 1 <= ran.stderr.count("logdoctor: ") <= 2 and "Traceback" not in ran.stderr
    assert {row.reason for row in made(tmp_path / "v.parquet").values()} == {"Unknown"}


def test_diagnose_says_that_it_takes_a_folder_for_one_job(program: Command, tmp_path: Path) -> None:
    def said(*names: str) -> str:
        for name in names:
            (tmp_path / names[0] / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / names[0] / name).write_text("hello\n")
        return program("diagnose", "--json", names[0]).stderr

    assert "2 logs are taken for one job; with --each" in said("a.log", "b.log")
    assert said("rank0.log", "rank1.log") == "" and said("attempt_0/0/stdout.log", "attempt_1/0/stdout.log") == ""
