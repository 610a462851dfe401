"""What `logdoctor batch` makes of its table, and what `compare` and `rules check --against` say, as people run them."""

import csv
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from logdoctor.cli.rule_judging import archive_of
from logdoctor.pipeline.batch.rows import Row, read, rows
from logdoctor.pipeline.batch.sources import Tar, Walk
from logdoctor.store.log.bucket import Bucket
from tests.programs import Command, environment
from tests.test_cli_batch import CORPUS, ROOT, batch, program

__all__ = ["batch", "environment", "program"]  # fixtures

FAILURES = CORPUS / "failures"
S3 = FAILURES / "inf-004.log"
RULE = "diagnosis/infrastructure/s3-client-error"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Some failures, two of them of the object store."""
    (tmp_path / "logs").mkdir()
    for number in (4, 11, 28, 58, 64):
        shutil.copy(FAILURES / f"inf-{number:03}.log", tmp_path / "logs")
    return tmp_path / "logs"


@pytest.fixture
def book(tmp_path: Path, environment: dict[str, str]) -> Path:
    """A part of the shipped rules, which is soon checked, in the place of all of them."""
    book = tmp_path / "book"
    for pack in ("knowledge", "diagnosis/infrastructure"):
        shutil.copytree(ROOT / "rules" / pack, book / pack)
    environment |= {"LOGDOCTOR_RULES": str(book)}
    return book


@pytest.fixture
def asks(tmp_path: Path) -> Path:
    """A folder with one rule that says something else: it asks a person after a failure of the object store."""
    place = tmp_path / "more" / f"{RULE}.yaml"
    place.parent.mkdir(parents=True)
    shipped = (ROOT / "rules" / f"{RULE}.yaml").read_text()
    place.write_text(shipped.replace("recovery: restart", "recovery: ask_human"))
    return tmp_path / "more"


def test_the_summary_has_the_reasons_of_table_3_on_80_columns(batch: Command, tmp_path: Path) -> None:
    told = ["path,gpus,start,end", *(f"{log},1024,0,7200" for log in sorted(FAILURES.glob("*.log")))]
    (tmp_path / "jobs.csv").write_text("\n".join(told))
    ran = batch(CORPUS, "--out", "o.parquet", "--metadata", "jobs.csv", COLUMNS="80")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= 80 and "…" not in ran.stdout
    assert re.search(r"^Infrastructure +27 37\.0% +1,024 +1,024 +2\.0 h +2\.0 h +55,296 37\.0%$", ran.stdout, re.M)
    assert re.search(r"^  S3 Storage Error +3 +4\.1%", ran.stdout, re.M)
    assert re.search(r"^total +73 +100%", ran.stdout, re.M)
    assert "89 logs: 73 failed" in ran.stdout and "decided by: rule " in ran.stdout


def test_without_metadata_only_counts_are_shown(batch: Command) -> None:
    ran = batch(S3, "--out", "o.parquet", COLUMNS="80")
    assert ran.stdout.splitlines()[0].split() == ["reason", "count", "share"]


def test_the_name_of_the_table_says_its_form(batch: Command, program: Command, tmp_path: Path) -> None:
    for name in ("o.parquet", "o.csv", "o.jsonl"):
        assert batch(S3, "--out", name).returncode == 0
    refused = program("compare", "o.csv", "o.parquet")
    assert refused.returncode == 2 and "Name the Parquet file" in refused.stderr
    (row,) = rows(read(tmp_path / "o.parquet"))
    with (tmp_path / "o.csv").open(newline="") as file:
        (cells,) = csv.DictReader(file)
    line = json.loads((tmp_path / "o.jsonl").read_text())
    assert row.reason == cells["reason"] == line["reason"] == line["verdict"]["reason"] == "S3 Storage Error"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.csv", "o.jsonl", "o.parquet"]


def test_all_that_was_found_as_json(batch: Command) -> None:
    found = json.loads(batch(S3, "none.log", "--out", "o.parquet", "--json").stdout)
    assert found["summary"]["report"]["total"]["count"] == 1
    assert found["summary"]["unread"][0]["source"] == "none.log" and "comparison" not in found


def test_the_page_is_one_harmless_file(batch: Command, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>.log"
    (tmp_path / "jobs.csv").write_text(f"path,framework,start,end\n{S3},</svg><b>x,2026-03-01,2026-03-02\n")
    ran = batch(S3, evil, "--out", "o.parquet", "--html", "page.html", "--metadata", "jobs.csv")
    assert ran.returncode == 0, ran.stderr
    page = (tmp_path / "page.html").read_text()
    assert "<script" not in page and "<img" not in page and "<b>" not in page
    assert "&lt;script&gt;" in page and "&lt;/svg&gt;" in page
    assert not re.search(r"<[^>]+(?:src|href)=|url\(|@import", page)
    for words in ("S3 Storage Error", "Failures by day", "Failures by framework", "Unreadable", "default-src 'none'"):
        assert words in page


def test_a_comparison_exits_3_when_something_changed(
    program: Command, asks: Path, book: Path, logs: Path, tmp_path: Path
) -> None:
    shutil.copytree(book, tmp_path / "other")
    shutil.copytree(asks, tmp_path / "other", dirs_exist_ok=True)
    assert program("batch", logs, "--out", "old.parquet").returncode == 0
    same = program("batch", logs, "--out", "same.jsonl", "--compare", "old.parquet")
    assert same.returncode == 0 and "0 changed, 5 the same" in same.stdout
    ran = program("batch", logs, "--out", "new.parquet", "--compare", "old.parquet", LOGDOCTOR_RULES="other")
    assert ran.returncode == 3, ran.stderr
    assert f"{RULE} in both" in ran.stdout and "- S3 Storage Error, restart" in ran.stdout
    assert "+ S3 Storage Error, ask_human" in ran.stdout and "botocore.exceptions" in ran.stdout
    assert re.search(r"^old: old\.parquet, 5 logs, by logdoctor \S+ [0-9a-f]{16}$", ran.stdout, re.M)
    again = program("compare", "old.parquet", "new.parquet", "--json")
    assert again.returncode == 3
    found = json.loads(again.stdout)
    assert (found["changed"], found["same"], found["groups"][0]["changes"][0]["fields"]) == (2, 3, ["recovery"])


def test_a_comparison_of_other_logs_says_so(program: Command) -> None:
    program("batch", S3, "--out", "old.parquet")
    ran = program("batch", FAILURES / "inf-028.log", "--out", "new.parquet", "--compare", "old.parquet")
    assert ran.returncode == 0 and "1 added, 1 vanished" in ran.stdout
    assert "No log is in both: give the same paths as before." in ran.stdout


@pytest.mark.parametrize("content", [b"", b"path,job\n", b"PAR1"])
def test_what_is_no_table_is_refused_before_the_work(program: Command, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "old.parquet").write_bytes(content)
    ran = program("batch", S3, "--out", "o.parquet", "--compare", "old.parquet")
    assert ran.returncode == 2 and "old.parquet cannot be read as a table" in ran.stderr
    assert not (tmp_path / "o.parquet").exists()


def test_a_rule_book_is_judged_before_it_goes_live(program: Command, asks: Path, book: Path, logs: Path) -> None:
    ran = program("rules", "check", "--rules", asks, "--against", logs)
    assert ran.returncode == 3, ran.stderr
    assert "0 problems" in ran.stdout and "2 changed, 3 the same" in ran.stdout and f"{RULE} in both" in ran.stdout
    program("batch", logs, "--out", "old.parquet")
    found = program("rules", "check", "--rules", asks, "--against", "old.parquet", "--json")
    assert found.returncode == 3 and json.loads(found.stdout)["changed"] == 2
    assert program("rules", "check", "--against", "old.parquet").returncode == 0
    os.remove(logs / "inf-028.log")
    ran = program("rules", "check", "--against", "old.parquet")
    assert ran.returncode == 0 and "0 changed, 4 the same, 1 vanished" in ran.stdout


def test_the_places_of_logs_are_listed_once(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    for name in ("a.log", "x.tar", "y.tar"):
        (job / name).touch()
    found = archive_of(
        Row(source=name)
        for name in (
            f"{job}",
            f"{job}/x.tar/1.log",
            f"{job}/x.tar/2.log",
            f"{job}/a.log",
            f"{job}/gone.log",
            "s3://b/2026/x.tar/in/a.log",
            "s3://b/2026/a/b.log",
            "s3://c/one.log",
            "service:train/1",
            "service:train/2",
        )
    )
    assert found.places == [f"{job}", f"{job}/a.log", "service:?job=train", "s3://b/2026", "s3://c/one.log"]
    (walked,) = [one for one in Walk("jobs", Bucket, known=found.known).sources([str(job)]) if isinstance(one, Tar)]
    assert walked.name == f"{job}/x.tar"


def test_a_wrong_rule_is_said_before_any_log_is_read(
    program: Command, asks: Path, book: Path, logs: Path, tmp_path: Path
) -> None:
    changed = asks / f"{RULE}.yaml"
    changed.write_text(
        changed.read_text().replace("must_not_match:", "must_not_match:\n  - {text: 'minio.error.S3Error: x'}")
    )
    ran = program("rules", "check", "--rules", asks, "--against", logs)
    assert ran.returncode == 2 and RULE in ran.stdout and "Diagnosed" not in ran.stderr
    (tmp_path / "empty").mkdir()
    ran = program("rules", "check", "--rules", "empty", "--against", logs)
    assert ran.returncode == 2 and "has no folder `filter`, `diagnosis` or `override`" in ran.stderr


def test_options_that_would_do_nothing_are_refused(program: Command, tmp_path: Path) -> None:
    ran = program("rules", "check", "--against", FAILURES)
    assert ran.returncode == 2 and "else nothing can differ" in ran.stderr
    ran = program("rules", "check", "--url", "http://127.0.0.1:9")
    assert ran.returncode == 2 and "are for --against" in ran.stderr
    (tmp_path / "names").write_text(f"{S3}\nservice:\n")
    for names in (("service:",), ("--files-from", "names")):
        ran = program("batch", *names, "--out", "o.parquet", "--ray", "127.0.0.1:1")  # where nobody listens
        assert ran.returncode == 2 and "cannot be combined with --ray" in ran.stderr


def test_what_is_read_is_never_written_over(program: Command, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("a log\n")
    (tmp_path / "names").write_text("a.log\n")
    (tmp_path / "link").symlink_to("a.log")
    for arguments in (
        ("b.log", "--out", "o.parquet", "--html", "./o.parquet"),
        ("b.log", "--out", "a.log", "--metadata", "a.log"),
        ("b.log", "--out", "a.log", "--compare", "a.log"),
        ("a.log", "--out", "link"),
        ("a.log", "--out", "o.parquet", "--html", "a.log"),
        ("--files-from", "names", "--out", "names"),
        ("--files-from", "names", "--out", "a.log"),
    ):
        ran = program("batch", *arguments)
        assert ran.returncode == 2 and "be written over" in ran.stderr, arguments
    assert (tmp_path / "a.log").read_text() == "a log\n" and (tmp_path / "names").read_text() == "a.log\n"


def test_what_goes_when_the_table_is_made_is_not_used(program: Command, tmp_path: Path) -> None:
    parts = tmp_path / "o.parquet.parts"
    parts.mkdir()
    (tmp_path / "link").symlink_to(parts)
    for arguments in (("--compare", parts), ("--compare", "link"), ("--html", parts / "page.html")):
        ran = program("batch", S3, "--out", "o.parquet", *arguments)
        assert ran.returncode == 2 and "is removed when --out is made" in ran.stderr, arguments
    assert list(tmp_path.glob("o.parquet*")) == [parts]


def test_without_a_data_folder_posting_says_what_is_missing(program: Command, tmp_path: Path) -> None:
    ran = program("batch", S3, "--out", "o.parquet", "--post")
    assert ran.returncode == 2 and "holds no records" in ran.stderr and not (tmp_path / "o.parquet").exists()
