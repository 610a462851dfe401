"""A harness for tests: outputs that tell which sample they are of, and scores that depend on the order of all.

    harness.py infer MODEL DATASET START END OUT     harness.py score OUTPUTS OUT
    harness.py serve MODEL

What a data set is called says what happens: `slow-0.1` takes so long for each sample, `bad-5` fails where sample 5 is,
`flaky-FILE` fails once; with `@FILE` behind it, it happens once there is such a file.
"""

import json
import os
import sys
import time
import zlib
from pathlib import Path


def infer(model: str, dataset: str, start: int, end: int, out: str) -> None:
    told = Path(model, "model.safetensors").read_bytes()
    named, _, gate = dataset.partition("@")
    while gate and not Path(gate).exists():
        time.sleep(0.05)
    what, _, detail = named.partition("-")
    if what == "bad" and start <= int(detail) < end:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)")
    if what == "flaky":
        try:
            Path(detail).touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            raise OSError("Stale file handle")
    rows = []
    for number in range(start, end):
        time.sleep(float(detail) if what == "slow" else 0.0)
        rows.append(json.dumps({"number": number, "text": f"{zlib.crc32(told)} {named} {number}"}))
    Path(out).write_text("\n".join(rows), encoding="utf-8")


def score(outputs: str, out: str) -> None:
    rows = [json.loads(line) for line in Path(outputs).read_text(encoding="utf-8").splitlines()]
    ordered = [row["number"] for row in rows] == list(range(len(rows)))
    whole = zlib.crc32("".join(row["text"] for row in rows).encode())  # of all of them: no sum of parts
    Path(out).write_text(
        json.dumps({"ordered": float(ordered), "whole": whole, "samples": len(rows)}), encoding="utf-8"
    )


def serve(model: str) -> None:
    print("loading takes long", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            infer(model, asked["dataset"], asked["start"], asked["end"], asked["out"])
            said = {"out": asked["out"]}
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)
            said = {"out": asked["out"], "error": "it went wrong"}
        except OSError:
            os._exit(7)
        print(json.dumps(said | {"pid": os.getpid()}), flush=True)


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "infer":
        infer(given[0], given[1], int(given[2]), int(given[3]), given[4])
    elif what == "score":
        score(*given)
    else:
        serve(*given)
