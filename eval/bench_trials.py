"""Speed of `logdoctor trials run` with a real language model on two Ray nodes of this machine.

    make build/trials-harness/.ready
    PYTHONPATH=$PWD/build/trials-harness python eval/bench_trials.py [--json]

`make bench` does both. The folder has the packages of eval/trials_harness.txt; its path is absolute, because commands
run in folders of their own. torch, transformers and accelerate are those of the environment (`make setup`).

Ten sets: slices of HumanEval that are run (pass@1, pass@2), compared (BLEU), chosen between, or judged by a judge with
a rate limit, and texts that Python carries (perplexity). On the same two workers, in the same run:

1. a trial for each set, in the order of the file: load, infer, score, one after the other
2. `trials run` with the same command for each shard, then with one that loads the model once and serves
3. the same with a node killed in the middle, and then the coordinator; `trials resume`

All must have the scores of the first, and leave nothing in /dev/shm.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from logdoctor.trials.commands import INFER, SCORE, words
from logdoctor.trials.judges import Judges
from logdoctor.trials.node import Node
from logdoctor.trials.priors import Priors
from logdoctor.trials.tasks import Task
from logdoctor.trials.trial_file import Trial, read_trial

HARNESS = Path(__file__).with_name("trials_harness.py")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
SETS = (  # name, kind and first sample, samples, runs code, judge
    ("humaneval-a", "code", 12, True, False),
    ("humaneval-b", "code+12", 10, True, False),
    ("humaneval-k2", "pass2+22", 5, True, False),
    ("solutions", "bleu+30", 10, False, False),
    ("choice-a", "choice+40", 24, False, False),
    ("choice-b", "choice+70", 16, False, False),
    ("prose", "prose", 30, False, False),
    ("source", "source", 20, False, False),
    ("judged-a", "judged+100", 10, False, True),
    ("judged-b", "judged+110", 6, False, True),
)
PER_MINUTE = 60.0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-trials-") as folder, judge() as url:
        print(json.dumps(measured(Path(folder), url), indent=None if "--json" in sys.argv else 2))


def measured(folder: Path, url: str) -> dict[str, Any]:
    """Return all figures."""
    checkpoint = Path("build/smollm2")
    if not checkpoint.exists():
        subprocess.run([sys.executable, str(HARNESS), "convert", str(checkpoint)], check=True)
    file = trial_file(folder, checkpoint.resolve(), url)
    served = trial_file(folder, checkpoint.resolve(), url, serve=True)
    trial = read_trial(file)
    known = Priors(folder / "times.jsonl")
    alone, expected = trial_per_set(trial, known)
    figures: dict[str, Any] = {"sets": len(SETS), "trial_per_set_seconds": round(alone, 1), "scores": expected}
    with two_nodes() as cluster:
        for name, path in (("command_per_shard", file), ("served", served)):
            begun = time.monotonic()
            done = told(run(cluster.address, folder, "run", str(path), "--out", str(folder / name)))
            figures[name] = {
                "seconds": round(seconds := time.monotonic() - begun, 1),
                "times_faster": round(alone / seconds, 2),
                "shards": shards(folder / name),
                "same_scores": done == expected,
                "left_in_memory": left(),
            }
        figures["killed"] = killed(cluster, folder, served, expected)
    return figures


def trial_file(folder: Path, checkpoint: Path, url: str, serve: bool = False) -> Path:
    """Write the trial file."""
    python = shlex.join([sys.executable, str(HARNESS)])
    sets = []
    for name, kind, samples, runs_code, judged in SETS:
        one = {
            "name": name,
            "dataset": kind,
            "samples": samples,
            "score": f"{python} score {{dataset}} {{outputs}} {{out}}" + (" {judge}" if judged else ""),
            "runs_code": runs_code,
        }
        if not serve:
            one["infer"] = f"{python} infer {{model}} {{dataset}} {{start}} {{end}} {{out}}"
        sets.append(one | ({"judge": "judge"} if judged else {}))
    whole = {
        "model": {"path": str(checkpoint), "name": "SmolLM2-135M", "billions": 0.135, "gpus": 0},
        "judges": [{"name": "judge", "url": url, "per_minute": PER_MINUTE}],
        "sets": sets,
        "workers": 2,
        **({"serve": f"{python} serve {{model}}"} if serve else {}),
    }
    path = folder / f"{'served' if serve else 'trial'}.yaml"
    path.write_text(yaml.safe_dump(whole))
    return path


def trial_per_set(trial: Trial, known: Priors) -> tuple[float, dict[str, dict[str, float]]]:
    """Return the seconds and scores of a trial per set on two workers. Each loads the model from the disk, makes all
    outputs, and scores them before it takes the next."""
    judges = Judges(trial.judges)
    scores: dict[str, dict[str, float]] = {}

    def work(name: str) -> None:
        one = trial.set(name)
        node = Node(trial, name, OFFLINE, model=False)
        values = {
            "set": name,
            "dataset": one.dataset,
            "start": "0",
            "end": str(one.samples),
            "samples": str(one.samples),
        }
        made = node.run(Task(words(name, one.infer, INFER), values, 3600))
        assert made.output is not None, made.log.decode()
        sandbox = trial.sandbox if one.runs_code else None
        asked = {**values, **({"judge": judges.url("judge")} if one.judge else {})}
        scored = node.run(Task(words(name, one.score, SCORE), asked, 3600, made.output, sandbox))
        assert scored.output is not None, scored.log.decode()
        node.close()
        scores[name] = json.loads(scored.output)
        known.record(one, trial.model.billions, [(one.samples, made.seconds)], scored.seconds)

    begun = time.monotonic()
    with ThreadPoolExecutor(2) as workers:
        list(workers.map(work, [one.name for one in trial.sets]))
    seconds = time.monotonic() - begun
    judges.close()
    return seconds, {name: scores[name] for name, *_ in SETS}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Run a Ray cluster with a head and two nodes of one core each."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # as for the trial per set; 15 by default
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_failure_threshold": "6",
        **OFFLINE,
    }
    from ray.cluster_utils import Cluster

    few = {"include_dashboard": False, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**few, "num_cpus": 0})
    cluster.nodes_of_bench = [cluster.add_node(num_cpus=1, **few) for _ in range(2)]
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


def run(address: str, folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "logdoctor.cli", "trials", *arguments]
    options = ["--ray", address, "--priors", str(folder / "times.jsonl"), "--json"]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE)


def told(process: "subprocess.Popen[bytes]") -> dict[str, dict[str, float]]:
    """Wait for a trial; return its scores."""
    out, _ = process.communicate()
    assert process.returncode == 0, process.returncode
    return {one["name"]: one["metrics"] for one in json.loads(out)["sets"]}


def events(state: Path, kind: str) -> list[dict[str, Any]]:
    path = state / "journal.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["type"] == kind]


def shards(state: Path) -> int:
    return len(events(state, "finished"))


def left() -> list[str]:
    return [str(path) for path in Path("/dev/shm").glob("logdoctor-trials-*")]


def killed(cluster: Any, folder: Path, file: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """Kill a node in the middle of a trial, then its coordinator, and resume."""
    state = folder / "killed"
    process = run(cluster.address, folder, "run", str(file), "--out", str(state))
    while shards(state) < 3:
        time.sleep(0.05)
    cluster.remove_node(cluster.nodes_of_bench[0], allow_graceful=False)
    at_node = shards(state)
    while shards(state) < at_node + 3:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = [tuple(event["shard"]) for event in events(state, "finished")]
    cluster.add_node(num_cpus=1, include_dashboard=False, object_store_memory=80 << 20)
    cluster.wait_for_nodes()
    scores = told(run(cluster.address, folder, "resume", str(state)))
    made = [tuple(event["shard"]) for event in events(state, "finished")]
    return {
        "finished_before_node_died": at_node,
        "finished_before_coordinator_died": len(before),
        "finished_in_all": len(made),
        "made_twice": len(made) - len(set(made)),
        "same_scores": scores == expected,
        "left_in_memory": left(),
    }


@contextmanager
def judge() -> Iterator[str]:
    """Run a slow judge that always says the same of the same text."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = json.loads(self.rfile.read(int(self.headers["content-length"])))["text"]
            time.sleep(0.2)
            answer = json.dumps({"score": len(text) % 7}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


if __name__ == "__main__":
    main()
