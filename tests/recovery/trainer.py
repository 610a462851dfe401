"""A trainer that does as it is told, in plain Python: `trainer.py PLAN.json [ARGUMENTS]`.

The plan is a list with one entry for each attempt, the last one for all further attempts:

    {"steps": [0, 10], "say": "a line", "exit": 1, "kill": 9, "save": {"step": 10, "seconds": 0}, "hang": true, ...}

With "await" it waits for a file of the folder before it saves and speaks.

With "move" a file of the folder gets another name: ["from", "to"].

With "done" it says that the job is done.

With "lines" it prints these, too.

With "over" a save takes the place of the one before, in the file `last`.

What it was started with goes to starts.jsonl beside the plan.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1]).parent


def main() -> None:
    """Train as the plan says for this attempt."""
    plan, told = json.loads(Path(sys.argv[1]).read_text()), FOLDER / "starts.jsonl"
    number = told.read_text().count("\n") if told.exists() else 0
    step: dict[str, Any] = plan[min(number, len(plan) - 1)]
    begin(step)
    with told.open("a") as file:
        seen = {name: value for name, value in os.environ.items() if "LOGDOCTOR" in name or name.startswith("SLURM")}
        file.write(json.dumps({"pid": os.getpid(), "argv": sys.argv[2:], "env": seen, "at": time.time()}) + "\n")
    for number in range(*step.get("steps", [0, 0])):
        print(f"step: {number} | loss: 2.{number % 10}", flush=True)
    for line in step.get("lines", []):
        print(line, flush=True)
    for number in range(*step.get("spike", [0, 0])):
        print(f"step: {number} | loss: 50.{number % 10}", flush=True)
    while not (FOLDER / step.get("await", ".")).exists():
        time.sleep(0.01)
    if "save" in step:
        save(step["save"])
    if "move" in step:
        source, target = step["move"]
        (FOLDER / source).rename(FOLDER / target)
    if "done" in step:
        Path(os.environ["LOGDOCTOR_DONE_FILE"]).touch()
    if "say" in step:
        print(step["say"].replace("HOST", os.environ.get("SLURMD_NODENAME", "host")), flush=True)
    while step.get("hang"):
        time.sleep(0.05)
    if "kill" in step:
        os.kill(os.getpid(), step["kill"])
    sys.exit(step.get("exit", 0))


def begin(step: dict[str, Any]) -> None:
    """Do what comes before the first step: handlers, sockets, processes that stay behind."""
    if "on_term" in step:
        signal.signal(signal.SIGTERM, lambda *_: end_by_term(step["on_term"]))
    if "listen" in step:
        with socket.create_server(("127.0.0.1", step["listen"])):
            pass  # it fails when an orphan holds the port
    if "orphan" in step:
        code = (
            "import os, signal, socket, sys, time\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "s = socket.create_server(('127.0.0.1', int(sys.argv[1]))) if int(sys.argv[1]) else None\n"
            "open(sys.argv[2], 'w').write(str(os.getpid()))\n"
            "time.sleep(300)\n"
        )
        mark = FOLDER / "orphan"
        command = [sys.executable, "-c", code, str(step["orphan"]), str(mark)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(command, start_new_session=True, **quiet)  # type: ignore[call-overload]
        while not mark.exists() or not mark.read_text():
            time.sleep(0.01)


def save(told: dict[str, Any]) -> None:
    """Write a checkpoint: it is complete when it has its name."""
    part = FOLDER / "ckpt" / f"{told['step']}.part"
    part.parent.mkdir(exist_ok=True)
    part.write_text("half")
    time.sleep(told.get("seconds", 0))
    if told.get("over"):
        part.write_text(str(told["step"]))
    part.rename(part.with_name("last") if told.get("over") else part.with_suffix(""))


def end_by_term(told: dict[str, Any]) -> None:
    """Save, then end as the plan says for SIGTERM."""
    if "save" in told:
        save(told["save"])
    sys.exit(told.get("exit", 0))


if __name__ == "__main__":
    main()
