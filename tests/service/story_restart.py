"""A service process that is killed at any moment: what it acknowledged is there, and is judged by the next one."""

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from logdoctor import pipeline
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.scanner import Scanner
from logdoctor.store.names import Key
from tests.databases import url_in
from tests.service.sender import LOGS
from tests.service.services import end, final, leases_end, plain, serving

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize("seed", range(2))
def test_what_was_acknowledged_before_a_kill_is_there(
    tmp_path: Path, scanner: Scanner, limits: ReadLimits, seed: int
) -> None:
    url = url_in(tmp_path / "data" / "logdoctor.db")
    command = [sys.executable, "-m", "tests.service.sender", str(tmp_path / "data"), str(seed), url]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        told = child.stdout.readline() + child.stdout.readline()
        killer = threading.Timer(random.Random(seed).random() * 0.3 + 0.05, child.send_signal, [signal.SIGKILL])
        killer.start()
        told += child.stdout.read()
    killer.join()
    reached = {job: int(size) for job, size in (line.split() for line in told.decode().split("\n")[:-1])}
    assert reached.pop("begun") == 0 and reached
    leases_end(tmp_path / "data")
    with serving(tmp_path / "data", scanner) as service:
        for path in LOGS:
            key, log = Key(path.stem, 1, "main"), path.read_bytes()
            stands = service.logs.standing(key).next
            assert stands >= reached.get(path.stem, 0)
            assert b"".join(service.logs.view(key).chunks()) == log[:stands]
            service.intake.open(key)
            service.intake.take(key, stands, log[stands:]).result()
            end(service, key)
        for path in LOGS:
            verdict = final(service, Key(path.stem, 1, "main")).verdict
            assert plain(verdict) == plain(pipeline.diagnose([pipeline.LogFile("main", path)], scanner, limits))
