"""Whatever a real language model says that understands nothing, it does no harm.

A model of 135 M parameters writes fluent words, wrong claims and broken JSON, as no script of ours does. What it says
cannot be foreseen, so nothing here asks that it is right: only that no law is broken.
"""

import contextlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from eval import model_score as em
from eval.labels import FailureCase
from logdoctor.compress.cut import cut
from logdoctor.compress.filter import compress
from logdoctor.compress.leftovers import Leftovers
from logdoctor.errors import ModelError
from logdoctor.failure_agent.agent import FailureAgent
from logdoctor.failure_agent.ladder import Ladder
from logdoctor.learning.filters.agent import LearningLimits as Lessons
from logdoctor.learning.filters.agent import LogAgent
from logdoctor.learning.filters.book import Books
from logdoctor.learning.filters.canary import causes
from logdoctor.learning.filters.guards import FilterGuards
from logdoctor.learning.filters.life import WatchTerms
from logdoctor.learning.filters.model import ModelAgent
from logdoctor.llm.langchain import LangChainModel
from logdoctor.llm.spending import Budget, Guarded, MemoryLedger
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.load import RuleBook
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import Settings, prompts_folder, rules_folder
from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.types import Verdict
from logdoctor.types.models import Exchange
from tests.log_agent.samples import KIND, SOURCE
from tests.soak.silly import Silly, silly_model

CORPUS = Path(__file__).parents[2] / "eval" / "corpus" / "failures"
UNSEEN = ("inf-009.log", "inf-029.log", "inf-007.log")  # a peer that went away, a node that failed, a memory fault
IN_DOUBT = ("inf-048.log", "usr-042.log", "usr-006.log")
MOVES = ("restart", "isolate_and_restart", "rollback_and_skip")
CHEAPER = {"isolate_and_restart": "restart"}
ENDLESS = Budget(*[10**12] * 3, tokens_per_job=10**12, tokens_per_day=10**12)
ANSWER = 600  # tokens of an answer: it rambles for longer, but with 240 no claim of it ever came to its end


@pytest.fixture(scope="module")
def silly() -> Iterator[Silly]:
    with tempfile.TemporaryDirectory(prefix="logdoctor-silly-") as scratch, silly_model(Path(scratch)) as running:
        yield running


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prompts as they are, but for short answers."""
    folder = tmp_path_factory.mktemp("silly") / "prompts"
    shutil.copytree(prompts_folder(Settings()), folder)
    for path in folder.glob("*.md"):
        path.write_text(path.read_text().replace("max_tokens: 1000", f"max_tokens: {ANSWER}"))
    return folder


class ReportedEnd(em.ModelCalls):
    """What was said, which is told at the end: a run that nobody can read proves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[str] = []
        self.seconds: list[float] = []

    def enter(self, exchange: Exchange) -> None:
        super().enter(exchange)
        self.failures.append(exchange.failure)
        self.seconds.append(exchange.seconds)
        print(f"{exchange.seconds:.1f} s, {exchange.failure or 'usable'}: {exchange.got[:200]!r}", flush=True)

    def __str__(self) -> str:
        usable = sum(not failure for failure in self.failures)
        mean = sum(self.seconds) / max(len(self.seconds), 1)
        return f"{len(self.seconds)} calls, {usable} usable as JSON, {mean:.1f} s each"


def guarded(silly: Silly, reported: ReportedEnd) -> Guarded:
    model = LangChainModel(silly.url, silly.name, "", seconds=600.0)
    return Guarded(model, MemoryLedger(), ENDLESS, exchanges=reported, bears_nonsense=True)


# ---- diagnosing


def read(
    files: tuple[str, ...], rules: em.Rules, scanner: Scanner, limits: ReadLimits, scratch: Path
) -> list[em.PreparedFailure]:
    """Some failures of the corpus, as rules that know so much leave them."""
    (folder := scratch / "corpus").mkdir()
    (tables := scratch / "tables").mkdir()
    labels = (CORPUS / "cases.jsonl").read_text().splitlines()
    (folder / "cases.jsonl").write_text("\n".join(label for label in labels if json.loads(label)["file"] in files))
    for file in files:
        shutil.copy(CORPUS / file, folder)
    found = em.read_failures([folder], rules, scanner, rules_folder(Settings()) / "knowledge", limits, tables)
    assert len(found) == len(files)
    return found


