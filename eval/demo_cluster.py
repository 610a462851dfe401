"""A service to look at: two months of a cluster's failures on record, and the logs of last night's.

    python eval/demo_cluster.py FOLDER [--port 8080]

The failures are those of the corpus; jobs, users, nodes and times are made up, the same each time. FOLDER is new.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from logdoctor.store.jobs.records import End, JobFacts, Records
from logdoctor.types import Verdict

CORPUS = Path(__file__).resolve().parent / "corpus"
LOGDOCTOR = str(Path(sys.executable).with_name("logdoctor"))
DAY = 86_400.0
DAYS = 60
SECONDS = 300.0  # that a verdict may take
USERS = ("research", "pretraining", "alignment", "evaluation")
BAD_NODE = "gpu-12"
"""The node that many failures suspect."""
LAST_NIGHT = (
    ("llm-70b-pretrain", "inf-028", 1024),
    ("llm-70b-pretrain", "inf-042", 1024),
    ("llm-7b-sft", "usr-060", 64),
    ("llm-13b-rl", "inf-005", 256),
    ("llm-34b-pretrain", "inf-019", 512),
    ("llm-34b-sft", "usr-061", 128),
    ("vision-2b", "inf-058", 64),
    ("llm-7b-eval", "usr-009", 8),
)


def verdicts() -> list[Verdict]:
    """Return the rules' verdicts on all failures of the corpus."""
    logs = [str(log) for log in sorted((CORPUS / "failures").glob("*.log"))]
    told = subprocess.run([LOGDOCTOR, "diagnose", "--json", *logs], stdout=subprocess.PIPE, check=False).stdout
    return [msgspec.json.decode(line, type=Verdict) for line in told.splitlines()]


def remember(folder: Path, now: float, seed: int = 3) -> None:
    """Record two months of failures: jobs that fail and restart, with the time and GPUs lost."""
    folder.mkdir(parents=True)
    choose, samples = random.Random(seed), verdicts()
    records = Records(f"sqlite:///{folder / 'logdoctor.db'}")
    failures: list[tuple[float, float, str, int]] = []
    for number in range(40):
        job = f"llm-{choose.choice((1, 7, 13, 34, 70, 123))}b-{choose.choice(('pretrain', 'sft', 'rl'))}-{number}"
        gpus = choose.choice((8, 64, 256, 512, 1024))
        facts = JobFacts(user=choose.choice(USERS), launcher="slurm", gpus=gpus, nodes=gpus // 8)
        began = now - choose.uniform(1, DAYS) * DAY
        records.put_job(job, facts, began)
        for attempt in range(1, choose.randint(2, 7)):
            failed = began + choose.expovariate(1 / 40_000)
            failures.append((failed, began, job, attempt))
            began = failed + choose.expovariate(1 / 1500)
    for failed, began, job, attempt in sorted(one for one in failures if one[0] < now):
        records.open_attempt(job, attempt, began)
        records.end(job, attempt, End("", 1, None, None, failed))
        records.publish(job, attempt, _of_cluster(choose.choice(samples), choose), True, failed + 0.1)
    records.close()


def _of_cluster(verdict: Verdict, choose: random.Random) -> Verdict:
    """Return the verdict with nodes of the cluster as suspects."""
    node = BAD_NODE if choose.random() < 0.3 else f"gpu-{choose.randint(1, 64):02}"
    suspects = tuple(msgspec.structs.replace(one, node=node if one.node else None) for one in verdict.suspects)
    return msgspec.structs.replace(verdict, suspects=suspects)


def run_jobs(url: str) -> None:
    """Send last night's logs as their jobs would have, and wait for the verdicts."""
    attempts: dict[str, int] = {}
    for job, log, gpus in LAST_NIGHT:
        attempts[job] = attempt = attempts.get(job, 0) + 1
        facts = {"user": "pretraining", "launcher": "slurm", "gpus": gpus, "nodes": gpus // 8}
        _send("PUT", f"{url}/v1/jobs/{job}", json.dumps(facts).encode())
        place = f"{url}/v1/jobs/{quote(job)}/attempts/{attempt}"
        _send("POST", f"{place}/streams/main/log?offset=0", (CORPUS / "failures" / f"{log}.log").read_bytes())
        _send("POST", f"{place}/end", b'{"exit_code": 1}')
    for job, count in attempts.items():
        for attempt in range(1, count + 1):
            _await_verdict(f"{url}/v1/jobs/{quote(job)}/attempts/{attempt}/verdict")


def _await_verdict(url: str) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(url, timeout=30) as answer:
            if json.load(answer)["final"]:
                return
        time.sleep(0.2)
    sys.exit(f"{url} gave no verdict within {SECONDS:g} s.")


def _send(method: str, url: str, body: bytes) -> None:
    kind = "application/json" if body.startswith(b"{") else "application/octet-stream"
    request = urllib.request.Request(url, body, {"Content-Type": kind}, method=method)
    urllib.request.urlopen(request, timeout=30).close()


@contextmanager
def serving(folder: Path, port: int = 0, **settings: str) -> Iterator[str]:
    """Run `logdoctor serve` over a folder within the block; yield its URL."""
    command = [LOGDOCTOR, "serve", "--port", str(port), "--data-dir", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | settings) as process:
        assert process.stderr is not None
        for line in process.stderr:
            told = json.loads(line) if line.startswith(b"{") else {}
            if told.get("event") == "listening":
                break
        else:
            raise SystemExit("the service did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            yield told["url"]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def main() -> None:
    """Fill a folder and serve it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args()
    remember(given.folder, time.time())
    with serving(given.folder, given.port) as url:
        run_jobs(url)
        print(f"{url} (Ctrl-C ends it)")
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
