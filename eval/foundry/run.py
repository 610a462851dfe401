"""Running cases: files are written, a program is started and meets its fault, and the truth is entered beside its log.

A set is a corpus as `logdoctor eval` reads it (`eval/corpus/README.md`), with more fields in its labels. What did not
happen as planned is no case; `void.jsonl` says why.
"""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from eval.foundry.cases import LIGHT, Case, Making, draw, making, write
from eval.foundry.faults import FAULTS, Truth
from logdoctor import taxonomy

LIMIT = 150
"""Most seconds of one run."""
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_CGROUPS = Path("/sys/fs/cgroup/memory")


class Ran(NamedTuple):
    """How a run ended: its exit code, None when it had to be killed, and whether the program came to its end."""

    code: int | None
    complete: bool


def made_case(case: Case, folder: Path) -> tuple[Making, Truth]:
    """Return what a case is run with and its truth; the same case gives the same ones."""
    made = making(case, folder)
    truth = FAULTS[case.fault].inject(made)
    return made, truth


# ---- starting


def command(made: Making, port: int) -> list[str]:
    """Return the command of a case; scripts for a shell are written to its folder."""
    case, launcher = made.case, made.case.launcher
    program = [f"{case.name}.py", case.program, "--config", "config.json", *made.arguments]
    plain = [sys.executable, *program]
    if launcher == "timeout":
        limit = (12 if case.program != "torch" else 20) if case.fault == "stands-still" else LIMIT
        plain = ["timeout", "-v", "-k", "2", str(limit), *plain]
    elif launcher in ("torchrun", "tee"):
        how = [
            "--nproc-per-node",
            str(case.world),
            "--master-port",
            str(port),
            "--max-restarts",
            str(made.max_restarts),
        ]
        tee = ["--tee", "3", "--log-dir", "logs"] if launcher == "tee" else []
        plain = [sys.executable, "-m", "torch.distributed.run", *how, *tee, *program]
    elif launcher.startswith("env"):
        plain = _script(made, _RANKS, " ".join(plain), case.world)
    if made.runs > 1:
        plain = _script(made, _TRIES, " ".join(plain), made.runs, "tries.sh")
    elif launcher == "bash":
        plain = _script(made, _BASH, " ".join(plain), 1)
    return [*made.wrap, *plain]


_BASH = """#!/bin/bash
set -eo pipefail
echo "== $(date '+%F %T') NAME on 2 cpus"
COMMAND
echo "== $(date '+%F %T') NAME: exit code $?"
"""
_TRIES = """#!/bin/bash
for try in $(seq 1 COUNT); do
  COMMAND && exit 0
  echo "NAME: try $try ended with exit code $?, starting again"
done
exit 1
"""
_RANKS = """#!/bin/bash
for rank in $(seq 0 $((COUNT - 1))); do
  RANK=$rank LOCAL_RANK=$rank COMMAND REDIRECT &
  pids+=($!)
done
while [ ${#pids[@]} -gt 0 ]; do
  wait -n -p ended "${pids[@]}"
  code=$?
  for rank in "${!pids[@]}"; do [ "${pids[$rank]}" = "$ended" ] && break; done
  if [ $code -ne 0 ]; then
    echo "rank $rank exited with $code"
    sleep 0.5
    kill "${pids[@]}" 2>/dev/null
    exit $code
  fi
  unset "pids[$rank]"
done
"""


def _script(made: Making, text: str, line: str, count: int, name: str = "run.sh") -> list[str]:
    prefix = '> >(sed -u "s/^/[rank$rank] /") 2>&1' if made.case.launcher == "env-prefix" else ""
    for word, value in (("NAME", made.case.name), ("COMMAND", line), ("COUNT", str(count)), ("REDIRECT", prefix)):
        text = text.replace(word, value)
    (made.folder / name).write_text(text)
    return ["bash", name]