def harm(one: em.PreparedFailure, verdict: Verdict) -> Iterator[str]:
    """What is wrong with a verdict that should not be, however silly the model is."""
    before, case = one.question.verdict, one.log.case
    assert isinstance(case, FailureCase)
    lines = one.log.path.read_bytes().decode(errors="replace").split("\n")
    if any(evidence.quote not in lines[evidence.line - 1] for evidence in verdict.evidence):
        yield "a quote does not stand there"
    if verdict.reason != "Unknown" and not verdict.evidence:
        yield "a reason without a quote"
    if verdict.decided_by.kind != "agent":
        if verdict.reason != before.reason or verdict.outcome != before.outcome:
            yield "the verdict of the rules has another reason"
        if verdict.recovery not in (before.recovery, CHEAPER.get(before.recovery), "ask_human"):
            yield f"the rules wanted {before.recovery}"
    elif verdict.recovery in MOVES:
        if verdict.reason not in (case.reason, *case.also_acceptable):
            yield "a wrong reason that moves the job"
        cited = {evidence.line for evidence in verdict.evidence}
        lasting = (episode for episode in one.question.episodes if not episode.survived)
        leading = [episode for episode in lasting if episode.role in ("cause", "proximate", "")]
        if not any(cited & {episode.line, *episode.lines} for episode in leading):
            yield "nothing but words moves the job"


@pytest.mark.parametrize(("files", "rules"), [(UNSEEN, "unseen"), (IN_DOUBT, "all")], ids=["unseen", "in doubt"])
def test_what_it_says_of_failures_does_no_harm(
    files: tuple[str, ...],
    rules: em.Rules,
    silly: Silly,
    prompts: Path,
    scanner: Scanner,
    limits: ReadLimits,
    tmp_path: Path,
) -> None:
    """All are asked about: the cause is open, or the rules are not sure enough for who wants certainty."""
    reported = ReportedEnd()
    agent = FailureAgent(guarded(silly, reported), prompts, None, None)
    asker = em.Asker(Ladder(None, 0.0, 0, agent.conclude, below=1.0), reported)
    ends: Counter[str] = Counter()
    found = []
    for one in read(files, rules, scanner, limits, tmp_path):
        assert asker.asks_about(one)
        verdict, trial = asker.climbed(one)
        assert trial.calls, "nobody was asked"
        before = one.question.verdict
        changed = (verdict.reason, verdict.recovery) != (before.reason, before.recovery)
        ends["no usable answer" if trial.failure else "changed" if changed else "as it was"] += 1
        found += [
            f"{one.log.case.file}: {what}: {before.reason}, {before.recovery} -> {verdict.reason}, {verdict.recovery}"
            for what in harm(one, verdict)
        ]
        msgspec.json.encode(verdict)
    print(f"\n{rules}: {len(files)} questions, {reported}; verdicts: {dict(ends)}")
    assert not found


# ---- learning

GOLD = "the vault of node 7 lost 300 bars of gold"


def log() -> bytes:
    """A log of which nothing is known, with lines on which a verdict has rested once."""
    lines = []
    for n in range(600):
        lines.append(f"[rank{n % 8}]: gizmo step {n} took {n / 7:.3f} s on gpu-{n % 4}")
        lines.append(f"2026-01-02 03:{n // 60:02d}:{n % 60:02d} saving the gizmo to /ckpt/run/{n}.pt")
        lines.append(GOLD.replace("7", str(n % 9)).replace("300", str(n)))
    return "\n".join(lines).encode()


def test_what_it_would_filter_takes_nothing(
    silly: Silly, prompts: Path, scanner: Scanner, book: RuleBook, tmp_path: Path
) -> None:
    """Its patterns are refused, or are watched without taking a line; none of them matches what tells of a cause."""
    reported = ReportedEnd()
    guards = FilterGuards(causes(book, rules_folder(Settings()) / "canary"))
    guards.remember([GOLD])
    records = Records(f"sqlite:///{tmp_path}/records.sqlite")
    with contextlib.closing(records):
        rules = LearnedRules(records.database)
        model = ModelAgent(guarded(silly, reported), prompts)
        agent = LogAgent(Books(scanner, rules), rules, model, guards, Lessons(2, WatchTerms(2, 20)))
        left = Leftovers(agent.known(KIND))
        for segment in cut("main", [log()], 1 << 16):
            left.add(compress(segment, scanner))
        with contextlib.suppress(ModelError):
            agent.learn(KIND, ("job-1", 1), left.groups(), SOURCE)
        known, refused = rules.list(KIND), rules.refusals.list(KIND)
        statuses = Counter(rule.status for rule in known)
        print(
            f"\nlearning: {reported}; rules: {dict(statuses)}, refused: {dict(Counter(one.guard for one in refused))}"
        )
        assert reported.seconds, "nobody was asked"
        assert set(statuses) <= {"shadow", "proposed"}
        assert guards.evidence_taken([rule.pattern for rule in known]) == {}
        (segment,) = cut("main", [log()], 1 << 30)
        shipped, learned = (compress(segment, one).kept.tolist() for one in (scanner, agent.books.scanner(KIND)))
        assert learned == shipped, "a rule takes lines before it was watched"
