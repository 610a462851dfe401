"""`make demo`: start a service, run a job that dies under `logdoctor run`, and print its verdict and page.

    python eval/demo.py [--log FILE] [--keep]

The job prints a real training log line by line and ends with exit code 1. In a terminal, or with `--keep`, the service
stays up until Ctrl-C, so that the page can be opened.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from logdoctor.types import Verdict
from logdoctor.words import panel

LOG = Path(__file__).resolve().parent / "corpus" / "failures" / "inf-028.log"
LOGDOCTOR = str(Path(sys.executable).with_name("logdoctor"))
JOB = "llm-70b-pretrain"
DIES = "import sys; sys.stdout.write(open(sys.argv[1], errors='replace').read()); sys.exit(1)"
SECONDS = 120.0


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """Run a service on a free port and yield its URL; stop it afterwards."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    command = [LOGDOCTOR, "serve", "--port", "0", "--data-dir", str(folder)]
    with (folder / "service.log").open("wb") as messages:
        process = subprocess.Popen(command, stderr=messages, stdin=subprocess.DEVNULL, env=environment)
    try:
        yield listening(process, folder / "service.log")
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def listening(process: "subprocess.Popen[bytes]", messages: Path) -> str:
    """Return the URL that a service logs once it listens; exit with its messages otherwise."""
    deadline = time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        for line in messages.read_text(errors="replace").splitlines():
            if '"listening"' in line:
                return str(json.loads(line)["url"])
        time.sleep(0.1)
    code = process.poll()
    how = f"It ended with exit code {code}" if code is not None else f"It does not listen after {SECONDS:g} s"
    said = messages.read_text(errors="replace")[-2000:]
    sys.exit(f"The service did not start. {how}" + (f", after it said:\n{said}" if said else ", and said nothing."))


def verdict(url: str) -> tuple[int, Verdict]:
    """Wait for the final verdict on the job; return its number and itself."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/v1/jobs/{JOB}/attempts/1/verdict", timeout=10) as answer:
                stored = json.load(answer)
            if stored["final"]:
                return stored["id"], msgspec.convert(stored["verdict"], Verdict)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
        time.sleep(0.1)
    sys.exit(f"{url} gave no verdict within {SECONDS:g} s.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", type=Path, default=LOG, help="training log that the job prints")
    parser.add_argument("--keep", action="store_true", help="keep the service running until Ctrl-C")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="logdoctor-demo-") as folder, service(Path(folder)) as url:
        print(f"$ logdoctor serve                    # {url}")
        print(f"$ logdoctor run --job {JOB} -- python train.py", flush=True)
        job = [sys.executable, "-c", DIES, str(options.log)]
        run = [LOGDOCTOR, "run", "--url", url, "--job", JOB, "--attempt", "1", "--framework", "megatron", "--", *job]
        printed = subprocess.run(run, stdout=subprocess.PIPE, text=True, errors="replace", check=False)
        lines = printed.stdout.count("\n")
        print(f"... {lines:,} lines, then exit code {printed.returncode}\n")
        number, found = verdict(url)
        panel.show(f"{JOB}, attempt 1", found, False)
        stays = options.keep or sys.stdout.isatty()
        page = f"{url}/verdicts/{number}" if stays else "in a terminal, or with --keep, the service stays up to show it"
        print(f"\nIts page: {page}", flush=True)
        if stays:
            print("The service keeps running; stop it with Ctrl-C.", flush=True)
            try:
                while True:
                    time.sleep(3600)
            except KeyboardInterrupt:
                print()


if __name__ == "__main__":
    main()
