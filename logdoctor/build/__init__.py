"""The composition root: build the working parts from the settings. Nothing else constructs them.

What the service needs is imported inside the functions, because the command line diagnoses without it.
"""

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from logdoctor.build.nodes import actor, cordoner, launcher, node_records
from logdoctor.build.notices import notices, notifier
from logdoctor.build.stored import database_url, made_folder, records
from logdoctor.errors import SettingsError
from logdoctor.extras import require as require_library
from logdoctor.pipeline import ReadLimits
from logdoctor.rules.check import require
from logdoctor.rules.load import RuleBook, load_book
from logdoctor.rules.scanner import Scanner
from logdoctor.settings import (
    PREFIX,
    Settings,
    cache_folder,
    llm_key,
    prompts_folder,
    rules_folder,
)
from logdoctor.taxonomy import REASONS

if TYPE_CHECKING:
    from logdoctor.failure_agent.agent import FailureAgent
    from logdoctor.failure_agent.cases.cases import Case, CaseLibrary, Neighbour
    from logdoctor.failure_agent.cases.embedding import Embedder
    from logdoctor.failure_agent.question import Question
    from logdoctor.failure_agent.write_back.guards import DiagnosisGuards
    from logdoctor.llm.budget import Ledger
    from logdoctor.llm.exchanges import ExchangeStore as AnyExchanges
    from logdoctor.llm.spending import Guarded
    from logdoctor.log_agent.agent import LogAgent
    from logdoctor.log_agent.guards import FilterGuards
    from logdoctor.log_agent.model import ModelAgent
    from logdoctor.log_agent.proposal import Agent
    from logdoctor.service.acting import Actor
    from logdoctor.service.consulting import Climbing
    from logdoctor.service.service import Plan, Service, Stores
    from logdoctor.store.confirmed import Confirmation, Confirmed
    from logdoctor.store.exchanges import Exchanges
    from logdoctor.store.learned import LearnedRules
    from logdoctor.store.records import Records

__all__ = [
    "actor",
    "cordoner",
    "database_url",
    "launcher",
    "made_folder",
    "node_records",
    "notices",
    "notifier",
    "records",
]


def rule_book(settings: Settings) -> RuleBook:
    """Return the rules in the folder of the settings; `RuleError` when one is wrong."""
    return load_book(rules_folder(settings), cache_folder(settings))


def scanner(settings: Settings) -> Scanner:
    """Return the compiled rules, checked; `RuleError` names the first that is wrong.

    A rule book is checked when it is first used; the cache remembers under its digest that it passed.
    """
    compiled = unchecked_scanner(settings)
    passed = cache_folder(settings) / f"{compiled.book.digest}.checked"
    if not os.path.exists(passed):  # False also for a cache folder without access
        require(compiled.book, compiled)
        with suppress(OSError):  # a cache that cannot be written is not an error
            passed.touch()
    return compiled


def unchecked_scanner(settings: Settings) -> Scanner:
    """Return the compiled rules unchecked, for commands that look for what is wrong with them."""
    return Scanner(rule_book(settings), cache_folder(settings))


def limits(settings: Settings) -> ReadLimits:
    """Return the limits on reading a log."""
    return ReadLimits(settings.block_bytes, settings.workers, settings.max_decompressed_bytes, settings.max_expansion)


def plan(settings: Settings) -> "Plan":
    """Return the plan of the service: its limits, intervals and folders."""
    from logdoctor.service.intake import IntakeBounds
    from logdoctor.service.retention import Rules
    from logdoctor.service.service import Plan
    from logdoctor.service.silence import Timing

    return Plan(
        database_url(settings),
        IntakeBounds(
            settings.max_stream_bytes,
            settings.max_streams,
            settings.max_open_streams,
            behind=24 << 20,
            late=settings.scan_seconds + 0.1,
            journal_bytes=settings.journal_bytes,
            unarchived=8 * settings.journal_bytes,
        ),
        Timing(
            settings.scan_seconds,
            settings.quiet_seconds,
            settings.hang_seconds,
            settings.linger_seconds,
            settings.abandon_seconds,
        ),
        Rules(
            settings.retention_days * 86_400,
            settings.retention_bytes,
            every=600.0,
            notices=settings.notify_retention_days * 86_400,
        ),
        settings.min_free_bytes,
        settings.learn_recheck,
    )


