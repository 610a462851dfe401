"""What a process has told is there after its end, however that comes, and processes write beside each other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from logdoctor.store.jobs.records import Records
from tests.store.conftest import on_both
from tests.store.test_records import BASE

pytestmark = on_both

CHILD = """
import os, sys
from tests.store.test_records import BASE, verdict
from logdoctor.store.jobs.records import End, Records
records = Records(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
"""


def child(url: str, work: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + work, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def say(process: "subprocess.Popen[str]", expected: str) -> None:
    assert process.stdout
    assert process.stdout.readline().strip() == expected


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def test_what_was_published_outlives_a_killed_process(url: str) -> None:
    work = 'records.publish("j", 1, BASE, True, 1.0)\nprint("published", flush=True)\nsys.stdin.readline()'
    with child(url, work) as process:
        say(process, "open")
        go(process)
        say(process, "published")
        os.kill(process.pid, signal.SIGKILL)
    records = Records(url)
    stored = records.current("j", 1)
    assert stored and stored.verdict == BASE and records.unsettled() == []
    records.close()


def test_a_process_killed_while_it_writes_leaves_nothing_and_no_lock(url: str) -> None:
    work = """
with records.database.writing() as connection:
    connection.exec_driver_sql("INSERT INTO jobs VALUES ('half', '{}', 1.0, 1.0)")
    print("half", flush=True)
    sys.stdin.readline()
"""
    records = Records(url)
    with child(url, work) as process:
        say(process, "open")
        go(process)
        say(process, "half")
        os.kill(process.pid, signal.SIGKILL)
    records.open_attempt("whole", 1, 1.0)
    assert [job.job for job in records.jobs().items] == ["whole"]
    records.close()


def test_processes_open_and_write_at_once(url: str) -> None:
    work = """
for turn in range(10):
    records.publish("j", turn, verdict(fingerprint=sys.argv[0]), True, 1.0)
    print(records.allot_attempt("k", f"{os.getpid()}.{turn}", 1.0), flush=True)
"""
    processes = [child(url, work) for _ in range(3)]
    try:
        for process in processes:
            say(process, "open")
        for process in processes:
            go(process)
        for process in processes:
            assert process.wait(300) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    records = Records(url)
    assert [s.event for s in records.newer(0)] == list(range(1, 11))
    assert [a.number for a in records.attempts("k")] == list(range(1, 31))
    records.close()