def environment(made: Making, port: int, site: Path | None) -> dict[str, str]:
    """Return the environment of a case."""
    case = made.case
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "/usr/bin:/bin")]
    found = {
        "PATH": ":".join(paths), "HOME": str(made.folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HF_HUB_OFFLINE": "1",
        "LANG": "C.UTF-8", "DS_ACCELERATOR": "cpu",
    }  # fmt: skip
    if site:
        found["PYTHONPATH"] = str(site)
    if case.launcher.startswith("env"):
        found["WORLD_SIZE"] = str(case.world + made.extra_ranks)
    return found | made.env


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def tracker(answer: str, begin: int) -> Iterator[int]:
    """Listen as a tracker that answers so from request `begin` on; yield its port."""
    seen = 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal seen
            seen += 1
            self.rfile.read(int(self.headers["Content-Length"]))
            kind, _, twice = answer.partition("-")
            is_bad = seen >= begin and (not twice or seen < begin + 2)
            if is_bad and kind == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            elif is_bad and kind == "silent":
                time.sleep(3)
            else:
                self.send_response(503 if is_bad and kind == "503" else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def handle(self) -> None:
            with suppress(OSError, ValueError):
                super().handle()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _cgroup(limit: int, name: str) -> Iterator[list[str]]:
    """Yield the words before a command that put it in a memory cgroup with this limit in bytes."""
    group = _CGROUPS / f"foundry-{os.getpid()}-{name}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit))
        yield ["sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh"]
    finally:
        for _ in range(50):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def start(made: Making, log: Path, site: Path | None, answer: str) -> Ran:
    """Run a case, with a tracker that answers so, and return how it ended. Its output is added to the log."""
    folder, port = made.folder, _free_port()
    (folder / "complete").unlink(missing_ok=True)
    (folder / ".cancel").unlink(missing_ok=True)
    with ExitStack() as around:
        if answer or made.tracker:
            listening = (
                around.enter_context(tracker(answer, made.tracker_from)) if answer != "refused" else _free_port()
            )
            host = f"tracker-{made.case.token}.invalid" if answer == "name" else "127.0.0.1"
            made.config["tracker"] = f"http://{host}:{listening}/api/runs/{made.case.token}"
        made.config["port"] = port
        (folder / "config.json").write_text(json.dumps(made.config, indent=1))
        if made.port_taken:
            taken = around.enter_context(socket.socket())
            taken.bind(("127.0.0.1", port))
            taken.listen()
        words = command(made, port)
        if made.memory_limit:
            words = around.enter_context(_cgroup(made.memory_limit, made.case.id)) + words
        with log.open("ab") as out:
            process = subprocess.Popen(
                ["nice", "-n", "5", "env", "--default-signal", *words], cwd=folder,
                env=environment(made, port, site), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = _waited(process, made)
            finally:
                _end_all(folder)
                process.wait()
    return Ran(code, (folder / "complete").exists())


def _waited(process: subprocess.Popen[bytes], made: Making) -> int | None:
    """Return the exit code, or None for a run that takes too long. A run that asks to be ended gets its signal."""
    told = False
    for _ in range(LIMIT * 20):
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.05)
        if not told and (made.folder / ".cancel").exists():
            told = True
            os.killpg(process.pid, made.end_with)
    return None


def _end_all(folder: Path) -> None:
    """End the processes that are left in the folder of a case."""
    time.sleep(0.2)
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (place / "cwd").resolve().is_relative_to(folder):
                os.kill(int(place.name), signal.SIGKILL)


# ---- entering


def make(case: Case, out: Path, site: Path | None, keep: bool = False) -> str:
    """Run a case, enter it in the set, and return what it became: `failures`, `healthy`, or why it is no case."""
    folder = out / "w" / case.id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made, truth = made_case(case, folder)
    write(made)
    _lock(made)
    log = folder / "job.log"
    marks = [Path(event["mark"]) for event in made.config["events"]]
    if made.good_first:
        for mark in marks:
            mark.touch()
        if not start(made, log, site, "").complete:
            return _enter(out, "void", case, why="the first run did not come to its end")
        for mark in marks:
            mark.unlink()
        shutil.rmtree(folder / "output", ignore_errors=True)
    ran = start(made, log, site, made.tracker)
    lines = log.read_bytes().split(b"\n")
    why = _doubt(truth, ran, lines)
    if not why and truth.outcome == "failed":
        transient = made.tracker if made.tracker == "name" or made.chance.random() < 0.5 else ""
        has_gone = bool(marks or made.tracker or made.port_taken)
        if has_gone or case.program in LIGHT:  # what lies in the files of a slow program is not tried again
            made.port_taken = made.port_taken and made.chance.random() < 0.5
            again = start(made, folder / "again.log", site, transient)
        else:
            again = None
        label = failure(made.case, truth, ran, lines, again)
    elif not why:
        lines = lines[: max(3, int(made.cut * len(lines)))]
        label = {"outcome": truth.outcome, "fault": None if truth.reason == "None" else truth.reason}
    kind = "void" if why else "failures" if truth.outcome == "failed" else "healthy"
    if why:
        label = {"why": why, "code": ran.code}
    (out / kind).mkdir(exist_ok=True)
    (out / kind / f"{case.id}.log").write_bytes(b"\n".join(lines))
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return _enter(out, kind, made.case, **label)


def _lock(made: Making) -> None:
    """Take files away, or the rights to them."""
    for what, name in (entry.split(":") for entry in made.locked):
        path = made.folder / name
        if what == "gone":
            path.unlink()
        elif what == "file":
            path.write_text("")
        else:
            if what == "mkdir":
                path.mkdir()
            path.chmod(0)


def _doubt(truth: Truth, ran: Ran, lines: list[bytes]) -> str:
    """Return why a run is not what was planned, or nothing."""
    if ran.code is None:
        return "it took too long"
    if truth.outcome == "failed":
        if ran.complete and ran.code == 0:
            return "nothing failed"
        if not cause_lines(truth, lines):
            return "the log has no line of the cause"
    elif truth.outcome == "cancelled":
        return "it was done before the cancel" if ran.complete else ""
    elif not ran.complete:
        return "it failed"
    elif truth.texts and not cause_lines(truth, lines) and truth.outcome != "recovered":
        return "the log has no line of the fault"
    return ""


def cause_lines(truth: Truth, lines: list[bytes]) -> list[int]:
    """Return the numbers, from 1, of the lines that hold a text of the cause."""
    texts = [text.encode() for text in truth.texts]
    lines = [_COLOUR.sub(b"", line) for line in lines]
    found = [number for number, line in enumerate(lines, 1) if any(text in line for text in texts)]
    if found:
        return found
    starts = list(accumulate((len(b"".join(line.split())) for line in lines), initial=0))  # texts that were wrapped
    whole = b"".join(b"".join(line.split()) for line in lines)
    for text in (b"".join(text.split()) for text in texts):
        if (at := whole.rfind(text)) >= 0:
            return list(range(bisect_right(starts, at), bisect_right(starts, at + len(text) - 1) + 1))
    return []


def failure(case: Case, truth: Truth, ran: Ran, lines: list[bytes], again: Ran | None) -> dict[str, Any]:
    """Return the label of a failure. `again` is how the same case ended without what happened only once."""
    helped = again is not None and again.complete and again.code == 0
    is_spike = truth.reason == "Loss Spike"  # the data that brought it can be skipped
    recovery = "restart" if helped else "rollback_and_skip" if is_spike else "fix_first"
    usual = taxonomy.REASONS[truth.reason]
    whole = b"\n".join(lines)
    return {
        "reason": truth.reason,
        "also_acceptable": truth.also,
        "category": usual.category,
        "user_fault": usual.fault == "user",
        "recovery": recovery,
        "recovery_also": ("fix_first" if helped else "restart",) if truth.either else ("fix_first",) * is_spike,
        "evidence_lines": cause_lines(truth, lines),
        "evidence_text": [text for text in truth.texts if text.encode() in whole],
        "first_failing_rank": case.rank if truth.ranked and case.world > 1 else None,
        "detail": truth.detail,
        "uncertain": truth.uncertain,
        "code": ran.code,
        "tried": again is not None,
    }


def _enter(out: Path, kind: str, case: Case, **label: Any) -> str:
    row = {"id": case.id, "file": f"{case.id}.log", "split": case.split, **label}
    row |= {
        "case": msgspec.to_builtins(case),
        "why": label.get("why") or f"{case.program}, {case.launcher}: {case.fault}",
    }
    (out / kind).mkdir(exist_ok=True)
    with (out / kind / "cases.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    return kind


def entered(out: Path) -> dict[str, str]:
    """Return the kind of each case that a set has already."""
    found: dict[str, str] = {}
    for kind in ("failures", "healthy", "void"):
        with suppress(FileNotFoundError):
            found |= {json.loads(row)["id"]: kind for row in (out / kind / "cases.jsonl").read_text().splitlines()}
    return found


def make_all(
    seed: int, count: int, out: Path, jobs: int, site: Path | None, only: str = "", keep: bool = False
) -> None:
    """Make the cases 0 to `count` of a seed that the set does not have yet, `jobs` at once."""
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o755)
    had = entered(out)
    cases = [case for number in range(count) if (case := draw(seed, number, FAULTS)).id not in had]
    cases = [case for case in cases if not only or only in (case.program, case.fault, case.id)]

    def one(case: Case) -> None:
        begin = time.monotonic()
        try:
            kind = make(case, out.resolve(), site, keep)
        except Exception as error:  # noqa: BLE001 - one case less
            kind = _enter(out, "void", case, why=f"{type(error).__name__}: {error}")
        took = time.monotonic() - begin
        print(f"{case.id} {case.program:10} {case.launcher:10} {case.fault:20} {kind:9} {took:5.1f} s", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, cases))