def service(settings: Settings) -> "Service":
    """Return the service over the data folder; not yet started."""
    from logdoctor.service.service import Service

    compiled, model = scanner(settings), Model(settings)
    learning = None if settings.learn == "off" else partial(log_agent, settings, compiled, model=model)
    rungs_of = partial(climbing, settings, compiled, model)
    acting = partial(_service_actor, settings)
    notifying = partial(notifier, settings)
    return Service(made_folder(settings), compiled, plan(settings), learning, rungs_of, acting, notifying)


def _service_actor(settings: Settings, kept: "Records") -> "Actor":
    return actor(settings, kept, taking_up=True)


class Model:
    """The model of the settings, constructed on first use: all callers share one budget and one breaker."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._lock = settings, threading.Lock()
        self._made: Guarded | None = None

    def __call__(self, ledger: "Ledger", exchanges: "Exchanges") -> "Guarded":
        with self._lock:
            if self._made is None:
                self._made = guarded(self._settings, ledger, exchanges)
            return self._made


def climbing(settings: Settings, scanner: Scanner, model: "Model", stores: "Stores") -> "Climbing":
    """Return the rungs above the rules: past cases, the model if one is set, and the teacher."""
    from logdoctor.failure_agent.cases.embedding import SentenceEmbedder
    from logdoctor.failure_agent.cases.vectors import warm
    from logdoctor.failure_agent.ladder import Ladder
    from logdoctor.failure_agent.write_back.model_writer import ModelWriter
    from logdoctor.failure_agent.write_back.teacher import Teacher, TeachingTerms
    from logdoctor.failure_agent.write_back.writer import OfflineWriter
    from logdoctor.service.consulting import Climbing
    from logdoctor.store.model_calls import ModelCalls

    embedder = SentenceEmbedder(settings.embedding_model)
    library = case_library(settings, stores.confirmed, stores.folder, embedder) if settings.cases == "on" else None
    seam = None
    if settings.agent == "auto" and settings.llm_base_url:
        seam = model(ModelCalls(stores.records.database), stores.exchanges)
    writer = ModelWriter(seam, prompts_folder(settings)) if seam else OfflineWriter()
    terms = TeachingTerms(settings.learn_jobs, settings.confirm_attempts)
    taught = cache_folder(settings) / "taught"
    teacher = Teacher(stores.rules, stores.confirmed, writer, terms, scanner.book, scanner, cache=taught)
    agent = failure_agent(settings, seam, library, embedder) if seam else None
    neighbours = partial(_neighbours, library) if library else None
    conclude = agent.conclude if agent else None
    ladder = Ladder(neighbours, settings.case_similarity, settings.case_agreement, conclude, settings.agent_below)
    return Climbing(ladder, teacher, library.refresh if library else lambda: 0, partial(warm, embedder), seam)


def rungs(settings: Settings, scanner: Scanner) -> "Climbing":
    """Return the rungs above the rules over the data folder, for commands that run beside a service."""
    from logdoctor.service.service import Stores
    from logdoctor.store.confirmed import Confirmed
    from logdoctor.store.exchanges import Exchanges
    from logdoctor.store.learned import LearnedRules

    kept = records(settings)
    stored = LearnedRules(kept.database), Confirmed(kept.database), Exchanges(kept.database)
    return climbing(settings, scanner, Model(settings), Stores(kept, *stored, made_folder(settings)))


def past_cases(settings: Settings) -> "CaseLibrary":
    """Return the past cases of the data folder, for commands that run beside a service."""
    from logdoctor.failure_agent.cases.embedding import SentenceEmbedder
    from logdoctor.store.confirmed import Confirmed

    confirmed = Confirmed(records(settings).database)
    return case_library(settings, confirmed, made_folder(settings), SentenceEmbedder(settings.embedding_model))


def failure_agent(
    settings: Settings,
    model: "Guarded",
    library: "CaseLibrary | None",
    embedder: "Embedder",
) -> "FailureAgent":
    """Return the Failure Agent, which asks the model why a job failed."""
    from logdoctor.failure_agent.agent import AgentLimits, FailureAgent

    limits = AgentLimits(settings.agent_samples, settings.agent_confidence, settings.agent_tool_calls)
    similar = library.similar if library else None
    return FailureAgent(model, prompts_folder(settings), similar, embedder, limits)


def case_library(settings: Settings, confirmed: "Confirmed", folder: Path, embedder: "Embedder") -> "CaseLibrary":
    """Return the past cases of the confirmations, with their vectors in the data folder or behind the URL that is
    set."""
    from logdoctor.failure_agent.cases.cases import CaseLibrary
    from logdoctor.failure_agent.cases.vectors import ChromaVectors

    def vectors(name: str) -> ChromaVectors:
        place = None if settings.chroma_url else folder / "cases"
        return ChromaVectors(place, settings.chroma_url, name, embedder)

    def cases() -> list["Case"]:
        return [_case(one) for one in confirmed.cases()]

    space = _space(settings, folder) if settings.chroma_url else ""
    return CaseLibrary(vectors, embedder.name, cases, confirmed.version, space)


def _space(settings: Settings, folder: Path) -> str:
    """Return what separates the records of this service from those of others on the same vector server."""
    url = urlsplit(settings.database_url or f"sqlite:///{folder}")
    return sha256(f"{url.scheme} {url.hostname} {url.port} {url.path}".encode()).hexdigest()[:16]


def _case(one: "Confirmation") -> "Case":
    """Return the case of a confirmation. One that only attempts agree on, and no person confirmed, takes no node
    out."""
    from logdoctor.failure_agent.cases.cases import Case
    from logdoctor.store.confirmed import AGREEMENT

    quote = one.evidence[0].quote if one.evidence else ""
    recovery = one.recovery or REASONS[one.reason].recovery
    if recovery == "isolate_and_restart" and one.by == AGREEMENT:
        recovery = "ask_human"
    ruling = (one.reason, one.fault, recovery, one.fix, one.suggestion, one.title)
    return Case(one.id, *ruling, one.digests, one.summary, one.job, one.attempt, one.at, quote)


_NEIGHBOURS = 8


def _neighbours(library: "CaseLibrary", question: "Question") -> "Iterator[list[Neighbour]]":
    """Yield past cases like a failure: first those that share an episode, then also those near in meaning."""
    from logdoctor.diagnose.episodes import summary

    lasting = [one for one in question.episodes if not one.survived]
    digests, own = [one.digest for one in lasting], (question.job, question.attempt)
    yield library.same(digests, own)
    yield library.similar(summary(lasting), digests, _NEIGHBOURS, own)


def learned_rules(settings: Settings) -> "LearnedRules":
    """Return the learned rules of the data folder, for commands that run beside a service."""
    from logdoctor.store.learned import LearnedRules

    return LearnedRules(records(settings).database)


def guards(settings: Settings, book: RuleBook, records: "Records") -> "FilterGuards":
    """What no learned rule may take: all causes that are known, and all evidence that a verdict ever cited."""
    from logdoctor.log_agent.guards import FilterGuards
    from logdoctor.log_agent.life import quotes

    past: list[str] = []
    last = 0
    while page := records.evidence_after(last, 1000):
        past += [line for _, evidence in page for line in quotes(evidence)]
        last = page[-1][0]
    return FilterGuards(known_causes(settings, book), past)


def known_causes(settings: Settings, book: RuleBook) -> tuple[str, ...]:
    """Return lines of all causes that are known, which no learned rule may take."""
    from logdoctor.log_agent.canary import causes

    return tuple(causes(book, rules_folder(settings) / "canary"))


def diagnosis_guards(scanner: Scanner, records: "Records") -> "DiagnosisGuards":
    """What a learned diagnosis rule must pass, tried on the attempts that are kept."""
    from logdoctor.failure_agent.write_back.guards import DiagnosisGuards
    from logdoctor.store.confirmed import Confirmed

    return DiagnosisGuards(scanner.book, scanner, Confirmed(records.database).past)


def log_agent(
    settings: Settings, scanner: Scanner, records: "Records", rules: "LearnedRules", model: Model | None = None
) -> "LogAgent":
    """Who learns filter rules: the miner, which a model advises when one is set, or the model alone. `SettingsError`
    for one that is half set."""
    from logdoctor.log_agent.agent import LearningLimits, LogAgent
    from logdoctor.log_agent.book import Books
    from logdoctor.log_agent.life import WatchTerms
    from logdoctor.store.exchanges import Exchanges
    from logdoctor.store.model_calls import ModelCalls

    def asked() -> "Guarded":
        return (model or Model(settings))(ModelCalls(records.database), Exchanges(records.database))

    writer, adviser = rule_writers(settings, asked)
    terms = WatchTerms(settings.learn_jobs, settings.learn_lines)
    learning = LearningLimits(settings.learn_runs, terms)
    guarding = guards(settings, scanner.book, records)
    return LogAgent(Books(scanner, rules), rules, writer, guarding, learning, adviser)


def rule_writers(settings: Settings, model: Callable[[], "Guarded"]) -> tuple["Agent", "Agent | None"]:
    """Return what writes filter rules according to the settings, and what advises it. The model is constructed on first
    use."""
    from logdoctor.log_agent.miner import Miner

    if settings.learn == "model":
        return model_agent(settings, model()), None
    advised = settings.learn == "auto" and bool(settings.llm_base_url)
    return Miner(), model_agent(settings, model()) if advised else None


def undiagnosing(settings: Settings) -> Scanner:
    """Return the filter rules without diagnosis rules, to measure learning from nothing."""
    book = RuleBook(rule_book(settings).filters, rules_folder(settings) / "knowledge")
    return Scanner(book, cache_folder(settings))


def unlearned(settings: Settings) -> tuple[Scanner, "FilterGuards"]:
    """Return the diagnosis rules without filter rules, and the guards of learned rules, to measure the quality of
    learning."""
    from logdoctor.log_agent.canary import causes
    from logdoctor.log_agent.guards import FilterGuards

    book = rule_book(settings)
    scanner = Scanner(book.without_filters(), cache_folder(settings))
    return scanner, FilterGuards(causes(book, rules_folder(settings) / "canary"))


def guarded(
    settings: Settings, ledger: "Ledger", exchanges: "AnyExchanges | None" = None, bears_nonsense: bool = False
) -> "Guarded":
    """Return the model of the settings behind its budget and breaker, with the stored exchanges. All callers share
    one."""
    from logdoctor.llm.langchain import LangChainModel
    from logdoctor.llm.masking import Masker
    from logdoctor.llm.spending import Budget, Guarded

    for name in ("llm_base_url", "llm_model"):
        if not getattr(settings, name):
            variable = f"{PREFIX}{name.upper()}"
            raise SettingsError(variable, "is not set, but a model is needed", "Set it, or LOGDOCTOR_LEARN=miner.")
    require_library("langchain")  # it is imported at the first call, which is too late to say so
    key = llm_key(settings)
    model = LangChainModel(settings.llm_base_url, settings.llm_model, key, settings.llm_output, settings.llm_seconds)
    budget = Budget(
        settings.llm_calls_per_job,
        settings.llm_calls_per_hour,
        settings.llm_tokens_per_hour,
        settings.llm_dollars_in,
        settings.llm_dollars_out,
        settings.llm_tokens_per_job,
        settings.llm_tokens_per_day,
        settings.llm_tokens_in_all,
        settings.llm_dollars_per_day,
        settings.llm_dollars_in_all,
    )
    masker = partial(Masker, settings.mask_hosts, settings.mask_ips, secrets=settings.mask == "on")
    return Guarded(model, ledger, budget, exchanges=exchanges, key=key, bears_nonsense=bears_nonsense, masker=masker)


def agent_to_measure(settings: Settings, exchanges: "AnyExchanges") -> "FailureAgent":
    """Return the Failure Agent with the model of the settings, without past cases, with a budget that no measurement
    exhausts.

    Nonsense does not stop it either: how often a model talks nonsense is part of what is measured.
    """
    from logdoctor.failure_agent.cases.embedding import SentenceEmbedder
    from logdoctor.llm.spending import MemoryLedger

    endless = dict.fromkeys(("llm_calls_per_job", "llm_calls_per_hour", "llm_tokens_per_hour"), 10**12)
    endless |= dict.fromkeys(("llm_tokens_per_job", "llm_tokens_per_day"), 10**12)
    none = {"llm_tokens_in_all": 0, "llm_dollars_per_day": 0.0, "llm_dollars_in_all": 0.0}
    settings = msgspec.structs.replace(settings, **endless, **none)
    embedder = SentenceEmbedder(settings.embedding_model)
    model = guarded(settings, MemoryLedger(), exchanges, bears_nonsense=True)
    return failure_agent(settings, model, None, embedder)


def model_agent(settings: Settings, model: "Guarded") -> "ModelAgent":
    """Return the Log Agent that asks a model."""
    from logdoctor.log_agent.model import ModelAgent

    return ModelAgent(model, prompts_folder(settings))


def session_key(folder: Path) -> str:
    """Return the key that signs browser sessions; create it on first use."""
    path = folder / "session.key"
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    return path.read_text()
