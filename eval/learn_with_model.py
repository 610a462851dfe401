"""How well a language model writes filter rules: the whole path from a log to rules, with the model that is set.

    LOGDOCTOR_LLM_BASE_URL=http://127.0.0.1:8000/v1 LOGDOCTOR_LLM_MODEL=... \\
        python eval/learn_with_model.py [--framework NAME] [--mb N] [--lessons N]

Beginning without any filter rule, lessons are held on a log of biglog.py; what passed vote, guards and judge is made
active and tried on a second log of the same framework and on the failure logs of the corpus. Nothing is asserted.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

from logdoctor import build
from logdoctor.compress.cut import cut
from logdoctor.compress.filter import Residual, compress
from logdoctor.compress.leftovers import Leftovers
from logdoctor.learn.book import Books
from logdoctor.learn.life import Terms
from logdoctor.learn.log_agent import Limits, LogAgent
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import read_settings
from logdoctor.store.learned import LearnedRules, Source
from logdoctor.store.records import Records

HERE = Path(__file__).resolve().parent


def generated(framework: str, seed: int, megabytes: float, folder: Path) -> tuple[bytes, set[int]]:
    """A log, and the numbers of its rare lines."""
    log, index = folder / "log", folder / "index"
    command = [sys.executable, str(HERE / "corpus" / "biglog.py"), "--framework", framework, "--mb", str(megabytes)]
    subprocess.run(
        [*command, "--seed", str(seed), "--out", log, "--index", index], stderr=subprocess.DEVNULL, check=True
    )
    return log.read_bytes(), set(json.loads(index.read_text())["rare_line_numbers"])


def residuals(log: bytes, scanner: Scanner) -> Iterator[Residual]:
    """What the rules say about a log, read as the service reads it."""
    pieces = (log[at : at + (1 << 20)] for at in range(0, len(log), 1 << 20))
    return (compress(segment, scanner) for segment in cut("main", pieces, 1 << 20))


def taken(log: bytes, scanner: Scanner) -> set[int]:
    """The numbers of the lines that the rules take."""
    numbers: set[int] = set()
    for residual in residuals(log, scanner):
        owner = residual.scan.owner[: len(residual.ends)]
        numbers |= {residual.segment.line + place for place in range(len(owner)) if owner[place] >= 0}
    return numbers


def main() -> None:
    """Learn, then show what was learned and what it takes."""
    parser = argparse.ArgumentParser(description="Measure the Log Agent with a model.")
    parser.add_argument("--framework", default="torchtitan")
    parser.add_argument("--mb", type=float, default=4.0)
    parser.add_argument("--lessons", type=int, default=2)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    settings, kind = read_settings(), given.framework
    scanner, guards = build.unlearned(settings)
    with tempfile.TemporaryDirectory() as name:
        rules = LearnedRules(Records(f"sqlite:///{name}/rules.db").database)
        limits = Limits(settings.learn_runs, Terms(settings.learn_jobs, settings.learn_lines))
        model = build.model_agent(settings, build.guarded(settings, rules))
        agent = LogAgent(Books(scanner, rules), rules, model, guards, limits)
        log, _ = generated(kind, 7, given.mb, Path(name))
        for _ in range(given.lessons):
            left = Leftovers(agent.known(kind))
            for residual in residuals(log, agent.books.scanner(kind)):
                left.add(residual)
            agent.learn(kind, (kind, 1), left.groups(), Source(kind, 1))
        for rule in rules.list(kind):
            print(f"{rule.status:9} {len(rule.votes.agreed)}/{rule.votes.runs} {rule.pattern}")
        print("refused:", rules.refusal_counts())
        for total in rules.model_totals():
            print(
                f"{total.purpose}, {total.result}: {total.calls} calls, {total.tokens_in} + {total.tokens_out} tokens"
            )
        for rule in rules.list(kind, "shadow"):
            rules.approve(rule.id, "the measurement", "to see what it takes", 0.0)
        agent.books.refresh()
        learned = agent.books.scanner(kind)
        log, rare = generated(kind, 8, given.mb, Path(name))
    numbers, lines = taken(log, learned), log.count(b"\n")
    share = len(numbers - rare) / (lines - len(rare))
    print(f"second log: {share:.2%} of its regular lines, {len(numbers & rare)} of its rare lines taken")
    failures = HERE / "corpus" / "failures"
    causes = 0
    for case in map(json.loads, (failures / "cases.jsonl").read_text().splitlines()):
        causes += len(taken((failures / case["file"]).read_bytes(), learned) & set(case["evidence_lines"]))
    print(f"evidence lines of the failure logs that are taken: {causes}")


if __name__ == "__main__":
    main()
