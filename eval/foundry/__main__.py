"""Make a set of failures that really happened, and score diagnoses on it.

python -m eval.foundry make --seed 1 --count 300 --out DIR [--jobs 2] [--site DIR]
python -m eval.foundry score DIR [--system logdoctor ...] [--write eval/foundry/scores.md]
"""

import argparse
from pathlib import Path


def main() -> None:
    """Make or score a set."""
    parser = argparse.ArgumentParser(prog="python -m eval.foundry", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="run cases, and go on where the set ends")
    making.add_argument("--seed", type=int, default=1)
    making.add_argument("--count", type=int, default=300)
    making.add_argument("--out", type=Path, required=True)
    making.add_argument("--jobs", type=int, default=2)
    making.add_argument("--site", type=Path, help="a folder with more libraries for the programs, such as loguru")
    making.add_argument("--only", default="", help="a program, a fault or a case")
    making.add_argument("--keep", action="store_true", help="keep the folders of the cases")
    scoring = commands.add_parser("score", help="diagnose the logs of a set")
    scoring.add_argument("folder", type=Path)
    scoring.add_argument("--system", nargs="*", default=["logdoctor", "last-error"])
    scoring.add_argument("--split", default="", help="open or validation")
    scoring.add_argument("--site", type=Path, help="a folder with the libraries of other systems")
    scoring.add_argument("--write", type=Path, help="write the tables to this file")
    scoring.add_argument("--misses", type=Path, help="write what each system got wrong to this file")
    given = parser.parse_args()
    if given.command == "make":
        from eval.foundry.run import make_all

        make_all(given.seed, given.count, given.out, given.jobs, given.site, given.only, given.keep)
    else:
        from eval.foundry.score import score_all

        score_all(given.folder, given.system, given.split, given.site, given.write, given.misses)


if __name__ == "__main__":
    main()
