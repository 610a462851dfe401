"""`logdoctor batch` and what judges with it, as processes: broken off, interrupted, and over a bucket."""

import gzip
import io
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from logdoctor.pipeline.batch.rows import Row
from logdoctor.store.log.bucket import Bucket
from tests import waiting
from tests.diagnose.logs import TORN, steps
from tests.failure_agent.injection.obeying import obeying
from tests.llm.server import Handler, model_server
from tests.programs import LOGDOCTOR, Command, batch, environment, is_gone
from tests.store.buckets import Proxy, proxy, server
from tests.test_cli_batch import CORPUS, ECC, ROOT, made
from tests.test_cli_batch_results import S3

__all__ = ["batch", "environment", "proxy", "server"]  # fixtures


def timeless(row: Row) -> dict[str, object]:
    """A row without what differs each time."""
    verdict = json.loads(row.verdict or "{}")
    return {name: getattr(row, name) for name in Row.__struct_fields__} | {
        "seconds": 0,
        "verdict": verdict | {"seconds": 0},
    }


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder with logs for some shards."""
    small = sorted(CORPUS.rglob("*.log"), key=lambda log: log.stat().st_size)[:40]
    for number in range(160):
        place = tmp_path / "archive" / f"{number // 40}" / f"job-{number}.log"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(small[number % len(small)].read_bytes())
    return tmp_path / "archive"


def endless(place: Path) -> Path:
    """A log that takes longer to read than any test: 1 TB of nothing, which takes no room."""
    with place.open("wb") as file:
        file.truncate(1 << 40)
    return place


@pytest.fixture
def begun(archive: Path, tmp_path: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A run over the archive that has made a part and cannot end, in a session of its own."""
    last = endless(archive / "last.log")
    command = [LOGDOCTOR, "batch", archive, "--out", "v.parquet"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            waiting.until(lambda: list((tmp_path / "v.parquet.parts").glob("part-*.parquet")), "a part is made")
            assert process.poll() is None
            yield process
        finally:
            process.kill()
            last.unlink(missing_ok=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_broken_off_goes_on(
    begun: subprocess.Popen[str], how: signal.Signals, batch: Command, archive: Path, tmp_path: Path
) -> None:
    if how == signal.SIGKILL:
        begun.kill()
    else:
        os.killpg(begun.pid, how)  # as a terminal does
    assert begun.wait() == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert how == signal.SIGKILL or "Give the same command again" in (begun.stderr.read() if begun.stderr else "")
    os.truncate(archive / "last.log", 0)  # who reads it ends with it, at the latest
    waiting.until(lambda: is_gone(begun.pid), "no process is left")
    assert not (tmp_path / "v.parquet").exists()
    (archive / "last.log").unlink()
    again = batch(archive, "--out", "v.parquet")
    assert again.returncode == 0 and "of them by an earlier run that was broken off" in again.stderr
    assert batch(archive, "--out", "w.parquet").returncode == 0
    ours, whole = made(tmp_path / "v.parquet"), made(tmp_path / "w.parquet")
    assert len(ours) == 160
    assert [timeless(row) for row in ours.values()] == [timeless(row) for row in whole.values()]


def test_logs_in_a_bucket_are_read(batch: Command, tmp_path: Path, proxy: Proxy) -> None:
    bucket, log = Bucket("s3://logs/batch"), ECC.read_bytes()
    bucket.put("a.log", log)
    bucket.put("b.log.gz", gzip.compress(log))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(ECC, "in/c.log")
    bucket.put("logs.tar.gz", packed.getvalue())
    place = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    ran = batch("s3://logs/batch", "s3://logs/batch/a.log", "s3://logs/none", "--out", "v.parquet", **place)
    assert ran.returncode == 0, ran.stderr
    found = made(tmp_path / "v.parquet")
    assert {name.removeprefix("s3://logs/"): row.reason for name, row in found.items()} == {
        "batch/a.log": "ECC Error",
        "batch/b.log.gz": "ECC Error",
        "batch/logs.tar.gz/in/c.log": "ECC Error",
        "none": None,
    }
    assert json.loads(found["s3://logs/batch/a.log"].verdict or "")["file"] == "s3://logs/batch/a.log"


def test_an_object_that_is_refused_is_a_row_and_a_bucket_that_refuses_all_the_end(
    batch: Command, tmp_path: Path, proxy: Proxy
) -> None:
    bucket = Bucket("s3://logs/refused")
    for name in ("a.log", "secret.log", "secret.tar"):
        bucket.put(name, ECC.read_bytes())
    place = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    proxy.refused = [b"/refused/"]
    ran = batch("s3://logs/refused", "--out", "v.parquet", **place)
    assert ran.returncode == 2 and "the bucket refuses" in ran.stderr and "give the same command again" in ran.stderr
    assert not (tmp_path / "v.parquet").exists()
    proxy.refused = [b"/secret"]
    ran = batch("s3://logs/refused", "--out", "v.parquet", **place)
    assert ran.returncode == 0 and "2 of them could not be read" in ran.stderr, ran.stderr
    found = {name.rpartition("/")[2]: row for name, row in made(tmp_path / "v.parquet").items()}
    assert found["a.log"].reason == "ECC Error"
    assert all("the bucket refuses" in (found[name].error or "") for name in ("secret.log", "secret.tar"))


def test_a_run_that_is_resumed_asks_nobody_again(batch: Command, tmp_path: Path, environment: dict[str, str]) -> None:
    for number, word in enumerate(["fabric", "quartz", "velvet"] * 2):
        (tmp_path / f"x-{number}.log").write_text(f"ERROR {word} of the {word} is poisoned\nbye\n")
    (tmp_path / "torn.log").write_text(steps(1, 30) + TORN)
    answers = obeying("CUDA Error", "isolate_and_restart", "illegal memory")
    command = [LOGDOCTOR, "batch", "torn.log", "x-0.log", "x-1.log", "x-2.log", "x-3.log", "x-4.log", "x-5.log"]
    with model_server() as server:
        model = {"LOGDOCTOR_LLM_BASE_URL": server.url, "LOGDOCTOR_LLM_MODEL": "m"}
        processes: list[subprocess.Popen[str]] = []

        def interrupts(handler: Handler, body: dict[str, Any]) -> None:
            processes[0].send_signal(signal.SIGINT)
            processes[0].wait()

        server.behave(answers, answers, answers, interrupts, answers)
        begun = subprocess.Popen(
            [*command, "--ask", "--out", "v.parquet"],
            cwd=tmp_path,
            env=environment | model,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(begun)
        _, said = begun.communicate()
        assert begun.returncode == 130 and "Asking about 7 of them" in said, said
        before = len(server.bodies)
        ran = batch(*command[2:], "--ask", "--out", "v.parquet", **model, LOGDOCTOR_DATA_DIR=str(tmp_path / "other"))
        assert ran.returncode == 0 and "Asking about 4 of them" in ran.stderr, ran.stderr
    assert (before, len(server.bodies)) == (4, 5)
    found = made(tmp_path / "v.parquet")
    assert len(found) == 7 and found["torn.log"].confidence == 0.95


def test_what_an_older_run_read_is_listed_once(
    batch: Command, environment: dict[str, str], tmp_path: Path, proxy: Proxy
) -> None:
    bucket = Bucket("s3://logs/judged")
    for number in range(6):
        bucket.put(f"{number % 2}/job-{number}.log", S3.read_bytes())
    for node in range(2):
        bucket.put(f"run/rank{node}.log", S3.read_bytes())
    place = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    assert batch("s3://logs/judged", "--out", "old.parquet", **place).returncode == 0
    bucket.put("0/new.log", S3.read_bytes())
    bucket.delete("1/job-5.log")
    del proxy.asked[:]
    command = [LOGDOCTOR, "rules", "check", "--against", "old.parquet"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment | place, capture_output=True, text=True)
    assert ran.returncode == 0 and "0 changed, 6 the same, 1 vanished" in ran.stdout, ran.stderr
    assert len([line for line in proxy.asked if b"list-type=2" in line]) == 1


def test_who_interrupts_a_judging_is_told_that_nothing_is_kept(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "logs").mkdir()
    endless(tmp_path / "logs" / "a.log")
    command = [LOGDOCTOR, "rules", "check", "--rules", ROOT / "rules", "--against", tmp_path / "logs"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        begun = any(line.startswith("Took ") for line in iter(process.stderr.readline, ""))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said = process.stderr.read()
    assert begun and process.returncode == 130 and "Interrupted. Nothing of it is kept." in said
    assert "Traceback" not in said


def test_a_process_that_has_read_no_table_yet_reads_one_and_refuses_what_would_fill_the_memory(
    batch: Command, tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "x.log").write_bytes(ECC.read_bytes())
    said = {"path": ["x.log"], "job": ["llama"], "nodes": [["n1", "n2"]]}
    pq.write_table(pa.table(said), tmp_path / "jobs.parquet", compression="zstd")
    pq.write_table(pa.table(said | {"nodes": [["n"] * 3_000_000]}), tmp_path / "bomb.parquet", compression="zstd")
    ran = batch("x.log", "--metadata", "jobs.parquet", "--out", "v.parquet")
    assert ran.returncode == 0, ran.stderr
    (row,) = made(tmp_path / "v.parquet").values()
    assert (row.job, row.nodes) == ("llama", ("n1", "n2"))
    compared = [LOGDOCTOR, "compare", "v.parquet", "v.parquet", "--json"]
    assert subprocess.run(compared, cwd=tmp_path, env=environment, capture_output=True).returncode == 0
    refused = batch("x.log", "--metadata", "bomb.parquet", "--out", "w.parquet").stderr
    assert "would fill more than" in refused and "1,024" not in refused
